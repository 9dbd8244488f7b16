"""Run transformers' own tests of ``generate`` with acceleration underneath.

    python tests/peer/run.py PATH_TO_A_CHECKOUT [--family llama --family gpt2]

Three passes: ``plain`` says which tests fail anyway (no network, no GPU), ``fast`` runs them
accelerated, and ``compare`` runs every call both ways and compares all that it gives, which the
tests themselves do not. Only differences count; the exit code is 1 if there are any. The checkout
must be of the installed version; its tests need ``parameterized``, ``pytest-xdist``, ``httpx``,
``requests`` and ``timeout-decorator``.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FAMILIES = (
    "llama",
    "qwen2",
    "mistral",
    "gemma2",
    "gemma3",
    "gpt2",
    "gpt_neox",
    "opt",
    "phi3",
    "mixtral",
    "gpt_oss",
    "deepseek_v3",
    "bloom",
    "mamba2",
    "t5",
    "bart",
)
#: Tests of the library's ``generate`` on models of the hub: of use where those are in the cache.
UNIT_TESTS = tuple(
    f"tests/generation/test_{name}.py" for name in ("utils", "stopping_criteria", "streamers")
)
MODES = ("plain", "fast", "compare")


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--family", action="append", help="by default sixteen of them")
    parser.add_argument("--mode", action="append", choices=MODES, help="by default all three")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, help="of the tests of models; theirs is 3")
    parser.add_argument("--batch", type=int, help="rows of most calls of these tests; theirs is 2")
    parser.add_argument("--compiled", action="store_true", help="tests that compile models, too")
    parser.add_argument("--no-units", action="store_true", help="tests of models only")
    parser.add_argument("--json", type=Path, help="write the reports to this file")
    options = parser.parse_args()
    reports = run(
        options.checkout,
        options.family or FAMILIES,
        modes=options.mode or MODES,
        nodes=options.nodes,
        new_tokens=options.new_tokens,
        batch=options.batch,
        compiled=options.compiled,
        units=not options.no_units,
    )
    if options.json:
        options.json.write_text(json.dumps(reports, indent=1), encoding="utf-8")
    for line in lines(reports):
        print(line)
    return 1 if found_differences(reports) else 0


def run(
    checkout: Path,
    families: Any,
    *,
    modes: Any = MODES,
    nodes: int = 8,
    new_tokens: int | None = None,
    batch: int | None = None,
    compiled: bool = False,
    units: bool = True,
) -> dict[str, Any]:
    """Run the tests in every mode; return the report of each.

    Raises
    ------
    RuntimeError
        If pytest did not get as far as running tests; the message has the end of what it printed.
    """
    files = [f"tests/models/{name}/test_modeling_{name}.py" for name in families]
    files += UNIT_TESTS if units else ()
    files = [name for name in files if (checkout / name).exists()]
    if not files:
        raise RuntimeError(f"{checkout} has none of the tests: it is no checkout of transformers.")
    more = [f"--peer-nodes={nodes}"]
    more += [f"--peer-new-tokens={new_tokens}"] if new_tokens else []
    more += [f"--peer-batch={batch}"] if batch else []
    more += ["--peer-compiled"] if compiled else []
    return {mode: _run(checkout, files, mode, more) for mode in modes}


def _run(checkout: Path, files: list[str], mode: str, more: list[str]) -> Any:
    # The checkout comes first: its package of tests has the name of ours.
    paths = [str(checkout.resolve()), str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "1"),
    }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--disable-warnings",
            "-p",
            "no:cacheprovider",
        ]
        command += ["-p", "peer_plugin", f"--peer-mode={mode}", f"--peer-report={report}"]
        command += [*more, "--continue-on-collection-errors", *files]
        done = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
        )
        if not report.exists() or not (found := json.loads(report.read_text()))["tests"]:
            raise RuntimeError(f"no test ran:\n{(done.stdout + done.stderr)[-2000:]}")
        return found


def changed_outcomes(reports: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the tests that end otherwise accelerated than plain."""
    plain, fast = (reports.get(mode, {}).get("tests", {}) for mode in ("plain", "fast"))
    both = [name for name in plain if name in fast]
    return {
        name: (plain[name], fast[name])
        for name in both
        if plain[name]["outcome"] != fast[name]["outcome"]
    }


def found_differences(reports: dict[str, Any]) -> bool:
    """Say whether anything differs between plain and accelerated."""
    return bool(changed_outcomes(reports) or reports.get("compare", {}).get("differences"))


def lines(reports: dict[str, Any]) -> list[str]:
    """Return the reports as text."""
    out = []
    for mode, report in reports.items():
        outcomes = collections.Counter(test["outcome"] for test in report["tests"].values())
        out.append(f"{mode}: " + ", ".join(f"{n} {name}" for name, n in outcomes.items()))
        if "calls" in report:
            out.append(
                "  calls: " + ", ".join(f"{n} {name}" for name, n in report["calls"].items())
            )
            out += [f"  plain {n:5}: {reason}" for reason, n in report["plain"].items()]
            out += [f"  not compared {n}: {why}" for why, n in report["not_compared"].items()]
    for name, (plain, fast) in changed_outcomes(reports).items():
        out.append(f"{name}: plain {plain['outcome']}, accelerated {fast['outcome']}")
        out.append(f"    {fast['reason'] or plain['reason']}")
    for found in reports.get("compare", {}).get("differences", []):
        out.append(f"{found['test']} ({found['model']}, ran {found['ran']}): {found['what']}")
        out.append(f"    {found['arguments']}")
    if not found_differences(reports):
        out.append("no differences")
    return out


if __name__ == "__main__":
    sys.exit(main())
