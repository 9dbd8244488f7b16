"""Every family that the documentation names: the ids are plain ones, and it runs as it says."""

from __future__ import annotations

import warnings

import pytest
import transformers

import lookahead
from lookahead.hf import masks
from lookahead.hf.compat import KNOWS_STATES
from tests.zoo.batches import look_at_batch
from tests.zoo.expected import EXPECTED, EXPECTED_HERE
from tests.zoo.sweep import FEWEST_IDS, WRONG, look, make

#: Greedy text, in which every pass has a right and a wrong guess at each depth, and one sample.
WAYS = ("greedy-half", "sample-half")


def _look(name):
    try:
        model, inputs = make(name)
    except Exception as error:
        if KNOWS_STATES:
            raise
        pytest.skip(f"transformers {transformers.__version__} does not build {name}: {error!r}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lookahead.LookaheadWarning)
        return look(model, inputs, WAYS, new=16)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_family_gives_plain_ids_and_runs_as_expected(name):
    verdict = _look(name)
    assert verdict.word == EXPECTED_HERE[name], verdict
    # Seeds of weights were chosen for the newest release; others draw them in another order.
    if verdict.word != "plain" and KNOWS_STATES:
        assert verdict.num_ids >= FEWEST_IDS


@pytest.mark.filterwarnings("ignore::lookahead.LookaheadWarning")
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("llama4_text", "tree"),  # counts its chunks from behind the padding
        ("gemma3_text", "tree"),
        ("bloom", "tree"),
        ("gpt_neo", "tree"),
        ("bamba", "plain"),
        ("git", "plain"),  # moves the padding when it decodes
    ],
)
def test_a_padded_batch_gives_plain_ids_and_runs_as_expected(name, word):
    verdict = look_at_batch(name)
    assert verdict.word == word, verdict
    assert word == "plain" or verdict.num_ids >= FEWEST_IDS


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "deepseek_v3", "gemma3_text"])
def test_these_runs_show_a_wrong_mask(name, monkeypatch):
    """Equal ids of a random model could be luck: nodes that see their siblings change them."""
    monkeypatch.setattr(masks, "_tree_rule", lambda rule, visibility: rule)
    monkeypatch.setattr("lookahead.hf.shape.find_fault", lambda model: None)
    assert _look(name).kind == WRONG
