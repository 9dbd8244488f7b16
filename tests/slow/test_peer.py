"""The library's own tests of ``generate``, with acceleration underneath; see docs/testing.md."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

FAMILIES = ("llama", "gpt2", "gemma3", "mixtral")


def _runner():
    path = Path(__file__).parents[1] / "peer" / "run.py"
    spec = importlib.util.spec_from_file_location("peer_run", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("family", FAMILIES)
def test_no_test_of_the_library_ends_otherwise(family, request):
    checkout = request.config.getoption("--transformers-checkout")
    if checkout is None:
        pytest.skip("no checkout of transformers: give --transformers-checkout PATH")
    runner = _runner()
    reports = runner.run(Path(checkout), [family], new_tokens=12, units=False)
    assert reports["fast"]["calls"]["accelerated"] > 0
    assert not runner.found_differences(reports), "\n".join(runner.lines(reports))
