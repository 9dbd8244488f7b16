"""Figures out of records: cells, the JSON, tables and the plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lookahead.cli.benchmark.runner import Record
from lookahead.hf.pass_clock import PASS_PARTS

#: Columns of tables that go into a file or a pipe.
WIDTH = 160


def make_report(
    records: Sequence[Record],
    settings: dict[str, Any],
    machine: dict[str, Any],
    versions: dict[str, Any],
    base_rss_bytes: int,
) -> dict[str, Any]:
    """Put everything into the shape that scripts outside the project read."""
    names = list(dict.fromkeys(record.arm for record in records))
    subtasks = list(dict.fromkeys(record.subtask for record in records))
    arms: dict[str, Any] = {}
    for name in names:
        mine = [record for record in records if record.arm == name]
        plain = [record for record in records if record.arm == "plain"]
        arms[name] = {
            "overall": make_cell(mine, plain, base_rss_bytes),
            "subtasks": {
                subtask: make_cell(
                    [record for record in mine if record.subtask == subtask],
                    [record for record in plain if record.subtask == subtask],
                    base_rss_bytes,
                )
                for subtask in subtasks
            },
        }
    return {
        "settings": settings,
        "machine": machine,
        "versions": versions,
        "arms": arms,
        "prompts": [_prompt_entry(record) for record in records],
    }


def add_roofline(report: dict[str, Any], bandwidth: float, num_bytes: int) -> None:
    """Hold every arm against what memory allows plain decoding of these weights.

    No plain decoder makes a token in less time than it takes to read the weights once. The ratio is
    1 for one that does nothing else; several tokens a pass can be more. Where tokens come in
    batches there is none.

    Parameters
    ----------
    report : dict
        Gets ``roofline`` in every cell, and the two numbers in ``machine``.
    bandwidth : float
        Bytes a second that are read from memory.
    num_bytes : int
        Of the weights that a pass over one row reads.
    """
    report["machine"] |= {"bandwidth_gb_s": bandwidth / 1e9, "bytes_of_a_pass": num_bytes}
    least_ms = 1000 * num_bytes / bandwidth
    for arm in report["arms"].values():
        for cell in (arm["overall"], *arm["subtasks"].values()):
            tpot_ms = cell["tpot_ms"]
            cell["roofline"] = None if not tpot_ms else least_ms / tpot_ms


def make_cell(
    records: Sequence[Record], plain: Sequence[Record], base_rss_bytes: int
) -> dict[str, Any]:
    """Sum up the answers of one arm, in one subtask or over all.

    Each turn of a row counts as a prompt. ``mat`` is tokens after the first by passes after the
    prefill. ``extra_rss_bytes`` is the peak beyond what the process held when the model had been
    loaded. ``tpot_p95_ms`` is over the gaps between tokens of all answers.

    Parameters
    ----------
    records, plain : sequences of Record
        Of the arm and of ``plain``, in the same order.
    base_rss_bytes : int
        Resident memory when the model had been loaded.
    """
    tokens = sum(record.tokens for record in records)
    passes = sum(record.passes for record in records)
    seconds = sum(record.seconds for record in records)
    later = sum(max(0, record.tokens - 1) for record in records)
    first_s = [record.ttft_s for record in records if record.ttft_s is not None]
    gaps_ms = [gap for record in records for gap in record.gaps_ms]
    ratios = [p.seconds / r.seconds for r, p in zip(records, plain, strict=True)]
    peak = max(record.peak_rss_bytes for record in records)
    return {
        "prompts": len(records),
        "exact": sum(record.exact for record in records),
        "tokens": tokens,
        "passes": passes,
        "mat": later / passes if passes else 1.0,
        "nodes_per_pass": sum(record.drafted for record in records) / passes if passes else 0.0,
        "window_rows_per_pass": (
            sum(record.window_rows for record in records) / passes if passes else 0.0
        ),
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "speedup": sum(record.seconds for record in plain) / seconds,
        "speedup_min": min(ratios),
        "ttft_s": statistics.fmean(first_s) if first_s else None,
        "tpot_ms": statistics.fmean(gaps_ms) if gaps_ms else None,
        "tpot_p95_ms": _percentile(gaps_ms, 0.95),
        "peak_rss_bytes": peak,
        "extra_rss_bytes": max(0, peak - base_rss_bytes),
        "by_source": _sum_sources(records),
        "time_ms": _sum_times(records),
        "looping": sum(record.looping for record in records),
    }


def print_tables(report: dict[str, Any], *, with_profile: bool) -> None:
    """Print the results, one row a subtask and arm, and what they were measured with."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    console.print(heading(report), highlight=False, soft_wrap=True)
    console.print(_results(report))
    if with_profile:
        console.print(_profile(report))
        if report["anatomy"]["arms"]:
            console.print(_anatomy(report["anatomy"]))


def _results(report: dict[str, Any]) -> Table:
    titles = ("exact", "tokens/s", "speed-up", "worst", "MAT", "nodes", "first ms", "loops")
    table = Table("subtask", "arm", *titles, "roofline")
    table.columns[1].overflow = "fold"
    for column in table.columns[2:]:
        column.justify, column.no_wrap = "right", True
    arms = report["arms"]
    subtasks = list(next(iter(arms.values()))["subtasks"])
    for subtask in [*subtasks, "overall"]:
        if subtask == "overall":
            table.add_section()
        for name, arm in arms.items():
            cell = arm["overall"] if subtask == "overall" else arm["subtasks"][subtask]
            table.add_row(subtask, name, *_cell_words(cell))
    return table


def _cell_words(cell: dict[str, Any]) -> list[str]:
    first = "-" if cell["ttft_s"] is None else f"{cell['ttft_s'] * 1000:.0f}"
    return [
        f"{cell['exact']}/{cell['prompts']}",
        f"{cell['tokens_per_s']:.1f}",
        f"{cell['speedup']:.2f}",
        f"{cell['speedup_min']:.2f}",
        f"{cell['mat']:.2f}",
        _nodes_words(cell),
        first,
        str(cell["looping"]),
        "-" if cell["roofline"] is None else f"{cell['roofline']:.2f}",
    ]


def _nodes_words(cell: dict[str, Any]) -> str:
    """Nodes of a pass, and where there is a lookahead window, its rows."""
    window = f" + {cell['window_rows_per_pass']:.1f}" if cell["window_rows_per_pass"] else ""
    return f"{cell['nodes_per_pass']:.1f}{window}"


def _profile(report: dict[str, Any]) -> Table:
    """Where the time went: milliseconds by part and per pass."""
    table = Table("arm", "part", "ms", "share", "ms a pass", title="Time by part")
    for column in table.columns[2:]:
        column.justify = "right"
    for name, arm in report["arms"].items():
        cell = arm["overall"]
        total = sum(cell["time_ms"].values()) or 1.0
        for part, ms in cell["time_ms"].items():
            each = ms / cell["passes"] if cell["passes"] and part != "prefill" else None
            words = "-" if each is None else f"{each:.3f}"
            table.add_row(name, part, f"{ms:.0f}", f"{ms / total:.0%}", words)
        rest = cell["seconds"] * 1000 - sum(cell["time_ms"].values())
        table.add_row(name, "rest", f"{rest:.0f}", "", "")
        table.add_section()
    return table


def _anatomy(anatomy: dict[str, Any]) -> Table:
    """Return a step by its parts, in milliseconds, and what memory alone would need for each."""
    arms = anatomy["arms"]
    table = Table("ms a step", *arms, title="A step taken apart (in brackets: memory alone)")
    for column in table.columns[1:]:
        column.justify = "right"
    for part in next(iter(arms.values()))["ms"]:
        cells = []
        for arm in arms.values():
            least = arm["memory_ms"].get(part)
            cells.append(f"{arm['ms'][part]:.2f}" + (f" ({least:.2f})" if least else ""))
        table.add_row(part, *cells)
    table.add_section()
    table.add_row("all parts", *(f"{sum(arm['ms'].values()):.2f}" for arm in arms.values()))
    table.add_row("without the clock", *(f"{arm['step_ms']:.2f}" for arm in arms.values()))
    table.add_row(
        "outside of the pass",
        *(f"{_share_outside(arm['ms']):.1%}" for arm in arms.values()),
    )
    table.caption = f"{anatomy['bandwidth_gb_s']:.1f} GB/s are read from memory"
    return table


def _share_outside(ms: dict[str, float]) -> float:
    """Return the share of a step that is not the model's own."""
    return 1.0 - sum(ms[part] for part in PASS_PARTS) / sum(ms.values())


def heading(report: dict[str, Any]) -> str:
    """Say what was measured, on what machine, with which command: two lines."""
    settings, machine, versions = report["settings"], report["machine"], report["versions"]
    return (
        f"{settings['model']}, {settings['dtype']}, {settings['state']}, "
        f"{settings['max_new_tokens']} new tokens, temperature {settings['temperature']}, batch "
        f"{settings['batch_size']}; {machine['cpu']}, {machine['threads']} threads, "
        f"{machine['device']}; torch {versions['torch']}, transformers {versions['transformers']}\n"
        f"{settings['command']}"
    )


def save_plot(report: dict[str, Any], path: Path) -> None:
    """Draw the speed-up of each arm in each subtask."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    arms = {name: arm for name, arm in report["arms"].items() if name != "plain"}
    subtasks = list(report["arms"]["plain"]["subtasks"])
    figure, axes = plt.subplots(figsize=(2 + 1.3 * (len(subtasks) + 1), 4))
    width = 0.8 / max(1, len(arms))
    for number, (name, arm) in enumerate(arms.items()):
        cells = [*(arm["subtasks"][subtask] for subtask in subtasks), arm["overall"]]
        places = [place + number * width for place in range(len(cells))]
        axes.bar(places, [cell["speedup"] for cell in cells], width, label=name)
    axes.axhline(1.0, color="black", linewidth=0.8)
    middle = width * (len(arms) - 1) / 2
    axes.set_xticks([place + middle for place in range(len(subtasks) + 1)], [*subtasks, "overall"])
    axes.set_ylabel("speed against plain generate")
    axes.set_title(heading(report).split(";")[0], fontsize=9)
    if arms:
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))  # beside the bars
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _prompt_entry(record: Record) -> dict[str, Any]:
    later = max(0, record.tokens - 1)
    return {
        "id": record.id,
        "subtask": record.subtask,
        "arm": record.arm,
        "turn": record.turn,
        "prompt_tokens": record.prompt_tokens,
        "tokens": record.tokens,
        "passes": record.passes,
        "mat": later / record.passes if record.passes else 1.0,
        "nodes_per_pass": record.drafted / record.passes if record.passes else 0.0,
        "exact": record.exact,
        "looping": record.looping,
        "seconds": record.seconds,
        "seconds_all": record.seconds_all,
        "tokens_per_s": record.tokens / record.seconds,
        "ttft_s": record.ttft_s,
        "tpot_ms": statistics.fmean(record.gaps_ms) if record.gaps_ms else None,
        "peak_rss_bytes": record.peak_rss_bytes,
        "by_source": record.by_source,
        "time_ms": record.time_ms,
        "plain_reason": record.plain_reason,
        "new_ids": record.new_ids,
    }


def _sum_sources(records: Sequence[Record]) -> dict[str, dict[str, int]]:
    sums: dict[str, dict[str, int]] = {}
    for record in records:
        for name, counts in record.by_source.items():
            into = sums.setdefault(name, {"offered": 0, "accepted": 0})
            for what, count in counts.items():
                into[what] += count
    return sums


def _sum_times(records: Sequence[Record]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for record in records:
        for part, ms in record.time_ms.items():
            sums[part] = sums.get(part, 0.0) + ms
    return sums


def _percentile(values: Sequence[float], share: float) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
