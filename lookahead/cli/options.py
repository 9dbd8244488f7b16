"""Options that several commands share, and their translation into arguments of ``generate``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import typer

from lookahead.cli.console import usage_error
from lookahead.config import MAX_NODES


class Dtype(StrEnum):
    """Number format of weights and activations."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Bits(StrEnum):
    """Forms of the weights of decoder layers."""

    none = "none"
    int8 = "int8"
    int4 = "int4"


def quantise(model: Any, bits: Bits) -> None:
    """Give a model's decoder layers weights of fewer bits, for good.

    Raises
    ------
    ConfigError
        If the model has none that could be quantised.
    """
    if bits is not Bits.none:
        import lookahead

        lookahead.quantize(model, bits.value)


def parse_nodes(text: str) -> int | Literal["auto"]:
    """Turn ``auto`` or a whole number into a draft budget."""
    if text == "auto":
        return "auto"
    try:
        nodes = int(text)
    except ValueError:
        nodes = -1
    if not 0 <= nodes <= MAX_NODES:
        expected = f"auto or a whole number from 0 to {MAX_NODES}"
        raise usage_error(f"expected {expected}, not {text!r}", "--nodes")
    return nodes


ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help="default (embedded), a folder, a .gguf file, or a hub name.",
    ),
]
DtypeOption = Annotated[
    Dtype,
    typer.Option("--dtype", help="auto is bfloat16 where the hardware has it, else float32."),
]
DeviceOption = Annotated[str, typer.Option("--device", help="Where to run: cpu, cuda, mps.")]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", min=1, max=1024, help="Threads of torch; by default its own choice."),
]
MaxNewTokensOption = Annotated[
    int, typer.Option("--max-new-tokens", "-n", min=1, help="Length limit of an answer.")
]
TemperatureOption = Annotated[
    float, typer.Option("--temperature", "-t", min=0.0, help="0 takes the likeliest token.")
]
TopPOption = Annotated[
    float, typer.Option("--top-p", min=0.0, max=1.0, help="Sample from this share; 1 is all.")
]
TopKOption = Annotated[
    int, typer.Option("--top-k", min=0, help="Sample from so many tokens; 0 is all.")
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        "--seed",
        min=0,
        max=2**63 - 1,
        help="Start of the random numbers, for repeatable samples.",
        show_default=False,
    ),
]
NodesOption = Annotated[
    str,
    typer.Option("--nodes", metavar="auto|N", help="Most guesses that one pass verifies."),
]
QuantizeOption = Annotated[
    Bits,
    typer.Option("--quantize", help="Weights of fewer bits: another text, less memory and time."),
]
PlainOption = Annotated[bool, typer.Option("--plain", help="Do not accelerate.")]
NoTemplateOption = Annotated[
    bool, typer.Option("--no-chat-template", help="Give the text to the model as it is.")
]


def sampling_options(temperature: float, top_p: float, top_k: int = 0) -> dict[str, Any]:
    """Arguments of ``generate`` for a temperature; 0 is greedy.

    Values that greedy decoding does not use are set to neutral ones, so that a model's own defaults
    for sampling give no warnings.
    """
    if temperature == 0:
        return {"do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 50}
    return {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": top_k}
