"""Which exit layer pays, if any: chosen while decoding, from what was right and what it cost."""

from __future__ import annotations

from collections.abc import Sequence

from lookahead.errors import ConfigError

__all__ = ["ExitChooser", "check_exit_layer", "default_exit_layers"]

#: What is believed of a lens before it was asked: that it is right in so many of so many cases.
PRIOR_RIGHT, PRIOR_ASKED = 2.0, 8.0
#: Fewer cases than this say nothing.
FEWEST_CASES = 16
#: With so many a layer is known, and is tried again by one sequence in so many only.
ENOUGH_CASES, TRY_AGAIN = 64, 16
#: Older cases fade: the text of today counts.
MEMORY = 512.0
#: Longest chain of looks in one step.
MAX_LOOKS = 4
#: A gain that was found small is doubted a little more in each step without a look.
DOUBT = 0.99
#: Less gain than this is within the error of what is measured.
LEAST_GAIN = 1.02


class ExitChooser:
    """Chooses how many layers an early exit runs; 0 where it does not pay.

    May be shared by all sequences of a model. What it answers depends on what it was told and on
    nothing else.

    Parameters
    ----------
    num_layers : int
        Decoder layers of the target.
    candidates : sequence of int or None
        Exit layers to choose from; None for some from a twelfth to two thirds of the layers.
    never_off : bool
        Choose the best of the candidates, and look, even where it does not pay: for measurements.

    Raises
    ------
    ConfigError
        If a candidate is not between 1 and ``num_layers - 1``.
    """

    def __init__(
        self, num_layers: int, candidates: Sequence[int] | None = None, *, never_off: bool = False
    ) -> None:
        layers = default_exit_layers(num_layers) if candidates is None else candidates
        for layer in layers:
            check_exit_layer(layer, num_layers)
        self._never_off = never_off
        self._sequences = 0
        self._dropped: set[int] = set()
        self._agreement = {layer: _Share() for layer in sorted(set(layers))}
        self._gain = {layer: _Share() for layer in self._agreement}
        self._cost = {layer: layer / num_layers for layer in self._agreement}

    @property
    def layers(self) -> tuple[int, ...]:
        """Exit layers that may be chosen, ascending."""
        return tuple(layer for layer in self._agreement if layer not in self._dropped)

    def drop(self, layer: int) -> None:
        """Never choose this layer again."""
        self._dropped.add(layer)

    def agreement(self, layer: int) -> float:
        """Return how often the target's own token comes first behind the lens of a layer."""
        return self._agreement[layer].value

    def cost(self, layer: int) -> float:
        """Return the time of a look, in passes of one row."""
        return self._cost[layer]

    def value(self, layer: int) -> float:
        """Return the probability that a look at a node which is reached wins a token.

        What is won for certain counts, once there is enough of it: a token that was accepted and
        that no other source had named. Until then, how often the lens agrees with the target.
        """
        gain = self._gain[layer]
        return gain.value if gain.asked >= FEWEST_CASES else self.agreement(layer)

    def is_worth(self, layer: int, reached: float) -> bool:
        """Say whether a look pays at nodes of which so many are reached, on average."""
        return self._never_off or reached * self.value(layer) > self.cost(layer)

    def learn_agreement(self, layer: int, right: int, asked: int) -> None:
        """Take in how often the lens of a layer named the target's own token first."""
        self._agreement[layer].add(right, asked)

    def learn_gain(self, layer: int, won: int, asked: int) -> None:
        """Take in how many looks at nodes which were reached won a token."""
        self._gain[layer].add(won, asked)

    def learn_cost(self, layer: int, relative: float) -> None:
        """Take in the measured time of a look, in passes of one row."""
        self._cost[layer] += 0.1 * (relative - self._cost[layer])

    def to_try(self) -> int:
        """Return the layer that a new sequence should try out, or 0 for none.

        The one that was asked least, until all are known; then only now and then, for it costs.
        """
        self._sequences += 1
        layer = min(self.layers, key=lambda n: (self._agreement[n].asked, n), default=0)
        if not layer or self._agreement[layer].asked < ENOUGH_CASES:
            return layer
        return 0 if self._sequences % TRY_AGAIN else layer

    def choose(self, tokens: float = 1.0) -> int:
        """Return the exit layer for the next step, or 0 for none.

        Parameters
        ----------
        tokens : float
            What a step emits without early exit, on average.

        Returns
        -------
        int
            The layer with most expected tokens for the time of a step, by the formula of
            :func:`rate`.
        """
        known = [n for n in self.layers if self._agreement[n].asked >= FEWEST_CASES]
        if self._never_off:
            known = known or list(self.layers)
        rates = {n: rate(self.value(n), self.cost(n), tokens) for n in known}
        best = max(rates, key=lambda n: (rates[n], -n), default=0)
        if best and (self._never_off or rates[best] > LEAST_GAIN * tokens):
            return best
        for gain in self._gain.values():
            gain.fade(DOUBT)  # so that it is tried again some time
        return 0


class _Share:
    """How many of some cases were right, the newest ones counting most."""

    def __init__(self) -> None:
        self.right = 0.0
        self.asked = 0.0

    @property
    def value(self) -> float:
        return (self.right + PRIOR_RIGHT) / (self.asked + PRIOR_ASKED)

    def add(self, right: int, asked: int) -> None:
        self.right += right
        self.asked += asked
        if self.asked > MEMORY:
            self.fade(MEMORY / self.asked)

    def fade(self, share: float) -> None:
        self.right *= share
        self.asked *= share


def rate(value: float, cost: float, tokens: float) -> float:
    """Return expected tokens for the time of a plain pass, with as many looks as pay best.

    The i-th look of a chain wins a token with probability ``value ** i``. All rows go through the
    first layers once in any case; a look costs a pass over these layers, ``cost``, more.
    """
    best, expected = tokens, tokens
    for looks in range(1, MAX_LOOKS + 1):
        expected += value**looks
        best = max(best, expected / (1 + looks * cost))
    return best


def default_exit_layers(num_layers: int) -> tuple[int, ...]:
    """Return a few exit layers from a twelfth to two thirds of the layers."""
    shares = (1 / 12, 1 / 6, 1 / 3, 1 / 2, 2 / 3)
    return tuple(sorted({min(max(1, int(num_layers * s)), num_layers - 1) for s in shares}))


def check_exit_layer(layer: object, num_layers: int) -> None:
    """Refuse an exit layer that is none.

    Raises
    ------
    ConfigError
        Naming the range.
    """
    if isinstance(layer, bool) or not isinstance(layer, int) or not 0 < layer < num_layers:
        raise ConfigError(
            f"exit_layer is the number of first layers that draft, the answer is always that of "
            f"all {num_layers}: it must be a whole number from 1 to {num_layers - 1}, "
            f"not {layer!r}."
        )
