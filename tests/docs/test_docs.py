"""The documentation is right: its blocks run, its links exist, and its lists are those of the code.

Blocks of one file run in order and share their names, as a reader would run them. A tiny model
stands in for the embedded one. ``<!-- skip -->`` before a block keeps it from running, and
``<!-- output -->`` before a text block says what the block above it prints.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import io
import re
import runpy
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import typer
from packaging.specifiers import SpecifierSet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import lookahead
from lookahead.cli.app import app
from lookahead.hf.compat import SUPPORTED
from lookahead.rows import rows_of
from lookahead.window import LookaheadWindow

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]
TEMPLATE = (
    "{% for m in messages %}{{ '<s>' + m['role'] + ': ' + m['content'] + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant: ' }}{% endif %}"
)


@dataclasses.dataclass
class Block:
    """A fenced block, its language, and the markers on the line before it."""

    language: str
    text: str
    line: int
    marker: str


def blocks(page: Path) -> list[Block]:
    found, lines = [], page.read_text("utf-8").split("\n")
    place = 0
    while place < len(lines):
        if lines[place].startswith("```"):
            end = next(i for i in range(place + 1, len(lines)) if lines[i].startswith("```"))
            marker = lines[place - 1].strip() if place else ""
            text = "\n".join(lines[place + 1 : end]) + "\n"
            found.append(Block(lines[place][3:].strip(), text, place + 1, marker))
            place = end
        place += 1
    return found


def with_language(page: Path, language: str) -> list[Block]:
    return [block for block in blocks(page) if block.language == language]


def shell_lines() -> Iterator[tuple[str, list[str]]]:
    for page in PAGES:
        for block in with_language(page, "sh"):
            for line in block.text.splitlines():
                if words := shlex.split(line, comments=True):
                    yield f"{page.name}: {line}", words


def table_rows(page: Path, heading: str = "") -> list[list[str]]:
    """Cells of all table rows of a page, or of those below a heading; heads of tables left out."""
    text = page.read_text("utf-8")
    if heading:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    rules = {i for i, row in enumerate(rows) if set(row) <= set("|- ")}
    heads = {i - 1 for i in rules}
    return [
        [cell.strip() for cell in row.strip("|").split("|")]
        for i, row in enumerate(rows)
        if i not in rules | heads
    ]


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def make_tiny() -> tuple[Any, Any]:
    """A Llama with random weights and a tokenizer in which every byte is a token."""
    names = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    inner = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer: Any = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(names), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval(), tokenizer


@pytest.fixture
def tiny_for_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lookahead.hf.default_model.load_model", lambda *_, **__: make_tiny())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_compile(page: Path) -> None:
    for block in with_language(page, "python"):
        compile(block.text, f"{page.name}:{block.line}", "exec")


RUNNING = [page for page in PAGES if with_language(page, "python")]


@pytest.mark.usefixtures("tiny_for_default")
@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.name)
def test_python_blocks_run_and_print_what_they_say(page: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in blocks(page):
        if block.language == "python" and block.marker != "<!-- skip -->":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(block.text, f"{page.name}:{block.line}", "exec"), names)
            printed = out.getvalue()
        elif block.marker == "<!-- output -->":
            assert printed.rstrip() == block.text.rstrip(), f"{page.name}:{block.line}"


@pytest.mark.slow
def test_readme_example_gives_its_mat_on_the_embedded_model() -> None:
    example, said = with_language(README, "python")[0], with_language(README, "text")[0].text
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(example.text, "README.md", "exec"), {"__name__": "__main__"})
    figure = re.compile(r"(\d+) tokens in .*MAT ([\d.]+) over")
    found, stated = figure.search(out.getvalue()), figure.search(said)
    assert found
    assert stated
    assert found[1] == stated[1]
    # Rounding of another processor may move a guess over the edge of a bucket.
    assert float(found[2]) == pytest.approx(float(stated[2]), abs=0.1)


@pytest.mark.usefixtures("tiny_for_default")
def test_own_drafter_example_shows_offered_and_accepted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = ROOT / "examples" / "own_drafter.py"
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(r"phrases: \d+ offered, \d+ accepted", printed)
    assert "same ids as plain: True" in printed
    assert len(path.read_text("utf-8").splitlines()) < 60


@pytest.mark.usefixtures("tiny_for_default")
def test_own_drafter_example_proposes_the_rest_of_a_phrase() -> None:
    names = runpy.run_path(str(ROOT / "examples" / "own_drafter.py"))
    _, tokenizer = make_tiny()
    drafter = names["PhraseDrafter"](tokenizer, ["abcd", "cdef"])
    context = tokenizer.encode("xx abc", add_special_tokens=False)
    rest = [tokenizer.decode(guess) for guess in drafter.draft(context, 8)]
    assert rest == ["d", "def"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if not target.startswith(("http://", "https://", "#", "mailto:")):
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name}: {target}"


def test_index_links_every_page() -> None:
    linked = set(re.findall(r"\]\((\w+\.md)\)", (DOCS / "index.md").read_text("utf-8")))
    assert linked == {page.name for page in DOCS.glob("*.md")} - {"index.md"}


def test_commands_and_options_exist() -> None:
    group: Any = typer.main.get_command(app)
    for where, words in shell_lines():
        if words[0] != "lookahead":
            continue
        assert words[1] in group.commands, where
        known = {name for param in group.commands[words[1]].params for name in param.opts}
        known.add("--help")
        for word in words[2:]:
            assert not word.startswith("--") or word.partition("=")[0] in known, where


def test_commands_named_in_the_text_exist() -> None:
    group: Any = typer.main.get_command(app)
    for page in PAGES:
        for name in re.findall(r"`lookahead (\w+)[^`]*`", page.read_text("utf-8")):
            assert name in group.commands, f"{page.name}: lookahead {name}"


def test_other_shell_lines_name_what_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for where, words in shell_lines():
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), where
        elif words[0] == "python":
            assert (ROOT / words[1]).is_file(), where
        else:
            assert words[0] in {"lookahead", ".", "pre-commit"}, where
        for word in words[1:]:
            if word.endswith(".py"):
                assert (ROOT / word).is_file(), where


def test_arms_in_the_docs_are_those_of_the_benchmark() -> None:
    from lookahead.cli.benchmark.arms import KINDS, LLAMA_CPP

    named = {codes(row[0])[0] for row in table_rows(DOCS / "bench.md", "Arms")}
    assert named == {*KINDS, LLAMA_CPP}


def test_settings_has_every_field_with_its_default() -> None:
    rows = {codes(row[0])[0]: row[1] for row in table_rows(DOCS / "settings.md")}
    fields = dataclasses.fields(lookahead.Config)
    assert list(rows) == [one.name for one in fields]
    for one in fields:
        assert ast.literal_eval(rows[one.name].strip("`")) == one.default


def test_api_lists_the_public_names() -> None:
    rows = table_rows(DOCS / "api.md")
    cut = next(i for i, row in enumerate(rows) if "`accelerated`, `plain_reason`" in row[0])
    named = {codes(row[0])[0].partition("(")[0] for row in rows[:cut]}
    assert named == set(lookahead.__all__)
    for row in rows[cut:]:
        for name in codes(row[0]):
            assert hasattr(lookahead.DecodeStats(), name.removesuffix("()")), name


def test_api_lists_the_public_names_of_the_pool() -> None:
    import ngram_pool

    tail = (DOCS / "api.md").read_text("utf-8").split("its public names are")[1]
    assert set(codes(tail)) == set(ngram_pool.__all__)


def test_glossary_words_are_in_the_code() -> None:
    sources = "\n".join(path.read_text("utf-8") for path in _modules())
    for row in table_rows(DOCS / "glossary.md"):
        assert len(row) == 4, row
        for word in codes(row[2]):
            assert re.search(rf"\b{re.escape(word)}\b", sources), f"{row[0]}: {word}"


def test_structure_has_every_module() -> None:
    named = {codes(row[0])[0] for row in table_rows(DOCS / "structure.md")}
    there = {str(path.relative_to(ROOT)) for path in _modules()}
    assert named <= there
    assert {name for name in there if not name.endswith("__init__.py")} <= named


def _modules() -> list[Path]:
    return [path for name in ("lookahead", "ngram_pool") for path in (ROOT / name).rglob("*.py")]


#: Where reasons are written: returned, assigned, or given to one of these exceptions.
REASONS = {
    "hf/support.py": (),
    "hf/selftest.py": (),
    "hf/arguments.py": ("UnsupportedError",),
    "hf/shape.py": (),
    "hf/rules.py": (),
    "hf/ropes.py": (),
    "hf/adapters.py": (),
    "hf/parallel.py": (),
    "hf/split.py": (),
    "hf/kinds.py": ("UnsupportedError",),
    "hf/outputs_check.py": (),
    "hf/masks.py": ("UnsupportedError",),
    "calls.py": ("_RunPlain",),
}


@pytest.mark.parametrize("name", REASONS)
def test_every_reason_is_explained(name: str) -> None:
    explained = [cell for row in table_rows(DOCS / "plain.md") for cell in row]
    reasons = set(_reasons(ROOT / "lookahead" / name, REASONS[name]))
    assert reasons
    for reason in reasons:
        assert reason in explained


def test_every_reason_that_is_explained_can_be_given() -> None:
    texts = {text for path in (ROOT / "lookahead").rglob("*.py") for text in _texts(path)}
    rows = [row[0] for row in table_rows(DOCS / "plain.md")]
    assert len(rows) > 50
    for row in rows:  # some are written behind a name, and one is a whole sentence
        assert {row, row.removeprefix("… "), f"{row}."} & texts, row


def _texts(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield _pattern(node)


def _pattern(text: ast.JoinedStr) -> str:
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else "…" for part in text.values
    )


def _reasons(path: Path, exceptions: tuple[str, ...]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        text: ast.expr | None = None
        is_named = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "reason"
        if is_named or (isinstance(node, ast.Return) and not exceptions):
            text = node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in exceptions:
            text = node.args[0]
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            yield text.value
        elif isinstance(text, ast.JoinedStr):
            yield _pattern(text)


def test_the_range_of_transformers_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = next(d for d in project["dependencies"] if d.startswith("transformers"))
    assert SpecifierSet(needed.removeprefix("transformers")) == SUPPORTED


def test_readme_is_short() -> None:
    assert len(README.read_text("utf-8").splitlines()) < 150


def test_mask_in_the_readme_is_that_of_the_tree() -> None:
    picture = next(b.text for b in with_language(README, "text") if "(root)" in b.text)
    head, *rows = textwrap.dedent(picture).rstrip().splitlines()
    columns = [match.start() for match in re.finditer(r"\S+", head)]
    width = min(columns) - 1
    shown = [[column < len(row) and row[column] == "x" for column in columns] for row in rows]
    on, the, mat, sofa, a = range(5)
    tree = lookahead.DraftTree.from_paths(on, [[the, mat], [the, sofa], [a]])
    assert [row[:width].split()[-1] for row in rows[1:]] == head.split()[1:]
    assert shown == tree.ancestors().tolist()


@pytest.mark.parametrize(("place", "num_columns"), [(0, 3), (1, 5)])
def test_tables_of_the_window_are_those_that_run(place: int, num_columns: int) -> None:
    head, *drawn = with_language(DOCS / "window.md", "text")[place].text.splitlines()
    columns = [match.start() for match in re.finditer(r"\S+", head)]
    shown = [[row[column : column + 1] == "x" for column in columns] for row in drawn]
    assert [row.split()[0] for row in drawn] == head.split()
    window = LookaheadWindow(num_columns, 4, [1])
    for _ in range(2):
        before = window.rows()
        assert before is not None
        window.advance(1, [1] * before.num_read)
    guess = [int(name[1:]) for name in head.split() if name.startswith("g")]
    rows = rows_of(lookahead.DraftTree.from_paths(0, [guess]), window.rows())
    assert rows.may_see.tolist() == shown
    assert rows.offsets.tolist() == [int(name[-1]) for name in head.split()]


def test_citation_has_the_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f'\nversion: "{lookahead.__version__}"\n' in citation
