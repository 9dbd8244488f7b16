"""Public names, documentation, and what an import may cost."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import lookahead
import ngram_pool

ROOT = Path(lookahead.__file__).parent.parent
PACKAGES = (lookahead, ngram_pool)


def _modules(package):
    yield package
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


MODULES = {m.__name__: m for package in PACKAGES for m in _modules(package)}


def _python(code):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.__name__)
def test_public_names_are_all_and_only_those_of_all(package):
    names = package.__all__
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(package, name) is not None
    inner = {m.rpartition(".")[2] for m in MODULES if m.startswith(f"{package.__name__}.")}
    shown = {n for n in dir(package) if not n.startswith("_")} - inner
    assert shown - {"annotations"} <= set(names)


@pytest.mark.parametrize("name", MODULES)
def test_what_a_module_exports_exists(name):
    module = MODULES[name]
    for exported in getattr(module, "__all__", ()):
        assert hasattr(module, exported), exported


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = lookahead.nothing_of_the_kind
    assert not hasattr(lookahead, "torch")


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_what_it_knows(name):
    assert MODULES[name].__doc__
    assert MODULES[name].__doc__.strip()


def _public_definitions(module):
    """Yield public classes, functions and methods that are written in a module."""
    for name, value in vars(module).items():
        written_here = getattr(value, "__module__", None) == module.__name__
        if name.startswith("_") or not written_here:
            continue
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            yield name, value
            for inner, member in vars(value).items():
                found = member.fget if isinstance(member, property) else member
                found = getattr(found, "__func__", found)
                if inner.startswith("_") or not inspect.isfunction(found):
                    continue
                if found.__module__ == module.__name__:
                    yield f"{name}.{inner}", found


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_has_a_docstring(name):
    missing = [n for n, value in _public_definitions(MODULES[name]) if not inspect.getdoc(value)]
    assert not missing


@pytest.mark.parametrize("name", lookahead.__all__)
def test_every_parameter_of_a_public_function_is_documented(name):
    value = getattr(lookahead, name)
    if not inspect.isfunction(value):
        return
    doc = inspect.getdoc(value)
    given = [p for p in inspect.signature(value).parameters if p not in {"model_kwargs"}]
    if "Parameters" in doc:
        for parameter in given:
            assert parameter in doc


@pytest.mark.parametrize("heavy", ["torch", "transformers", "numpy", "numba"])
def test_importing_the_package_loads_nothing_heavy(heavy):
    done = _python(f"import sys, lookahead; sys.exit({heavy!r} in sys.modules)")
    assert done.returncode == 0, done.stderr


def test_the_pool_loads_neither_torch_nor_transformers():
    done = _python(
        "import sys, ngram_pool\n"
        "pool = ngram_pool.new_pool(); pool.extend([1, 2, 3, 1, 2]); pool.propose(4)\n"
        "sys.exit(any(n in sys.modules for n in ('torch', 'transformers', 'lookahead')))"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["lookahead", "ngram_pool", "lookahead.wrapping", "lookahead.cli"])
def test_imports_give_no_warning(name):
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-W",
            "ignore::DeprecationWarning",
            "-W",
            "ignore::FutureWarning",
            "-c",
            f"import {name}",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["lookahead", "ngram_pool"])
def test_imports_of_our_own_packages_give_no_warning_at_all(name):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import {name}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr


def _sources():
    for package in PACKAGES:
        yield from sorted(Path(package.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", list(_sources()), ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_outer_parts_know_transformers(path):
    inside = path.relative_to(ROOT).as_posix()
    allowed = inside.startswith(("lookahead/hf/", "lookahead/cli/"))
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {a.name.partition(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    assert allowed or "transformers" not in found
    if inside.startswith("ngram_pool/"):
        assert not found & {"torch", "transformers", "lookahead"}


def test_both_packages_are_typed():
    for package in PACKAGES:
        assert (Path(package.__file__).parent / "py.typed").exists()


def test_the_version_is_one():
    import importlib.metadata

    try:
        installed = importlib.metadata.version("lookahead-decoding")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed")
    assert lookahead.__version__ == installed
