"""A streaming chat with a model that drafts for itself, keeping the K/V of earlier turns.

Run: python examples/chat.py            (typed)
     echo "Hello" | python examples/chat.py   (piped, one question a line)

/plain and /fast switch the acceleration off and on, /clear begins anew, /exit leaves. Each answer
ends with tokens, seconds, tokens/s, MAT, and where the tokens came from.
"""

import sys

import lookahead
from lookahead.cli.conversation import Conversation
from lookahead.hf.default_model import load_model


def say(piece: str) -> None:
    print(piece, end="", flush=True)


def lines():
    """Lines of the user, typed or piped, until the input ends."""
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except (EOFError, KeyboardInterrupt):
            return
        if line.strip():
            yield line.strip()


def main() -> None:
    print(
        "Loading the model (the first time, it is converted once: about 20 s) ...", file=sys.stderr
    )
    model, tokenizer = load_model("default")
    lookahead.accelerate(model)
    conversation = Conversation(model, tokenizer)

    for line in lines():
        if line == "/plain":
            lookahead.restore(model)
        elif line == "/fast":
            lookahead.accelerate(model)
        elif line == "/clear":
            conversation.clear()
        elif line == "/exit":
            return
        else:
            reply = conversation.ask(line, say, max_new_tokens=256, do_sample=False)
            print(f"\n[{reply.summary()}]", flush=True)


if __name__ == "__main__":
    main()
