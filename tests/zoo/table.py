"""Writes the table of docs/models.md: how each registered type runs.

``python -m tests.zoo.table [names...]``; with names only these rows are made anew.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from tests.zoo.build import NAMES, TYPES
from tests.zoo.others import OTHERS
from tests.zoo.sweep import EXACT, FAILS, NOT_BUILT, WRONG, Verdict, sweep

PAGE = Path(__file__).parents[2] / "docs" / "models.md"

#: In the column that says how a type runs, for those of which nothing can be said.
NOT_TRIED = "not tried"

HEAD = """# Models

How the models of transformers run, type by type. Made by `make models`, which builds a tiny model
with random weights of each type, and compares the ids of accelerated and plain `generate`: greedy
text with right, wrong and random guesses, and samples with the same seed, under eager and SDPA
attention. A window or a chunk of attention is 8 tokens long in these models, so that every text
goes past it.

- `tree`: accelerated, every id equal; guesses are verified as trees.
- `chain`: accelerated, every id equal; guesses are verified as chains.
- `plain`: not accelerated, for the reason in the next column; see [What runs plain](plain.md).
- `not tried`: plain `generate` of the tiny model raises, or no such model could be built.

A type says little about a checkpoint whose configuration has other features: the self-test asks
each model once, before the first accelerated call.
"""

CAUSAL = "## Causal language models"
VARIANTS = "## Other shapes of some types"
OTHER = "## Encoder-decoders, and models that see"


def row_of(verdict: Verdict) -> tuple[str, str]:
    """Return how a type runs, and why it is not accelerated."""
    if verdict.kind == WRONG:
        raise ValueError(f"a wrong result belongs in no table: {verdict}")
    why = verdict.detail.replace("|", "/").replace("`", "")
    if verdict.kind in (FAILS, NOT_BUILT):
        return NOT_TRIED, f"{verdict.kind}: {why}"
    return verdict.word, "" if verdict.kind == EXACT else why


def read_rows(page: Path = PAGE) -> dict[str, tuple[str, str]]:
    """Read the rows that a page has, by name."""
    rows = {}
    for line in page.read_text("utf-8").splitlines() if page.exists() else ():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 3:
            rows[cells[0].strip("`")] = (cells[1], cells[2])
    return rows


def render(rows: dict[str, tuple[str, str]]) -> str:
    """Return the page."""
    counts = Counter(rows[name][0] for name in TYPES)
    said = ", ".join(f"{count} {word}" for word, count in counts.most_common())
    variants = [name for name in NAMES if name not in TYPES]
    parts = [HEAD, CAUSAL, "", f"{len(TYPES)} types: {said}.", "", *_table(TYPES, rows)]
    parts += ["", VARIANTS, "", *_table(variants, rows), "", OTHER, "", *_table(OTHERS, rows), ""]
    return "\n".join(parts)


def _table(names: list[str] | tuple[str, ...], rows: dict[str, tuple[str, str]]) -> list[str]:
    lines = ["| type | runs | reason |", "|---|---|---|"]
    return lines + [f"| `{name}` | {rows[name][0]} | {rows[name][1]} |" for name in names]


def main(names: list[str]) -> None:
    """Sweep and write."""
    wanted = names or [*NAMES, *OTHERS]
    rows = read_rows() if names else {}
    for name, verdict in sweep(wanted):
        print(f"{name:28} {verdict}", flush=True)
        rows[name] = row_of(verdict)
    PAGE.write_text(render(rows), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
