"""What a pass over a tree costs, by its rows and the text before it, on models of random weights.

python benchmarks/pass_costs.py --shape 1b --shape 8b --device cuda --json costs.json

Weights are random, in the shapes of models that cannot be shipped: what they say is noise, but the
time that they take is that of any model of their shape. Plain passes are the library's own, with
its own cache; passes over trees are those of accelerated calls.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import psutil
import torch
import transformers
import typer
from rich.console import Console
from rich.table import Table
from transformers.cache_utils import DynamicCache

from lookahead.cli.versions import machine
from lookahead.config import Config
from lookahead.hf.cache import SlotCache
from lookahead.hf.compat import cache_argument
from lookahead.hf.pass_clock import read_bandwidth
from lookahead.hf.prepack import prepacked_weights
from lookahead.hf.selftest import made_up_call
from lookahead.hf.target import HFTarget
from lookahead.session import Session
from lookahead.stats import DecodeStats
from lookahead.tree import DraftTree

#: Width, layers, heads, K/V heads, width of the MLP, vocabulary; about those of Llama 3 and Qwen 3.
SHAPES = {
    "tiny": (64, 2, 4, 2, 128, 512),
    "135m": (576, 30, 9, 3, 1536, 49152),
    "1b": (2048, 16, 32, 8, 8192, 128256),
    "8b": (4096, 32, 32, 8, 14336, 128256),
    "32b": (5120, 64, 64, 8, 25600, 151936),
}

#: Tokens of a made-up text that are read at once.
AT_ONCE = 512


def main(
    shape: Annotated[list[str], typer.Option(help=f"Any of {', '.join(SHAPES)}.")],
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "bfloat16",
    context: Annotated[str, typer.Option(help="Tokens before the pass.")] = "100,2000,8000",
    rows: Annotated[str, typer.Option(help="Rows of a pass.")] = "1,2,4,8,16,32,64",
    repeats: Annotated[int, typer.Option(help="Passes of each kind; the median counts.")] = 7,
    out: Annotated[Path | None, typer.Option("--json", help="Write all figures here.")] = None,
) -> None:
    """Print a table for each shape, and write all of them as JSON if wanted."""
    contexts, sizes = ([int(n) for n in text.split(",")] for text in (context, rows))
    found: dict[str, Any] = {
        "machine": machine(device),
        "dtype": dtype,
        "bandwidth_gb_s": read_bandwidth(torch.device(device)) / 1e9,
        "shapes": {},
    }
    for name in shape:
        model = random_model(name, device, getattr(torch, dtype))
        num_bytes = sum(p.nbytes for p in model.parameters())
        found["shapes"][name] = {
            "weights_gb": num_bytes / 1e9,
            "memory_alone_ms": num_bytes / found["bandwidth_gb_s"] / 1e6,
            "contexts": {tokens: measure(model, tokens, sizes, repeats) for tokens in contexts},
            "memory_gb": peak_memory(device) / 1e9,
        }
        show(name, found["shapes"][name], sizes)
        del model
        gc.collect()
    if out is not None:
        out.write_text(json.dumps(found, indent=1))


def random_model(name: str, device: str, dtype: torch.dtype) -> Any:
    """Make a model of one of the shapes, where it is to run."""
    width, layers, heads, key_heads, inner, vocab = SHAPES[name]
    config = transformers.LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        head_dim=max(8, width // heads if name != "32b" else 128),
        intermediate_size=inner,
        vocab_size=vocab,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return transformers.LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def measure(model: Any, context: int, sizes: list[int], repeats: int) -> dict[str, Any]:
    """Return milliseconds of a plain pass, and of one over a tree by its rows."""
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(0, model.config.vocab_size, (context,), generator=generator).tolist()
    plain = plain_ms(model, prompt, repeats)
    stats, by_rows = DecodeStats(), {}
    cache = SlotCache(DynamicCache(config=model.config), 1)
    target = HFTarget(*made_up_call(model, prompt, cache))
    with torch.no_grad(), prepacked_weights(model, Config(), Session(), stats):
        target.prefill()
        for size in sizes:
            tree = bushy_tree(prompt[-1], size, model.config.vocab_size)
            by_rows[size] = median_ms(lambda tree=tree: target.verify([0], [tree]), repeats, model)
    return {"plain_ms": plain, "prepacked_gb": stats.prepacked_bytes / 1e9, "rows_ms": by_rows}


def plain_ms(model: Any, prompt: list[int], repeats: int) -> float:
    """Return milliseconds of the library's own pass over one token."""
    cache, name = DynamicCache(config=model.config), cache_argument(model)
    ids = torch.tensor([prompt], device=model.device)
    with torch.no_grad():
        for part in ids.split(AT_ONCE, dim=1):
            model(part, **{name: cache}, logits_to_keep=1)

        def one() -> None:
            model(ids[:, -1:], **{name: cache})
            cache.crop(-1)

        return median_ms(one, repeats, model)


def bushy_tree(root: int, num_rows: int, vocab: int) -> DraftTree:
    """Make a tree whose nodes have two children each."""
    parents = [0, *((node - 1) // 2 for node in range(1, num_rows))]
    return DraftTree.from_parents([root, *(i % vocab for i in range(1, num_rows))], parents)


def median_ms(function: Callable[[], object], repeats: int, model: Any) -> float:
    """Return the median time of a call in milliseconds, two calls to warm up not counted."""
    taken = []
    for call in range(repeats + 2):
        start = time.perf_counter()
        function()
        if model.device.type != "cpu":
            torch.accelerator.synchronize(model.device)
        if call > 1:
            taken.append((time.perf_counter() - start) * 1000)
    return statistics.median(taken)


def peak_memory(device: str) -> int:
    """Return bytes: the most that was taken of a GPU, or what the process has now."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


def show(name: str, shape: dict[str, Any], sizes: list[int]) -> None:
    """Print one table; in brackets how often a plain pass goes into a pass of that size."""
    table = Table(title=f"{name}: {shape['weights_gb']:.2f} GB of weights, ms a pass")
    for column in ("context", "plain", *(f"{size} rows" for size in sizes)):
        table.add_column(column, justify="right")
    for context, costs in shape["contexts"].items():
        plain = costs["plain_ms"]
        each = [f"{ms:.1f} ({ms / plain:.2f})" for ms in costs["rows_ms"].values()]
        table.add_row(str(context), f"{plain:.1f}", *each)
    table.caption = (
        f"memory alone: {shape['memory_alone_ms']:.2f} ms a pass; memory taken: "
        f"{shape['memory_gb']:.1f} GB"
    )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
