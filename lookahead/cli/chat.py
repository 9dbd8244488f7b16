"""``lookahead chat``: a conversation, typed or piped."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

from lookahead.cli import options
from lookahead.cli.console import open_model, print_note

HELP = """\
/plain   answer without acceleration from now on
/fast    answer with it again
/stats   statistics of the last answer in full
/clear   begin a new conversation
/help    this list
/exit    leave (so do Ctrl-D, and Ctrl-C twice)
In the last line of an answer, a token that two sources guessed counts for both."""


def chat(
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
    no_chat_template: options.NoTemplateOption = False,
    device: options.DeviceOption = "cpu",
    threads: options.ThreadsOption = None,
) -> None:
    """Chat with a model; each answer ends with a line of figures.

    Typed, or piped with one question a line: echo "Hello" | lookahead chat
    """
    budget = options.parse_nodes(nodes)
    loaded, tokenizer = open_model(model, dtype, device, threads)
    options.quantise(loaded, quantize)
    from lookahead.cli.conversation import Conversation

    session = ChatSession(
        Conversation(loaded, tokenizer, use_template=not no_chat_template),
        budget=budget,
        seed=seed,
        settings={
            "max_new_tokens": max_new_tokens,
            **options.sampling_options(temperature, top_p, top_k),
        },
    )
    if not plain:
        session.fast()
    if sys.stdin.isatty():
        print_note("Type a message; /help lists the commands, /exit leaves.")
    session.run()


class ChatSession:
    """Reads lines, obeys commands, prints answers.

    Parameters
    ----------
    conversation : Conversation
    budget : "auto" or int
        Draft budget of the accelerated answers.
    seed : int or None
        Set before every answer, so that an answer does not depend on those before it.
    settings : dict
        Passed to ``generate``.
    """

    def __init__(
        self, conversation: Any, *, budget: Any, seed: int | None, settings: dict[str, Any]
    ) -> None:
        self.conversation = conversation
        self._budget = budget
        self._seed = seed
        self._settings = settings
        self._last: Any = None
        self._is_open = True
        self._commands: dict[str, Callable[[], None]] = {
            "/plain": self.plain,
            "/fast": self.fast,
            "/stats": self.stats,
            "/clear": self.clear,
            "/help": lambda: print(HELP),
            "/exit": self.close,
        }

    def run(self) -> None:
        """Answer until the input ends."""
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # a line that is no text ends no conversation
        while self._is_open and (line := _read_line()) is not None:
            text = line.strip()
            if text.startswith("/"):
                self._obey(text)
            elif text:
                self.answer(text)

    def answer(self, text: str) -> None:
        """Print the answer as it comes, and a last line of figures."""
        import torch

        from lookahead.cli.conversation import ContextFullError

        if self._seed is not None:
            torch.manual_seed(self._seed)
        try:
            self._last = self.conversation.ask(text, _show, **self._settings)
        except ContextFullError:
            print_note("The conversation fills the model's context; /clear begins a new one.")
            return
        print(f"\n[{self._last.summary()}]", flush=True)

    def plain(self) -> None:
        """Take the acceleration off."""
        import lookahead

        lookahead.restore(self.conversation.model)

    def fast(self) -> None:
        """Put the acceleration on; again is harmless."""
        import lookahead

        lookahead.accelerate(self.conversation.model, nodes=self._budget)

    def stats(self) -> None:
        """Print all that is known about the last answer."""
        if self._last is None:
            print("No answer yet.")
            return
        print(f"{self._last.num_reused} ids of the prompt were kept from earlier turns.")
        if self._last.stats is None:
            print(self._last.summary())
            return
        print(self._last.stats.summary())
        parts = self._last.stats.time_ms.items()
        print("ms: " + ", ".join(f"{part} {ms:.0f}" for part, ms in parts))
        for note in self._last.stats.notes:
            print(f"note: {note}")

    def clear(self) -> None:
        """Begin a new conversation."""
        self.conversation.clear()
        self._last = None

    def close(self) -> None:
        """Leave after this command."""
        self._is_open = False

    def _obey(self, text: str) -> None:
        command = self._commands.get(text.split(maxsplit=1)[0])
        if command is None:
            print(f"There is no command {text.split(maxsplit=1)[0]}; /help lists them.")
        else:
            command()
        sys.stdout.flush()


def _show(piece: str) -> None:
    print(piece, end="", flush=True)


def _read_line() -> str | None:
    """Next line of input, ``None`` at its end or after Ctrl-C twice."""
    if not sys.stdin.isatty():
        return sys.stdin.readline() or None
    was_interrupted = False
    while True:
        try:
            return input("> ")
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            if was_interrupted:
                print()
                return None
            was_interrupted = True
            print("\n(Ctrl-C again leaves)")
