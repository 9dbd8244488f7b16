"""``lookahead generate``: one prompt, one answer."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from lookahead.cli import options
from lookahead.cli.console import open_model, print_note, usage_error, working

WARM_UP_TOKENS = 8


def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(help="The prompt; - or nothing reads it from standard input."),
    ] = None,
    model: options.ModelOption = "default",
    max_new_tokens: options.MaxNewTokensOption = 256,
    dtype: options.DtypeOption = options.Dtype.auto,
    temperature: options.TemperatureOption = 0.0,
    top_p: options.TopPOption = 1.0,
    top_k: options.TopKOption = 0,
    seed: options.SeedOption = None,
    nodes: options.NodesOption = "auto",
    quantize: options.QuantizeOption = options.Bits.none,
    plain: options.PlainOption = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Run plain and accelerated, and compare both.")
    ] = False,
    no_chat_template: options.NoTemplateOption = False,
    device: options.DeviceOption = "cpu",
    threads: options.ThreadsOption = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print statistics to stderr.")] = False,
) -> None:
    """Answer one prompt, streaming; the text goes to stdout, everything else to stderr.

    Examples: lookahead generate "Why is the sky blue?" --stats, or
    cat letter.txt | lookahead generate --temperature 0.7 --seed 1
    """
    if plain and compare:
        raise usage_error("give --plain or --compare, not both", "--compare")
    budget = options.parse_nodes(nodes)
    text = _read_prompt(prompt)
    loaded, tokenizer = open_model(model, dtype, device, threads)
    options.quantise(loaded, quantize)
    request = Request(
        model=loaded,
        tokenizer=tokenizer,
        text=text,
        use_template=not no_chat_template,
        seed=0 if seed is None and compare else seed,
        options={
            "max_new_tokens": max_new_tokens,
            **options.sampling_options(temperature, top_p, top_k),
        },
    )
    if compare:
        _compare(request, budget)
        return
    if not plain:
        request.accelerate(budget)
    reply = request.answer(is_shown=True)
    if stats:
        print_note(reply.stats.summary() if reply.stats else reply.summary())


@dataclass
class Request:
    """One prompt with all that is needed to answer it, once or twice."""

    model: Any
    tokenizer: Any
    text: str
    use_template: bool
    seed: int | None
    options: dict[str, Any]

    def accelerate(self, budget: Any) -> None:
        """Accelerate the model from now on."""
        import lookahead

        lookahead.accelerate(self.model, nodes=budget)

    def answer(self, *, is_shown: bool, **changes: Any) -> Any:
        """Answer once, with the model as it is."""
        import torch

        from lookahead.cli.conversation import Conversation

        if self.seed is not None:
            torch.manual_seed(self.seed)
        conversation = Conversation(self.model, self.tokenizer, use_template=self.use_template)
        show = _show if is_shown else (lambda _piece: None)
        reply = conversation.ask(self.text, show, **{**self.options, **changes})
        if is_shown:
            print(flush=True)
        if reply.is_interrupted:
            raise KeyboardInterrupt
        return reply


def _show(piece: str) -> None:
    print(piece, end="", flush=True)


def _compare(request: Request, budget: Any) -> None:
    """Answer plain and accelerated, and say how they compare."""
    # The first call pays for waking threads and allocating memory: it is not counted.
    request.answer(is_shown=False, max_new_tokens=WARM_UP_TOKENS)
    plain = request.answer(is_shown=True)
    request.accelerate(budget)
    with working("Now the same, accelerated"):
        request.answer(is_shown=False, max_new_tokens=WARM_UP_TOKENS)
        fast = request.answer(is_shown=False)
    rates = [len(reply.new_ids) / reply.seconds for reply in (plain, fast)]
    print_note(f"plain:       {plain.summary()}")
    print_note(f"accelerated: {fast.summary()}")
    is_same = plain.new_ids == fast.new_ids
    print_note(f"speed-up: {rates[1] / rates[0]:.2f} times; ids the same: {_yes(is_same)}")
    if not is_same:
        _explain_difference(request)


def _yes(is_true: bool) -> str:
    return "yes" if is_true else "no"


def _explain_difference(request: Request) -> None:
    """Say whether rounding explains that the two answers differ."""
    if request.options.get("do_sample"):
        print_note("A sampled answer may part at a near tie of the draw; compare --temperature 0.")
        return
    import torch

    from lookahead.cli.conversation import Transcript
    from lookahead.hf.difference import find_difference

    transcript = Transcript(request.tokenizer, use_template=request.use_template)
    ids = torch.tensor([transcript.prompt_ids(request.text)], device=request.model.device)
    with working("Looking for the first difference"):
        found = find_difference(request.model, ids, **request.options)
    print_note(f"In a second pair of runs, {found or 'the ids were the same'}.")


def _read_prompt(prompt: str | None) -> str:
    try:
        if prompt is not None and prompt != "-":
            text = prompt
        elif prompt == "-" or not sys.stdin.isatty():
            text = sys.stdin.read()
        else:
            raise usage_error('give a prompt, as in: lookahead generate "Hello"', "PROMPT")
        text.encode()  # what is no text on the command line comes as code points of no character
    except UnicodeError as error:
        raise usage_error("the prompt is not text in UTF-8", "PROMPT") from error
    if not text.strip():
        raise usage_error("the prompt is empty", "PROMPT")
    return text
