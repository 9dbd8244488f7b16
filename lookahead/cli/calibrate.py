"""``lookahead calibrate``: a model's prior, made once and kept."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lookahead.cli import options
from lookahead.cli.console import open_model, print_note, working


def calibrate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]", help="default (embedded), a folder, a .gguf file, or a hub name."
        ),
    ] = "default",
    seconds: Annotated[float, typer.Option(min=1.0, help="How long the model writes.")] = 60.0,
    dtype: options.DtypeOption = options.Dtype.auto,
    device: options.DeviceOption = "cpu",
    threads: options.ThreadsOption = None,
    no_chat_template: options.NoTemplateOption = False,
    quantize: options.QuantizeOption = options.Bits.none,
) -> None:
    """Learn about a model from its own writing, so that later runs start well.

    It answers built-in prompts; sums of its hidden states are kept in the user's cache, no text.
    Running it again replaces them. Stopped with Ctrl-C, it leaves what was there before. On a CPU
    what its layers need to run fused is compiled, too.
    """
    from lookahead import calibrate as logic
    from lookahead.hf.default_model import quiet_library
    from lookahead.hf.fusing import build_libraries

    loaded, tokenizer = open_model(model, dtype, device, threads)
    options.quantise(loaded, quantize)
    sums = logic.empty_sums(loaded)
    prompts = _prompt_ids(loaded, tokenizer, use_template=not no_chat_template)
    with working("The model writes, and is watched") as tell, quiet_library():
        made = logic.calibrate(loaded, prompts, sums, seconds=seconds, tell=tell)
    print_note(
        f"{made.label}: {made.texts} texts, {made.rows:,} positions in {made.seconds:.0f} s; "
        f"{made.num_bytes / 1e6:.1f} MB in {made.path}"
    )
    with working("Compiling the small operations of its layers"), quiet_library():
        fault = build_libraries(loaded)
    print_note("its layers run fused" if fault is None else f"its layers are not fused: {fault}")


def _prompt_ids(model: Any, tokenizer: Any, *, use_template: bool) -> list[list[int]]:
    from lookahead.calibrate import MAX_NEW_TOKENS
    from lookahead.cli.conversation import Transcript

    room = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    limit = None if room is None else max(1, int(room) - MAX_NEW_TOKENS)
    transcript = Transcript(tokenizer, use_template=use_template)
    return [transcript.prompt_ids(text)[:limit] for text in _prompts()]


def _prompts() -> list[str]:
    """Return the built-in prompts, one kind after the other, so that few are of all kinds."""
    from importlib import resources

    from lookahead.cli.benchmark.prompts import parse_rows

    text = (resources.files("lookahead.cli") / "data" / "calibrate.jsonl").read_text("utf-8")
    rows = parse_rows(text, "calibrate")
    place: dict[str | int, int] = {}
    for row in rows:
        place[row.id] = sum(other.subtask == row.subtask for other in rows[: rows.index(row)])
    return [row.turns[0] for row in sorted(rows, key=lambda row: place[row.id])]
