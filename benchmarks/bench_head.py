"""Time and memory of the least-squares head on random data, by width and vocabulary.

python benchmarks/bench_head.py [WIDTH VOCAB]   (576 49152 and 4096 128000 if nothing is said)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

import ngram_pool
from lookahead.drafters.head import LeastSquaresHead
from lookahead.drafters.products import dtype_of_guesses
from lookahead.drafters.readout import Readout
from lookahead.drafters.sums import HeadSums
from lookahead.outcome import Outcome
from lookahead.tree import DraftTree

PROMPT, NODES, ANSWER = 512, 16, 3


class RandomEnds:
    """Embedding and output layer of random numbers, in bfloat16 as a model would have them."""

    def __init__(self, width: int, vocab: int) -> None:
        self.dtype_of_guesses = dtype_of_guesses(torch.device("cpu"))
        self.width = self.embedding_width = width
        self.vocab = vocab
        self.table = torch.randn(vocab, width).bfloat16()

    def embed(self, tokens: Tensor) -> Tensor:
        """Return rows of the table."""
        return self.table[tokens]

    def output_rows(self, tokens: Tensor) -> tuple[Tensor, None]:
        """Return rows of the same table: tied, as in most small models."""
        return self.table[tokens].float(), None


def median_ms(function: Callable[[], object], times: int = 9) -> float:
    """Run a function several times; return the median in milliseconds."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return float(np.median(taken)) * 1000


def size_mb(*tensors: Tensor | None) -> float:
    """Return the size of tensors in MB."""
    return sum(t.numel() * t.element_size() for t in tensors if t is not None) / 1e6


def measure(width: int, vocab: int) -> None:
    """Print one table."""
    rng = np.random.default_rng(0)
    ends = RandomEnds(width, vocab)
    sums = HeadSums(ends)
    rows = torch.randn(1024, 2 * width), torch.randn(1024, width)
    summing = median_ms(lambda: sums.add(*rows), 3) / 1024 * 32
    start = time.perf_counter()
    sums.map()
    fitting = (time.perf_counter() - start) * 1000
    head = LeastSquaresHead(ends, Readout(ends, range(2048)), sums)
    context = rng.integers(0, vocab, PROMPT + 1).tolist()
    hidden = torch.randn(PROMPT, width)
    start = time.perf_counter()
    head.begin(context, hidden)
    root = DraftTree.only_root(context[-1])
    head.ask(context, root, [0])
    beginning = (time.perf_counter() - start) * 1000
    first = median_ms(lambda: (head._predicted.clear(), head.ask(context, root, [0])))
    tree = DraftTree.from_paths(context[-1], [[int(t)] for t in rng.integers(0, vocab, NODES)])
    level = median_ms(
        lambda: (
            [head._predicted.pop(k) for k in list(head._predicted) if k],
            head.ask(context, tree, [1, 2, 3, 4]),
        )
    )
    outcome = Outcome(tree, [0], [1], [*context, 1], torch.zeros(1), torch.randn(NODES + 1, width))

    def learn() -> None:
        head.learn(outcome)
        head._catch_up()

    learning = median_ms(learn)
    whole = ends.table
    row = torch.randn(1, width).bfloat16()
    output = median_ms(lambda: row @ whole.T)
    regression, readout = head._regression, head._readout
    print(f"width {width}, vocabulary {vocab}, {torch.get_num_threads()} threads")
    print(f"  begin, {PROMPT} positions         {beginning:8.1f} ms")
    print(f"  ask about the root             {first:8.2f} ms")
    print(f"  ask about 4 nodes below it     {level:8.2f} ms")
    print(f"  learn a pass of {NODES + 1} rows        {learning:8.2f} ms")
    print(f"  sum up 32 rows                 {summing:8.2f} ms")
    print(f"  fit the prior anew             {fitting:8.1f} ms")
    print(f"  (one row of the whole output layer, bfloat16: {output:.2f} ms)")
    own = (regression._inputs, regression._outputs, regression._weights, regression._inverse)
    print(f"  memory of a sequence           {size_mb(*own):8.1f} MB")
    print(f"  memory of the readout          {size_mb(readout._weight):8.1f} MB")
    print(f"  memory of the sums, of a model {size_mb(sums._squares, sums._products):8.1f} MB")


if __name__ == "__main__":
    ngram_pool.warm_up(block=True)
    pairs = sys.argv[1:] or ["576", "49152", "4096", "128000"]
    for at in range(0, len(pairs), 2):
        measure(int(pairs[at]), int(pairs[at + 1]))
