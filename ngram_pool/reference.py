"""DictPool: NgramPool in plain Python. Oracle of the tests; serves until the kernels are ready."""

from collections.abc import Sequence
from os import PathLike
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike

from ngram_pool import storage
from ngram_pool.base import PoolStats, Tokens
from ngram_pool.calibration import Calibration
from ngram_pool.checks import (
    bad_token,
    check_limits,
    check_sizes,
    first_bad,
    row_batch,
    token_array,
    tokens_after,
)
from ngram_pool.layout import DEFAULT_MAX_ROWS, DEFAULT_MAX_TOKENS, MAX_TOKEN, NONE, ROW_WIDTH
from ngram_pool.proposal import Offer, Proposal, flatten
from ngram_pool.reference_grow import Grower
from ngram_pool.reference_text import Row, Rows, Text

__all__ = ["DictPool"]

# Rough sizes, for stats only.
STATE_BYTES: Final = 600
ROW_BYTES: Final = 1_000


class DictPool:
    """The pool in plain Python; parameters and methods are those of ``NgramPool``.

    Examples
    --------
    >>> import ngram_pool
    >>> pool = ngram_pool.DictPool()
    >>> pool.extend([1, 2, 3, 1, 2])
    >>> pool.longest_match()
    2
    >>> proposal = pool.propose(1)
    >>> proposal.tokens.tolist(), proposal.parents.tolist()
    ([2, 3], [0, 0])
    """

    def __init__(
        self,
        calibration: Calibration | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        max_rows: int = DEFAULT_MAX_ROWS,
    ) -> None:
        check_sizes(max_tokens, max_rows)
        self.calibration = Calibration() if calibration is None else calibration
        self.max_tokens = int(max_tokens)
        self.max_rows = int(max_rows)
        self.clear()

    def clear(self) -> None:
        """Forget text and rows; the calibration stays."""
        self._tokens: list[int] = []
        self._text = Text()
        self._rows = Rows(self.max_rows)

    def extend(self, tokens: Tokens) -> None:
        """Append tokens to the text; see ``NgramPool.extend``."""
        added = token_array(tokens).tolist()
        bad = first_bad(added)
        if bad is not None:
            raise bad_token(tokens, bad)
        if len(self._tokens) + len(added) > self.max_tokens:
            kept = tokens_after(len(self._tokens), len(added), self.max_tokens)
            added = (self._tokens + added)[-kept:]
            self._tokens = []
            self._text = Text()
        for token in added:
            self._text.append(token)
        self._tokens += added

    def recycle(
        self,
        previous: ArrayLike,
        tokens: ArrayLike,
        top_tokens: ArrayLike,
        top_probs: ArrayLike,
        *,
        renew: bool = True,
    ) -> None:
        """Remember the target's top tokens after pairs; see ``NgramPool.recycle``."""
        batch = row_batch(previous, tokens, top_tokens, top_probs)
        for before, token, wanted, probs in zip(*(a.tolist() for a in batch), strict=True):
            places = [
                (rank, wanted[rank], min(probs[rank], 1.0))
                for rank in range(min(ROW_WIDTH, len(wanted)))
                if 0 <= wanted[rank] <= MAX_TOKEN and probs[rank] > 0.0
            ]
            if before != NONE:
                self._rows.store(before, token, Row(places), renew=renew)
            self._rows.store(None, token, Row(places), renew=renew)

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
        """Grow a draft tree behind the last token; see ``NgramPool.propose``."""
        limits = check_limits(max_nodes, max_depth, min_probability, costs, trust, noise)
        flatten(offers)  # refuses two offers of one source
        text = self._tokens
        grower = Grower(
            self._text if ngrams else None,
            self._rows if recycled and text else None,
            offers,
            self.calibration,
        )
        earlier = [None, None, *text[-3:-1]][-2:]
        return grower.grow(earlier, text[-1] if text else 0, limits, chain=chain)

    def learn(self, proposal: Proposal, path: Sequence[int], chosen: Sequence[int]) -> None:
        """Tell the calibration what was accepted; see ``NgramPool.learn``."""
        self.calibration.learn(proposal, path, chosen)

    def __len__(self) -> int:
        """Return the number of tokens kept."""
        return len(self._tokens)

    def longest_match(self) -> int:
        """Length of the longest suffix of the text that also occurs earlier in it, in tokens."""
        link = self._text.last.link
        return 0 if link is None else link.length

    def stats(self) -> PoolStats:
        """Return what the pool holds; ``bytes`` is a rough guess."""
        states, rows = self._text.num_states, len(self._rows.rows)
        size = 8 * len(self._tokens) + STATE_BYTES * states + ROW_BYTES * rows
        return PoolStats(len(self._tokens), states, rows, size)

    def save(self, path: str | PathLike[str]) -> None:
        """Write text, rows and calibration to one file; see ``NgramPool.save``."""
        rows = self._rows.rows
        row_tokens = np.full((len(rows), ROW_WIDTH), NONE, np.int32)
        row_probs = np.zeros((len(rows), ROW_WIDTH), np.float32)
        for i, row in enumerate(rows.values()):
            for rank, token, probability in row.places:
                row_tokens[i, rank] = token
                row_probs[i, rank] = probability
        keys = [(NONE if previous is None else previous, token) for previous, token in rows]
        saved = storage.SavedPool(
            self.max_tokens,
            self.max_rows,
            np.array(self._tokens, np.int32),
            np.array(keys, np.int32).reshape(-1, 2),
            row_tokens,
            row_probs,
        )
        storage.write(path, saved, self.calibration)

    @classmethod
    def load(cls, path: str | PathLike[str], calibration: Calibration | None = None) -> Self:
        """Read what ``save`` of either kind of pool wrote; see ``NgramPool.load``."""
        saved, stored = storage.read(path)
        pool = cls(stored if calibration is None else calibration, saved.max_tokens, saved.max_rows)
        pool.extend(saved.tokens)
        for key, tokens, probs in zip(
            saved.keys.tolist(), saved.row_tokens.tolist(), saved.row_probs.tolist(), strict=True
        ):
            places = [
                (rank, tokens[rank], probs[rank])
                for rank in range(ROW_WIDTH)
                if tokens[rank] != NONE
            ]
            pool._rows.store(None if key[0] == NONE else key[0], key[1], Row(places), renew=True)
        return pool
