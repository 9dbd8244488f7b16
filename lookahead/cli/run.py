"""``lookahead run script.py``: somebody else's script, unchanged, accelerated.

The script makes its own models, so there is no object to accelerate beforehand. While it runs, and
only then, the library's ``generate`` is replaced by one that accelerates a model at its first use
and then calls on. This is the one place in the package that changes a class of another package; it
is undone when the script ends, however it ends.
"""

from __future__ import annotations

import functools
import os
import runpy
import signal
import sys
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer

from lookahead.cli import options
from lookahead.cli.console import CommandError, print_note
from lookahead.errors import LookaheadError, LookaheadWarning

CONTEXT_SETTINGS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}


def run(
    script: Annotated[Path, typer.Argument(help="The script.", metavar="SCRIPT.py")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="What the script is given.", metavar="[ARGS]...")
    ] = None,
    nodes: options.NodesOption = "auto",
    stats: Annotated[
        bool, typer.Option("--stats", help="Print a line about all calls when the script ends.")
    ] = False,
) -> None:
    """Run a script with every model.generate(...) in it accelerated.

    Options of lookahead come before the script, those of the script after it.
    """
    budget = options.parse_nodes(nodes)
    if not script.is_file():
        raise CommandError(f"There is no script {script}; give the path of a Python file.")
    totals = Totals()
    try:
        with accelerated_everywhere(totals, nodes=budget):
            code = run_as_main(script, arguments or [])
    finally:
        if stats:
            print_note(totals.summary())
    _leave(code)


class Totals:
    """Sums over all calls of ``generate`` in a run."""

    def __init__(self) -> None:
        self._all: list[Any] = []

    def collect(self, model: Any) -> None:
        """Take in the statistics of the last call on ``model``, once."""
        import lookahead

        last = lookahead.last_stats(model)
        if last is not None and not any(last is known for known in self._all):
            self._all.append(last)

    def summary(self) -> str:
        """Say in one line what the run did."""
        if not self._all:
            return "lookahead: the script did not call generate."
        num_plain = sum(not stats.accelerated for stats in self._all)
        num_tokens = sum(stats.new_tokens for stats in self._all)
        seconds = sum(stats.seconds for stats in self._all)
        calls = "1 call" if len(self._all) == 1 else f"{len(self._all)} calls"
        line = f"lookahead: {calls} of generate, {num_tokens} tokens"
        if seconds:
            line += f" in {seconds:.2f} s, {num_tokens / seconds:.1f} tokens/s"
        passes = sum(len(stats.steps) or stats.passes for stats in self._all)
        if passes:
            later = sum(max(0, stats.new_tokens - stats.rows) for stats in self._all)
            line += f", MAT {later / passes:.2f}"
        return line + (f", {num_plain} calls plain" if num_plain else "")


@contextmanager
def accelerated_everywhere(totals: Totals, **settings: Any) -> Iterator[None]:
    """Accelerate each model at its first ``generate`` inside the block.

    Parameters
    ----------
    totals : Totals
        Takes in the statistics of every call.
    **settings
        Passed to :func:`lookahead.accelerate`.
    """
    from transformers import GenerationMixin

    import lookahead

    original = GenerationMixin.generate
    known: weakref.WeakSet[Any] = weakref.WeakSet()

    @functools.wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        # An accelerated model comes here once more, from its own wrapper (as does its copy, which
        # we do not know). A class with a generate of its own calls us from within, where
        # acceleration can no longer begin.
        is_inner = self in known or kwargs.get("custom_generate") is not None
        if is_inner or type(self).generate is not generate:
            totals.collect(self)  # of the call before this one
            return original(self, *args, **kwargs)
        known.add(self)
        try:
            lookahead.accelerate(self, **settings)
        except LookaheadError as error:
            warnings.warn(f"not accelerated: {error}", LookaheadWarning, stacklevel=2)
            return original(self, *args, **kwargs)
        return self.generate(*args, **kwargs)

    GenerationMixin.generate = generate
    try:
        yield
    finally:
        GenerationMixin.generate = original
        for model in list(known):
            totals.collect(model)
            lookahead.restore(model)


def run_as_main(script: Path, arguments: list[str]) -> int | None:
    """Run a script as ``python script.py arguments`` would.

    Returns
    -------
    int or None
        0 after a normal end, 1 after an exception whose traceback has been printed, ``None`` after
        Ctrl-C.

    Raises
    ------
    SystemExit
        The script's own.
    """
    before = sys.argv, sys.path[:]
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script.absolute()), run_name="__main__")
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - as the interpreter itself does
        traceback = _from_script(error.__traceback__, str(script))
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        return None if isinstance(error, KeyboardInterrupt) else 1
    finally:
        sys.argv, sys.path[:] = before
    return 0


def _from_script(traceback: TracebackType | None, script: str) -> TracebackType | None:
    """Leave out our own frames, so that a traceback begins in the script."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename != script:
        traceback = traceback.tb_next
    return traceback


def _leave(code: int | None) -> None:
    """End as Python does: with the code, or by the very signal that Ctrl-C sends."""
    sys.stdout.flush()
    if code is None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(code)
