"""The cost curve and what it makes of a budget."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookahead import Config, DraftTree
from lookahead.budget import Budget
from lookahead.cost_curve import KNOTS, TYPICAL, CostCurve


@pytest.mark.parametrize("kind", TYPICAL)
def test_an_unmeasured_curve_has_the_typical_shape(kind):
    curve = CostCurve(kind)
    assert curve.seconds(64) is None
    relative = curve.relative(257)
    assert relative[0] == 1.0
    assert np.all(np.diff(relative) >= 0)
    for rows, expected in zip(KNOTS, TYPICAL[kind], strict=True):
        assert relative[rows - 1] == pytest.approx(expected / TYPICAL[kind][0])


def test_measurements_are_learnt():
    curve = CostCurve("cpu")
    for _ in range(60):
        for rows in KNOTS:
            curve.learn(rows, 0.002 + 0.001 * rows)
    seconds = curve.seconds(64)
    for rows in (1, 8, 64):
        assert seconds[rows - 1] == pytest.approx(0.002 + 0.001 * rows, rel=0.02)


def test_one_slow_pass_moves_it_by_a_tenth_at_most():
    curve = CostCurve()
    for _ in range(20):
        curve.learn(8, 0.01)
    curve.learn(8, 1000.0)
    assert curve.seconds(8)[7] < 0.0112


@pytest.mark.parametrize(("rows", "seconds"), [(0, 1.0), (-3, 1.0), (500, 1.0), (4, 0.0), (4, -1)])
def test_impossible_measurements_are_ignored(rows, seconds):
    curve = CostCurve()
    curve.learn(rows, seconds)
    assert curve.seconds(4) is None


@given(st.lists(st.tuples(st.integers(1, 257), st.floats(1e-6, 1e3)), min_size=1, max_size=30))
def test_it_never_falls_with_more_rows(measurements):
    curve = CostCurve("cpu")
    for rows, seconds in measurements:
        curve.learn(rows, seconds)
    found = curve.seconds(257)
    assert np.isfinite(found).all()
    assert (found > 0).all()
    assert (np.diff(found) >= 0).all()
    assert curve.relative(257)[0] == 1.0


def test_busy_times_do_not_pass_for_another_shape():
    """The machine is twice as slow now and then, not when rows change."""
    curve = CostCurve("cpu-16bit-prepacked")
    for step in range(100):
        rows, busy = (8, 16)[step // 14 % 2], 1 + step // 20 % 2
        curve.learn(rows, busy * (0.03 if rows == 8 else 0.035))
        found = curve.seconds(16)
        if step > 14:
            assert 0.85 * 35 / 30 < found[15] / found[7] < 1.25 * 35 / 30


def test_a_shape_of_its_own_is_found_where_sizes_change():
    curve = CostCurve("cpu-16bit-prepacked")
    for _ in range(30):
        for rows in (1, 8, 16):
            curve.learn(rows, 0.002 + 0.001 * rows)
    assert curve.relative(16)[[7, 15]] == pytest.approx([10 / 3, 6.0], rel=0.15)


def test_what_a_step_takes_besides_its_pass_counts_for_every_size():
    curve = CostCurve("cpu")
    for rows in KNOTS:
        curve.learn(rows, 0.01 if rows < 8 else 0.02)
    budget = Budget(Config(nodes="auto"), curve)
    alone = budget.costs(7, 1)
    for _ in range(40):
        pass_s = float(curve.seconds(8)[7])
        budget.learn_pass(8, pass_s)
        budget.learn_step(1, 2, pass_s + 0.04)
    curve_s = curve.seconds(8)
    assert budget.costs(7, 1) == pytest.approx((curve_s + 0.04) / (curve_s[0] + 0.04), rel=1e-3)
    assert budget.costs(7, 1)[7] < alone[7], "larger trees pay where drafting takes long"


def _sizes(budget, seconds, steps):
    """The nodes of each step where guesses are right as often as on usual text."""
    won = 1 + np.cumsum([0.0, *(0.5 / (1 + n) ** 0.8 for n in range(16))])
    sizes = []
    for _ in range(steps):
        plan = budget.plan(1)
        nodes = plan.max_nodes
        if plan.costs is not None:
            nodes = int(np.argmax(won[: nodes + 1] / plan.costs))
        sizes.append(nodes)
        budget.learn_pass(nodes + 1, seconds(nodes + 1))
        budget.learn_step(1, 2, seconds(nodes + 1) + 0.002)
    return sizes


def test_trees_shrink_where_rows_become_dear_and_grow_where_they_become_cheap_again():
    """A neighbour takes a core: one row takes as long as before, seventeen three times as long."""
    budget = Budget(Config(nodes="auto"), CostCurve("cpu-16bit-prepacked"))

    def free(rows):
        return 0.03 + 0.0002 * rows

    def busy(rows):
        return 0.03 + 0.004 * rows

    assert np.median(_sizes(budget, free, 100)) >= 14
    assert np.median(_sizes(budget, busy, 200)[-60:]) <= 8
    assert np.median(_sizes(budget, free, 200)[-60:]) >= 14


def test_other_sizes_are_tried_now_and_then_where_all_passes_are_alike():
    budget = Budget(Config(nodes="auto"), CostCurve("cpu-16bit-prepacked"))
    sizes = _sizes(budget, lambda rows: 0.03, 500)
    assert {4, 16} <= set(sizes[20:]) <= {4, 15, 16}
    assert sizes[20:].count(4) in range(8, 12)
    fixed = Budget(Config(nodes=9), CostCurve())
    assert set(_sizes(fixed, lambda rows: 0.03, 200)) == {9}


def test_it_can_be_shown_and_pickled():
    curve = CostCurve("cpu")
    assert curve.as_dict()["seconds"] is None
    curve.learn(4, 0.5)
    twin = pickle.loads(pickle.dumps(curve))
    assert twin.as_dict() == curve.as_dict()
    twin.learn(4, 0.6)
    assert len(curve.as_dict()["seconds"]) == len(KNOTS)


def test_a_fixed_number_of_nodes_knows_no_costs():
    budget = Budget(Config(nodes=9), _measured())
    plan = budget.plan(1)
    assert plan.max_nodes == 9
    assert plan.costs is None
    assert plan.token_s is None
    assert plan.trust == 1.0


def test_nodes_are_shared_out_among_rows():
    budget = Budget(Config(nodes=9), CostCurve())
    assert [budget.plan(live).max_nodes for live in (1, 2, 3, 9, 10)] == [9, 4, 3, 1, 0]
    budget = Budget(Config(nodes="auto", max_nodes=9), CostCurve())
    assert [budget.plan(live).max_nodes for live in (1, 2, 3, 9, 10)] == [9, 4, 3, 1, 0]


@pytest.mark.parametrize("live", [1, 3])
def test_a_plan_has_the_costs_and_the_worth_of_a_token(live):
    curve = CostCurve("cpu")
    budget = Budget(Config(nodes="auto", max_nodes=12), curve)
    plan = budget.plan(live)
    assert plan.token_s is None, "nothing was measured"
    np.testing.assert_array_equal(plan.costs, budget.costs(12 // live, live))
    assert len(plan.costs) == plan.max_nodes + 1
    curve.learn(live, 0.25)
    # A plain pass brings so many.
    assert budget.plan(live).token_s == pytest.approx(0.25 / live, rel=1e-3)


def test_what_trees_promised_and_did_not_keep_is_no_longer_believed():
    budget = Budget(Config(nodes="auto"), CostCurve())
    tree = DraftTree.from_parents([1, 2, 3], [0, 0, 1], [1.0, 0.75, 0.25])
    for _ in range(30):
        budget.learn_tree(tree, 1)
    assert budget.plan(1).trust == pytest.approx(1.0)
    for _ in range(10):
        budget.learn_tree(tree, 0)
    assert budget.plan(1).trust < 0.5
    for _ in range(60):
        budget.learn_tree(tree, 2)
    assert budget.plan(1).trust == 1.0
    fixed = Budget(Config(nodes=4), CostCurve())
    for _ in range(10):
        fixed.learn_tree(tree, 0)
    assert fixed.plan(1).trust == 1.0


def test_drafting_rests_where_it_is_slower_than_plain_and_is_tried_again():
    curve = CostCurve()
    for _ in range(20):
        curve.learn(1, 0.01)
    budget = Budget(Config(nodes="auto"), curve)
    drafted = []
    for _ in range(200):
        drafted.append(budget.plan(1).max_nodes > 0)
        budget.learn_step(1, 1, 0.02 if drafted[-1] else 0.01)
    assert drafted[0]
    assert 2 < sum(drafted) < 20
    assert any(drafted[100:]), "text may have changed"
    fixed = Budget(Config(nodes=4), curve)
    for _ in range(20):
        fixed.learn_step(1, 1, 0.02)
        assert fixed.plan(1).max_nodes == 4


@pytest.mark.parametrize("live", [1, 3])
def test_costs_are_relative_to_a_pass_without_nodes(live):
    curve = CostCurve("cpu")
    budget = Budget(Config(nodes="auto", max_nodes=12), curve)
    costs = budget.costs(12, live)
    assert costs.dtype == np.float32
    assert len(costs) == 13
    assert costs[0] == 1.0
    rows = curve.relative(13 * live)
    for nodes in range(13):
        expected = rows[(nodes + 1) * live - 1] / rows[live - 1]
        assert costs[nodes] == pytest.approx(expected, rel=1e-5)


def test_a_budget_learns_into_the_shared_curve():
    curve = CostCurve()
    Budget(Config(), curve).learn_pass(4, 0.25)
    assert curve.seconds(4)[3] == pytest.approx(0.25, rel=1e-3)


def _measured(factor=1.0, knots=KNOTS, times=40):
    curve = CostCurve("cpu")
    for _ in range(times):
        for rows in knots:
            curve.learn(rows, factor * (0.002 + 0.001 * rows))
    return curve


def test_a_stored_curve_is_believed_until_something_is_measured():
    curve = _measured()
    twin = CostCurve.from_state("cpu", curve.state())
    assert twin.measurements == 0
    assert twin.seconds(64) == pytest.approx(curve.seconds(64))
    assert twin.as_dict()["stored"]
    assert not curve.as_dict()["stored"]
    assert pickle.loads(pickle.dumps(twin)).seconds(64) == pytest.approx(curve.seconds(64))


@pytest.mark.parametrize("rows", [1, 8, 16, 192])
def test_a_machine_twice_as_busy_moves_the_whole_stored_curve_at_once(rows):
    curve = CostCurve.from_state("cpu", _measured().state())
    curve.learn(rows, 2 * (0.002 + 0.001 * rows))
    # The shape stays: what is decided by it is as good as it was.
    assert curve.relative(64) == pytest.approx(_measured().relative(64), rel=0.1)
    assert curve.seconds(64)[0] == pytest.approx(2 * 0.003, rel=0.1)


def test_a_wrong_stored_shape_is_corrected_by_measurements():
    flat = {"rows": np.array(KNOTS), "seconds": np.full(len(KNOTS), 0.01)}
    curve = CostCurve.from_state("cpu", flat)
    for _ in range(80):
        for rows in (1, 16):
            curve.learn(rows, 0.002 + 0.001 * rows)
    assert curve.relative(16)[15] == pytest.approx(6.0, rel=0.3)


def test_measured_knots_alone_decide_without_a_stored_curve():
    curve = _measured(knots=(1, 8))
    state = curve.state()
    assert state["rows"].tolist() == [1, 8]
    assert state["seconds"] == pytest.approx([0.003, 0.010], rel=0.05)
    assert len(CostCurve().state()["rows"]) == 0


def test_a_state_can_be_joined_with_one_that_was_stored_in_the_meantime():
    joined = _measured(knots=(1, 2)).state(_measured(3.0, knots=(1, 16)).state())
    assert joined["rows"].tolist() == [1, 2, 16]
    # Three times as slow as here, so a third of it is what it would cost here.
    assert joined["seconds"][2] == pytest.approx(0.018, rel=0.3)
    unusable = {"rows": np.array([1]), "seconds": np.array([-1.0])}
    assert _measured(knots=(1, 2)).state(unusable)["rows"].tolist() == [1, 2]


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"rows": np.array([1, 2])},
        {"rows": np.array([1, 2]), "seconds": np.array([1.0])},
        {"rows": np.array(1), "seconds": np.array(1.0)},
        {"rows": np.array([1]), "seconds": np.array([0.0])},
        {"rows": np.array([1]), "seconds": np.array([np.nan])},
        {"rows": np.array([1]), "seconds": np.array([np.inf])},
        {"rows": np.array([5]), "seconds": np.array([1.0])},
        {"rows": np.array([], dtype=int), "seconds": np.array([])},
    ],
)
def test_what_is_no_curve_is_refused(state):
    with pytest.raises(ValueError, match="cost curve"):
        CostCurve.from_state("cpu", state)


def test_rows_that_this_release_does_not_keep_are_left_out():
    state = {"rows": np.array([1, 5, 8]), "seconds": np.array([0.1, 0.2, 0.3])}
    assert CostCurve.from_state("cpu", state).state()["rows"].tolist() == [1, 8]


@given(st.lists(st.tuples(st.integers(1, 257), st.floats(1e-6, 1e3)), min_size=1, max_size=30))
def test_a_stored_curve_never_falls_with_more_rows_either(measurements):
    curve = CostCurve.from_state("cpu", _measured(times=1).state())
    for rows, seconds in measurements:
        curve.learn(rows, seconds)
    found = curve.seconds(257)
    assert np.isfinite(found).all()
    assert (np.diff(found) >= 0).all()


def test_the_cost_of_a_window_is_that_of_its_rows_on_top_of_the_tree():
    curve = CostCurve("cpu")
    costs = Budget(Config(window="auto"), curve).window_costs(17, 2)
    relative = curve.relative(257)
    assert costs[0] == 1.0
    assert costs[27] == pytest.approx(relative[2 * (17 + 27) - 1] / relative[2 * 17 - 1])
    assert len(costs) == 257 // 2 - 17 + 1
    assert len(Budget(Config(window="auto"), curve).window_costs(250, 4)) == 1


def test_nobody_asks_for_the_cost_of_a_fixed_window():
    assert Budget(Config(window=(7, 5, 7)), CostCurve()).window_costs(17, 1) is None
