"""Time the pool on synthetic text.

Zipf tokens with copied passages, seeded, so every run measures the same work.

Run from the repository root::

    python benchmarks/bench_pool.py [--json figures.json] [--sizes 8000 128000]

Medians of single calls (extend and recycle: total time over their number); the Python front of each
call is included. Targets stand beside the figures.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ngram_pool

VOCAB = 49_152
NODES = 64
SEED = 7
# Most microseconds a figure should take, by (row of the table, figure).
TARGETS = {
    ("8000", "propose 64 nodes"): 100.0,
    ("128000", "propose 64 nodes"): 300.0,
    ("8000", "extend in bulk, a token"): 5.0,
    ("8000", "extend one by one, a token"): 5.0,
    ("128000", "extend in bulk, a token"): 5.0,
    ("128000", "extend one by one, a token"): 5.0,
    ("plain Python, 8000", "DictPool propose 16"): 2_000.0,
    ("logits", "top_rows, 16 rows, a row"): 40.0,
    ("logits", "top_rows, 1 row"): 40.0,
}


def synthetic_text(size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Zipf tokens, half of them inside passages of 4 to 60 tokens copied from before."""
    text = np.empty(size + 64, np.int64)
    place = 0
    while place < size:
        length = int(rng.integers(4, 60))
        if place > 200 and rng.random() < 0.5:
            start = int(rng.integers(0, place - length - 1))
            text[place : place + length] = text[start : start + length]
        else:
            text[place : place + length] = rng.zipf(1.3, length) % VOCAB
        place += length
    return text[:size]


def synthetic_rows(
    text: NDArray[np.int64], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Make a top-8 row for each place: the true next token at a random rank, else Zipf tokens."""
    tokens = rng.zipf(1.3, (len(text), 8)) % VOCAB
    tokens[np.arange(len(text) - 1), rng.integers(0, 8, len(text) - 1)] = text[1:]
    probs = np.sort(rng.dirichlet(np.full(9, 0.4), len(text))[:, :8], axis=1)[:, ::-1]
    return tokens, np.ascontiguousarray(probs, np.float32)


def median_us(run: Callable[[int], Any], repeats: int) -> float:
    """Median time of `run(i)` in microseconds."""
    times = []
    for i in range(repeats):
        start = time.perf_counter()
        run(i)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def bench_size(size: int, repeats: int) -> dict[str, float]:
    """All figures of one text length, in microseconds."""
    rng = np.random.default_rng(SEED)
    text = synthetic_text(size + repeats, rng)
    head, tail = text[:size], text[size:].tolist()
    tokens, probs = synthetic_rows(text, rng)
    previous = np.concatenate([[-1], text[:-1]])
    figures = {}

    pool = ngram_pool.NgramPool()
    start = time.perf_counter()
    pool.extend(head)
    figures["extend in bulk, a token"] = (time.perf_counter() - start) / size * 1e6

    single = ngram_pool.NgramPool()
    start = time.perf_counter()
    for token in head.tolist():
        single.extend([token])
    figures["extend one by one, a token"] = (time.perf_counter() - start) / size * 1e6

    start = time.perf_counter()
    pool.recycle(previous, text, tokens, probs)
    figures["recycle in bulk, a row"] = (time.perf_counter() - start) / len(text) * 1e6

    def propose(_: int) -> None:
        proposals.append(pool.propose(NODES, min_probability=0.0))

    proposals: list[ngram_pool.Proposal] = []
    times = []
    for i in range(repeats):
        pool.extend([tail[i]])
        times.append(median_us(propose, 1))
    figures[f"propose {NODES} nodes"] = statistics.median(times)
    figures["nodes proposed, mean"] = statistics.fmean(len(p) for p in proposals)

    def learn(i: int) -> None:
        pool.learn(proposals[i], [0], [tail[(i + 1) % repeats]])

    figures["learn"] = median_us(learn, repeats)
    figures["MiB"] = pool.stats().bytes / 2**20
    return figures


def bench_dict(size: int, repeats: int) -> dict[str, float]:
    """Time the plain Python pool: what serves until kernels are ready."""
    rng = np.random.default_rng(SEED)
    text = synthetic_text(size + repeats, rng)
    tokens, probs = synthetic_rows(text, rng)
    pool = ngram_pool.DictPool()
    start = time.perf_counter()
    pool.extend(text[:size])
    extend = (time.perf_counter() - start) / size * 1e6
    pool.recycle(np.concatenate([[-1], text[:-1]]), text, tokens, probs)
    times = []
    for i in range(repeats):
        pool.extend(text[size + i : size + i + 1])
        times.append(median_us(lambda _: pool.propose(16), 1))
    return {"DictPool extend, a token": extend, "DictPool propose 16": statistics.median(times)}


def bench_top_rows() -> dict[str, float]:
    """Top 8 of normal logits, per row."""
    logits = np.random.default_rng(SEED).normal(0, 3, (16, VOCAB)).astype(np.float32)
    many = median_us(lambda _: ngram_pool.top_rows(logits), 40) / len(logits)
    one = median_us(lambda i: ngram_pool.top_rows(logits[i % 16 : i % 16 + 1]), 200)
    return {"top_rows, 16 rows, a row": many, "top_rows, 1 row": one}


def main() -> None:
    """Print a table; write JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[8_000, 128_000])
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    ngram_pool.warm_up(block=True)
    results = {str(size): bench_size(size, arguments.repeats) for size in arguments.sizes}
    results["plain Python, 8000"] = bench_dict(8_000, 100)
    results["logits"] = bench_top_rows()
    print(f"{'tokens':>20}  {'figure, us unless said':<28}{'measured':>10}{'target':>10}")
    for name, figures in results.items():
        for what, value in figures.items():
            target = TARGETS.get((name, what))
            print(f"{name:>20}  {what:<28}{value:>10.2f}{target or '':>10}")
    if arguments.json:
        machine = {"python": platform.python_version(), "machine": platform.processor()}
        arguments.json.write_text(json.dumps({"machine": machine, "figures": results}, indent=1))


if __name__ == "__main__":
    main()
