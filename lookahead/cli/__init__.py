"""The ``lookahead`` command: generate, chat, run, bench.

Each command is a thin file over the library. Heavy imports (torch, transformers) happen inside the
commands, so that ``--help`` answers at once.
"""

from lookahead.cli.app import main

__all__ = ["main"]
