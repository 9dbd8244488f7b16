"""The contract that both pools keep, in words and types."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ngram_pool.calibration import Calibration
from ngram_pool.proposal import Offer, Proposal

__all__ = ["Pool", "PoolStats", "Tokens"]

Tokens = Sequence[int] | NDArray[np.integer[Any]]


class PoolStats(NamedTuple):
    """What a pool holds."""

    tokens: int  # of the text that are kept
    states: int  # of the suffix automaton, the root included
    rows: int  # recycled rows; a pair of tokens and a single token count as one key each
    bytes: int  # memory reserved; for DictPool a rough guess


class Pool(Protocol):
    """Text seen by one sequence, and what the target thought of it; proposes draft trees.

    A pool belongs to one sequence and one thread at a time; its calibration may be shared. The
    answer of every method depends only on the calls made before, never on how tokens were grouped
    into calls.
    """

    calibration: Calibration

    def extend(self, tokens: Tokens) -> None:
        """Append tokens to the text; beyond ``max_tokens`` only the most recent half is kept."""
        ...

    def recycle(
        self,
        previous: ArrayLike,
        tokens: ArrayLike,
        top_tokens: ArrayLike,
        top_probs: ArrayLike,
        *,
        renew: bool = True,
    ) -> None:
        """Remember the target's top tokens after pairs of tokens; the newest row of a key wins."""
        ...

    def propose(
        self,
        max_nodes: int,
        *,
        costs: ArrayLike | None = None,
        trust: float = 1.0,
        max_depth: int = 24,
        min_probability: float = 0.01,
        ngrams: bool = True,
        recycled: bool = True,
        offers: Sequence[Offer] = (),
        noise: ArrayLike | None = None,
        chain: bool = False,
    ) -> Proposal:
        """Grow a draft tree behind the last token; changes nothing."""
        ...

    def learn(self, proposal: Proposal, path: Sequence[int], chosen: Sequence[int]) -> None:
        """Tell the calibration which nodes of a proposal the target accepted."""
        ...

    def __len__(self) -> int:
        """Return the number of tokens kept."""
        ...

    def longest_match(self) -> int:
        """Length of the longest suffix of the text that also occurs earlier in it."""
        ...

    def clear(self) -> None:
        """Forget text and rows; the calibration stays."""
        ...

    def stats(self) -> PoolStats:
        """Return what the pool holds."""
        ...

    def save(self, path: str | PathLike[str]) -> None:
        """Write text, rows and calibration to one file, aside first, then renamed."""
        ...

    @classmethod
    def load(cls, path: str | PathLike[str], calibration: Calibration | None = None) -> Self:
        """Read what ``save`` of either kind of pool wrote."""
        ...
