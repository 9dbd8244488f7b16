"""The arms of the benchmark: ways to decode, written as text, and how each calls ``generate``.

An arm knows its own arguments and what it cannot do; when and in what order arms run is not its
business.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any

from lookahead.cli.console import CommandError, usage_error

#: Longest guess of the library's prompt lookup, as its documentation uses it.
PROMPT_LOOKUP_TOKENS = 10


@dataclass(frozen=True)
class ArmSpec:
    """An arm as written: ``name`` in full, its kind, and settings of a variant."""

    name: str
    kind: str
    settings: dict[str, Any] = field(default_factory=dict)


class Arm:
    """Plain ``generate``; the other arms differ from it in what they override.

    Parameters
    ----------
    spec : ArmSpec
    model
        The target.
    max_length : int
        Most ids, prompt and answer, that any call can reach.
    """

    #: Whether the cache of the turn before can be passed in, and whether batches can.
    takes_cache = True
    takes_batches = True
    #: Whether passes are counted by a hook; else they are known.
    is_metered = True
    #: Calls that are not counted.
    num_warm_ups = 1
    #: Whether a clock can look at the parts of its passes.
    can_be_taken_apart = True

    def __init__(self, spec: ArmSpec, model: Any, max_length: int) -> None:
        self.name = spec.name
        self.model = model
        self.max_length = max_length

    def options(self) -> dict[str, Any]:
        """Arguments of ``generate`` that make this arm."""
        return {}

    def first_cache(self, batch: int) -> Any:  # noqa: ARG002 - some arms have one for each size
        """Cache for so many new prompts; ``None`` leaves it to ``generate``."""
        return None

    def prepare(self) -> None:
        """Do what would else be done aside while others are measured."""

    def forget(self) -> None:
        """Drop all that was learnt."""


class CompiledArm(Arm):
    """Plain with the library's static cache and its compiled forward.

    The cache has one length for the whole run, so that nothing is compiled anew for each prompt;
    and no hook is set, since a hook would be compiled in.
    """

    is_metered = False
    can_be_taken_apart = False
    num_warm_ups = 2  # the first prompt of another length compiles once more

    def __init__(self, spec: ArmSpec, model: Any, max_length: int) -> None:
        super().__init__(spec, model, max_length)
        from transformers import CompileConfig, StaticCache

        self._compile = CompileConfig()
        # The library compiles by itself on accelerators only; this asks for it on a CPU too.
        self._compile._compile_all_devices = True
        self._caches: dict[int, Any] = {}  # by batch size
        self._new_cache = functools.partial(
            StaticCache, config=model.config, max_cache_len=max_length
        )

    def options(self) -> dict[str, Any]:
        """Ask for compilation."""
        return {"compile_config": self._compile}

    def first_cache(self, batch: int) -> Any:
        """Empty the static cache of this size and give it."""
        if batch not in self._caches:
            self._caches[batch] = self._new_cache()
        self._caches[batch].reset()
        return self._caches[batch]


class FrozenArm(CompiledArm):
    """The same with inductor's freezing: it keeps the weights in the order that suits it."""

    def __init__(self, spec: ArmSpec, model: Any, max_length: int) -> None:
        # A model keeps one compiled forward.
        super().__init__(spec, copy.copy(model), max_length)
        self._compile.mode = None  # it would stand in the way of options
        self._compile.options = {"freezing": True}


class PromptLookupArm(Arm):
    """The library's prompt lookup; given a cache with rows in it, its output is wrong."""

    takes_cache = False
    takes_batches = False

    def options(self) -> dict[str, Any]:
        """Ask for prompt lookup."""
        return {"prompt_lookup_num_tokens": PROMPT_LOOKUP_TOKENS}


class EarlyExitArm(Arm):
    """The library's drafting with the first layers of the model; with the same limits."""

    takes_cache = False
    takes_batches = False
    can_be_taken_apart = False  # passes of drafts go through the same layers

    def options(self) -> dict[str, Any]:
        """Exit after a third of the layers."""
        layers = self.model.config.get_text_config().num_hidden_layers
        return {"assistant_early_exit": max(1, layers // 3)}


class LookaheadArm(Arm):
    """Ours, with the settings of the variant."""

    is_metered = False

    def __init__(self, spec: ArmSpec, model: Any, max_length: int) -> None:
        import lookahead

        # A shallow copy shares all weights but not what is learnt, so that variants in one run
        # do not learn from each other, and plain stays plain. Quantised weights are one's own.
        is_quantised = spec.settings.get("quantize") is not None
        own = copy.deepcopy(model) if is_quantised else copy.copy(model)
        super().__init__(spec, own, max_length)
        lookahead.accelerate(self.model, **spec.settings)
        self._fuses = bool(spec.settings.get("fuse", "auto"))
        # As in EarlyExitArm.
        self.can_be_taken_apart = "exit" not in spec.settings.get("sources", ())

    def prepare(self) -> None:
        """Have the layers' libraries built; those of one kind of model are built once."""
        from lookahead.hf.fusing import build_libraries

        if self._fuses:
            build_libraries(self.model)

    def forget(self) -> None:
        """Drop calibration, cost curve and sums."""
        import lookahead

        lookahead.forget(self.model)


KINDS: dict[str, type[Arm]] = {
    "plain": Arm,
    "compiled": CompiledArm,
    "compiled_frozen": FrozenArm,
    "prompt_lookup": PromptLookupArm,
    "assisted_early_exit": EarlyExitArm,
    "lookahead": LookaheadArm,
}
LLAMA_CPP = "llama_cpp"


def parse_arms(text: str) -> list[ArmSpec]:
    """Read a list such as ``plain,lookahead,lookahead:nodes=8,sources=ngrams``.

    A piece with ``=`` and no arm before it goes on with the settings of the arm to its left.
    ``plain`` is always among the arms, since all others are compared with it, and comes first.
    """
    written: list[str] = []
    for piece in filter(None, (part.strip() for part in text.split(","))):
        if "=" in piece and ":" not in piece.partition("=")[0] and written:
            written[-1] += f",{piece}"
        else:
            written.append(piece)
    specs = [_parse_arm(name) for name in dict.fromkeys(["plain", *written])]
    if len(specs) == 1 and not written:
        raise usage_error("name at least one arm, as in plain,lookahead", "--arms")
    return specs


def with_nodes(specs: list[ArmSpec], nodes: Any) -> list[ArmSpec]:
    """Give a draft budget to those of our arms that do not name one."""
    return [
        dataclasses.replace(spec, settings={"nodes": nodes, **spec.settings})
        if spec.kind == "lookahead"
        else spec
        for spec in specs
    ]


def with_state(specs: list[ArmSpec], state: str) -> list[ArmSpec]:
    """Say what our arms may know at the start, where they do not say it themselves.

    Cold knows nothing. Else what ``lookahead calibrate`` made is known, and never what processes
    gathered, since they may have seen the very prompts. A benchmark saves nothing.
    """
    remember = False if state == "cold" else "calibrated"
    return [
        dataclasses.replace(spec, settings={"remember": remember, **spec.settings})
        if spec.kind == "lookahead"
        else spec
        for spec in specs
    ]


def check_settings(specs: list[ArmSpec]) -> None:
    """Refuse settings that ours does not have, before any model is loaded.

    Raises
    ------
    typer.BadParameter
        For an unknown name.
    ConfigError
        For a value out of range.
    """
    from lookahead.config import Config

    known = [one.name for one in dataclasses.fields(Config)]
    for spec in specs:
        for name in spec.settings:
            if name not in known:
                message = f"{spec.name}: no setting {name!r}; there are {', '.join(known)}"
                raise usage_error(message, "--arms")
        if spec.kind == "lookahead":
            Config(**spec.settings)


def make_arms(specs: list[ArmSpec], model: Any, max_length: int, model_name: str) -> list[Arm]:
    """Make the arms for one model.

    Raises
    ------
    CommandError
        If an arm needs something that is not installed.
    """
    arms: list[Arm] = []
    for spec in specs:
        if spec.kind == LLAMA_CPP:
            from lookahead.cli.benchmark.llama_cpp_arm import LlamaCppArm

            arms.append(LlamaCppArm(spec, model, max_length, model_name))
            continue
        try:
            arms.append(KINDS[spec.kind](spec, model, max_length))
        except (ImportError, ValueError, AttributeError) as error:
            raise CommandError(arm_failed(spec.name, error)) from error
    return arms


def arm_failed(name: str, error: Exception) -> str:
    """Say that an arm cannot run this model."""
    reason = (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")
    return f"The arm {name} cannot run this model: {reason}. Leave it out of --arms."


def _parse_arm(name: str) -> ArmSpec:
    kind, _, settings = name.partition(":")
    if kind not in KINDS and kind != LLAMA_CPP:
        known = ", ".join([*KINDS, LLAMA_CPP])
        raise usage_error(f"no arm {kind!r}; there are {known}", "--arms")
    if settings and kind != "lookahead":
        raise usage_error(f"only lookahead takes settings, {kind} does not", "--arms")
    pairs = [pair.partition("=") for pair in settings.split(",") if pair]
    if any(not separator for _, separator, _ in pairs):
        raise usage_error(f"{name}: expected lookahead:name=value,name=value", "--arms")
    return ArmSpec(name, kind, {key: _parse_value(key, value) for key, _, value in pairs})


def _parse_value(key: str, text: str) -> Any:
    """Turn ``8``, ``0.5``, ``on``, ``auto``, ``a+b``, ``7/5/7`` into a value."""
    words: dict[str, Any] = {
        "on": True,
        "true": True,
        "off": False,
        "false": False,
        "none": None,
    }
    if key == "sources":
        return () if text in {"", "none", "off"} else tuple(text.split("+"))
    if key == "window" and "/" in text:
        return tuple(int(part) if part.isdecimal() else part for part in text.split("/"))
    if key == "window" and text.lower() in {"off", "false"}:
        return None
    if "+" in text:
        return tuple(text.split("+"))
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
