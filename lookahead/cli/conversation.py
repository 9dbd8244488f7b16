"""A conversation of several turns that keeps the K/V of earlier turns.

Knows token ids, the chat template and the cache that ``generate`` hands back. Whether the model is
accelerated makes no difference here. What is re-used is decided by comparing ids, never text: a
template or a tokenizer that writes an earlier answer in other ids costs a shorter re-use, not a
wrong one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lookahead.cli.streaming import TextStream
from lookahead.errors import LookaheadError


class ContextFullError(LookaheadError):
    """The conversation no longer fits into the model's context."""


@dataclass(frozen=True)
class Reply:
    """One answer.

    Attributes
    ----------
    text : str
    new_ids : list of int
        The end token included, where there is one.
    seconds : float
        Wall time of the call, prefill included.
    num_reused : int
        Ids of the prompt whose K/V came from earlier turns.
    stats : DecodeStats or None
        ``None`` for a plain answer.
    is_interrupted : bool
        True where Ctrl-C ended it.
    """

    text: str
    new_ids: list[int]
    seconds: float
    num_reused: int
    stats: Any
    is_interrupted: bool = False

    def summary(self) -> str:
        """Tokens, seconds, tokens/s, MAT, and the share of tokens by source."""
        num_tokens = len(self.new_ids)
        rate = num_tokens / self.seconds if self.seconds else 0.0
        line = f"{num_tokens} tokens, {self.seconds:.2f} s, {rate:.1f} tokens/s"
        if self.is_interrupted:
            return f"{line}, stopped"
        if self.stats is None or not self.stats.accelerated:
            return f"{line}, MAT 1.00, plain"
        total = max(1, num_tokens)
        names = {"ngrams": "n-grams", "exit": "early exit"}
        # A token that two sources guessed counts for both, so these may add up to more.
        guessed = ", ".join(
            f"{names.get(name, name)} {source.accepted / total:.0%}"
            for name, source in self.stats.by_source.items()
        )
        drafted = self.stats.accepted / total
        return (
            f"{line}, MAT {self.stats.mean_acceptance_length:.2f}, drafted {drafted:.0%} "
            f"({guessed}), target's own {1 - drafted:.0%}"
        )


class Transcript:
    """The turns so far, as the ids that the model is to read.

    Parameters
    ----------
    tokenizer : tokenizer
    use_template : bool
        False, or a tokenizer without a chat template, joins the turns as they are, line by line.
    """

    def __init__(self, tokenizer: Any, *, use_template: bool = True) -> None:
        self.tokenizer = tokenizer
        self.has_template = use_template and bool(getattr(tokenizer, "chat_template", None))
        self._messages: list[dict[str, str]] = []
        self._ids: list[int] = []

    def prompt_ids(self, text: str) -> list[int]:
        """Ids of everything up to the point where the answer to ``text`` begins."""
        if self.has_template:
            messages = [*self._messages, {"role": "user", "content": text}]
            written = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            return self._encode(written, is_start=False)
        if not self._ids:
            return self._encode(text, is_start=True)
        return self._ids + self._encode(f"\n{text}\n", is_start=False)

    def add(self, text: str, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> str:
        """Take in a finished turn and give the answer as text."""
        answer = self.decode(answer_ids)
        if self.has_template:
            self._messages += [
                {"role": "user", "content": text},
                {"role": "assistant", "content": answer},
            ]
        special = set(self.tokenizer.all_special_ids)
        kept = list(answer_ids)
        while kept and kept[-1] in special:
            kept.pop()
        self._ids = [*prompt_ids, *kept]
        return answer

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` without special tokens."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def _encode(self, text: str, *, is_start: bool) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=is_start)["input_ids"]
        return ids


class KeptCache:
    """The cache of the last call and the ids whose K/V it holds."""

    def __init__(self) -> None:
        self.cache: Any = None
        self.ids: list[int] = []

    def put(self, ids: Sequence[int], cache: Any) -> None:
        """Keep ``cache``, which ``generate`` left after writing ``ids``."""
        self.cache = cache
        self.ids = [] if cache is None else list(ids)[: int(cache.get_seq_length())]

    def drop(self) -> None:
        """Forget the cache."""
        self.cache, self.ids = None, []

    def take(self, prompt_ids: Sequence[int]) -> Any:
        """Give the cache cut back to what ``prompt_ids`` begins with, or ``None``.

        At least the last id of the prompt is left to be read, since its logits are needed. The
        cache is given away: it belongs to the caller until :meth:`put`.
        """
        cache, ids = self.cache, self.ids
        self.drop()
        num_same = num_common(ids, prompt_ids[:-1])
        if cache is None or num_same == 0:
            return None
        if num_same < len(ids):
            if not getattr(cache, "is_croppable", True):
                return None
            try:
                cache.crop(num_same - len(ids))
            except (RuntimeError, ValueError, NotImplementedError):
                # Sliding windows that have moved on cannot be rolled back; read the prompt anew.
                return None
        return cache if int(cache.get_seq_length()) == num_same else None


class Conversation:
    """Ask a model, turn by turn.

    Parameters
    ----------
    model, tokenizer
        As :func:`lookahead.hf.default_model.load_model` gives them, accelerated or not.
    use_template : bool
        See :class:`Transcript`.
    """

    def __init__(self, model: Any, tokenizer: Any, *, use_template: bool = True) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._use_template = use_template
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.transcript = Transcript(self.tokenizer, use_template=self._use_template)
        self.kept = KeptCache()

    def ask(self, text: str, on_text: Callable[[str], None] | None = None, **options: Any) -> Reply:
        """Answer ``text`` in the light of the turns before it.

        Parameters
        ----------
        text : str
            What the user says.
        on_text : callable, optional
            Called with each new piece of the answer as it comes.
        **options
            Passed to ``generate``.

        Returns
        -------
        Reply
            With ``is_interrupted`` set if Ctrl-C came: what was written so far stays in the
            conversation, the cache does not.

        Raises
        ------
        ContextFullError
            If the turns so far leave no room for an answer.
        """
        prompt_ids = self.transcript.prompt_ids(text)
        options = self._within_context(len(prompt_ids), options)
        cache = self.kept.take(prompt_ids)
        num_reused = 0 if cache is None else int(cache.get_seq_length())
        stream = TextStream(self.tokenizer, on_text)
        start = time.perf_counter()
        is_interrupted = False
        try:
            result = generate_ids(self.model, prompt_ids, cache, streamer=stream, **options)
            new_ids, cache = result.new_ids, result.cache
        except KeyboardInterrupt:
            stream.end()
            new_ids, cache, is_interrupted = stream.new_ids, None, True
        seconds = time.perf_counter() - start
        self.kept.put([*prompt_ids, *new_ids], cache)
        answer = self.transcript.add(text, prompt_ids, new_ids)
        stats = None if is_interrupted else result.stats
        return Reply(answer, list(new_ids), seconds, num_reused, stats, is_interrupted)

    def _within_context(self, num_prompt: int, options: dict[str, Any]) -> dict[str, Any]:
        """Shorten ``max_new_tokens`` to the room that is left."""
        limit = getattr(self.model.config, "max_position_embeddings", None)
        if limit is None:
            return options
        room = int(limit) - num_prompt
        if room < 1:
            raise ContextFullError(
                f"the prompt has {num_prompt} tokens and the model's context ends at {limit}; "
                "give it a shorter one."
            )
        return {**options, "max_new_tokens": min(room, options.get("max_new_tokens", room))}


@dataclass(frozen=True)
class Generated:
    """What one call of ``generate`` gave: new ids, the cache, statistics if it was accelerated."""

    new_ids: list[int]
    cache: Any
    stats: Any


def generate_ids(model: Any, prompt_ids: Sequence[int], cache: Any, **options: Any) -> Generated:
    """Call ``model.generate`` for one sequence of ids, with the cache passed in and out."""
    import torch

    from lookahead.hf.compat import cache_argument

    name = cache_argument(model)
    if cache is not None:
        options[name] = cache
    ids = torch.tensor([list(prompt_ids)], device=model.device)
    result = model.generate(
        ids, attention_mask=torch.ones_like(ids), return_dict_in_generate=True, **options
    )
    new_ids = result.sequences[0, len(prompt_ids) :].tolist()
    stats = getattr(result, "lookahead_stats", None)
    return Generated(new_ids, getattr(result, name, None), stats)


def num_common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common beginning of two sequences of ids."""
    length = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        length += 1
    return length
