"""The typer application, and the one place where errors become sentences and exit codes.

Exit codes: 0 done, 1 failed, 2 used wrongly, 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer

from lookahead.cli import bench, calibrate, chat, explain, generate, memory, run
from lookahead.cli.console import print_error
from lookahead.errors import ConfigError, LookaheadError, LookaheadWarning

app = typer.Typer(
    name="lookahead",
    help="Make a Hugging Face language model generate faster, with the same output.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("run", context_settings=run.CONTEXT_SETTINGS)(run.run)
app.command("bench")(bench.bench)
app.command("calibrate")(calibrate.calibrate)
app.command("explain")(explain.explain)
app.add_typer(memory.app, name="memory")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from lookahead.cli.versions import installed_version

        typer.echo(f"lookahead-decoding {installed_version('lookahead-decoding') or 'unknown'}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Say the version."),
    ] = False,
) -> None:
    """Make a Hugging Face language model generate faster, with the same output."""
    del version  # acted on by its callback


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows the name of the program; by default what the process was started with.

    Raises
    ------
    SystemExit
        Always.
    """
    warnings.formatwarning = _format_warning
    try:
        app(args=None if arguments is None else list(arguments), prog_name="lookahead")
    except ConfigError as error:
        print_error(str(error))
        sys.exit(2)
    except LookaheadError as error:
        print_error(str(error))
        sys.exit(1)
    except BrokenPipeError:
        # The reader went away (| head): nothing to say, and nothing to flush at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    finally:
        warnings.formatwarning = _python_format


_python_format = warnings.formatwarning


def _format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Show our own warnings as a sentence; the line of our code that gave it helps nobody."""
    if issubclass(category, LookaheadWarning):
        return f"lookahead: {message}\n"
    return _python_format(message, category, filename, lineno, line)
