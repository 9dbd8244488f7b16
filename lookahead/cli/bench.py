"""``lookahead bench``: every figure that the project states comes from here."""

from __future__ import annotations

import json
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from lookahead.cli import options
from lookahead.cli.console import CommandError, open_model, print_note, usage_error, working


class State(StrEnum):
    """What may be remembered from prompt to prompt."""

    cold = "cold"
    session = "session"
    warm = "warm"


def bench(
    model: options.ModelOption = "default",
    data: Annotated[
        str | None,
        typer.Option(metavar="FILE.jsonl[:SUBTASK]", help="Prompts; by default a few of our own."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use so many rows of each subtask.")
    ] = None,
    turns: Annotated[
        int | None, typer.Option(min=1, help="Use so many turns of each row, the first ones.")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Make prompts so long, with text of other rows in front or cut; first turns.",
        ),
    ] = None,
    max_new_tokens: options.MaxNewTokensOption = 96,
    dtype: options.DtypeOption = options.Dtype.auto,
    device: options.DeviceOption = "cpu",
    threads: options.ThreadsOption = None,
    arms: Annotated[
        str,
        typer.Option(
            metavar="ARM,...",
            help="plain, compiled, compiled_frozen, prompt_lookup, assisted_early_exit, "
            "llama_cpp, lookahead, and variants such as lookahead:nodes=8,sources=ngrams+recycled. "
            "plain is always run.",
        ),
    ] = "plain,lookahead",
    state: Annotated[
        State,
        typer.Option(
            help="cold forgets between prompts, session is the default of a process, "
            "warm keeps everything."
        ),
    ] = State.session,
    nodes: options.NodesOption = "auto",
    temperature: options.TemperatureOption = 0.0,
    top_p: options.TopPOption = 1.0,
    seed: Annotated[int, typer.Option(help="Start of the random numbers, for every call.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts in one call.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Calls a prompt; the median counts.")] = 1,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time goes.")] = False,
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write all figures here.")
    ] = None,
    plot_path: Annotated[
        Path | None, typer.Option("--plot", metavar="OUT.png", help="Draw the speed-ups here.")
    ] = None,
) -> None:
    """Measure ways to decode against plain generate, with every answer compared.

    Arms take turns prompt by prompt, in changing order, in one process: compare the speed-ups of
    one run, never seconds of different runs.
    """
    from lookahead.cli.benchmark import arms as arm_list
    from lookahead.cli.benchmark.lengths import of_length
    from lookahead.cli.benchmark.prompts import first_turns, limit_rows, read_rows

    specs = arm_list.with_nodes(arm_list.parse_arms(arms), options.parse_nodes(nodes))
    specs = arm_list.with_state(specs, state.value)
    arm_list.check_settings(specs)
    all_rows = read_rows(data)
    rows = first_turns(limit_rows(all_rows, limit), turns)
    for path in (json_path, plot_path):
        if path is not None and not path.absolute().parent.is_dir():
            raise usage_error(f"there is no folder {path.parent}", "--json/--plot")
    settings: dict[str, Any] = {
        "command": shlex.join(["lookahead", *sys.argv[1:]]),
        "model": model,
        "data": data or "prompts.jsonl",
        "limit": limit,
        "turns": turns,
        "rows": len(rows),
        "context": context,
        "max_new_tokens": max_new_tokens,
        "dtype": dtype.value,
        "device": device,
        "threads": threads,
        "arms": [spec.name for spec in specs],
        "state": state.value,
        "nodes": options.parse_nodes(nodes),
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
        "batch_size": batch_size,
        "repeats": repeats,
    }
    if state is State.warm:
        print_note("There is no shared store yet: warm is the same as session.")
    loaded, tokenizer = open_model(model, dtype, device, threads)
    if context is not None:
        rows = of_length(rows, all_rows, tokenizer, context)
    report = _measure(loaded, tokenizer, rows, specs, settings, with_profile=profile)
    _publish(report, json_path, plot_path, with_profile=profile)


def _measure(
    model: Any,
    tokenizer: Any,
    rows: list[Any],
    specs: list[Any],
    settings: dict[str, Any],
    *,
    with_profile: bool,
) -> dict[str, Any]:
    """Run everything and give the report."""
    from lookahead.cli import versions
    from lookahead.cli.benchmark import runner
    from lookahead.cli.benchmark.arms import make_arms
    from lookahead.cli.benchmark.meters import MemoryMeter
    from lookahead.cli.benchmark.report import add_roofline, make_report
    from lookahead.hf.default_model import quiet_library
    from lookahead.hf.pass_clock import bytes_of_a_pass, read_bandwidth

    memory = MemoryMeter()
    memory.begin()
    base_rss_bytes = memory.current_bytes()
    prompt_limit = _prompt_limit(model, settings["max_new_tokens"], settings["context"])
    max_length = runner.longest_length(tokenizer, rows, settings["max_new_tokens"], prompt_limit)
    arms = make_arms(specs, model, max_length, settings["model"])
    settings["dtype"] = str(model.dtype).removeprefix("torch.")
    settings["prompt_limit"] = prompt_limit
    settings["cache_passed_on"] = _is_cache_passed_on(arms, rows, settings)
    protocol = runner.Protocol(
        max_new_tokens=settings["max_new_tokens"],
        sampling=options.sampling_options(settings["temperature"], settings["top_p"]),
        seed=settings["seed"],
        state=settings["state"],
        batch_size=settings["batch_size"],
        repeats=settings["repeats"],
        prompt_limit=prompt_limit,
        is_cache_passed_on=settings["cache_passed_on"],
    )
    run = runner.Runner(tokenizer, arms, protocol, memory)
    with working("Warming up") as tell, quiet_library():
        run.warm_up(tell)
        records = run.run(rows, tell)
        anatomies = run.take_apart(rows, tell) if with_profile else {}
    machine = versions.machine(settings["device"])
    report = make_report(records, settings, machine, versions.versions(), base_rss_bytes)
    bandwidth = read_bandwidth(model.device)
    add_roofline(report, bandwidth, bytes_of_a_pass(model))
    if with_profile:
        report["anatomy"] = {
            "bandwidth_gb_s": bandwidth / 1e9,
            "arms": {name: one.as_json(bandwidth) for name, one in anatomies.items()},
        }
    return report


def _prompt_limit(model: Any, max_new_tokens: int, wanted: int | None) -> int:
    from lookahead.cli.benchmark.runner import PROMPT_LIMIT

    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if context is None:
        return wanted or PROMPT_LIMIT
    room = int(context) - max_new_tokens
    if room < (wanted or 1):
        raise CommandError(
            f"The model's context of {context} tokens leaves no room for a prompt of "
            f"{wanted or 1} and {max_new_tokens} new tokens; use a smaller --max-new-tokens"
            f"{'' if wanted is None else ' or --context'}."
        )
    return min(wanted or PROMPT_LIMIT, room)


def _is_cache_passed_on(arms: list[Any], rows: list[Any], settings: dict[str, Any]) -> bool:
    """Whether a second turn gets the cache of the first: in every arm or in none."""
    if settings["batch_size"] > 1:
        for arm in arms:
            if not arm.takes_batches:
                raise CommandError(
                    f"The arm {arm.name} takes one prompt at a time: use "
                    "--batch-size 1 or leave it out of --arms."
                )
        return False
    unable = [arm.name for arm in arms if not arm.takes_cache]
    if unable and any(len(row.turns) > 1 for row in rows):
        print_note(
            f"{' and '.join(unable)} cannot take the cache of an earlier turn, so that no arm gets "
            "it in this run: second turns are read from the start."
        )
    return not unable


def _publish(
    report: dict[str, Any], json_path: Path | None, plot_path: Path | None, *, with_profile: bool
) -> None:
    from lookahead.cli.benchmark.report import print_tables, save_plot

    print_tables(report, with_profile=with_profile)
    is_inexact = False
    for name, arm in report["arms"].items():
        cell = arm["overall"]
        if cell["exact"] < cell["prompts"]:
            print_note(f"{name}: {cell['prompts'] - cell['exact']} answers differ from plain.")
            is_inexact = True
    if is_inexact and report["settings"]["dtype"] != "float32":
        print_note(
            f"In {report['settings']['dtype']} near ties round either way, in the library's own "
            "ways of decoding too: compare ids with --dtype float32."
        )
    if json_path is not None:
        try:
            json_path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{json_path} cannot be written: {error}.") from error
    if plot_path is not None:
        try:
            save_plot(report, plot_path)
        except ImportError as error:
            raise CommandError(
                "--plot needs matplotlib, which is not installed: pip install matplotlib."
            ) from error
