"""Models that read one branch at a time: the answer is that of plain generation."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, DynamicCache

import lookahead
from lookahead.hf.chain import MOST_AGAIN
from lookahead.hf.compat import KNOWS_STATES
from tests.drafters import ALL, Oracle
from tests.helpers import CACHE, Recorder, cache_of, check, fresh, prompt, run
from tests.zoo.build import build

pytestmark = pytest.mark.skipif(
    not KNOWS_STATES, reason="before transformers 5.13 recurrent models run plain"
)

#: States only, states beside attention, states and attention in one layer, convolutions only.
RECURRENT = ("bamba", "falcon_h1", "lfm2", "qwen3_next")
NEW = 20
MODES = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "top_k": 0, "temperature": 1.0},
    "penalty": {"do_sample": False, "repetition_penalty": 1.3},
}


@functools.cache
def model_of(name):
    return build(name)


def ids_of(length=18):
    return prompt(length, repeat=4)


def states_of(cache):
    """All tensors that a cache holds, by layer and name."""
    found = {}
    for index, layer in enumerate(cache.layers):
        for name in ("keys", "values"):
            if isinstance(getattr(layer, name, None), torch.Tensor):
                found[index, name] = getattr(layer, name)
        if hasattr(layer, "conv_states"):
            for name in ("conv_states", "recurrent_states"):
                for i, state in getattr(layer, name).items():
                    if state is not None:
                        found[index, name, i] = state
    return found


def assert_same_states(found, right):
    found, right = states_of(found), states_of(right)
    assert found.keys() == right.keys()
    for key, tensor in right.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("drafter", ["oracle", "half", "random", "no-head", "all"])
@pytest.mark.parametrize("name", RECURRENT)
def test_states_are_taken_back(name, drafter, mode):
    model, arguments = model_of(name), MODES[mode]
    torch.manual_seed(0)
    plain = model.generate(ids_of(), max_new_tokens=NEW, **arguments)[0].tolist()
    settings = ALL[drafter](plain)
    runs = check(model, ids_of(), settings=settings, max_new_tokens=NEW, **arguments)
    assert runs.stats.shape == "chain"
    assert any("keeps a recurrent state" in n or "tree" in n for n in runs.stats.notes)
    if drafter == "oracle":
        assert runs.stats.mean_acceptance_length > 3
        assert not runs.stats.rows_again, "what is accepted whole is never read again"
    if drafter == "random":
        assert runs.stats.drafted
        assert 0 < runs.stats.rows_again <= MOST_AGAIN * runs.stats.passes


@pytest.mark.parametrize("drafter", ["oracle", "half", "random"])
@pytest.mark.parametrize("name", RECURRENT)
def test_the_cache_is_handed_back_as_plain_leaves_it_and_goes_on_from_there(name, drafter):
    model = model_of(name)
    answers = []
    expected = model.generate(ids_of(), max_new_tokens=NEW, do_sample=False)[0].tolist()
    for settings in (None, ALL[drafter](expected)):
        cache, ids, turns = DynamicCache(config=model.config), ids_of(), []
        lookahead.forget(model)
        handle = None if settings is None else lookahead.accelerate(model, nodes=6, **settings)
        for turn in range(3):
            out = model.generate(
                ids,
                max_new_tokens=9,
                do_sample=False,
                **{CACHE: cache},
                return_dict_in_generate=True,
            )
            turns.append(out.sequences)
            assert cache_of(out) is cache
            ids = torch.cat([out.sequences, prompt(5, seed=turn)], dim=1)
        if handle is not None:
            assert lookahead.last_stats(model).shape == "chain"
            handle.__exit__()
        answers.append((turns, cache))
    (plain, right), (fast, found) = answers
    assert [t.tolist() for t in fast] == [t.tolist() for t in plain]
    assert_same_states(found, right)


@pytest.mark.parametrize("name", RECURRENT)
def test_a_streamer_gets_every_token_once(name):
    streamer = Recorder()
    runs = run(
        model_of(name),
        ids_of(),
        max_new_tokens=NEW,
        do_sample=False,
        make=lambda: {"streamer": Recorder()},
    )
    with lookahead.accelerate(model_of(name), nodes=6):
        model_of(name).generate(ids_of(), max_new_tokens=NEW, do_sample=False, streamer=streamer)
    assert streamer.ids == runs.plain[0].tolist()
    assert streamer.ends == 1


@pytest.mark.parametrize("nodes", [1, 3, 16, "auto"])
def test_any_budget_gives_the_same(nodes):
    settings = {"nodes": nodes}
    runs = check(model_of("bamba"), ids_of(), settings=settings, max_new_tokens=40, do_sample=False)
    assert runs.stats.shape == "chain"


def test_no_more_than_a_few_tokens_wait_to_be_read_again():
    model = model_of("qwen3_next")
    expected = model.generate(ids_of(), max_new_tokens=60, do_sample=False)[0].tolist()
    settings = {"sources": (), "drafters": (Oracle(expected, 4, 0),)}
    runs = check(model, ids_of(), settings=settings, max_new_tokens=60, do_sample=False)
    drafted = [step.drafted for step in runs.stats.steps]
    assert set(drafted[:MOST_AGAIN]) != {0}
    assert drafted[MOST_AGAIN] == 0, "then a pass without guesses settles them"
    assert runs.stats.rows_again / runs.stats.passes <= MOST_AGAIN / 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"num_return_sequences": 2, "do_sample": True}, "one sequence at a time"),
        ({"padded": True}, "a prompt without padding"),
        ({"output_hidden_states": True, "return_dict_in_generate": True}, "without hidden_states"),
    ],
    ids=["batch", "padding", "hidden-states"],
)
def test_what_a_chain_cannot_do_runs_plain_with_the_reason(arguments, reason):
    model, ids = build("bamba"), ids_of()
    arguments = {"max_new_tokens": 6} | arguments
    if arguments.pop("padded", False):
        arguments["attention_mask"] = torch.ones_like(ids)
        arguments["attention_mask"][0, :3] = 0
    torch.manual_seed(0)
    plain = model.generate(ids, **arguments)
    torch.manual_seed(0)
    with (
        lookahead.accelerate(model),
        pytest.warns(lookahead.LookaheadWarning, match=f"recurrent state.*{reason}"),
    ):
        fast = model.generate(ids, **arguments)
    assert (fast if isinstance(fast, torch.Tensor) else fast.sequences).tolist() == (
        plain if isinstance(plain, torch.Tensor) else plain.sequences
    ).tolist()


def maskless(module, query, key, value, attention_mask, **kwargs):
    """Attention that makes its own causal mask for plain text, as a fast kernel does."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    rows, slots = query.shape[2], key.shape[2]
    mask = torch.ones(rows, slots, dtype=torch.bool).tril(slots - rows)
    out = scaled_dot_product_attention(query, key, value, mask, scale=kwargs["scaling"])
    return out.transpose(1, 2).contiguous(), None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("drafter", ["oracle", "half", "random", "all"])
def test_attention_that_takes_no_mask_reads_chains(drafter, mode):
    AttentionInterface.register("maskless", maskless)
    model = fresh()
    model.set_attn_implementation("maskless")
    torch.manual_seed(0)
    plain = model.generate(ids_of(), max_new_tokens=NEW, **MODES[mode])[0].tolist()
    runs = check(model, ids_of(), settings=ALL[drafter](plain), max_new_tokens=NEW, **MODES[mode])
    assert runs.stats.shape == "chain"
    assert not runs.stats.rows_again, "K/V are simply dropped"


def test_a_window_and_early_exit_are_left_out_with_a_note():
    settings = {"window": (3, 3, 3), "sources": ("ngrams", "exit")}
    runs = check(model_of("lfm2"), ids_of(), settings=settings, max_new_tokens=9, do_sample=False)
    assert "off, because they need a tree: exit, window" in runs.stats.notes
    assert not runs.stats.window_rows


@pytest.mark.parametrize("name", ["mamba", "jamba", "recurrent_gemma"])
def test_a_model_whose_state_takes_one_token_at_a_time_runs_plain(name):
    model = build(name, attention="eager")
    plain = model.generate(ids_of(), max_new_tokens=9, do_sample=False)
    with (
        lookahead.accelerate(model),
        pytest.warns(lookahead.LookaheadWarning, match="keeps a recurrent state"),
    ):
        assert model.generate(ids_of(), max_new_tokens=9, do_sample=False).equal(plain)


@pytest.mark.parametrize("name", RECURRENT)
def test_an_exception_in_the_middle_leaves_a_cache_that_was_passed_in_as_it_was(name):
    model = model_of(name)
    cache = DynamicCache(config=model.config)
    first = model.generate(ids_of(), max_new_tokens=4, do_sample=False, **{CACHE: cache})
    before = {key: tensor.clone() for key, tensor in states_of(cache).items()}
    ids = torch.cat([first, prompt(5)], dim=1)

    class Stops(Recorder):
        def put(self, value):
            super().put(value)
            if len(self.values) > 6:
                raise KeyboardInterrupt

    with lookahead.accelerate(model, nodes=6), pytest.raises(KeyboardInterrupt):
        model.generate(ids, max_new_tokens=20, do_sample=False, **{CACHE: cache}, streamer=Stops())
    after = states_of(cache)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], tensor) for key, tensor in before.items())
