"""Best-first growth in plain Python, the twin of the kernels that grow trees."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ngram_pool.calibration import Calibration, bucket
from ngram_pool.checks import Limits
from ngram_pool.features import (
    PAIR,
    PARENT,
    SHARPNESS,
    SINGLE,
    clip,
    drawn_alone,
    exit_feature,
    exit_others,
    head_feature,
    head_others,
    ngram_feature,
    ngram_others,
    offer_feature,
    race_speed,
    race_won,
    recycled_feature,
    recycled_others,
)
from ngram_pool.layout import (
    HEAD_OFFER,
    MAX_CHAIN,
    NGRAM_SOURCE,
    OFFER_SOURCE,
    RECYCLED_SOURCE,
)
from ngram_pool.proposal import Offer, Proposal
from ngram_pool.reference_text import Row, Rows, State, Text

__all__: list[str] = []

OfferNodes = dict[int, dict[int, list[int]]]  # source -> node -> children


@dataclass
class Candidate:
    """A token that may follow a node, and everything the sources say about it."""

    token: int
    parent: "Candidate | None"
    ngram: int = 0
    recycled: int = 0
    offer: int = 0
    hidden: int = 0
    guess: int = 0  # which of the last two counted
    sources: int = 0
    best_offered: float = -1.0
    nodes: dict[int, int] = field(default_factory=dict)  # source -> node of that offer
    probability: float = 1.0  # of the path
    lift: float = 1.0  # how many times as probable as without the noise
    depth: int = 0
    state: State | None = None  # what the path to it matches
    length: int = 0  # tokens matched


class Grower:
    """Grows one tree.

    Parameters
    ----------
    text, rows : Text and Rows, or None
        None if the source is not asked.
    offers : sequence of Offer
    calibration : Calibration
    """

    def __init__(
        self,
        text: Text | None,
        rows: Rows | None,
        offers: Sequence[Offer],
        calibration: Calibration,
    ) -> None:
        self.text = text
        self.rows = rows
        self.offers = sorted(offers, key=lambda offer: offer.source)
        self.children = {offer.source: _children(offer) for offer in self.offers}
        self.calibration = calibration

    def grow(
        self, earlier: Sequence[int | None], token: int, limits: Limits, *, chain: bool = False
    ) -> Proposal:
        """Take the best candidate until a limit is met; then cut and order.

        `earlier` are the two tokens before the last one.
        """
        self.earlier = earlier
        self.noise = limits.noise
        root = Candidate(token, None, nodes={offer.source: 0 for offer in self.offers})
        if self.text is not None:
            root.state, root.length = self.text.last, self.text.last.length
        taken = [root]
        waiting: list[tuple[float, int, Candidate]] = []
        order = 0
        node = root
        while True:
            if len(taken) <= limits.max_nodes and node.depth < limits.max_depth:
                found = [
                    candidate
                    for candidate in self._ask(node)
                    if candidate.probability >= limits.min_probability
                ]
                if chain and found:
                    found = [max(found, key=lambda candidate: candidate.probability)]
                for candidate in found:
                    heapq.heappush(waiting, (-candidate.probability, order, candidate))
                    order += 1
            if len(taken) > limits.max_nodes or not waiting:
                break
            node = heapq.heappop(waiting)[2]
            parent = node.parent
            assert parent is not None
            taken.append(node)
            if self.text is not None and parent.state is not None:
                node.state, node.length = self.text.follow(parent.state, parent.length, node.token)
        return _proposal(_cut(taken, limits))

    def _ask(self, node: Candidate) -> list[Candidate]:
        """All candidates behind a node, each token once."""
        found: dict[int, Candidate] = {}
        ngram = self._ask_ngrams(node, found)
        recycled = self._ask_rows(node, found)
        hidden = self._ask_offers(node, found)
        for candidate in found.values():
            candidate.ngram = candidate.ngram or ngram
            candidate.recycled = candidate.recycled or recycled
            candidate.hidden = candidate.hidden or hidden
            conditional, candidate.guess = self.calibration.judge(
                candidate.ngram, candidate.recycled, candidate.hidden, candidate.offer
            )
            blind = not candidate.recycled and not candidate.hidden
            drawn = self._noise_of(candidate.token, node) if blind else None
            chance = conditional if drawn is None else clip(drawn_alone(conditional, drawn))
            candidate.lift = chance / conditional
            candidate.probability = node.probability * chance
        return list(found.values())

    def _ask_ngrams(self, node: Candidate, found: dict[int, Candidate]) -> int:
        """Ask the longest match with a next token, and the next shorter one that was seen more.

        Returns the feature of tokens that neither names.
        """
        state = node.state
        for _ in range(MAX_CHAIN):
            if state is None or state.total:
                break
            state = state.link
        if state is None or not state.total:
            return 0
        length = min(node.length, state.length)
        _ask_state(state, length, node, found)
        shorter = state.link
        for _ in range(MAX_CHAIN):
            if shorter is None:
                break
            if shorter.total > state.total:
                _ask_state(shorter, shorter.length, node, found)
                break
            shorter = shorter.link
        return ngram_others(length)

    def _ask_rows(self, node: Candidate, found: dict[int, Candidate]) -> int:
        """Ask the row of the pair; if there is none, that of the token and then the parent's.

        Returns the feature of tokens that the row does not name.
        """
        if self.rows is None:
            return 0
        before, previous = self._earlier(node)
        if previous is not None and (row := self.rows.find(previous, node.token)):
            self._ask_row(row, PAIR, node, found)
            return recycled_others(PAIR)
        single = self.rows.find(None, node.token)
        if single:
            self._ask_row(single, SINGLE, node, found)
        if before is not None and (row := self.rows.find(before, previous)):
            self._ask_row(row, PARENT, node, found)
        return recycled_others(SINGLE) if single else 0

    def _ask_row(self, row: Row, kind: int, node: Candidate, found: dict[int, Candidate]) -> None:
        """Offer the tokens of a row; of the parent's, all but the one that was chosen."""
        places = [
            (rank, token, probability)
            for rank, token, probability in row.places
            if kind != PARENT or token != node.token
        ]
        if node.depth < len(self.noise):
            places = self._raced(places, node)
        for rank, token, probability in places:
            candidate = _candidate(token, node, found)
            if not candidate.recycled:
                candidate.recycled = recycled_feature(kind, rank, probability)
                candidate.sources |= RECYCLED_SOURCE

    def _raced(
        self, places: list[tuple[int, int, float]], node: Candidate
    ) -> list[tuple[int, int, float]]:
        """Give tokens of a row rank and probability by the noise of the draw behind a node."""
        speeds = []
        for _, token, probability in places:
            noise = self._noise_of(token, node)
            speeds.append(probability if noise is None else race_speed(probability, noise))
        chances, best = speeds, max(speeds, default=0.0)
        if best > 0.0:
            field = sum((speed / best) ** SHARPNESS for speed in speeds)
            rest = max(1.0 - sum(probability for _, _, probability in places), 0.0)
            chances = [race_won(speed, best, field, rest) for speed in speeds]
        order = sorted(range(len(places)), key=lambda i: -chances[i])
        ranks = {i: rank for rank, i in enumerate(order)}
        return [(ranks[i], places[i][1], chances[i]) for i in range(len(places))]

    def _noise_of(self, token: int, node: Candidate) -> float | None:
        """Return the noise of a token in the draw behind a node, if it is known."""
        if node.depth >= len(self.noise) or token >= self.noise.shape[1]:
            return None
        return float(self.noise[node.depth, token])

    def _earlier(self, node: Candidate) -> tuple[int | None, int | None]:
        """Return the two tokens before that of a node."""
        parent = node.parent
        if parent is None:
            return self.earlier[0], self.earlier[1]
        above = parent.parent
        return (self.earlier[1] if above is None else above.token), parent.token

    def _ask_offers(self, node: Candidate, found: dict[int, Candidate]) -> int:
        """Ask the offers that hold the node; the most confident one gives the feature.

        Returns the feature of tokens that no drafter that reads hidden states names.
        """
        others = 0
        for offer in self.offers:
            place = node.nodes.get(offer.source)
            if place is None:
                continue
            if offer.source >= HEAD_OFFER:
                others = self._ask_hidden(offer, place, node, found) or others
                continue
            for child in self.children[offer.source][place]:
                candidate = _candidate(int(offer.tokens[child]), node, found)
                candidate.nodes[offer.source] = child
                candidate.sources |= OFFER_SOURCE << offer.source
                probability = float(offer.probabilities[child])
                if probability > candidate.best_offered:
                    candidate.best_offered = probability
                    candidate.offer = offer_feature(offer.source, probability)
        return others

    def _ask_hidden(
        self, offer: Offer, place: int, node: Candidate, found: dict[int, Candidate]
    ) -> int:
        """Ask a drafter that reads hidden states; return the feature of what it does not name.

        Children of negative probability are named by others; they only lead to what lies below.
        """
        is_head = offer.source == HEAD_OFFER
        rank = 0
        for child in self.children[offer.source][place]:
            token, probability = int(offer.tokens[child]), float(offer.probabilities[child])
            if probability < 0.0:
                if token in found:
                    found[token].nodes[offer.source] = child
                continue
            candidate = _candidate(token, node, found)
            candidate.nodes[offer.source] = child
            candidate.sources |= OFFER_SOURCE << offer.source
            candidate.hidden = (
                head_feature(node.depth, rank, probability)
                if is_head
                else exit_feature(rank, probability)
            )
            rank += 1
        if not rank:
            return 0
        return head_others(node.depth) if is_head else exit_others()


def _ask_state(state: State, length: int, node: Candidate, found: dict[int, Candidate]) -> None:
    for token in state.top:
        candidate = _candidate(token, node, found)
        if not candidate.ngram:
            count = state.counts[token]
            recent = int(state.recent == token)
            candidate.ngram = ngram_feature(length, count, state.total, recent)
            candidate.sources |= NGRAM_SOURCE


def _candidate(token: int, node: Candidate, found: dict[int, Candidate]) -> Candidate:
    if token not in found:
        found[token] = Candidate(token, node, depth=node.depth + 1)
    return found[token]


def _children(offer: Offer) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in offer.tokens]
    for node, parent in enumerate(offer.parents.tolist()):
        if node:
            children[parent].append(node)
    return children


def _cut(taken: list[Candidate], limits: Limits) -> list[Candidate]:
    """Keep the nodes that give most tokens per time: (1 + trust * path probabilities) / cost."""
    costs = limits.costs.tolist()
    if not costs:
        return taken
    tokens = 1.0
    best, kept = tokens / costs[0], 1
    for node in range(1, len(taken)):
        tokens += limits.trust * taken[node].probability
        if tokens / costs[node] > best:
            best, kept = tokens / costs[node], node + 1
    return taken[:kept]


def _proposal(taken: list[Candidate]) -> Proposal:
    """Order nodes depth first; children were taken best first, and stay so."""
    children: dict[int, list[Candidate]] = {id(node): [] for node in taken}
    for node in taken[1:]:
        children[id(node.parent)].append(node)
    ordered: list[Candidate] = []
    stack = [taken[0]]
    while stack:
        ordered.append(stack.pop())
        stack.extend(reversed(children[id(ordered[-1])]))
    place = {id(node): i for i, node in enumerate(ordered)}
    return Proposal(
        np.array([node.token for node in ordered], np.int64),
        np.array([place[id(node.parent)] if node.parent else 0 for node in ordered], np.int64),
        np.array([node.depth for node in ordered], np.int64),
        np.array([node.probability for node in ordered], np.float32),
        np.array([node.lift for node in ordered], np.float32),
        np.array([bucket(n.ngram, n.recycled, n.guess) for n in ordered], np.int32),
        np.array([node.sources for node in ordered], np.uint16),
    )
