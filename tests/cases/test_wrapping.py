"""Kinds O, P, R: wrapping a model, settings and their messages. More of O is in tests/hf."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import transformers

import lookahead
from tests.drafters import ALL
from tests.helpers import (
    FAMILIES,
    Recorder,
    cache_of,
    check,
    fresh,
    make_model,
    new_ids,
    prompt,
    shared,
)

IDS = prompt(18, repeat=4)


class Flavoured(transformers.LlamaForCausalLM):
    """Takes a tensor of its own that changes the logits, and is extended by nobody."""

    def forward(self, input_ids=None, position_ids=None, flavour=None, **kwargs):
        outputs = super().forward(input_ids, position_ids=position_ids, **kwargs)
        if flavour is not None:
            outputs.logits = outputs.logits + 3.0 * flavour[:, None, :]
        return outputs

    def prepare_inputs_for_generation(self, *args, flavour=None, **kwargs):
        return super().prepare_inputs_for_generation(*args, **kwargs) | {"flavour": flavour}


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("drafter", ["all", "half", "oracle"])
def test_o1_token_types_are_passed_on_and_extended_as_in_plain(drafter, kind):
    """O1: extra model arguments were not passed on in assisted mode."""
    model = make_model("gpt2")
    types = torch.full_like(IDS, 7)
    types[:, 9:] = kind
    text = IDS[0].tolist() + new_ids(model, IDS, token_type_ids=types)
    assert text != IDS[0].tolist() + new_ids(model, IDS)
    for sample in (False, True):
        check(
            model,
            IDS,
            settings=ALL[drafter](text),
            token_type_ids=types,
            max_new_tokens=24,
            do_sample=sample,
        )


@pytest.mark.parametrize("batch", [1, 2])
def test_o2_a_tensor_of_the_models_own_is_passed_on(batch):
    """O1: an argument that the library knows nothing of."""
    plain = make_model("llama")
    model = Flavoured(plain.config).eval()
    model.load_state_dict(plain.state_dict())
    model.generation_config = plain.generation_config
    flavour = torch.randn((batch, 128), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([prompt(12, seed=s) for s in range(batch)])
    found = check(model, ids, flavour=flavour, max_new_tokens=24, do_sample=False).fast
    assert found.tolist() != plain.generate(ids, max_new_tokens=24, do_sample=False).tolist()


def test_o2_a_forward_that_takes_whatever_comes_reads_chains():
    """O1: the library asks the signature which inputs to prepare, and finds none here.

    No position is handed in then, so rows have those of their slots: right for a chain.
    """
    model = fresh()
    inner = model.forward

    def opaque(*args, **kwargs):
        return inner(*args, **kwargs)

    model.forward = opaque
    plain = model.generate(IDS, max_new_tokens=6, do_sample=False)
    with lookahead.accelerate(model, strict=True):
        assert model.generate(IDS, max_new_tokens=6, do_sample=False).tolist() == plain.tolist()
        assert lookahead.last_stats(model).shape == "chain"


@pytest.mark.parametrize("where", ["config", "generation_config", "call"])
def test_o3_without_a_cache_the_run_is_plain_with_one_warning(where):
    """O3: use_cache=False made assisted decoding fail obscurely."""
    model, options = fresh(), {}
    if where == "config":
        model.config.use_cache = False
        model.generation_config.use_cache = False
    elif where == "generation_config":
        model.generation_config.use_cache = False
    else:
        options = {"use_cache": False}
    plain = model.generate(IDS, max_new_tokens=12, do_sample=False, **options)
    with lookahead.accelerate(model):
        with pytest.warns(lookahead.LookaheadWarning, match="use_cache=False") as warned:  # noqa: PT031
            for _ in range(3):
                fast = model.generate(IDS, max_new_tokens=12, do_sample=False, **options)
        assert lookahead.last_stats(model).plain_reason
    assert len(warned) == 1
    assert fast.tolist() == plain.tolist()
    with (
        lookahead.accelerate(model, strict=True),
        pytest.raises(lookahead.UnsupportedError, match="use_cache=False"),
    ):
        model.generate(IDS, max_new_tokens=12, do_sample=False, **options)


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
def test_o7_a_prompt_of_embeddings_gives_what_plain_gives(family, with_ids):
    """O7: prompt embeddings gave an out-of-range slice."""
    model, streamers = shared(family), []
    embeddings = model.get_input_embeddings()(IDS).detach() * 0.9  # of no token
    ids = IDS if with_ids else None

    def make():
        streamers.append(Recorder())
        return {"streamer": streamers[-1], "inputs_embeds": embeddings}

    runs = check(
        model, ids, make=make, max_new_tokens=30, do_sample=False, return_dict_in_generate=True
    )
    assert [v.tolist() for v in streamers[1].values] == [v.tolist() for v in streamers[0].values]
    assert cache_of(runs.fast).get_seq_length() == cache_of(runs.plain).get_seq_length()


@pytest.mark.parametrize("length", [1, 2, 40])
def test_o8_embeddings_of_any_length_and_in_a_batch(length):
    """O7: shorter and longer than any guess; padding on the left has embeddings, too."""
    model = shared()
    ids = torch.cat([prompt(length, seed=s) for s in (1, 2)])
    embeddings = model.get_input_embeddings()(ids).detach() * 0.9
    check(model, None, inputs_embeds=embeddings[:1], max_new_tokens=20, do_sample=True)
    mask = torch.ones_like(ids)
    mask[0, : length // 2] = 0
    options = {"attention_mask": mask, "max_new_tokens": 20, "do_sample": False}
    check(model, None, inputs_embeds=embeddings, return_dict_in_generate=True, **options)


def test_o9_enabled_twice_and_disabled_the_model_is_as_it_was():
    """O9: patching twice broke the library; switching off did not restore."""
    model, other = fresh(), fresh()
    kind = type(model)
    class_function = kind.generate
    before = dict(vars(model))
    lookahead.accelerate(model)
    lookahead.accelerate(model, nodes=3)
    assert "generate" not in vars(other)
    assert kind.generate is class_function
    lookahead.restore(model)
    assert vars(model).keys() == before.keys()
    assert model.generate.__func__ is class_function
    lookahead.restore(model)
    assert model.generate.__func__ is class_function


def test_o9_a_subclass_and_its_own_generate_are_respected():
    """O9: constructors were replaced; here nothing of a class is."""
    base = type(shared())

    class Louder(base):
        calls = 0

        def generate(self, *args, **kwargs):
            type(self).calls += 1
            return super().generate(*args, **kwargs)

    model = fresh()
    plain = model.generate(IDS, max_new_tokens=12, do_sample=False).tolist()
    model.__class__ = Louder
    with lookahead.accelerate(model, strict=True):
        assert model.generate(IDS, max_new_tokens=12, do_sample=False).tolist() == plain
        assert lookahead.last_stats(model).accelerated
    assert Louder.calls == 1
    assert model.generate.__func__ is Louder.generate


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_o9_copies_of_a_wrapped_model_drive_themselves(copier):
    """O9: deepcopy and pickle of a wrapped model."""
    model = fresh()
    plain = model.generate(IDS, max_new_tokens=12, do_sample=False).tolist()
    lookahead.accelerate(model, nodes=8, strict=True)
    model.generate(IDS, max_new_tokens=4)
    twin = copier(model)
    for parameter in model.parameters():
        parameter.data.zero_()
    assert twin.generate(IDS, max_new_tokens=12, do_sample=False).tolist() == plain
    assert lookahead.last_stats(twin).accelerated
    assert lookahead.last_stats(twin) is not lookahead.last_stats(model)
    lookahead.restore(twin)
    assert twin.generate.__self__ is twin
    assert "generate" in vars(model)


@pytest.mark.parametrize("value", [0, 2, 3, -1])
def test_p3_an_exit_layer_out_of_range_is_refused_with_the_range(value):
    """P3: the option is easy to take for a model cut short; it drafts only."""
    model = fresh()
    assert model.config.num_hidden_layers == 2

    def use():
        with lookahead.accelerate(model, sources=("exit",), exit_layer=value):
            model.generate(IDS, max_new_tokens=4, do_sample=False)

    with pytest.raises(lookahead.ConfigError, match=r"exit_layer .* from 1 to") as caught:
        use()
    if value > 0:
        assert "the answer is always that of all 2" in str(caught.value)
        assert "from 1 to 1" in str(caught.value)


WRONG = [
    ("nodes", -1),
    ("nodes", 257),
    ("nodes", 2.5),
    ("nodes", "many"),
    ("nodes", None),
    ("nodes", True),
    ("max_nodes", -1),
    ("max_nodes", "16"),
    ("max_nodes", 1000),
    ("max_depth", 0),
    ("max_depth", -1),
    ("max_depth", "3"),
    ("max_depth", 10**9),
    ("recycle_prompt", -1),
    ("recycle_prompt", 1.0),
    ("strict", "yes"),
    ("strict", 1),
    ("sources", "ngrams"),
    ("sources", ("window",)),
    ("sources", ("ngrams", "ngrams")),
    ("sources", None),
    ("sources", 3),
    ("drafters", 5),
    ("drafters", (5,)),
    ("drafters", tuple(object for _ in range(5))),
    ("drafters", None),
    ("drafters", "ab"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_r1_a_wrong_setting_names_option_value_and_range(name, value):
    """R1: a wrong setting ended in an assert of two bare numbers."""
    for make in (lookahead.Config, lambda **s: lookahead.accelerate(fresh(), **s)):
        with pytest.raises(ValueError, match=name.rstrip("s")) as caught:
            make(**{name: value})
        assert isinstance(caught.value, lookahead.ConfigError)
        message = str(caught.value)
        assert message.endswith(".")
        if not (name == "drafters" and isinstance(value, tuple)):
            shown = value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value
            assert repr(shown) in message


@pytest.mark.parametrize("name", ["windows", "ngram", "guess", "Nodes"])
def test_r2_an_unknown_setting_is_refused_with_the_known_ones(name):
    """R1: and one that does not exist."""
    model = fresh()
    with pytest.raises(lookahead.ConfigError, match="nodes, max_nodes, max_depth") as caught:
        lookahead.accelerate(model, **{name: 0})
    assert repr(name) in str(caught.value)
    assert "generate" not in vars(model)


@pytest.mark.parametrize("thing", [None, 5, "gpt2", object(), torch.nn.Linear(2, 2)])
def test_r3_what_is_no_model_is_refused(thing):
    """R1: the message says what came."""
    with pytest.raises(lookahead.ConfigError, match=type(thing).__name__):
        lookahead.accelerate(thing)


def test_r4_a_release_outside_the_tested_range_gets_one_clear_sentence(monkeypatch):
    """R1 for the library itself."""
    from lookahead.hf import compat

    for version in ("4.40.0", "5.1.0", "99.0"):
        monkeypatch.setattr(compat.transformers, "__version__", version)
        with pytest.raises(lookahead.VersionError, match=version.replace(".", r"\.")) as caught:
            lookahead.accelerate(fresh())
        assert "pip install" in str(caught.value)
