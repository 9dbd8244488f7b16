"""``lookahead memory``: what is kept between processes, shown and cleared."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lookahead.cli.console import CommandError, open_model, print_note

#: Digits of a fingerprint that are shown: enough to tell models apart.
DIGITS = 12

app = typer.Typer(
    help="Show or clear what is kept of models between processes.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def info() -> None:
    """List what is kept, by model."""
    from rich.console import Console
    from rich.table import Table

    from lookahead.memory import Memory

    memory = Memory()
    entries = memory.entries()
    if not entries:
        print_note(f"Nothing is kept in {memory.folder}.")
        return
    table = Table("model")
    table.add_column("fingerprint", no_wrap=True)
    for heading in ("kind", "size", "rows", "saved", "for"):
        table.add_column(heading, overflow="fold")
    for entry in entries:
        meta = entry.meta
        table.add_row(
            meta.get("label", "cannot be read"),
            entry.fingerprint[:DIGITS],
            entry.kind.partition("-")[0],
            _size(entry.num_bytes),
            f"{int(meta['rows']):,}" if meta.get("rows", "").isdecimal() else "",
            meta.get("saved", "")[:16].replace("T", " "),
            meta.get("for", ""),
        )
    Console().print(table)
    total = sum(entry.num_bytes for entry in entries)
    print_note(f"{_size(total)} in {memory.folder}; a curve counts passes as rows.")


@app.command()
def clear(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="The first digits of a fingerprint, or a model by name; by default all models.",
        ),
    ] = None,
) -> None:
    """Remove what is kept of one model, or of all."""
    from lookahead.memory import Memory

    memory = Memory()
    fingerprint = None if model is None else _fingerprint(memory, model)
    num_bytes = memory.clear(fingerprint)
    print_note(f"{_size(num_bytes)} removed from {memory.folder}.")


def _fingerprint(memory: Any, model: str) -> str:
    """Find a model by the start of its fingerprint, by its name in the list, or by loading it."""
    entries = memory.entries()
    found = {e.fingerprint for e in entries if e.fingerprint.startswith(model)}
    if len(found) > 1:
        raise CommandError(f"{len(found)} fingerprints begin with {model}; give more digits.")
    if found:
        return str(found.pop())
    from lookahead.hf.fingerprint import identify

    loaded, _ = open_model(model, "float32", "cpu", None)
    return identify(loaded).fingerprint


def _size(num_bytes: int) -> str:
    if num_bytes < 1_000_000:
        return f"{num_bytes / 1000:.1f} kB"
    return f"{num_bytes / 1e6:.1f} MB"
