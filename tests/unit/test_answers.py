"""Which nodes a node drafter is asked about, and what becomes of its answers."""

from __future__ import annotations

import numpy as np
import pytest

from lookahead import DraftTree
from lookahead.drafters.answers import LEADS, LEAST_LOST, Answers
from lookahead.drafters.base import Candidates
from ngram_pool import DictPool
from ngram_pool.layout import EXIT_OFFER, HEAD_OFFER


def candidates(*rows):
    """One row of (token, probability) pairs for each node."""
    width = max(map(len, rows))
    tokens = np.full((len(rows), width), -1, np.int32)
    probabilities = np.zeros((len(rows), width), np.float32)
    for i, row in enumerate(rows):
        for rank, (token, probability) in enumerate(row):
            tokens[i, rank], probabilities[i, rank] = token, probability
    return Candidates(tokens, probabilities)


def tree(*nodes):
    """A tree from (parent, token, probability of the path)."""
    parents, tokens, probabilities = zip((0, 9, 1.0), *nodes, strict=True)
    return DraftTree.from_parents(tokens, parents, probabilities)


BUSHY = tree((0, 1, 0.6), (1, 3, 0.5), (2, 4, 0.1), (0, 2, 0.3), (4, 5, 0.03))


def ask(answers, shown, limit=8):
    return answers.worth_asking(shown, limit)[0]


def paths(offer):
    """Every node of an offer by its path, with its probability."""
    found = {}
    for node in range(1, len(offer.tokens)):
        path, at = [], node
        while at:
            path.append(int(offer.tokens[at]))
            at = int(offer.parents[at])
        found[tuple(path[::-1])] = pytest.approx(float(offer.probabilities[node]))
    return found


def test_the_root_comes_first_and_alone():
    answers = Answers(HEAD_OFFER, 8)
    assert ask(answers, BUSHY) == [0]
    sure = tree((0, 1, 0.999))
    assert ask(answers, sure) == [0], "even where hardly anything leaves the tree"


def test_nodes_where_most_probability_leaves_the_tree_come_next():
    answers = Answers(HEAD_OFFER, 8)
    answers.take(BUSHY, [0], candidates([(1, 0.5)]))
    # Lost: 0.1 at node 1, 0.27 at node 4; the others hang below nodes that were not asked about.
    nodes, lost = answers.worth_asking(BUSHY, 8)
    assert nodes == [4, 1]
    assert lost == pytest.approx(0.37)
    nodes, lost = answers.worth_asking(BUSHY, 1)
    assert nodes == [4]
    assert lost == pytest.approx(0.27)


def test_one_level_is_asked_about_in_each_round():
    answers = Answers(HEAD_OFFER, 8)
    rounds = []
    while nodes := ask(answers, BUSHY):
        rounds.append(nodes)
        answers.take(BUSHY, nodes, candidates(*[[(7, 0.5)]] * len(nodes)))
    assert rounds == [[0], [4, 1], [2, 5], [3]]


def test_nothing_is_asked_twice_in_whatever_order_the_tree_is_shown():
    answers = Answers(HEAD_OFFER, 8)
    answers.take(BUSHY, [0], candidates([(1, 0.5)]))
    answers.take(BUSHY, [4, 1], candidates([(7, 0.5)], [(3, 0.5)]))
    turned = tree((0, 2, 0.3), (1, 5, 0.03), (0, 1, 0.6), (3, 3, 0.5), (4, 4, 0.1))
    assert ask(answers, turned) == [4, 2]
    answers.take(turned, [4, 2], candidates([(7, 0.5)], [(7, 0.5)]))
    assert ask(answers, turned) == [5]


def test_nodes_that_hardly_matter_are_not_asked_about():
    answers = Answers(HEAD_OFFER, 8)
    shown = tree((0, 1, 0.9), (0, 2, LEAST_LOST * 0.9), (0, 3, LEAST_LOST * 1.1))
    answers.take(shown, [0], candidates([(1, 0.9)]))
    assert ask(answers, shown) == [1, 3]


def test_nodes_at_the_greatest_depth_are_not_asked_about():
    for max_depth, wanted in ((1, []), (2, [4, 1])):
        answers = Answers(HEAD_OFFER, max_depth)
        answers.take(BUSHY, [0], candidates([(1, 0.5)]))
        assert ask(answers, BUSHY) == wanted


def test_no_answers_are_no_offer():
    answers = Answers(HEAD_OFFER, 8)
    assert answers.as_offers() == []
    answers.take(DraftTree.only_root(9), [0], candidates([(-1, 0.0)]))
    assert answers.as_offers() == []
    assert ask(answers, DraftTree.only_root(9)) == []


@pytest.mark.parametrize("source", [HEAD_OFFER, EXIT_OFFER])
def test_answers_become_an_offer_of_their_source(source):
    answers = Answers(source, 8)
    answers.take(BUSHY, [0], candidates([(1, 0.5), (8, 0.25)]))
    answers.take(BUSHY, [1], candidates([(3, 0.7), (6, 0.2), (-1, 0.0)]))
    (offer,) = answers.as_offers()
    assert offer.source == source
    assert paths(offer) == {(1,): 0.5, (8,): 0.25, (1, 3): 0.7, (1, 6): 0.2}


def test_what_others_named_on_the_way_merely_leads_on():
    answers = Answers(HEAD_OFFER, 8)
    answers.take(BUSHY, [0], candidates([(1, 0.5)]))
    answers.take(BUSHY, [4], candidates([(5, 0.9)]))
    answers.take(BUSHY, [5], candidates([(6, 0.8)]))
    (offer,) = answers.as_offers()
    assert paths(offer) == {(1,): 0.5, (2,): LEADS, (2, 5): 0.9, (2, 5, 6): 0.8}
    # In the pool, where n-grams name token 2, the answers below it count.
    pool = DictPool()
    pool.extend([9, 2, 9])
    proposal = pool.propose(20, max_depth=2, min_probability=0, recycled=False, offers=[offer])
    found = dict(zip(proposal.tokens.tolist(), proposal.sources.tolist(), strict=True))
    assert found[5] == 4 << HEAD_OFFER
    assert found[1] == 4 << HEAD_OFFER


def test_a_node_that_led_on_is_named_once_the_drafter_names_it():
    answers = Answers(HEAD_OFFER, 8)
    answers.take(BUSHY, [0], candidates([(1, 0.5)]))
    answers.take(BUSHY, [2], candidates([(4, 0.9)]))
    assert paths(answers.as_offers()[0])[1, 3] == LEADS
    answers.take(BUSHY, [1], candidates([(6, 0.6), (3, 0.3)]))
    assert paths(answers.as_offers()[0]) == {
        (1,): 0.5,
        (1, 3): 0.3,
        (1, 3, 4): 0.9,
        (1, 6): 0.6,
    }


def test_siblings_stand_in_the_order_of_their_probabilities():
    """The rank of a token is its place among them, whenever it was named."""
    answers = Answers(HEAD_OFFER, 8)
    answers.take(BUSHY, [0], candidates([(1, 0.5)]))
    answers.take(BUSHY, [2], candidates([(4, 0.9), (6, 0.1)]))
    answers.take(BUSHY, [1], candidates([(6, 0.6), (3, 0.3), (8, 0.1)]))
    (offer,) = answers.as_offers()
    for parent in range(len(offer.tokens)):
        family = np.flatnonzero(offer.parents[1:] == parent) + 1
        assert (np.diff(offer.probabilities[family]) <= 0).all()
    assert (offer.parents[1:] < np.arange(1, len(offer.tokens))).all()


def test_a_token_named_twice_counts_once():
    answers = Answers(HEAD_OFFER, 8)
    answers.take(BUSHY, [0], candidates([(1, 0.5), (1, 0.4), (2, 0.1)]))
    assert paths(answers.as_offers()[0]) == {(1,): 0.5, (2,): 0.1}


class Scripted:
    """A node drafter that gives one answer."""

    name = "scripted"

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def ask(self, context, shown, nodes, noise):
        self.asked.append((context, nodes, noise))
        return self.answer


def test_asking_returns_all_answers_so_far_or_none_where_there_are_no_more():
    answers = Answers(HEAD_OFFER, 8)
    drafter = Scripted(candidates([(1, 0.5)]))
    (offer,) = answers.ask(drafter, [9], BUSHY, [0])
    assert paths(offer) == {(1,): 0.5}
    assert drafter.asked == [([9], [0], None)]
    noise = np.ones((2, 10), np.float32)
    answers.ask(drafter, [9], BUSHY, [0], noise)
    assert drafter.asked[-1][2] is noise
    assert answers.ask(Scripted(None), [9], BUSHY, [1]) is None
    (offer,) = answers.ask(Scripted(candidates([(3, 0.7)])), [9], BUSHY, [1])
    assert paths(offer) == {(1,): 0.5, (1, 3): 0.7}


@pytest.mark.parametrize("probability", [float("nan"), float("inf"), -0.5, 1.5])
def test_answers_that_are_no_probabilities_are_refused(probability):
    answers = Answers(HEAD_OFFER, 8)
    with pytest.raises(ValueError, match="Expected offer probabilities"):
        answers.ask(Scripted(candidates([(1, 0.5), (2, probability)])), [9], BUSHY, [0])
