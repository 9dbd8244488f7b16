"""The settings of an accelerated model: frozen, and checked when they are made.

Every default is meant to be left alone; each field says what it trades.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from lookahead.errors import ConfigError

__all__ = ["MAX_NODES", "SOURCES", "Config"]

#: Sources that the package itself knows, in the order in which statistics name them.
SOURCES = ("ngrams", "recycled", "head", "exit")
#: Those that are used where nothing else is said: early exit costs passes and rarely pays.
DEFAULT_SOURCES = SOURCES[:3]

#: Most columns of a window, longest n-gram, most guesses behind a token, most rows of a pass.
MAX_COLUMNS, MAX_NGRAM, MAX_GUESSES, MAX_WINDOW_ROWS = 128, 16, 128, 256

#: No tree is ever larger: past this, masks and bookkeeping cost more than any guess returns.
MAX_NODES = 256


@dataclass(frozen=True)
class Config:
    """How an accelerated model drafts.

    Parameters
    ----------
    nodes : "auto" or int
        Draft budget: the most nodes of a tree, root not counted. ``"auto"`` lets the measured
        cost of a pass decide, up to ``max_nodes``; 0 is plain decoding in our loop.
    max_nodes : int
        Upper end of ``"auto"``, in nodes.
    max_depth : int
        Longest guess, in tokens. Longer pays on copied text only.
    sources : tuple of str
        Built-in sources to use, of :data:`SOURCES`.
    exit_layer : "auto" or int
        How many of the first layers the source ``"exit"`` drafts with; the answer is always that
        of all layers. ``"auto"`` chooses by what was right and what it cost, 0 included.
    drafters : tuple
        The user's own :class:`~lookahead.drafters.Drafter` objects, or factories that make one
        for each sequence.
    recycle_prompt : "auto" or int
        How many of the last prompt positions have their next-token candidates read out, for one
        row of the output layer each. ``"auto"`` is 512 where there is no head, and none where
        there is one, which guesses as well without.
    remember : bool or "calibrated"
        Whether what is learnt about the model (cost curve, sums of the head; no text) is read
        from the user's cache and saved there. ``"calibrated"`` reads what ``lookahead calibrate``
        made and saves nothing, so that runs can be repeated.
    window : None, "auto" or tuple of three int
        The Jacobi lookahead window: its columns, the length of its n-grams and the most guesses
        behind a token (W, N and G of the paper). ``"auto"`` chooses the width, 0 included, by
        what rows cost and its n-grams earned; None or 0 is no window.
    prepack : "auto" or bool
        Whether accelerated passes on a CPU use copies of the model's matrices in the order in
        which the processor reads them. They take as much memory as the weights do; ``"auto"``
        makes them where they are faster and take at most a quarter of the memory now free.
    fuse : "auto" or bool
        Whether accelerated passes on a CPU run the small operations between the matrix products
        of a layer in a few native functions. A compiler makes them once for a kind of model, in
        some seconds, in the background and for later calls; ``"auto"`` has it do so when the model
        has been used for a while and a compiler is there, True waits for it.
    quantize : None, "int8" or "int4"
        Quantise the weights of the decoder layers, those of the model itself, until
        :func:`~lookahead.restore` or the end of the block. Text is then that of the quantised
        model: exactly what it generates plainly, but not what the model with all its bits does.
    strict : bool
        Raise :class:`~lookahead.errors.UnsupportedError` where a run would otherwise be plain.

    Raises
    ------
    ConfigError
        If a value is outside its range; the message names the option, the value and the range.
    """

    nodes: int | Literal["auto"] = "auto"
    max_nodes: int = 16
    max_depth: int = 24
    sources: tuple[str, ...] = DEFAULT_SOURCES
    exit_layer: int | Literal["auto"] = "auto"
    drafters: tuple[Any | Callable[[], Any], ...] = ()
    recycle_prompt: int | Literal["auto"] = "auto"
    remember: bool | Literal["calibrated"] = True
    window: tuple[int, int, int] | Literal["auto", 0] | None = None
    prepack: bool | Literal["auto"] = "auto"
    fuse: bool | Literal["auto"] = "auto"
    quantize: Literal["int8", "int4"] | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if self.nodes != "auto":
            _check_int("nodes", self.nodes, 0, MAX_NODES, '"auto" or ')
        _check_int("max_nodes", self.max_nodes, 0, MAX_NODES)
        _check_int("max_depth", self.max_depth, 1, MAX_NODES)
        if self.recycle_prompt != "auto":
            _check_int("recycle_prompt", self.recycle_prompt, 0, 2**20, '"auto" or ')
        if not isinstance(self.remember, bool) and self.remember != "calibrated":
            raise ConfigError(
                f'remember must be True, False or "calibrated", not {self.remember!r}.'
            )
        if self.exit_layer != "auto":
            _check_int("exit_layer", self.exit_layer, 1, 10_000, '"auto" or ')
        if not isinstance(self.prepack, bool) and self.prepack != "auto":
            raise ConfigError(f'prepack must be "auto", True or False, not {self.prepack!r}.')
        if not isinstance(self.fuse, bool) and self.fuse != "auto":
            raise ConfigError(f'fuse must be "auto", True or False, not {self.fuse!r}.')
        if self.quantize not in (None, "int8", "int4"):
            raise ConfigError(f'quantize must be "int8", "int4" or None, not {self.quantize!r}.')
        if not isinstance(self.strict, bool):
            raise ConfigError(f"strict must be True or False, not {self.strict!r}.")
        _check_sources(self.sources)
        object.__setattr__(self, "sources", tuple(self.sources))
        object.__setattr__(self, "window", _as_window(self.window))
        object.__setattr__(self, "drafters", _as_drafters(self.drafters))
        if self.window is not None and len(self.drafters) > 3:
            raise ConfigError(
                f"at most 3 drafters of your own can be merged with a window, not "
                f"{len(self.drafters)}."
            )

    @property
    def draft_budget(self) -> int:
        """The most nodes that any tree of this configuration may have."""
        return self.max_nodes if self.nodes == "auto" else self.nodes


def _check_int(name: str, value: object, low: int, high: int, also: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(
            f"{name} must be {also}a whole number from {low} to {high}, not {value!r}."
        )


def _check_sources(sources: object) -> None:
    known = ", ".join(repr(name) for name in SOURCES)
    if isinstance(sources, str) or not isinstance(sources, tuple | list):
        raise ConfigError(f"sources must be a tuple with some of {known}, not {sources!r}.")
    for name in sources:
        if name not in SOURCES:
            raise ConfigError(f"sources may hold {known}; {name!r} is none of them.")
    if len(set(sources)) != len(sources):
        raise ConfigError(f"sources names a source twice: {sources!r}.")


def _as_window(window: object) -> tuple[int, int, int] | Literal["auto"] | None:
    if window is None or window == "auto" or (window == 0 and isinstance(window, int)):
        return "auto" if window == "auto" else None
    if isinstance(window, str) or not isinstance(window, tuple | list) or len(window) != 3:
        raise ConfigError(
            'window must be None, "auto", or three whole numbers: columns, length of the n-grams '
            f"and guesses, as in (7, 5, 7); not {window!r}."
        )
    columns, ngram_size, guesses = window
    _check_int("window: the number of columns", columns, 1, MAX_COLUMNS)
    _check_int("window: the length of the n-grams", ngram_size, 2, MAX_NGRAM)
    _check_int("window: the number of guesses", guesses, 1, MAX_GUESSES)
    rows = columns * (ngram_size - 1)
    if rows > MAX_WINDOW_ROWS:
        raise ConfigError(
            f"window may have at most {MAX_WINDOW_ROWS} rows, columns times the length of the "
            f"n-grams less one, not {rows} as {tuple(window)!r} has."
        )
    return columns, ngram_size, guesses


def _as_drafters(drafters: object) -> tuple[Any, ...]:
    if not isinstance(drafters, tuple | list):
        raise ConfigError(f"drafters must be a tuple of drafters, not {drafters!r}.")
    if len(drafters) > 4:
        raise ConfigError(f"at most 4 drafters of your own can be merged, not {len(drafters)}.")
    for drafter in drafters:
        if not callable(getattr(drafter, "draft", None)) and not callable(drafter):
            raise ConfigError(
                f"a drafter needs a draft(context, max_nodes) method, or is a factory that makes "
                f"an object with one; {drafter!r} is neither."
            )
    return tuple(drafters)
