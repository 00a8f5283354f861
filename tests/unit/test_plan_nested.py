"""The chain of kinds that rank cells alike, beside the network that gives every cell a node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq.plan.solver import flow
from carbonq.plan.solver.flow import Offer, Wanted
from carbonq.plan.solver.nested import ranking
from carbonq.plan.solver.network import Classes


def _wanted_and_offer(seed: int, kinds: int) -> tuple[Wanted, Offer]:
    """Lanes of kinds that differ in energy alone, on cells with a rate each, some of them alike."""
    rng = np.random.default_rng(seed)
    regions, windows, n = 3, 16, 50
    rate = np.round(rng.uniform(10, 40, (regions, windows)))
    kwh = np.round(rng.uniform(1, 9, kinds), 1)
    first = rng.integers(0, windows, n)
    last = np.minimum(first + rng.integers(0, 8, n), windows - 1)
    kind = rng.integers(0, kinds, n)
    wanted = Wanted(kind, first, last, np.full(n, -1), kwh[kind])
    may, far = np.ones((kinds, regions), dtype=np.bool_), np.array([True, False, True])
    return wanted, Offer(kwh[:, None, None] * rate, may, None, rng.integers(0, 4, (regions, windows)), far)


def _never(*_: object) -> None:
    """Say that kinds do not rank cells alike."""


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_kinds_that_rank_cells_alike_cost_what_the_network_of_cells_finds(seed: int, kinds: int) -> None:
    wanted, offer = _wanted_and_offer(seed, kinds)
    made = flow.solve(wanted, offer, 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow, "ranking", _never)
        other = flow.solve(wanted, offer, 0.0)
    costs: list[float] = []
    for one in (made, other):
        rows = np.flatnonzero(one.cell >= 0)
        region, window = np.divmod(one.cell[rows], offer.slots.shape[1])
        assert (np.bincount(one.cell[rows], minlength=offer.slots.size) <= offer.slots.ravel()).all()
        assert (window >= wanted.first[rows]).all()
        costs.append(float(offer.cost[wanted.kind[rows], region, window].sum()))
        late = int((window > wanted.last[rows]).sum())
        costs.append(float(len(rows)))
        costs.append(float(late))
        if not late and len(rows) == len(wanted.kind):
            column = np.arange(offer.slots.shape[1])
            may = (column >= wanted.first[:, None]) & (column <= wanted.last[:, None])
            priced = (offer.cost + np.where(offer.slots > 0, one.prices, np.inf)).min(axis=1)[wanted.kind]
            bound = np.where(may, priced, np.inf).min(axis=1).sum() - (one.prices * offer.slots).sum()
            assert bound == pytest.approx(costs[-3], rel=2e-6)
    assert costs[:3] == pytest.approx(costs[3:], rel=1e-6)


def test_kinds_that_do_not_rank_cells_alike_are_told_apart() -> None:
    wanted, offer = _wanted_and_offer(1, 2)
    classes = Classes(wanted.kind, wanted.first, wanted.last, np.ones(len(wanted.kind), dtype=np.int64))
    assert ranking(classes, offer) is not None
    swapped = offer.cost.copy()
    swapped[0] = swapped[0, ::-1]
    assert ranking(classes, replace(offer, cost=swapped)) is None
    fewer = offer.may.copy()
    fewer[0, 0] = False
    assert ranking(classes, replace(offer, may=fewer)) is None


@pytest.mark.parametrize("kinds", [1, 2])
def test_ties_go_to_the_earlier_window_then_the_emptier_cell_then_the_nearer_region(kinds: int) -> None:
    n, windows = 3, 600
    slots = np.full((3, windows), 2)
    kwh = np.arange(1.0, kinds + 1)
    cost = np.broadcast_to(kwh[:, None, None] * 100.0, (kinds, 3, windows))
    offer = Offer(cost, np.ones((kinds, 3), dtype=np.bool_), None, slots, np.array([True, False, True]))
    kind = np.arange(n) % kinds
    wanted = Wanted(kind, np.full(n, 7), np.full(n, windows - 1), np.full(n, -1), kwh[kind])
    made = flow.solve(wanted, offer, 0.0)
    assert sorted(divmod(cell, windows) for cell in made.cell.tolist()) == [(0, 7), (1, 7), (2, 7)]
    one = Wanted(kind[:1], np.full(1, 7), np.full(1, windows - 1), np.full(1, -1), kwh[:1])
    assert divmod(int(flow.solve(one, offer, 0.0).cell[0]), windows) == (1, 7)
    many = 1200
    kind = np.arange(many) % kinds
    wanted = Wanted(kind, np.zeros(many, dtype=np.int64), np.full(many, 599), np.full(many, -1), kwh[kind])
    assert (flow.solve(wanted, offer, 0.0).cell % windows).max() == many // 6 - 1
