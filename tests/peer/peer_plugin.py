"""A pytest plugin for the library's own tests: which of them run, and on what ``generate``.

Loaded by ``run.py`` into a pytest process of its own, with a checkout of transformers as the
current folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

#: Beginnings of the names of the tests of a model that call ``generate`` in a way we may answer.
MODEL_TESTS = (
    "test_greedy_generate",
    "test_sample_generate",
    "test_assisted_decoding",
    "test_prompt_lookup",
    "test_generate_from",
    "test_generate_continue",
    "test_generate_without_input_ids",
    "test_generate_with_static_cache",
    "test_generate_with_quant_cache",
    "test_generate_with_and_without_position_ids",
    "test_generate_methods_with_logits_to_keep",
    "test_left_padding_compatibility",
    "test_past_key_values_format",
    "test_eager_matches_sdpa_generate",
    "test_beam_search_generate",
    "test_beam_sample_generate",
)

#: These compile the model, which takes a minute each.
COMPILED_TESTS = (
    "test_generate_compilation_all_outputs",
    "test_generate_compile_model_forward",
    "test_static_cache_no_recompile",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("peer")
    group.addoption("--peer-report", required=False)
    group.addoption("--peer-mode", choices=("plain", "fast", "compare"), default="plain")
    group.addoption("--peer-nodes", type=int, default=8)
    group.addoption("--peer-new-tokens", type=int)
    group.addoption("--peer-batch", type=int)
    group.addoption("--peer-compiled", action="store_true")


def pytest_configure(config: pytest.Config) -> None:
    mode = config.getoption("--peer-mode")
    calls = None
    if mode != "plain":
        import peer_calls

        import ngram_pool

        ngram_pool.warm_up(block=True)
        calls = peer_calls.Calls(config.getoption("--peer-nodes"), mode == "compare")
        calls.install()
    config.pluginmanager.register(Report(config, calls), "peer-report")


class Report:
    """Outcomes of tests and of calls, written at the end."""

    def __init__(self, config: pytest.Config, calls: Any) -> None:
        self.config, self.calls = config, calls
        self.tests: dict[str, dict[str, str]] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        names = MODEL_TESTS + (COMPILED_TESTS if self.config.getoption("--peer-compiled") else ())
        kept = []
        for item in items:
            if item.nodeid.startswith("tests/generation/"):
                kept.append(item)
            elif item.name.startswith(names):
                kept.append(item)
                self._change(item.cls)
        gone = [item for item in items if item not in set(kept)]
        self.config.hook.pytest_deselected(items=gone)
        items[:] = kept

    def _change(self, tests: Any) -> None:
        """Let the tests of a model write more tokens, or give them another batch."""
        new_tokens, batch = (
            self.config.getoption(f"--peer-{name}") for name in ("new-tokens", "batch")
        )
        if new_tokens and hasattr(tests, "max_new_tokens"):
            tests.max_new_tokens = new_tokens
        prepare = getattr(tests, "prepare_config_and_inputs_for_generate", None)
        if batch and getattr(prepare, "__defaults__", None):
            prepare.__defaults__ = (batch,)  # its only argument

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        if self.calls is not None:
            self.calls.test = item.nodeid
        return (yield)

    def pytest_runtest_logreport(self, report: Any) -> None:
        known = self.tests.get(report.nodeid, {}).get("outcome")
        if report.when == "call" or not report.passed or known is None:
            self.tests[report.nodeid] = {"outcome": report.outcome, "reason": _reason(report)}

    def pytest_sessionfinish(self) -> None:
        path = self.config.getoption("--peer-report")
        if path:
            found = {"tests": self.tests, **(self.calls.report() if self.calls else {})}
            Path(path).write_text(json.dumps(found, indent=1), encoding="utf-8")


def _reason(report: Any) -> str:
    """Return why a test was skipped or failed, in one line."""
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return (text.strip().splitlines() or [""])[0][:200]
