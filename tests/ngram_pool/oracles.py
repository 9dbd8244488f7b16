"""Short and slow: what the pools must agree with, straight from the definitions."""

import functools
from collections import Counter

import numpy as np

import ngram_pool
from ngram_pool import features
from ngram_pool.layout import (
    EDGE_TARGET,
    EDGE_TOKEN,
    HEAD_OFFER,
    KEY_TOKEN,
    MAX_OFFERS,
    MORE_EDGES,
    NEXT,
    TARGET,
    TOP,
    TOP_COUNTS,
    TOP_TOKENS,
    TOTAL,
)

FIELDS = ("tokens", "parents", "depths", "probabilities", "lifts", "buckets", "sources")


def assert_same_proposal(first, second):
    for name in FIELDS:
        left, right = getattr(first, name), getattr(second, name)
        assert left.dtype == right.dtype, name
        if name == "probabilities":
            np.testing.assert_allclose(left, right, rtol=0, atol=1e-5)
        elif name == "lifts":
            np.testing.assert_allclose(left, right, rtol=1e-5)
        else:
            np.testing.assert_array_equal(left, right, err_msg=name)


def longest_match(text):
    for length in range(len(text) - 1, 0, -1):
        suffix = text[-length:]
        if any(text[i : i + length] == suffix for i in range(len(text) - length)):
            return length
    return 0


def next_tokens(text, string):
    """Tokens behind each occurrence of a string, in order of place."""
    size = len(string)
    return [text[i + size] for i in range(len(text) - size) if text[i : i + size] == string]


def top_of(following):
    """Four most frequent tokens, the more recent first among equals, with counts."""
    counts = Counter(following)
    last = {token: place for place, token in enumerate(following)}
    ordered = sorted(counts, key=lambda token: (-counts[token], -last[token]))
    return [(token, counts[token]) for token in ordered[:4]]


def compiled_counts(pool, string):
    """Top tokens with counts, and the total, of the state of a string, read from the arrays."""
    states, edges = pool._text.states, pool._text.edges
    state = 0
    for token in string:
        if states[state, EDGE_TOKEN] == token:
            state = states[state, EDGE_TARGET]
            continue
        edge = states[state, MORE_EDGES]
        while edges[edge, KEY_TOKEN] != token:
            assert edge != 0, "no such string in the text"
            edge = edges[edge, NEXT]
        state = edges[edge, TARGET]
    row = states[state]
    top = [(int(row[TOP_TOKENS + i]), int(row[TOP_COUNTS + i])) for i in range(TOP)]
    return [pair for pair in top if pair[1]], int(row[TOTAL])


def children(text, rows, offers, calibration, path):
    """Probability of each token behind a path; `rows` is a dict of (previous, token)."""
    return {
        token: calibration.judge(*given)[0]
        for token, given in features_behind(text, rows, offers, path).items()
    }


def features_behind(text, rows, offers, path):
    """What n-grams, rows, hidden states and other drafters say of each token behind a path."""
    whole = text + path
    by_ngram, ngram_others = ngram_children(text, whole)
    by_row, row_others = recycled_children(rows, whole)
    offered, hidden, hidden_others = offered_behind(text, rows, offers, path)
    ngram, recycled = dict(reversed(by_ngram)), dict(reversed(by_row))  # the first word counts
    return {
        token: (
            ngram.get(token, ngram_others),
            recycled.get(token, row_others),
            hidden.get(token, hidden_others),
            offered.get(token, 0),
        )
        for token in [*ngram, *recycled, *hidden, *offered]
    }


def offered_behind(text, rows, offers, path):
    """What others say, then what hidden states say, by token, then the feature of their silence.

    The most confident of the others counts, and of hidden states the last drafter that speaks.
    """
    offered, hidden, hidden_others = {}, {}, 0
    best = {}
    for i, offer in enumerate(offers):
        known = functools.partial(features_behind, text, rows, offers[:i])
        named = offered_children(offer, path, known)
        if offer.source >= HEAD_OFFER:
            for rank, (token, probability) in enumerate(named):
                hidden[token] = hidden_feature(offer.source, len(path), rank, probability)
            if named:
                hidden_others = silence_of(offer.source, len(path))
            continue
        for token, probability in named:
            if probability > best.get(token, -1.0):
                best[token] = probability
                offered[token] = features.offer_feature(offer.source, probability)
    return offered, hidden, hidden_others


def hidden_feature(source, depth, rank, probability):
    if source == HEAD_OFFER:
        return features.head_feature(depth, rank, probability)
    return features.exit_feature(rank, probability)


def silence_of(source, depth):
    return features.head_others(depth) if source == HEAD_OFFER else features.exit_others()


def ngram_children(text, whole):
    """Of the longest suffix with a next token, then of the next shorter one seen more often.

    The shortest is the empty one. And the feature of every token that neither names.
    """
    used = []
    for size in range(len(whole), -1, -1):
        following = next_tokens(text, whole[len(whole) - size :])
        if len(following) > (len(used[-1][1]) if used else 0):
            used.append((size, following))
    named = [
        (token, features.ngram_feature(size, count, len(following), int(following[-1] == token)))
        for size, following in used[:2]
        for token, count in top_of(following)
    ]
    return named, features.ngram_others(used[0][0]) if used else 0


def recycled_children(rows, whole):
    """Of the row of the last two tokens, else of that of the last one, then of the one before it.

    And the feature of every token that the first of them does not name.
    """
    before, previous, token = [None, None, *whole][-3:]
    if row := rows.get((previous, token)) if previous is not None else None:
        return row_features(row, features.PAIR), features.recycled_others(features.PAIR)
    single = rows.get((None, token), [])
    named = row_features(single, features.SINGLE)
    if before is not None:
        above = row_features(rows.get((before, previous), []), features.PARENT)
        named += [pair for pair in above if pair[0] != token]
    return named, features.recycled_others(features.SINGLE) if single else 0


def row_features(row, kind):
    return [
        (token, features.recycled_feature(kind, rank, probability))
        for rank, (token, probability) in enumerate(row)
    ]


def offered_children(offer, path, known):
    """Tokens that an offer names behind a path, in its own order.

    Nodes of probability -1 lead on where the token is `known`: named by sources before this one.
    """
    node = 0
    for depth, token in enumerate(path):
        matching = [
            i
            for i in range(1, len(offer.tokens))
            if offer.parents[i] == node and offer.tokens[i] == token
        ]
        if not matching:
            return []
        node = matching[0]
        if offer.probabilities[node] < 0 and token not in known(path[:depth]):
            return []
    return [
        (int(offer.tokens[i]), float(offer.probabilities[i]))
        for i in range(1, len(offer.tokens))
        if offer.parents[i] == node and offer.probabilities[i] >= 0
    ]


def all_paths(children_of, max_depth, min_probability):
    """Every path of the full tree with its probability, best first."""
    paths = {}
    open_paths = [((), 1.0)]
    while open_paths:
        path, probability = open_paths.pop()
        if len(path) == max_depth:
            continue
        for token, conditional in children_of(list(path)).items():
            child = ((*path, token), probability * conditional)
            if child[1] >= min_probability:
                paths[child[0]] = child[1]
                open_paths.append(child)
    return sorted(paths.items(), key=lambda item: -item[1])


def paths_of(proposal):
    """Path of tokens to each node, the root's being empty."""
    paths = [()]
    for node in range(1, len(proposal.tokens)):
        paths.append((*paths[proposal.parents[node]], int(proposal.tokens[node])))
    return paths


def random_calibration(seed):
    """Counts and priors that are all different, so that ties are rare."""
    rng = np.random.default_rng(seed)
    priors = rng.uniform(0.05, 0.9, features.NUM_PRIORS).astype(np.float32)
    calibration = ngram_pool.Calibration(priors)
    calibration.counts[:, 1] = rng.integers(0, 50, features.NUM_BUCKETS)
    calibration.counts[:, 0] = calibration.counts[:, 1] * rng.random(features.NUM_BUCKETS)
    return calibration


def random_offer(rng, source, size=6, tokens=5):
    """A random tree of a drafter; of those that read hidden states, some nodes merely lead on."""
    probabilities = rng.random(size + 1, np.float32)
    if source >= HEAD_OFFER:
        probabilities[rng.random(size + 1) < 0.3] = -1.0
    parents = [0, *(int(rng.integers(0, node)) for node in range(1, size + 1))]
    return ngram_pool.Offer(source, rng.integers(0, tokens, size + 1), parents, probabilities)


def random_offers(rng, count):
    """Offers of so many different sources, in their order."""
    sources = sorted(rng.permutation(MAX_OFFERS)[:count].tolist())
    return [random_offer(rng, source) for source in sources]
