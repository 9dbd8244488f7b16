from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch
import typer

from lookahead.cli.benchmark.arms import check_settings, make_arms, parse_arms, with_nodes
from lookahead.cli.benchmark.llama_cpp_arm import LlamaCppArm
from lookahead.cli.console import CommandError
from lookahead.config import Config
from lookahead.errors import ConfigError
from lookahead.hf.quantised import quantised_kind


def test_plain_is_always_there_and_first() -> None:
    assert [spec.name for spec in parse_arms("lookahead,plain")] == ["plain", "lookahead"]
    assert [spec.name for spec in parse_arms("plain")] == ["plain"]


def test_settings_of_a_variant_go_on_after_a_comma() -> None:
    text = "plain,lookahead,lookahead:nodes=8,sources=ngrams+recycled,strict=on,prompt_lookup"
    specs = parse_arms(text)
    assert [spec.name for spec in specs] == [
        "plain",
        "lookahead",
        "lookahead:nodes=8,sources=ngrams+recycled,strict=on",
        "prompt_lookup",
    ]
    assert specs[2].settings == {"nodes": 8, "sources": ("ngrams", "recycled"), "strict": True}
    check_settings(specs)


def test_values() -> None:
    (_, spec) = parse_arms("lookahead:nodes=auto,sources=off,share=0.5,strict=off")
    assert spec.settings == {"nodes": "auto", "sources": (), "share": 0.5, "strict": False}
    (_, spec) = parse_arms("lookahead:sources=ngrams")
    assert spec.settings["sources"] == ("ngrams",)


def test_nodes_reach_ours_only_and_a_variant_keeps_its_own() -> None:
    specs = with_nodes(parse_arms("plain,lookahead,lookahead:nodes=4"), 12)
    assert [spec.settings.get("nodes") for spec in specs] == [None, 12, 4]


@pytest.mark.parametrize("text", ["", "fast", "plain:nodes=1", "lookahead:nodes", ","])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_arms(text)


@pytest.mark.parametrize(
    ("text", "window"),
    [("7/5/7", (7, 5, 7)), ("auto", "auto"), ("0", None), ("off", None), ("none", None)],
)
def test_a_window_is_written_with_slashes(text: str, window: Any) -> None:
    specs = parse_arms(f"lookahead:nodes=8,window={text},sources=ngrams")
    check_settings(specs)
    assert Config(**specs[1].settings).window == window


@pytest.mark.parametrize("text", ["7/5", "7", "7/x/7", "7/5/7/9", "7/5/-7", "//"])
def test_a_window_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="window"):
        check_settings(parse_arms(f"lookahead:window={text}"))


def test_settings_are_checked_by_name_and_value() -> None:
    with pytest.raises(typer.BadParameter, match="no setting 'node'"):
        check_settings(parse_arms("lookahead:node=8"))
    with pytest.raises(ConfigError, match="nodes"):
        check_settings(parse_arms("lookahead:nodes=-1"))


def test_compiled_arms_have_an_empty_cache_for_each_batch(tiny: Any) -> None:
    plain, *compiled = make_arms(parse_arms("compiled,compiled_frozen"), tiny, 64, "tiny")
    assert plain.first_cache(1) is None
    for arm in compiled:
        one = arm.first_cache(1)
        assert arm.first_cache(1) is one
        assert arm.first_cache(4) is not one, "a static cache has one batch"
        assert arm.num_warm_ups == 2


def test_a_quantised_arm_has_weights_of_its_own(tiny: Any) -> None:
    text = "lookahead,lookahead:quantize=int8,lookahead:quantize=int4"
    arms = make_arms(parse_arms(text), tiny, 64, "tiny")
    assert [quantised_kind(arm.model) for arm in arms] == [None, None, "int8", "int4"]
    assert quantised_kind(tiny) is None


def test_llama_cpp_without_its_package_is_one_sentence(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(CommandError, match="pip install llama-cpp-python"):
        make_arms(parse_arms("llama_cpp"), tiny, 100, "default")


def test_llama_cpp_gets_the_same_ids_and_stops_at_the_end_token(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    class Llama:
        def __init__(self, **options: Any) -> None:
            self.options = options

        def generate(self, ids: list[int], **_options: Any) -> Any:
            yield from [ids[0], 9, 2, 7]

    monkeypatch.setitem(sys.modules, "llama_cpp", types.SimpleNamespace(Llama=Llama))
    file = tmp_path / "model.gguf"
    file.write_bytes(b"")
    (_, arm) = make_arms(parse_arms("llama_cpp"), tiny, 100, str(file))
    assert isinstance(arm, LlamaCppArm)
    seen: list[torch.Tensor] = []
    stream = types.SimpleNamespace(put=seen.append, end=lambda: None)
    options = {"max_new_tokens": 8, "do_sample": False, "temperature": 1.0, "top_p": 1, "top_k": 0}
    assert arm.decode([5, 6], stream, options) == [5, 9, 2]
    assert [one.tolist() for one in seen] == [[5, 6], [5], [9], [2]]
    with pytest.raises(CommandError, match="gguf"):
        make_arms(parse_arms("llama_cpp"), tiny, 100, "some/folder")
