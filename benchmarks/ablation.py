"""What each source is worth, and each draft budget: tables and a figure, from one command.

All rows are arms of one run of ``lookahead bench``, each answer compared with plain. A second table
calculates what the same MAT would be worth where passes cost something else. Run from the
repository root; options that are not its own are those of ``lookahead bench``::

    python benchmarks/ablation.py --data FILE.jsonl --limit 2 --turns 1 --dtype float32 \
        --out ablation.md --json ablation.json --plot ablation.png
    python benchmarks/ablation.py --from ablation.json --curve my_gpu.json
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lookahead.cli.benchmark.report import heading
from lookahead.config import SOURCES, Config
from lookahead.cost_curve import KNOTS, TYPICAL

Report = dict[str, Any]
Curve = tuple[NDArray[np.float64], NDArray[np.float64]]  # rows, seconds

CALCULATION = """\
**On other machines: a calculation, not a measurement.** MAT as above, divided by the time of a pass
with so many rows relative to a pass over one row (in brackets), as the curve says. Drafting, looks
of early exit and the prefill count as free, so every figure is an upper bound. `cpu` and
`cpu-16bit` are shapes measured on 2 CPU cores with a model of 135M; `other` is the shape assumed
for a large GPU and was measured on none."""


def make_cases(options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Yield the rows of the table: group, label, and the arm of the benchmark."""
    default = Config().sources
    extra = {"exit": f"exit_layer={options.exit_layer}", "window": f"window={options.window}"}

    def case(group: str, label: str, names: tuple[str, ...] = default) -> dict[str, str]:
        parts = [f"lookahead:nodes={options.nodes}"]
        if names != default:
            parts += [f"sources={'+'.join(n for n in names if n in SOURCES) or 'none'}"]
            parts += [extra[name] for name in names if name in extra]
        return {"group": group, "label": label, "arm": ",".join(parts)}

    if "sources" in options.groups:
        yield case("default", "default: " + ", ".join(default))
        for name in (*SOURCES, "window"):
            yield case("alone", f"{name} alone", (name,))
        for name in default:
            yield case("without", f"without {name}", tuple(n for n in default if n != name))
        for name in extra:  # one at a time: a step with looks runs no window
            yield case("with", f"with {name}", (*default, name))
    if "budgets" in options.groups:
        for nodes in [*options.budgets.split(","), "auto"]:
            arm = f"lookahead:nodes={nodes}"
            yield {"group": "budget", "label": f"{nodes} nodes", "arm": arm}


def measure(cases: list[dict[str, str]], bench_options: list[str]) -> Report:
    """Run the benchmark; its own table goes to stderr."""
    arms = ",".join(dict.fromkeys(case["arm"] for case in cases))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        command = [sys.executable, "-m", "lookahead", "bench", *bench_options]
        command += ["--arms", arms, "--json", str(path)]
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            sys.exit("ablation: the benchmark failed, see above.")
        report: Report = json.loads(path.read_text(encoding="utf-8"))
    report["settings"]["command"] = shlex.join(["python", *sys.argv])
    return {**report, "ablation": cases}


def read_curve(text: str) -> Curve:
    """Return a typical curve by name, or one from a JSON file with ``rows`` and ``seconds``."""
    if text in TYPICAL:
        return np.array(KNOTS, float), np.array(TYPICAL[text])
    try:
        stored = json.loads(Path(text).read_text(encoding="utf-8"))
        rows, seconds = (np.array(stored[name], float) for name in ("rows", "seconds"))
        is_curve = rows[0] == 1 and (np.diff(rows) > 0).all() and rows.shape == seconds.shape
    except (OSError, LookupError, TypeError, ValueError) as error:
        sys.exit(f"ablation: {text} is no typical curve and no file with one: {error!r}")
    if not is_curve:
        sys.exit(f"ablation: {text} needs rows that rise from 1, and seconds for each of them.")
    return rows, seconds


def rows_a_pass(cell: dict[str, Any]) -> float:
    """Return the mean rows of a pass: root, nodes and window."""
    return float(1 + cell["nodes_per_pass"] + cell["window_rows_per_pass"])


def subtasks_of(report: Report) -> list[str]:
    """Return the subtasks, if there are several."""
    subtasks = list(report["arms"]["plain"]["subtasks"])
    return subtasks if len(subtasks) > 1 else []


def measured_table(report: Report) -> str:
    """Return what was measured; MAT by subtask, too, where there are several."""
    arms = report["arms"]
    shown = subtasks_of(report)
    titles = ["", "exact", *shown, "MAT", "nodes", "rows", "tokens/s", "speed-up", "worst"]
    lines = []
    for case in [{"label": "plain", "arm": "plain"}, *report["ablation"]]:
        arm = arms[case["arm"]]
        cell = arm["overall"]
        mats = [arm["subtasks"][subtask]["mat"] for subtask in shown]
        words = [case["label"], f"{cell['exact']}/{cell['prompts']}"]
        words += [f"{mat:.2f}" for mat in (*mats, cell["mat"])]
        means = (cell["nodes_per_pass"], rows_a_pass(cell), cell["tokens_per_s"])
        words += [f"{mean:.1f}" for mean in means]
        words += [f"{ratio:.2f}" for ratio in (cell["speedup"], cell["speedup_min"])]
        lines.append(words)
    return markdown(titles, lines)


def calculated_table(report: Report, curves: dict[str, Curve]) -> str:
    """Return what MAT would be worth by these cost curves; nothing beyond their last row."""
    lines = []
    for case in report["ablation"]:
        cell = report["arms"][case["arm"]]["overall"]
        words = [case["label"], f"{cell['mat']:.2f}", f"{rows_a_pass(cell):.1f}"]
        for rows, seconds in curves.values():
            cost = float(np.interp(rows_a_pass(cell), rows, seconds / seconds[0], right=np.nan))
            words.append("-" if np.isnan(cost) else f"{cell['mat'] / cost:.2f} ({cost:.2f})")
        lines.append(words)
    return markdown(["", "MAT", "rows", *(f"`{Path(name).stem}`" for name in curves)], lines)


def markdown(titles: list[str], lines: list[list[str]]) -> str:
    """Return a table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (titles, ["---"] * len(titles), *lines))


def save_plot(report: Report, path: Path) -> None:
    """Draw MAT and tokens/s against the budget, with plain and ``"auto"`` as lines."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    arms = report["arms"]
    cases = [case for case in report["ablation"] if case["label"][0].isdigit()]
    budgets = [case["label"].split()[0] for case in cases]
    overall = [arms[case["arm"]]["overall"] for case in cases]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="tight")
    for subtask in subtasks_of(report):
        mats = [arms[case["arm"]]["subtasks"][subtask]["mat"] for case in cases]
        left.plot(budgets, mats, ".-", linewidth=0.8, label=subtask)
    left.plot(budgets, [cell["mat"] for cell in overall], "ko-", label="all")
    right.plot(budgets, [cell["tokens_per_s"] for cell in overall], "ko-", label="lookahead")
    for name, style in [("plain", "-"), ("lookahead:nodes=auto", "--")]:
        rate = arms[name]["overall"]["tokens_per_s"]
        right.axhline(rate, color="tab:red", linestyle=style, label=name)
    right.set_ylim(bottom=0)
    for axes, title in ((left, "tokens a pass (MAT)"), (right, "tokens/s")):
        axes.set(xlabel="draft budget, nodes", ylabel=title)
        axes.legend(fontsize=8)
    figure.suptitle(heading(report).split("\n")[0], fontsize=7)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure, or read what was measured, and write tables and figure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--groups", default="sources,budgets", help="which rows")
    parser.add_argument("--nodes", type=int, default=16, help="draft budget of the sources")
    parser.add_argument("--budgets", default="4,8,16,32,64", help="draft budgets")
    parser.add_argument("--window", default="7/3/7", help="columns/length/guesses")
    parser.add_argument("--exit-layer", default="2", help='a layer, or "auto"')
    parser.add_argument("--curve", action="append", help="one of budget.TYPICAL, or FILE.json")
    parser.add_argument("--from", dest="read", type=Path, help="run nothing, read this JSON")
    parser.add_argument("--out", type=Path, help="write the tables here, Markdown")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--plot", type=Path, help="draw MAT and tokens/s by budget here")
    options, bench_options = parser.parse_known_args()
    if options.plot and "budgets" not in options.groups:
        parser.error("--plot draws the budgets: add them to --groups")
    curves = {name: read_curve(name) for name in options.curve or TYPICAL}
    if options.read:
        report = json.loads(options.read.read_text(encoding="utf-8"))
    else:
        report = measure([*make_cases(options)], bench_options)
    what, command = heading(report).split("\n", 1)
    parts = [f"{what}.", f"`{command}`", measured_table(report), CALCULATION]
    text = "\n\n".join([*parts, calculated_table(report, curves)])
    print(text)
    for path, written in ((options.out, text), (options.json, json.dumps(report, indent=1))):
        if path:
            path.write_text(f"{written}\n", encoding="utf-8")
    if options.plot:
        save_plot(report, options.plot)
    parted = sum(not entry["exact"] for entry in report["prompts"])
    if parted and report["settings"]["dtype"] == "float32":
        sys.exit(f"ablation: {parted} answers differ from plain in float32, see the table.")


if __name__ == "__main__":
    main()
