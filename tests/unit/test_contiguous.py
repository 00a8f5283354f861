from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq.bench.long_chunks import long_case
from carbonq.plan.demand import Demand, FloatArray, IntArray, Kind
from carbonq.plan.solver.contiguous import Placed, _Contiguous, place  # pyright: ignore[reportPrivateUsage]
from carbonq.plan.solver.lanes import Lanes
from carbonq.plan.solver.overload import least_late
from carbonq.plan.solver.prices import Prices
from carbonq.plan.solver.rounding import Board
from carbonq.plan.solver.stretches import cells_held
from tests.unit.yardsticks import Case, brute_force, linear_programme

W = 300.0
ONE = np.zeros(1, dtype=np.int64)


def demand(
    windows: list[tuple[float, float, float]],  # release, due, duration in windows
    *,
    kind: list[int] | None = None,
    kinds: tuple[Kind, ...] | None = None,
    regions: int = 1,
    current: list[tuple[int, int]] | None = None,
) -> Demand:
    columns = np.array(windows, dtype=np.float64).reshape(-1, 3).T * W
    n = columns.shape[1]
    every = tuple(range(regions))
    return Demand(
        release_s=columns[0],
        due_s=columns[1],
        duration_s=columns[2],
        kind=np.array(kind or [0] * n, dtype=np.int64),
        kinds=kinds or (Kind(every, (1,) * regions, (0.0,) * regions, math.inf),),
        current=np.array(current or [(-1, -1)] * n, dtype=np.int64).reshape(-1, 2),
    )


def put(asked: Demand, rates: list[list[float]], slots: list[list[int]], **more: object) -> Placed:
    grams = np.array(rates, dtype=np.float64)
    by_kind = np.repeat(grams[None], len(asked.kinds), axis=0)
    for k, kind in enumerate(asked.kinds):
        by_kind[k, [row for row in range(len(grams)) if row not in kind.regions]] = np.inf
    options: dict[str, object] = {"starts_s": np.arange(grams.shape[1]) * W, "left_s": W} | more
    made = place(asked, by_kind, np.array(slots), **options)  # pyright: ignore[reportArgumentType]
    check(asked, made, np.array(slots), options)
    return made


def check(asked: Demand, made: Placed, slots: np.ndarray, options: dict[str, object]) -> None:
    """Never over the slots, inside release and horizon, in time unless said, only where allowed, the bound below."""
    starts, left = np.asarray(options["starts_s"]), float(str(options["left_s"]))
    held = np.zeros_like(slots)
    lanes = Lanes(slots, starts, left)
    for i, (row, window) in enumerate(zip(made.region.tolist(), made.window.tolist(), strict=True)):
        if window < 0:
            assert (row, made.late[i], math.isnan(made.cost[i])) == (-1, True, True)
            continue
        end = window + lanes.span(float(asked.duration_s[i]), window)
        assert end <= slots.shape[1]
        held[row, window:end] += 1
        assert row in asked.kinds[asked.kind[i]].regions
        assert starts[window] >= asked.release_s[i] - 1e-6
        assert made.late[i] == (starts[window] > asked.latest_s[i] + 1e-6)
    assert (held == made.held).all()
    assert (held <= slots).all()
    assert made.bound <= made.objective * (1 + 1e-12)
    assert made.objective == pytest.approx(np.nansum(made.cost))


def test_takes_the_cheapest_stretch_in_time() -> None:
    made = put(demand([(0, 5, 2)]), [[9, 8, 2, 3, 7, 1]], [[1] * 6])
    assert (made.region.tolist(), made.window.tolist(), made.late.tolist()) == ([0], [2], [False])
    assert made.cost.tolist() == [2.5]
    assert made.bound == pytest.approx(2.5)


def test_the_last_partial_window_counts_in_proportion() -> None:
    """A window and a half at 4 and 1, and at 1 and 4: (1 + 0.5 x 4) / 1.5 = 2, (4 + 0.5) / 1.5 = 3."""
    made = put(demand([(0, 9, 1.5)]), [[9, 9, 4, 1, 4, 9]], [[1] * 6])
    assert (made.window.tolist(), made.cost.tolist()) == ([3], [2.0])


def test_two_that_overlap_take_two_slots_or_follow_each_other() -> None:
    asked = demand([(0, 6, 3), (0, 6, 3)])
    assert sorted(put(asked, [[5, 1, 1, 1, 5, 5]], [[1] * 6]).window.tolist()) == [0, 3]
    assert put(asked, [[5, 1, 1, 1, 5, 5]], [[2] * 6]).window.tolist() == [1, 1]


def test_a_window_without_slots_is_not_run_through() -> None:
    assert put(demand([(0, 6, 2)]), [[5, 1, 1, 1, 5, 5]], [[1, 1, 0, 1, 1, 1]]).window.tolist() == [3]


def test_deadlines_come_before_carbon() -> None:
    """The one in a hurry needs the clean stretch, and the other must leave it."""
    made = put(demand([(0, 8, 2), (2, 4, 2)]), [[9, 9, 1, 1, 9, 9, 9, 9]], [[1] * 8])
    assert made.window.tolist()[1] == 2
    assert not made.late.any()


def test_one_in_the_way_is_moved() -> None:
    """Both in time only if the first one starts at once, though all prices speak for later."""
    made = put(demand([(0, 6, 3), (2, 6, 3), (0, 9, 3)]), [[9, 9, 9, 1, 1, 1, 1, 1, 9]], [[1] * 9])
    assert sorted(made.window.tolist()) == [0, 3, 6]
    assert not made.late.any()


def test_what_cannot_be_in_time_starts_as_early_as_it_can() -> None:
    made = put(demand([(0, 3, 3), (0, 3, 3), (0, 3, 3)]), [[1] * 7], [[1] * 7])
    assert sorted(made.window.tolist()) == [-1, 0, 3]
    assert sorted(made.late.tolist()) == [False, True, True]
    assert made.bound == pytest.approx(2.0)


def test_what_has_no_region_or_no_time_has_no_place() -> None:
    kinds = (Kind((), (1, 1), (0.0, 0.0), math.inf), Kind((1,), (1, 1), (0.0, 0.0), math.inf))
    made = put(demand([(0, 4, 2), (3, 9, 2), (1, 9, 2)], kind=[0, 1, 1], kinds=kinds), [[1] * 4] * 2, [[1] * 4] * 2)
    assert made.region.tolist() == [-1, -1, 1]
    nothing = put(demand([]), [[1.0, 1.0]], [[1, 1]])
    assert (nothing.objective, nothing.bound, len(nothing.region)) == (0.0, 0.0, 0)


def test_stays_unless_leaving_gains_more_than_the_margin() -> None:
    rates, slots = [[100, 100, 97.5, 97.5, 90, 90]], [[1] * 6]
    near, far = demand([(0, 4, 2)], current=[(0, 0)]), demand([(0, 6, 2)], current=[(0, 0)])
    assert put(near, rates, slots, margin=0.03).window.tolist() == [0]
    assert put(near, rates, slots, margin=0.02).window.tolist() == [2]
    assert put(far, rates, slots, margin=0.03).window.tolist() == [4]
    assert put(demand([(0, 6, 2)], current=[(0, 4)]), [[0.0] * 6], slots, margin=0.03).window.tolist() == [4]


def test_a_present_placement_yields_to_a_deadline() -> None:
    asked = demand([(0, 9, 3), (3, 6, 3)], current=[(0, 2), (-1, -1)])
    made = put(asked, [[5, 5, 4, 4, 4, 5, 5, 5, 5]], [[1] * 9], margin=0.5)
    assert made.window.tolist()[1] == 3
    assert not made.late.any()


def test_those_at_a_start_that_is_used_keep_it() -> None:
    asked = demand([(0, 9, 3)] * 3, current=[(0, 6), (0, 3), (0, 0)])
    assert put(asked, [[1.0] * 9], [[1] * 9], margin=0.03).window.tolist() == [6, 3, 0]


def test_the_dearest_of_those_alike_get_the_cleanest_starts() -> None:
    kinds = tuple(Kind((0,), (1,), (0.0,), math.inf) for _ in range(80))
    grams = np.array([[[1.0, 1, 2, 2, 3, 3]]]) * np.linspace(1, 3, 80)[:, None, None]
    asked = demand([(0, 6, 2)] * 80, kind=list(range(80)), kinds=kinds)
    options: dict[str, object] = {"starts_s": np.arange(6) * W, "left_s": W}
    made = place(asked, grams, np.full((1, 6), 30), starts_s=np.arange(6) * W, left_s=W)
    check(asked, made, np.full((1, 6), 30), options)
    assert (np.diff(made.window) <= 0).all()
    assert made.objective - made.bound < 0.02 * made.objective


def test_a_cap_holds_where_the_deadline_allows() -> None:
    rates, slots = [[9, 9, 1, 1, 3, 3]], [[1] * 6]
    for caps in ((math.inf, 2.5), (2.5, math.inf)):
        kinds = tuple(Kind((0,), (1,), (0.0,), cap) for cap in caps)
        made = put(demand([(0, 6, 2), (0, 6, 2)], kind=[0, 1], kinds=kinds), rates, slots)
        assert made.window.tolist() == [4 if cap > 9 else 2 for cap in caps]
        assert put(demand([(0, 2, 2)], kind=[caps.index(2.5)], kinds=kinds), rates, slots).window.tolist() == [0]


def test_started_in_the_running_window_it_reaches_further() -> None:
    """With 100 s left of the running window, 400 s take that and the next one; from a later one on, two as well."""
    now, later = cells_held(np.array([160.0, 170.0, 300.0, 400.0, 460.0, 461.0, 3600.0]), 100.0)
    assert now.tolist() == [1, 2, 2, 2, 2, 3, 13]
    assert later.tolist() == [1, 1, 1, 2, 2, 2, 12]
    starts = np.array([0.0, 100, 400, 700])
    made = put(demand([(0, 450 / W, 430 / W)]), [[5, 1, 1, 1]], [[1] * 4], starts_s=starts, left_s=100.0)
    assert made.window.tolist() == [0]
    assert made.cost.tolist() == [pytest.approx((5 * 100 + 300 + 30) / 430)]


def test_without_costs_as_early_and_as_near_as_can_be() -> None:
    asked = demand([(0, 9, 2), (0, 9, 2), (0, 9, 2)], regions=2)
    made = put(asked, [[0.0] * 9] * 2, [[1] * 9] * 2, near=(1, 0))
    assert sorted(zip(made.window.tolist(), made.region.tolist(), strict=True)) == [(0, 0), (0, 1), (2, 1)]


def test_unlike_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="same regions and windows"):
        place(demand([(0, 3, 2)]), np.ones((1, 1, 4)), np.ones((1, 3), int), starts_s=np.arange(3) * W, left_s=W)


@st.composite
def small(draw: st.DrawFn, *, chunks: int = 4) -> tuple[Demand, list[list[float]], list[list[int]]]:
    regions, windows = draw(st.integers(1, 2)), draw(st.integers(2, 8))

    def table(low: int, high: int) -> list[list[int]]:
        return [draw(st.lists(st.integers(low, high), min_size=windows, max_size=windows)) for _ in range(regions)]

    kinds = (
        Kind(tuple(range(regions)), (1,) * regions, (0.0,) * regions, math.inf),
        Kind((draw(st.integers(0, regions - 1)),), (1,) * regions, (0.0,) * regions, math.inf),
    )
    n = draw(st.integers(1, chunks))
    rows = [
        (release, release + length + draw(st.integers(-1, windows)), length)
        for release, length in zip(
            draw(st.lists(st.integers(0, windows - 1), min_size=n, max_size=n)),
            draw(st.lists(st.integers(1, 4), min_size=n, max_size=n)),
            strict=True,
        )
    ]
    kind = draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    rates = [[float(rate) for rate in row] for row in table(0, 300)]
    return demand(rows, kind=kind, kinds=kinds, regions=regions), rates, table(0, 2)


def case_of(asked: Demand, rates: list[list[float]], slots: list[list[int]]) -> Case:
    grams = np.array(rates)
    windows = grams.shape[1]
    length = np.rint(asked.duration_s / W).astype(np.int64)
    shapes = sorted(set(zip(asked.kind.tolist(), length.tolist(), strict=True)))
    cost = np.full((len(shapes), *grams.shape), np.inf)
    for s, (kind, span) in enumerate(shapes):
        for row in asked.kinds[kind].regions:
            for window in range(windows - span + 1):
                cost[s, row, window] = grams[row, window : window + span].mean()
    first, last = np.rint(asked.release_s / W), np.rint(asked.latest_s / W)
    index = [shapes.index(pair) for pair in zip(asked.kind.tolist(), length.tolist(), strict=True)]
    groups = Counter(zip(index, first.tolist(), last.tolist(), strict=True))
    columns = np.array(list(groups), dtype=np.int64).reshape(-1, 3).T
    lengths = np.array([span for _, span in shapes], dtype=np.int64)
    return Case(np.array(slots), lengths, cost, *columns, np.array(list(groups.values())))


@settings(max_examples=25, deadline=None)
@given(small())
def test_small_ones_are_as_many_in_time_as_can_be_and_near_the_optimum(
    case: tuple[Demand, list[list[float]], list[list[int]]],
) -> None:
    asked, rates, slots = case
    made, exact = put(asked, rates, slots), brute_force(case_of(asked, rates, slots))
    assert made.late.sum() == exact.late
    if exact.late == 0:
        assert made.bound <= exact.cost + 1e-9 * max(1.0, exact.cost)
        assert made.objective >= exact.cost - 1e-9 * max(1.0, exact.cost)


@settings(max_examples=10, deadline=None)
@given(small(), st.data())
def test_order_changes_nothing_but_ties_and_a_slot_more_loses_nobody(
    case: tuple[Demand, list[list[float]], list[list[int]]], data: st.DataObject
) -> None:
    asked, rates, slots = case
    made = put(asked, rates, slots)
    turned = put(asked.take(np.arange(len(asked))[::-1]), rates, slots)
    assert (turned.late.sum(), turned.bound) == (made.late.sum(), pytest.approx(made.bound, rel=1e-6, abs=1e-6))
    row, window = data.draw(st.integers(0, len(slots) - 1)), data.draw(st.integers(0, len(slots[0]) - 1))
    more = [list(one) for one in slots]
    more[row][window] += 1
    assert put(asked, rates, more).late.sum() <= made.late.sum()


def medium(
    *, lengths: tuple[float, ...], load: float, seed: int = 7
) -> tuple[Demand, list[list[float]], list[list[int]]]:
    """500 chunks in 3 x 96 windows with daily swings; lengths in windows."""
    rng = np.random.default_rng(seed)
    n, windows = 500, 96
    duration = np.array(lengths)[rng.integers(0, len(lengths), n)]
    release = np.floor(rng.uniform(0, windows - 40, n))
    slack = rng.choice([3, 12, 24], n)
    rates = 300 + 150 * np.sin(np.arange(windows) / 15 + np.array([[0], [2], [4]])) + rng.normal(0, 20, (3, windows))
    slots = np.full((3, windows), math.ceil(np.ceil(duration).sum() / (load * 3 * windows)))
    rows = np.stack((release, release + duration + slack, duration), axis=1)
    return demand(rows.tolist(), regions=3), rates.tolist(), slots.tolist()


@pytest.mark.parametrize(
    ("lengths", "load", "gap"), [((12.0,), 0.6, 0.01), ((12.0,), 0.75, 0.02), ((2.0, 5.0, 12.0), 0.6, 0.02)]
)
def test_medium_ones_are_near_the_relaxed_optimum_and_say_so(
    lengths: tuple[float, ...], load: float, gap: float
) -> None:
    asked, rates, slots = medium(lengths=lengths, load=load)
    made, relaxed = put(asked, rates, slots), linear_programme(case_of(asked, rates, slots))
    assert made.late.sum() == pytest.approx(relaxed.late, abs=1e-6)
    assert made.bound <= relaxed.cost * (1 + 1e-7)
    assert made.bound >= relaxed.cost * (1 - gap / 2)
    assert made.objective <= relaxed.cost * (1 + gap)


def test_all_lengths_unlike_are_placed_with_a_sound_bound() -> None:
    """Hundreds of shapes are merged at their lower costs."""
    asked, rates, slots = medium(lengths=tuple(1.1 + 0.047 * i for i in range(200)), load=0.6)
    kinds = tuple(Kind((0, 1, 2), (1,) * 3, (0.0,) * 3, math.inf) for _ in range(20))
    mixed = Demand(asked.release_s, asked.due_s, asked.duration_s, np.arange(500) % 20, kinds, asked.current)
    made = put(mixed, rates, slots)
    assert not made.late.any()
    assert 0.93 * made.objective < made.bound


def test_where_slots_were_lost_only_as_many_stay_as_there_are() -> None:
    made = put(demand([(0, 12, 3)] * 2, current=[(0, 3)] * 2), [[1.0] * 12], [[1] * 12], margin=0.5)
    assert 3 in made.window.tolist()
    assert len(set(made.window.tolist())) == 2


def test_one_is_left_out_where_that_lets_two_in() -> None:
    """The first holds windows 3 to 5 of the only region of three of them, and the middle of it is needed twice."""
    kinds = tuple(Kind(rows, (1, 1), (0.0, 0.0), math.inf) for rows in ((0, 1), (0,)))
    asked = demand([(3, 6, 3), (1, 8, 3), (2, 12, 3), (3, 12, 3)], kind=[1, 1, 0, 1], kinds=kinds)
    made = put(asked, [[1.0] * 8] * 2, [[1, 0, 2, 1, 1, 1, 2, 2], [1, 1, 2, 1, 2, 1, 1, 2]])
    assert made.late.tolist() == [True, False, False, False]


def test_whatever_the_prices_the_bound_is_no_more_than_a_plan_with_as_few_late() -> None:
    """Of three only one is in time and one has no place: the plan costs 2."""
    case = _Contiguous(
        demand([(0, 3, 3)] * 3), np.ones((1, 1, 7)), np.ones((1, 7), int), (np.arange(7) * W, W), (0, ONE)
    )
    late, placed = np.array([False, True, True]), np.array([True, True, False])
    for cell in (np.zeros((1, 7)), np.array([[5.0, 5, 5, 0, 0, 0, 0]]), np.array([[5.0, 5, 5, 3, 3, 3, 3]])):
        assert case._bound(Prices(case.classes, case.slots, cell), late, placed) <= 2 + 1e-9


def test_no_chunk_of_a_shape_costs_less_than_its_shape() -> None:
    """Three durations in one quarter; started in the running window, the middle one ends with the clean window."""
    starts = np.array([0.0, 100, 400, 700])
    rates = np.array([[[9.0, 1, 9, 9]]])
    asked = demand([(0, 9, seconds / W) for seconds in (380, 400, 440)])
    case = _Contiguous(asked, rates, np.full((1, 4), 3), (starts, 100.0), (0, ONE))
    assert len(case.cost) == 1
    assert case.cost[0, 0, 0] <= (9 * 100 + 300) / 400 + 1e-12


@pytest.mark.parametrize(("chunks", "lengths"), [(300, (12,)), (60, (2, 5, 12, 30))])
def test_more_than_there_is_room_for_takes_little_work_and_leaves_out_hardly_more_than_it_must(
    chunks: int, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 130 % load: the planner meets the same set again every few seconds."""
    spent: Counter[str] = Counter()
    for owner, name in ((Prices, "soft"), (Board, "roomy")):
        work = getattr(owner, name)

        def counted(*args: object, work: Callable[..., object] = work, name: str = name) -> object:
            spent[name] += 1
            return work(*args)

        monkeypatch.setattr(owner, name, counted)
    starts: FloatArray = np.arange(200, dtype=np.float64) * W
    asked, grams, slots = long_case(chunks, 2, 200, lengths=lengths, load=1.3)
    made = place(asked, grams, slots, starts_s=starts, left_s=W)
    check(asked, made, slots, {"starts_s": starts, "left_s": W})
    held, latest = cells_held(asked.duration_s, W)[1], np.floor(asked.latest_s / W + 1e-9).astype(np.int64)
    least = least_late(asked, held, slots, np.ceil(asked.release_s / W - 1e-9).astype(np.int64), latest)
    assert 0 < least <= int(made.late.sum()) <= 1.25 * least
    assert spent["soft"] <= 300
    assert spent["roomy"] <= 5_000
    # The same set again, where it was placed: nothing is gained by moving about.
    again = place(
        replace(asked, current=np.stack((made.region, made.window), axis=1)),
        grams,
        slots,
        starts_s=starts,
        left_s=W,
        margin=0.1,
    )
    assert int(again.late.sum()) <= int(made.late.sum())


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=5))
def test_no_plan_has_fewer_late_than_is_proven(chunks: list[tuple[int, int, int]]) -> None:
    asked = demand([(first, first + more + length, length) for first, more, length in chunks])
    slots = np.ones((1, 9), dtype=np.int64)
    columns: IntArray = np.array(chunks, dtype=np.int64).T
    least = least_late(asked, columns[2], slots, columns[0], columns[0] + columns[1])
    assert least <= brute_force(case_of(asked, [[1.0] * 9], slots.tolist())).late
