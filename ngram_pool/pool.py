"""NgramPool: the checked front of the kernels."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from ngram_pool import ready, storage
from ngram_pool.arrays import FIRST_TOKENS, RowStore, TextStore
from ngram_pool.base import PoolStats, Tokens
from ngram_pool.calibration import Calibration
from ngram_pool.checks import (
    bad_token,
    check_limits,
    check_sizes,
    row_batch,
    token_array,
    tokens_after,
)
from ngram_pool.layout import (
    DEFAULT_MAX_ROWS,
    DEFAULT_MAX_TOKENS,
    LAST,
    LENGTH,
    LINK,
    MAX_TOKEN,
    NONE,
    NUM_STATES,
    Int64Array,
)
from ngram_pool.proposal import Offer, Proposal, flatten

__all__ = ["NgramPool"]


class NgramPool:
    """The pool on compiled kernels; see ``Pool`` for the contract.

    Parameters
    ----------
    calibration : Calibration, optional
        Shared by all pools of one model; a new one if left out.
    max_tokens : int
        Tokens kept; beyond it the pool is rebuilt from the most recent half.
    max_rows : int
        Keys of recycled rows kept; beyond it the key entered first is forgotten.

    Raises
    ------
    ValueError
        If a bound is below 2.
    RuntimeError
        If there are no kernels; waits for a compiler if they are not ready (``new_pool`` does not).

    Notes
    -----
    **Source**: suffix automaton, Blumer et al. 1985; as a drafter, SAM decoding (Hu et al. 2024).
    Recycled rows: Token Recycling (Luo et al. 2024), here with probabilities and token pairs. The
    tree grown best first on calibrated probabilities is our own.

    Examples
    --------
    >>> import ngram_pool
    >>> pool = ngram_pool.DictPool()  # the same interface
    >>> pool.extend([5, 6, 7, 8, 5, 6])
    >>> pool.propose(2).tokens.tolist()
    [6, 7, 8]
    """

    # Of the class, so that pools can be copied and pickled.
    _kernels: ClassVar[Any] = None

    def __init__(
        self,
        calibration: Calibration | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        max_rows: int = DEFAULT_MAX_ROWS,
    ) -> None:
        check_sizes(max_tokens, max_rows)
        NgramPool._kernels = ready.require_kernels()
        self.calibration = Calibration() if calibration is None else calibration
        self.max_tokens = int(max_tokens)
        self.max_rows = int(max_rows)
        self.clear()

    def clear(self) -> None:
        """Forget text and rows; the calibration stays."""
        self._text = TextStore(self._kernels, min(FIRST_TOKENS, self.max_tokens))
        self._rows = RowStore(self.max_rows)

    def extend(self, tokens: Tokens) -> None:
        """Append tokens to the text; beyond ``max_tokens`` only the most recent half is kept.

        Parameters
        ----------
        tokens : list or array of int, [tokens]
            From 0 to 2**31 - 1.

        Raises
        ------
        ValueError
            If a token is out of range or no integer; nothing is appended then.
        """
        added = token_array(tokens)
        text = self._text
        if text.num_tokens + added.size > self.max_tokens:
            self._rebuild(added, tokens)
            return
        done = text.append(self._kernels, added, self.max_tokens)
        if done != added.size:
            raise bad_token(tokens, done)

    def recycle(
        self,
        previous: ArrayLike,
        tokens: ArrayLike,
        top_tokens: ArrayLike,
        top_probs: ArrayLike,
        *,
        renew: bool = True,
    ) -> None:
        """Remember the target's top tokens after pairs of tokens; the newest row of a key wins.

        Parameters
        ----------
        previous : array, int, [rows]
            Token before the last one; -1 where unknown, then only the last one is the key.
        tokens : array, int, [rows]
            Last token.
        top_tokens : array, int, [rows, k]
            Most likely first; the first 8 are kept; what is no token (-1) is padding.
        top_probs : array, float32, [rows, k]
            Their probabilities.
        renew : bool
            Whether a key that has a row gets the new one; False for rows older than those.

        Raises
        ------
        ValueError
            If shapes do not fit or a key is out of range.
        """
        batch = row_batch(previous, tokens, top_tokens, top_probs)
        rows = self._rows
        rows.reserve(self._kernels, 2 * batch.tokens.size)
        self._kernels._recycle(
            rows.header,
            rows.keys,
            rows.tokens,
            rows.probs,
            rows.slots,
            self.max_rows,
            renew,
            *batch,
        )

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
        """Grow a draft tree behind the last token; changes nothing.

        Parameters
        ----------
        max_nodes : int
            Most drafted nodes, root not counted.
        costs : array, float32, [max_nodes + 1], optional
            Relative time of a pass with that many drafted nodes; the tree is cut where expected
            tokens per time are highest.
        trust : float
            Share of their probabilities that is believed when the tree is cut, 0 to 1.
        max_depth : int
            Deepest node.
        min_probability : float
            Least path probability of a node.
        ngrams, recycled : bool
            Whether these sources are asked.
        offers : sequence of Offer
            Trees of other drafters, at most one per source.
        noise : array, float32, [depths, tokens], optional
            Where tokens are drawn: what their probabilities will be divided by at each of the next
            draws, the largest quotient winning. Tokens beyond it, and depths, count as unknown.
        chain : bool
            Grow one branch only: behind each node the best continuation, and no other.

        Returns
        -------
        Proposal

        Raises
        ------
        ValueError
            If a number is negative, costs do not fit, or two offers share a source.
        """
        limits = check_limits(max_nodes, max_depth, min_probability, costs, trust, noise)
        text, rows, calibration = self._text, self._rows, self.calibration
        length = text.num_tokens
        out = np.empty((3, max_nodes + 1), np.int64)
        probs = np.empty(max_nodes + 1, np.float32)
        lifts = np.empty(max_nodes + 1, np.float32)
        buckets = np.empty(max_nodes + 1, np.int32)
        sources = np.empty(max_nodes + 1, np.uint16)
        num_nodes = self._kernels._propose(
            text.header,
            text.states,
            text.edges,
            text.slots,
            rows.header,
            rows.keys,
            rows.tokens,
            rows.probs,
            rows.slots,
            calibration.counts,
            calibration.priors,
            *flatten(offers),
            ngrams,
            recycled and length > 0,
            text.stream[length - 3] if length > 2 else NONE,
            text.stream[length - 2] if length > 1 else NONE,
            text.stream[length - 1] if length else 0,
            max_nodes,
            max_depth,
            min_probability,
            chain,
            limits.costs,
            limits.trust,
            limits.noise,
            out,
            probs,
            lifts,
            buckets,
            sources,
        )
        tokens, parents, depths = out[:, :num_nodes]
        return Proposal(
            tokens,
            parents,
            depths,
            probs[:num_nodes],
            lifts[:num_nodes],
            buckets[:num_nodes],
            sources[:num_nodes],
        )

    def learn(self, proposal: Proposal, path: Sequence[int], chosen: Sequence[int]) -> None:
        """Tell the calibration which nodes of a proposal the target accepted.

        Parameters
        ----------
        proposal : Proposal
            Of this pool.
        path : sequence of int
            Accepted nodes in order, the root (0) first.
        chosen : sequence of int
            The target's token after each node of the path.

        Raises
        ------
        ValueError
            If the path is none of the proposal, or has another length than ``chosen``.
        """
        self.calibration.learn(proposal, path, chosen)

    def __len__(self) -> int:
        """Return the number of tokens kept."""
        return self._text.num_tokens

    def longest_match(self) -> int:
        """Length of the longest suffix of the text that also occurs earlier in it, in tokens."""
        text = self._text
        link = text.states[text.header[LAST], LINK]
        return 0 if link == NONE else int(text.states[link, LENGTH])

    def stats(self) -> PoolStats:
        """Return what the pool holds."""
        text, rows = self._text, self._rows
        size = text.num_bytes() + rows.num_bytes()
        return PoolStats(text.num_tokens, int(text.header[NUM_STATES]), len(rows), size)

    def save(self, path: str | PathLike[str]) -> None:
        """Write text, rows and calibration to one file, aside first, then renamed.

        Raises
        ------
        OSError
            If the file cannot be written; an older one is left as it was.
        """
        text, rows = self._text, self._rows
        order = rows.order()
        saved = storage.SavedPool(
            self.max_tokens,
            self.max_rows,
            text.stream[: text.num_tokens],
            rows.keys[order],
            rows.tokens[order],
            rows.probs[order],
        )
        storage.write(path, saved, self.calibration)

    @classmethod
    def load(cls, path: str | PathLike[str], calibration: Calibration | None = None) -> Self:
        """Read what ``save`` of either kind of pool wrote.

        Parameters
        ----------
        path : path
            File to read.
        calibration : Calibration, optional
            Used in place of the stored one.

        Raises
        ------
        PoolFileError
            If the file cannot be read, is damaged, or is no pool.
        """
        saved, stored = storage.read(path)
        pool = cls(stored if calibration is None else calibration, saved.max_tokens, saved.max_rows)
        pool.extend(saved.tokens)
        pool._rows.restore(cls._kernels, saved.keys, saved.row_tokens, saved.row_probs)
        return pool

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a pickled pool, maybe in a process that has no kernels yet."""
        NgramPool._kernels = ready.require_kernels()
        vars(self).update(state)

    def _rebuild(self, added: Int64Array, tokens: Tokens) -> None:
        """Start again from the tokens that remain after an overflow."""
        bad = np.flatnonzero((added < 0) | (added > MAX_TOKEN))
        if bad.size:
            raise bad_token(tokens, int(bad[0]))
        old = self._text
        kept = tokens_after(old.num_tokens, added.size, self.max_tokens)
        text = np.concatenate([old.stream[: old.num_tokens].astype(np.int64), added])[-kept:]
        self._text = TextStore(self._kernels, old.capacity)
        self._text.append(self._kernels, text, self.max_tokens)
