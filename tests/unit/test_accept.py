"""The walk: what is asked, in which order, and where it ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lookahead import Config, DecodeStats, DraftTree
from lookahead.accept import accept
from lookahead.budget import Budget
from lookahead.choose import NodeChooser
from lookahead.cost_curve import CostCurve
from lookahead.engine import Engine
from lookahead.sequence import Sequence, TokenBuffer
from tests.drafters import Oracle
from tests.toys import TableTarget, decode, make_sequence, plain_decode, scripted

VOCAB = 10


def _sequence(events, *, num=None, stop=(), context=(1, 2)):
    def process(ids, scores):
        events.append(("choose", ids.shape[1], int(ids[0, -1])))
        return scores

    def should_stop(ids, scores):
        events.append(("stop?", int(ids[0, -1])))
        return int(ids[0, -1]) in stop or (num is not None and ids.shape[1] >= num)

    return Sequence(
        slot=0,
        context=list(context),
        seen=TokenBuffer(torch.tensor([list(context)])),
        drafter=None,
        chooser=NodeChooser(process, sample=False),
        should_stop=should_stop,
        emit=lambda token: events.append(("emit", token)),
    )


def _logits(tree, chosen):
    """Logits that make the target choose these tokens, node by node."""
    logits = torch.zeros(len(tree) + 1, VOCAB)
    for node, token in enumerate(chosen):
        logits[node, token] = 5.0
    return logits


def _walk(tree, chosen, **kwargs):
    events = []
    sequence = _sequence(events, **kwargs)
    sequence.chooser.begin(_logits(tree, chosen))
    return accept(tree, sequence), events, sequence


TREE = DraftTree.from_parents([2, 3, 4, 5, 6, 7], [0, 0, 0, 1, 1, 3])


def test_an_empty_tree_is_plain_decoding():
    walk, events, sequence = _walk(DraftTree.only_root(2), [8])
    assert (walk.path, walk.chosen, walk.accepted) == ([0], [8], 0)
    assert events == [("choose", 2, 2), ("stop?", 8), ("emit", 8)]
    assert sequence.context == [1, 2, 8]


def test_every_token_is_chosen_tested_and_emitted_before_the_next():
    walk, events, sequence = _walk(TREE, [3, 5, 0, 7, 0, 9])
    assert (walk.path, walk.chosen, walk.accepted) == ([0, 1, 3, 5], [3, 5, 7, 9], 3)
    assert events == [
        ("choose", 2, 2),
        ("stop?", 3),
        ("emit", 3),
        ("choose", 3, 3),
        ("stop?", 5),
        ("emit", 5),
        ("choose", 4, 5),
        ("stop?", 7),
        ("emit", 7),
        ("choose", 5, 7),
        ("stop?", 9),
        ("emit", 9),
    ]
    assert sequence.context == [1, 2, 3, 5, 7, 9]


def test_the_second_branch_is_followed_as_well_as_the_first():
    walk, _, _ = _walk(TREE, [4, 0, 8, 0, 0, 0])
    assert (walk.path, walk.chosen) == ([0, 2], [4, 8])


@pytest.mark.parametrize("stop", [3, 5, 7, 9])
def test_nothing_is_chosen_or_emitted_behind_a_stop(stop):
    order = [3, 5, 7, 9]
    walk, events, sequence = _walk(TREE, [3, 5, 0, 7, 0, 9], stop=(stop,))
    expected = order[: order.index(stop) + 1]
    assert walk.chosen == expected
    assert [e[1] for e in events if e[0] == "emit"] == expected
    assert len([e for e in events if e[0] == "choose"]) == len(expected)
    assert sequence.finished
    # The token that ended the run is the bonus token: its own K/V are not kept.
    assert len(walk.path) == len(expected)


@given(st.data())
def test_the_walk_is_the_target_s_own_path_for_any_tree(data):
    size = data.draw(st.integers(1, 12))
    parents = [0, *(data.draw(st.integers(0, n - 1)) for n in range(1, size))]
    tokens = [data.draw(st.integers(0, 3)) for _ in range(size)]
    chosen = [data.draw(st.integers(0, 3)) for _ in range(size)]
    tree = DraftTree.from_parents(tokens, parents)
    walk, _, _ = _walk(tree, chosen, context=(1, tokens[0]))
    node = 0
    for step, taken in enumerate(walk.path):
        assert taken == node
        assert walk.chosen[step] == chosen[node]
        children = [n for n in tree.children(node) if tokens[n] == chosen[node]]
        assert bool(children) == (step + 1 < len(walk.path))
        node = children[0] if children else None


def test_the_scores_that_a_stopping_rule_sees_include_the_token_s_own():
    seen = []
    scores = []
    sequence = Sequence(
        slot=0,
        context=[1],
        seen=TokenBuffer(torch.tensor([[1]])),
        drafter=None,
        chooser=NodeChooser(None, sample=False, scores=scores),
        should_stop=lambda ids, s: seen.append(len(s)) or False,
        scores=scores,
    )
    sequence.chooser.begin(_logits(TREE, [3, 5, 0, 7, 0, 9]))
    accept(TREE, sequence)
    assert seen == [1, 2, 3, 4]


def test_greedy_choices_take_the_first_of_equal_logits_as_plain_does():
    tree = DraftTree.from_paths(0, [[3]])
    logits = torch.zeros(2, VOCAB)
    for process in (None, lambda ids, scores: scores):
        chooser = NodeChooser(process, sample=False)
        chooser.begin(logits)
        assert chooser.choose(0, torch.tensor([[0]])) == int(logits[0].argmax())
    assert len(tree) == 1


def test_processed_scores_are_kept_apart_from_raw_logits():
    scores, raw = [], []
    chooser = NodeChooser(lambda ids, s: s.mul_(2), sample=False, scores=scores, logits=raw)
    logits = torch.arange(10.0)[None]
    chooser.begin(logits)
    chooser.choose(0, torch.tensor([[0]]))
    assert torch.equal(logits, torch.arange(10.0)[None])
    assert torch.equal(scores[0], 2 * torch.arange(10.0)[None])


def test_half_precision_logits_are_processed_in_32_bits():
    seen = []
    chooser = NodeChooser(lambda ids, s: seen.append(s.dtype) or s, sample=False)
    chooser.begin(torch.zeros(1, VOCAB, dtype=torch.bfloat16))
    chooser.choose(0, torch.tensor([[0]]))
    assert seen == [torch.float32]


class TestEngine:
    def _run(self, prompts, *, law, config, num=12):
        stats, target = DecodeStats(), TableTarget(law, prompts)
        sequences = [
            make_sequence(p, config=config, stats=stats, vocab=VOCAB, num=num, slot=i)
            for i, p in enumerate(prompts)
        ]
        Engine(target, Budget(config, CostCurve()), config, stats).run(sequences)
        return target, sequences, stats

    def test_a_step_verifies_once_and_keeps_each_row(self):
        law = scripted([1, 2, *[3, 4, 5] * 8], VOCAB)
        target, sequences, stats = self._run([[1, 2], [1, 2, 3]], law=law, config=Config(nodes=4))
        assert target.calls[0] == ("prefill",)
        kinds = [call[0] for call in target.calls]
        assert kinds.count("verify") == stats.passes
        for at, call in enumerate(target.calls):
            if call[0] == "verify":
                kept = target.calls[at + 1 : at + len(call)]
                assert [(k[0], k[1]) for k in kept] == [("keep", slot) for slot in call[1:]]
        for sequence, cached in zip(sequences, target.cached, strict=True):
            assert cached == sequence.context[:-1]
            assert sequence.num_new == 12

    def test_rows_that_have_finished_are_left_out(self):
        law = scripted([1, 2, *[3, 4, 5] * 20], VOCAB)
        config, stats = Config(nodes=2), DecodeStats()
        target = TableTarget(law, [[1, 2], [1, 2, 3]])
        sequences = [
            make_sequence([1, 2], config=config, stats=stats, vocab=VOCAB, num=3),
            make_sequence([1, 2, 3], config=config, stats=stats, vocab=VOCAB, num=30, slot=1),
        ]
        Engine(target, Budget(config, CostCurve()), config, stats).run(sequences)
        assert target.calls[-2][0] == "verify"
        assert target.calls[-2][1:] == (1,)
        assert [s.num_new for s in sequences] == [3, 30]

    def test_a_run_of_one_token_makes_no_pass(self):
        target, sequences, stats = self._run(
            [[1, 2]], law=scripted([1, 2, 7], VOCAB), config=Config(), num=1
        )
        assert [call[0] for call in target.calls] == ["prefill"]
        assert (stats.passes, stats.new_tokens) == (0, 1)
        assert sequences[0].context == [1, 2, 7]

    def test_a_budget_of_no_nodes_is_plain_decoding(self):
        law = scripted([1, 2, *[3, 4, 5] * 8], VOCAB)
        target, _, stats = self._run([[1, 2]], law=law, config=Config(nodes=0))
        assert stats.drafted == 0
        assert stats.passes == 11
        assert ("prompt_rows", 0) not in target.calls

    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"nodes": 1},
            {"nodes": 16},
            {"nodes": "auto"},
            {"max_depth": 1},
            {"sources": ()},
            {"sources": ("ngrams",)},
            {"sources": ("recycled",)},
            {"recycle_prompt": 0},
        ],
    )
    def test_any_setting_decodes_what_plain_decodes(self, settings):
        random = np.random.default_rng(0)
        table = random.dirichlet([0.2] * VOCAB, (VOCAB, VOCAB)).tolist()

        def law(context):
            return table[([0, *context])[-2]][context[-1]]

        for sample in (False, True):
            tokens, _ = decode(law, [1, 2], 80, sample=sample, seed=3, **settings)
            assert tokens == plain_decode(law, [1, 2], 80, sample=sample, seed=3)

    def test_guesses_end_where_the_run_ends(self):
        text = [1, 2, *[3, 4, 5] * 20]
        _, stats = decode(
            scripted(text, VOCAB),
            [1, 2],
            10,
            sample=False,
            nodes=16,
            sources=(),
            drafters=(Oracle(text, 16),),
        )
        assert stats.new_tokens == 10
        assert stats.drafted == stats.accepted == 8

    def test_a_run_without_a_known_end_drafts_all_the_same(self):
        text = [1, 2, *[3, 4, 5] * 9]
        config, stats = Config(nodes=4, sources=(), drafters=(Oracle(text, 4),)), DecodeStats()
        target = TableTarget(scripted(text, VOCAB), [[1, 2]])
        sequence = make_sequence(
            [1, 2],
            config=config,
            stats=stats,
            vocab=VOCAB,
            num=None,
            stop=lambda ids: len(ids) >= 20,
        )
        Engine(target, Budget(config, CostCurve()), config, stats).run([sequence])
        assert sequence.context == text[:20]
        assert stats.accepted > 0
