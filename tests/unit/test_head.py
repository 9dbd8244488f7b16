"""The least-squares head on a model of numbers: what it learns, says, and hands on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lookahead.drafters.head import NUM_CANDIDATES, ROWS_TO_SUM, LeastSquaresHead
from lookahead.drafters.readout import Readout
from lookahead.drafters.sums import HeadSums
from lookahead.outcome import Outcome
from lookahead.tree import DraftTree
from tests.ends import TableEnds

VOCAB, CYCLE = 32, 8


class CyclicModel(TableEnds):
    """After token t of the cycle comes the next one, and the hidden state says so."""

    def next(self, token):
        return (token + 1) % CYCLE

    def hidden(self, tokens):
        """Along the row of the output layer of the token that comes next."""
        weight = torch.nn.functional.normalize(self.weight, dim=-1)
        return torch.stack([5 * weight[self.next(int(token))] for token in tokens])


MODEL = CyclicModel(VOCAB, 24, 16)


def make_head(sums=None, model=MODEL):
    return LeastSquaresHead(model, Readout(model, range(VOCAB)), sums or HeadSums(model))


def begun(prompt, **kwargs):
    """Return a head that was shown a prompt, and the context with the first token of the answer."""
    head = make_head(**kwargs)
    context = [*prompt, MODEL.next(prompt[-1])]
    head.begin(context, MODEL.hidden(prompt))
    return head, context


def step(head, context, tree=None, hidden=None):
    """Let the model verify a tree; return the context after the step."""
    tree = DraftTree.only_root(context[-1]) if tree is None else tree
    path, chosen = [0], [MODEL.next(context[-1])]
    while (child := tree.child(path[-1], chosen[-1])) is not None:
        path.append(child)
        chosen.append(MODEL.next(chosen[-1]))
    after = context + chosen
    hidden = MODEL.hidden(tree.tokens) if hidden is None else hidden
    head.learn(Outcome(tree, path, chosen, after, torch.zeros(1), hidden))
    return after


def first(head, context, tree=None, nodes=(0,)):
    """The best token behind each node."""
    tree = DraftTree.only_root(context[-1]) if tree is None else tree
    return head.ask(context, tree, list(nodes)).tokens[:, 0].tolist()


def chain(context, length):
    tokens = [context[-1]]
    for _ in range(length):
        tokens.append(MODEL.next(tokens[-1]))
    return DraftTree.from_parents(tokens, [0, *range(length)])


def test_a_cycle_is_learnt_within_a_few_steps():
    head, context = begun([20, 0])
    right = []
    for _ in range(3 * CYCLE):
        right.append(first(head, context) == [MODEL.next(context[-1])])
        context = step(head, context)
    assert all(right[CYCLE:])


def test_a_prompt_that_holds_the_cycle_is_enough():
    head, context = begun([*range(CYCLE), *range(CYCLE)])
    tree = chain(context, 4)
    wanted = [MODEL.next(int(token)) for token in tree.tokens]
    assert first(head, context, tree, range(5)) == wanted, "predictions are fed back"


def test_candidates_are_sixteen_and_come_in_order():
    head, context = begun(range(CYCLE))
    tree = DraftTree.from_paths(context[-1], [[3, 4], [9]])
    found = head.ask(context, tree, [0, 2, 3])
    assert found.tokens.shape == found.probabilities.shape == (3, NUM_CANDIDATES)
    assert found.tokens.dtype == np.int32
    assert (np.diff(found.probabilities) <= 0).all()
    assert (found.probabilities >= 0).all()
    assert (found.probabilities.sum(-1) <= 1 + 1e-5).all()
    assert all(len(set(row)) == NUM_CANDIDATES for row in found.tokens.tolist())


def test_a_node_gets_one_answer_however_it_is_asked():
    head, context = begun(range(CYCLE))
    tree = DraftTree.from_paths(context[-1], [[3, 4], [9, 5, 6]])
    whole = head.ask(context, tree, [0, 1, 2, 3, 4, 5])
    head, context = begun(range(CYCLE))
    turned = DraftTree.from_paths(context[-1], [[9, 5, 6], [3, 4]])
    for node, place in ((5, 2), (3, 5), (0, 0), (1, 3), (4, 1), (2, 4)):
        single = head.ask(context, turned, [node])
        np.testing.assert_array_equal(single.tokens[0], whole.tokens[place])
        np.testing.assert_allclose(
            single.probabilities[0], whole.probabilities[place], rtol=1e-3, atol=1e-6
        )


def test_without_hidden_states_nothing_is_said():
    head = make_head()
    head.begin([1, 2, 3], None)
    assert head.ask([1, 2, 3], DraftTree.only_root(3), [0]) is None
    step(head, [1, 2, 3])
    head = make_head()
    head.begin([1, 2, 3], torch.zeros((0, MODEL.width)))
    assert head.ask([1, 2, 3], DraftTree.only_root(3), [0]) is None


def test_nothing_is_said_after_a_step_without_hidden_states_and_all_again_behind_it():
    head, context = begun([*range(CYCLE)] * 2)
    tree = DraftTree.only_root(context[-1])
    chosen = [MODEL.next(context[-1])]
    context = context + chosen
    head.learn(Outcome(tree, [0], chosen, context, torch.zeros(1), None))
    assert head.ask(context, DraftTree.only_root(context[-1]), [0]) is None
    context = step(head, context)
    assert first(head, context) == [MODEL.next(context[-1])]


def test_one_position_of_a_prompt_is_no_pair_but_a_start():
    head, context = begun([5])
    assert head.ask(context, DraftTree.only_root(6), [0]) is None
    context = step(head, context)
    assert head.ask(context, DraftTree.only_root(context[-1]), [0]) is not None


def test_hidden_states_of_the_end_of_a_prompt_are_those_of_its_last_tokens():
    prompt = [*range(CYCLE)] * 3
    whole, context = begun(prompt)
    head = make_head()
    head.begin([30, 31, 30, *context], MODEL.hidden(prompt))
    tree = chain(context, 2)
    one = head.ask([30, 31, 30, *context], tree, [0, 1, 2])
    other = whole.ask(context, tree, [0, 1, 2])
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_allclose(one.probabilities, other.probabilities, rtol=1e-4, atol=1e-6)


def test_rejected_nodes_do_not_mislead():
    head, context = begun([20, 0])
    for _ in range(2 * CYCLE):
        tree = DraftTree.from_paths(context[-1], [[11, 12], [MODEL.next(context[-1]), 13]])
        head.ask(context, tree, [0])
        context = step(head, context, tree)
    assert first(head, context) == [MODEL.next(context[-1])]


def test_hidden_states_that_are_not_finite_are_not_learnt():
    """Of a guess that overflows in half precision, say, and is rejected."""
    head, context = begun([20, 0])
    for _ in range(2 * CYCLE):
        tree = DraftTree.from_paths(context[-1], [[11, 12], [MODEL.next(context[-1]), 13]])
        hidden = MODEL.hidden(tree.tokens)
        hidden[[1, 4]] = float("nan")
        head.ask(context, tree, [0])
        context = step(head, context, tree, hidden)
    assert first(head, context) == [MODEL.next(context[-1])]


def test_steps_with_many_accepted_nodes_teach_as_much_as_single_ones():
    single, context = begun([20, 0])
    many, other = begun([20, 0])
    for _ in range(4):
        for _ in range(5):
            context = step(single, context)
        other = step(many, other, chain(other, 4))
    assert context == other
    tree = chain(context, 3)
    np.testing.assert_allclose(
        many.ask(other, tree, [0, 1, 2, 3]).probabilities,
        single.ask(context, tree, [0, 1, 2, 3]).probabilities,
        rtol=1e-3,
        atol=1e-5,
    )


def test_answers_are_added_to_the_sums_of_the_model_and_prompts_are_not():
    sums = HeadSums(MODEL)
    head, context = begun([*range(CYCLE)] * 9, sums=sums)
    assert sums.rows == 0
    for _ in range(ROWS_TO_SUM - 1):
        context = step(head, context)
    assert sums.rows == 0, "several at a time"
    context = step(head, context)
    assert sums.rows == ROWS_TO_SUM
    wanted = HeadSums(MODEL)
    answer = context[-ROWS_TO_SUM - 2 : -1]
    wanted.add_text(torch.tensor(answer), MODEL.hidden(answer))
    for name, array in wanted.state().items():
        torch.testing.assert_close(sums.state()[name], array, rtol=1e-4, atol=1e-4)


def test_sums_of_other_texts_are_where_it_begins():
    sums = HeadSums(MODEL)
    text = torch.tensor([*range(CYCLE)] * 20)
    sums.add_text(text, MODEL.hidden(text))
    head, context = begun([4], sums=sums)
    tree = chain(context, 3)
    wanted = [MODEL.next(int(token)) for token in tree.tokens]
    assert first(head, context, tree, range(4)) == wanted


def test_tokens_of_text_and_answer_can_be_named_whatever_the_shortlist_began_with():
    model = CyclicModel(VOCAB, 24, 16)
    head = LeastSquaresHead(model, Readout(model, [30, 31]), HeadSums(model))
    head.begin([0, 1, 2, 3], model.hidden([0, 1, 2]))
    named = set(head.ask([0, 1, 2, 3], DraftTree.only_root(3), [0]).tokens[0].tolist())
    assert named == {0, 1, 2, 3, 30, 31}
    context = step(head, [0, 1, 2, 3])
    named = set(head.ask(context, DraftTree.only_root(4), [0]).tokens[0].tolist())
    assert named == {0, 1, 2, 3, 4, 30, 31}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_hidden_states_of_any_float_are_taken(dtype):
    prompt = [*range(CYCLE)] * 3
    head = make_head()
    context = [*prompt, 0]
    head.begin(context, MODEL.hidden(prompt).to(dtype))
    hidden = MODEL.hidden([0]).to(dtype)
    context = step(head, context, hidden=hidden)
    assert first(head, context) == [MODEL.next(context[-1])]


def test_long_texts_are_forgotten_in_part():
    head, context = begun([*range(CYCLE)] * 400)
    for _ in range(3):
        context = step(head, context, chain(context, 30))
        assert first(head, context) == [MODEL.next(context[-1])]


def test_where_nobody_asks_no_more_waits_than_is_remembered():
    """The newest stays, and a question after it is answered as if all had been learnt at once."""
    head, context = begun([0, 1, 2, 3])
    most = head._regression.max_rows
    for _ in range(most):
        context = step(head, context, chain(context, 3))
        waiting = sum(len(pairs.tokens) for pairs in head._unlearnt)
        assert waiting <= most + 4
    assert waiting >= most
    assert first(head, context) == [MODEL.next(context[-1])]
    assert head._regression.num_rows == most
