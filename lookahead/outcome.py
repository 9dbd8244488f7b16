"""What a pass showed, as handed to whoever learns from it. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lookahead.tree import DraftTree

__all__ = ["Outcome", "PassRows", "PromptRows"]


@dataclass(frozen=True)
class PassRows:
    """What one pass computed for the root and the nodes of one sequence, and for its window.

    Parameters
    ----------
    logits : Tensor, float32, [rows, vocab]
        The target's logits after each row.
    hidden : Tensor, float, [rows, width], or None
        What the output layer was given for each row; None where a model does not show it.
    window_tokens : list of int, or None
        The target's best token after each row of the last level of the window; None where no
        window was run.
    num_again : int
        Committed tokens that the pass had to read again.
    """

    logits: Tensor
    hidden: Tensor | None = None
    window_tokens: list[int] | None = None
    num_again: int = 0


@dataclass(frozen=True)
class Outcome:
    """What became of a step, for a drafter to learn from.

    Parameters
    ----------
    tree : DraftTree
        The verified tree: the guesses of all drafters, merged.
    path : list of int
        Accepted nodes in order, root first.
    chosen : list of int
        The target's token after each node of the path.
    context : list of int
        Committed tokens after the step. Not to be changed.
    logits : Tensor, float, [nodes + 1, vocab]
        The target's logits after each node, rejected ones included.
    hidden : Tensor, float, [nodes + 1, width], or None
        What the output layer was given for each node, in the dtype of the model.
    window_tokens : list of int, or None
        The target's best token after each row of the last level of the lookahead window.
    """

    tree: DraftTree
    path: list[int]
    chosen: list[int]
    context: list[int]
    logits: Tensor
    hidden: Tensor | None = None
    window_tokens: list[int] | None = None

    @property
    def before(self) -> list[int]:
        """Committed tokens before the step."""
        return self.context[: len(self.context) - len(self.chosen)]


@dataclass(frozen=True)
class PromptRows:
    """Logits after positions of the prompt.

    Parameters
    ----------
    previous, tokens : list of int, [rows]
        The token at each position, and the one before it (-1 at the start).
    logits : Tensor, float, [rows, vocab]
    """

    previous: list[int]
    tokens: list[int]
    logits: Tensor
