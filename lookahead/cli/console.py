"""What people see while they wait and when something goes wrong; all of it on stderr.

Answers of the model go to stdout and never pass through here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from lookahead.errors import LookaheadError

Tell: TypeAlias = Callable[[str, float | None], None]


class CommandError(LookaheadError):
    """A command could not do its work; the message says why and what to do."""


def usage_error(message: str, option: str | None = None) -> typer.BadParameter:
    """Make the exception for a wrong use of the command line (exit code 2)."""
    return typer.BadParameter(message, param_hint=option)


def print_error(message: str) -> None:
    """Print one sentence for the user."""
    sys.stdout.flush()
    print(f"lookahead: {message}", file=sys.stderr)


def print_note(message: str) -> None:
    """Print a line that belongs to the run but not to its output."""
    sys.stdout.flush()
    print(message, file=sys.stderr, flush=True)


@contextmanager
def working(what: str) -> Iterator[Tell]:
    """Show that something is going on, until the block ends.

    Yields
    ------
    callable
        Takes what is being done now and the share that is done, or ``None`` where it is not known.
        On a terminal it moves a bar that disappears at the end; elsewhere each new stage is a line.
    """
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _teller_for_lines()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)

        def tell(stage: str, share: float | None) -> None:
            total = None if share is None else 1.0
            progress.update(task, description=stage, total=total, completed=share or 0.0)

        yield tell


def _teller_for_lines() -> Tell:
    told: list[str] = []
    stderr = sys.stderr  # this one, also while another is put in its place

    def tell(stage: str, share: float | None) -> None:
        del share
        if stage not in told:
            told.append(stage)
            print(f"{stage} ...", file=stderr, flush=True)

    return tell


def open_model(name: str, dtype: str, device: str, threads: int | None) -> tuple[Any, Any]:
    """Load a model and its tokenizer for a command, with progress.

    Returns
    -------
    tuple of (model, tokenizer)
    """
    with working("Starting") as tell:
        import ngram_pool

        ngram_pool.warm_up()  # what has to be compiled is, while the model loads
        import torch

        from lookahead.hf.default_model import load_model

        _check_device(device)
        if threads is not None:
            torch.set_num_threads(threads)
        return load_model(name, dtype, device, tell)


def _check_device(device: str) -> None:
    """Refuse a device that nothing can be computed on, before a model is loaded for it."""
    import torch

    try:
        is_there = bool((torch.zeros(1, device=device) == 0).all())
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise usage_error(f"nothing can be computed on {device!r}: {reason}", "--device") from error
    if not is_there:
        raise usage_error(f"nothing can be computed on {device!r}", "--device")
