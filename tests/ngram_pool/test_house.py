"""Public names, documentation that runs, and what the package may import."""

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import ngram_pool

FOLDER = Path(ngram_pool.__file__).parent
MODULES = sorted(m.name for m in pkgutil.iter_modules([str(FOLDER)]))


def test_public_names_are_those_visible():
    visible = {
        name
        for name, value in vars(ngram_pool).items()
        if not name.startswith("_") and not isinstance(value, type(ngram_pool))
    }
    assert sorted(visible) == sorted(ngram_pool.__all__) == ngram_pool.__all__


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name):
    module = importlib.import_module(f"ngram_pool.{name}")
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_only_numpy_and_numba_are_imported(name):
    allowed = set(sys.stdlib_module_names) | {"numpy", "numba", "llvmlite", "ngram_pool"}
    for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module]
        assert {n.split(".")[0] for n in names} <= allowed


def test_the_benchmark_runs(tmp_path):
    script = FOLDER.parent / "benchmarks" / "bench_pool.py"
    result = subprocess.run(
        [sys.executable, str(script), "--sizes", "300", "--repeats", "5"],
        env={**__import__("os").environ, "PYTHONPATH": str(FOLDER.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "propose 64 nodes" in result.stdout, result.stderr
