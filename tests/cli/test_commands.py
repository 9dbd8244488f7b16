from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

MODEL = ("--dtype", "float32", "--max-new-tokens", "12")


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['lookahead', '--help']\n"
        "from lookahead.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('HEAVY', sorted({'torch', 'transformers', 'numba'} & set(sys.modules)))"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert time.perf_counter() - start < 10
    assert "HEAVY []" in done.stdout
    for command in ("generate", "chat", "run", "bench"):
        assert command in done.stdout


@pytest.mark.parametrize("command", ["generate", "chat", "run", "bench"])
def test_each_command_has_help(call: Any, command: str) -> None:
    outcome = call(command, "--help")
    assert outcome.code == 0
    assert "--nodes" in outcome.out


def test_version(call: Any) -> None:
    assert call("--version").out.startswith("lookahead-decoding ")


def test_generate_is_the_same_plain_and_fast(call: Any, tiny_folder: Path) -> None:
    plain = call("generate", "hello", "-m", tiny_folder, *MODEL, "--plain")
    fast = call("generate", "hello", "-m", tiny_folder, *MODEL, "--nodes", "8", "--stats")
    assert plain.code == fast.code == 0
    assert plain.out == fast.out
    assert "MAT" in fast.err
    assert "MAT" not in plain.err


def test_generate_reads_standard_input(call: Any, tiny_folder: Path) -> None:
    given = call("generate", "hello", "-m", tiny_folder, *MODEL)
    assert call("generate", "-m", tiny_folder, *MODEL, stdin="hello").out == given.out
    assert call("generate", "-", "-m", tiny_folder, *MODEL, stdin="hello").out == given.out
    raw = call("generate", "hello", "-m", tiny_folder, *MODEL, "--no-chat-template")
    assert raw.code == 0
    assert raw.out != given.out


@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_a_quantised_model_is_compared_with_itself(call: Any, tiny_folder: Path, bits: str) -> None:
    asked = ("generate", "hello", "-m", tiny_folder, *MODEL, "--quantize", bits)
    both = call(*asked, "--compare")
    assert both.code == 0, both.err
    assert "ids the same: yes" in both.err
    plain = call(*asked, "--plain")
    assert plain.out == call(*asked).out


def test_generate_compares(call: Any, tiny_folder: Path) -> None:
    outcome = call(
        "generate", "hello", "-m", tiny_folder, *MODEL, "--compare", "-t", "0.8", "--nodes", "8"
    )
    assert outcome.code == 0
    assert "ids the same: yes" in outcome.err
    assert outcome.err.count("tokens/s") == 2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("generate", ""), 2, "the prompt is empty"),
        (("generate", "x", "--plain", "--compare"), 2, "not both"),
        (("generate", "x", "--nodes", "-3"), 2, "auto or a whole number"),
        (("generate", "x", "--nodes", "257", "-m", "no such folder"), 2, "from 0 to 256"),
        (("generate", "x", "-m", "no/such/model/here"), 1, "could not be loaded"),
        (("generate", "x", "--dtype", "int4"), 2, "int4"),
        (("generate", "x", "--device", "nowhere"), 2, "nothing can be computed on 'nowhere'"),
        (("generate", "x", "--device", "meta"), 2, "nothing can be computed on 'meta'"),
        (("generate", "x", "--threads", "99999999999"), 2, "--threads"),
        (("generate", "x", "--seed", str(2**64)), 2, "--seed"),
        (("generate", "a\udcff"), 2, "not text in UTF-8"),
        (("generate", "word " * 3000, "-m", "TINY"), 1, "context ends at"),
        (("run", "no_such_script.py"), 1, "There is no script"),
        (("nonsense",), 2, "No such command"),
    ],
)
def test_errors_are_one_sentence(
    call: Any, tiny_folder: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    outcome = call(*(str(tiny_folder) if word == "TINY" else word for word in arguments))
    assert outcome.code == code
    assert words in " ".join(outcome.err.replace("│", " ").split())
    assert "Traceback" not in outcome.err


def test_chat_piped_answers_each_line(call: Any, tiny_folder: Path) -> None:
    outcome = call("chat", "-m", tiny_folder, *MODEL, "--nodes", "8", stdin="hi\n\nagain\nlast")
    assert outcome.code == 0
    assert outcome.out.count("tokens/s") == 3
    assert "target's own" in outcome.out


def test_chat_commands(call: Any, tiny_folder: Path) -> None:
    lines = "/stats\n/help\nhi\n/plain\nagain\n/fast\nmore\n/stats\n/bogus\n/clear\n/exit\nnever\n"
    outcome = call("chat", "-m", tiny_folder, *MODEL, "--nodes", "8", stdin=lines)
    assert outcome.code == 0
    assert outcome.out.count("tokens/s") == 4  # three answers, and /stats
    for words in ("No answer yet", "/clear", "MAT 1.00, plain", "kept from earlier", "no command"):
        assert words in outcome.out


def test_chat_says_the_same_plain_fast_and_mixed(call: Any, tiny_folder: Path) -> None:
    def texts(*options: str, stdin: str) -> list[str]:
        out = call("chat", "-m", tiny_folder, *MODEL, *options, stdin=stdin).out
        # Figures differ from run to run; the answers must not.
        return [line for line in out.split("\n") if not line.startswith("[")]

    plain = texts("--plain", stdin="hi\nagain\nmore\n")
    assert texts("--nodes", "8", stdin="hi\nagain\nmore\n") == plain
    assert texts("--nodes", "8", stdin="hi\n/plain\nagain\n/fast\nmore\n") == plain


def test_chat_without_a_template(call: Any, tiny_folder: Path) -> None:
    outcome = call("chat", "-m", tiny_folder, *MODEL, "--no-chat-template", stdin="hi\nagain\n")
    assert outcome.code == 0
    assert outcome.out.count("tokens/s") == 2


@pytest.mark.parametrize("name", ["chat.py", "quickstart.py"])
def test_examples_are_short(name: str) -> None:
    lines = (Path(__file__).parents[2] / "examples" / name).read_text().splitlines()
    assert len(lines) <= {"chat.py": 80, "quickstart.py": 30}[name]
