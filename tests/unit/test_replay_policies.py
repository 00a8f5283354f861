from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq.plan.demand import Terms
from carbonq.replay import fixed, hindsight, newcomers
from carbonq.replay.grids import Grid, Issued
from carbonq.replay.policies import POLICIES, Rules, run
from carbonq.replay.rolling import Ran, Rolling
from carbonq.replay.site import Site
from carbonq.replay.walk import Walk, truth
from carbonq.replay.work import Work
from tests.unit import replays
from tests.unit.replays import FIRST

RULES = Rules(every=1, delay=0)


def grams(site: Site, work: Work, ran: Ran) -> float:
    return float(site.grams(work, ran.region, ran.start).sum())


def late(work: Work, ran: Ran) -> int:
    return int((ran.start + work.windows > work.due).sum())


def two_regions() -> tuple[Site, Work]:
    """A is the cleaner one, but each of its kWh takes half a kWh of cooling; one slot each, two pieces."""
    observed = {"A": [40, 30, 20, 10, 99, 99, 99, 99], "B": [50, 45, 40, 35, 99, 99, 99, 99]}
    # What is foretold is wrong: it says that B's third window is the cleanest of all.
    told = {"A": [30.0, 30, 30, 30], "B": [60.0, 45, 1, 45]}
    issued = {
        zone: Issued(np.array([FIRST]), np.array([FIRST]), np.array([values]), 1) for zone, values in told.items()
    }
    made = replays.grid(observed, issued)
    return replays.site(made, slots=[1, 1], pue=[1.5, 1.0]), replays.work([(0, 4, 1), (0, 4, 1)])


def test_every_policy_runs_the_same_energy_and_is_judged_by_what_was_observed() -> None:
    site, work = two_regions()
    made = run(site, work, list(POLICIES), RULES)
    assert list(made) == list(POLICIES)
    found = {name: grams(site, work, one) for name, one in made.items()}
    assert found["at-once"] == pytest.approx(1.5 * (40 + 30))
    assert found["round-robin"] == pytest.approx(1.5 * 40 + 50)
    assert found["best-region"] == pytest.approx(50 + 45)
    assert found["best-time"] == pytest.approx(1.5 * (20 + 10))
    assert found["perfect"] == pytest.approx(1.5 * (20 + 10))
    # Believing the forecast, one piece goes to B's third window and pays what it really was.
    assert made["carbonq"].start.max() >= FIRST + 2
    assert found["carbonq"] >= 40
    assert {late(work, one) for one in made.values()} == {0}


def test_right_forecasts_and_room_for_all_reach_perfect_foresight() -> None:
    # Slow waves: the running window is taken to be as the last one was, which is nearly right then.
    k = np.arange(120)
    values = {"A": 300 + 200 * np.sin(2 * np.pi * k / 70), "B": 300 + 150 * np.cos(2 * np.pi * k / 50)}
    site = replays.site(replays.grid(values, replays.exact(replays.grid(values))), slots=[9, 9])
    work = replays.work([(k, k + 30, 1) for k in range(1, 90, 4)])
    found = run(site, work, ["carbonq", "perfect", "at-once"], Rules(margins=(0.0,), every=1, delay=0))
    at_once, planned, perfect = (grams(site, work, found[name]) for name in ("at-once", "carbonq", "perfect"))
    assert perfect < 0.6 * at_once
    assert (at_once - planned) / (at_once - perfect) > 0.97


def test_work_that_is_too_much_for_home_is_late_there_alone() -> None:
    site, _ = two_regions()
    made = run(site, replays.work([(0, 2, 1)] * 4), ["at-once", "carbonq", "perfect"], RULES)
    work = replays.work([(0, 2, 1)] * 4)
    assert {name: late(work, one) for name, one in made.items()} == {"at-once": 2, "carbonq": 0, "perfect": 0}


def test_a_whole_piece_holds_its_slot_to_its_end() -> None:
    observed = {"A": [50.0, 50, 50, 10, 10, 10, 50, 50, 50, 50]}
    made = replays.grid(observed)
    site = replays.site(replays.grid(observed, replays.exact(made)), slots=[1])
    work = replays.work([(0, 9, 3), (0, 9, 3)])
    found = run(site, work, ["carbonq", "perfect", "at-once"], RULES)
    assert sorted((found["at-once"].start - FIRST).tolist()) == [0, 3]
    # One has the three clean windows, the other what is left beside them.
    for name in ("carbonq", "perfect"):
        first, second = sorted((found[name].start - FIRST).tolist())
        assert second - first >= 3
        assert grams(site, work, found[name]) == pytest.approx(30 + 150)


def test_nothing_is_decided_by_what_came_later() -> None:
    rng = np.random.default_rng(7)
    values = {zone: rng.uniform(50, 600, 140) for zone in ("A", "B")}
    cut = 70
    changed = {zone: np.where(np.arange(140) >= cut, 651.0 - one, one) for zone, one in values.items()}
    work = replays.work([(k, k + 40, 1) for k in range(100)])
    found: list[Ran] = []
    for told in (values, changed):
        noisy = {zone: replays.exact(replays.grid(told))[zone] for zone in told}
        for one in noisy.values():
            one.values[:, 1:] = np.nan  # a forecast of the running window alone: the rest is carbonq's own
        site = replays.site(replays.grid(told, noisy), slots=[2, 2])
        found.append(run(site, work, ["carbonq"], RULES)["carbonq"])
    before = (found[0].start < FIRST + cut) | (found[1].start < FIRST + cut)
    assert before.sum() > 30
    assert (found[0].start[before] == found[1].start[before]).all()
    assert (found[0].region[before] == found[1].region[before]).all()
    assert (found[0].start != found[1].start).any()


def test_an_hour_is_known_only_when_it_is_over() -> None:
    made = replays.grid({"A": [100.0, 200, 300, 400]}, step=12)
    walk = Walk(made, replays.site(made, slots=[1]).model_regions, every=1, delays={"A": 0})
    # Half past two: the third hour runs, the second is over.
    zone = walk._zones["A"]  # pyright: ignore[reportPrivateUsage]
    assert zone.known_until(FIRST + 30) == FIRST + 24
    assert zone.data(FIRST + 30).history.last() == (FIRST + 23, 200.0)


def busiest(site: Site, work: Work, ran: Ran) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    used = np.zeros((len(site.regions), int((ran.start + work.windows).max()) - FIRST + 1), dtype=np.int64)
    for region, start, windows in zip(ran.region, ran.start - FIRST, work.windows, strict=True):
        used[region, start : start + windows] += 1
    return used.max(axis=1)


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3), st.integers(0, 10)), min_size=1, max_size=25),
    st.lists(st.integers(1, 3), min_size=2, max_size=2),
    st.integers(0, 2**16),
    st.sampled_from([1, 3, 12]),
)
def test_no_policy_starts_too_early_or_takes_more_than_the_slots(
    jobs: list[tuple[int, int, int]], slots: list[int], seed: int, every: int
) -> None:
    values = np.random.default_rng(seed).uniform(0, 600, (2, 160))
    made = replays.grid({"A": values[0].tolist(), "B": values[1].tolist()})
    site = replays.site(made, slots=slots)
    work = replays.work([(r, r + n + slack, n) for r, n, slack in jobs])
    found = run(site, work, list(POLICIES), Rules(margins=(0.0, 0.1), every=every))
    for name, one in found.items():
        assert (one.start >= work.release).all(), name
        assert (busiest(site, work, one) <= site.slots).all(), name
        assert not name.startswith("carbonq-home") or (one.region == site.home).all()
    best = hindsight.alone(site, work, [0, 1])
    assert all(
        grams(site, work, best) <= grams(site, work, found[name]) + 1e-6 or late(work, found[name]) for name in found
    )


def test_a_queue_of_single_windows_and_one_of_long_pieces_are_the_same_queue() -> None:
    rng = np.random.default_rng(3)
    work = replays.work([(int(r), int(r) + 50, 1) for r in np.sort(rng.integers(0, 20, 60))])
    by_arrays = fixed.queued(work, 3)
    # The heap serves pieces of any length: make one of them longer at the very end.
    longer = replays.work([(int(r - FIRST), int(r - FIRST) + 50, 1) for r in work.release] + [(99, 150, 2)])
    assert fixed.queued(longer, 3)[:-1].tolist() == by_arrays.tolist()
    assert fixed.queued(longer, 3)[-1] == FIRST + 99


def test_hindsight_day_by_day_finds_what_one_solve_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(11)
    made = replays.grid({"A": rng.uniform(50, 500, 1500), "B": rng.uniform(50, 500, 1500)})
    site = replays.site(made, slots=[1, 1])
    work = replays.work([(int(r), int(r) + 60, 1) for r in rng.integers(0, 1200, 500)])
    whole = hindsight.perfect(site, work)
    assert whole.plans == 1
    monkeypatch.setattr(hindsight, "WHOLE_UP_TO", 0)
    by_day = hindsight.perfect(site, work)
    assert by_day.plans > 3
    assert grams(site, work, by_day) == pytest.approx(grams(site, work, whole), rel=1e-3)
    alone = hindsight.alone(site, work, [0, 1])
    assert not hindsight.fits(work, alone, site.slots)
    assert grams(site, work, alone) < grams(site, work, whole)


def test_everybodys_own_best_is_the_lowest_of_their_windows() -> None:
    rng = np.random.default_rng(2)
    made = replays.grid({"A": rng.uniform(0, 9, 90), "B": rng.uniform(0, 9, 90)})
    site = replays.site(made, slots=[1, 1], pue=[1.0, 1.2])
    jobs = [(int(r), int(r) + int(n) + int(s), int(n)) for r, n, s in rng.integers((0, 1, 0), (60, 5, 20), (40, 3))]
    work = replays.work(jobs)
    found = hindsight.alone(site, work, [0, 1])
    rates = site.rates * site.pue[:, None]
    for row, (release, due, n) in enumerate(sorted(jobs)):
        expected = min(rates[r, s : s + n].mean() for r in (0, 1) for s in range(release, due - n + 1))
        start = found.start[row] - FIRST
        assert rates[found.region[row], start : start + n].mean() == pytest.approx(expected)


def test_missing_values_are_never_clean() -> None:
    values = [300.0, 300, np.nan, 300, 200, 300, 300, 300]
    made: Grid = replays.grid({"A": values})
    site = replays.site(made, slots=[1])
    work = replays.work([(0, 8, 1)])
    found = run(site, work, ["perfect", "best-time"], RULES)
    assert (found["perfect"].start == FIRST + 4).all()
    missing = site.grams(work, np.array([0]), np.array([FIRST + 2]))
    assert np.isnan(missing).all()
    assert np.isnan(site.grams(work, np.array([0]), np.array([FIRST + 8]))).all()
    assert not site.is_measured(work.release, work.due).any()
    assert site.is_measured(work.release + 3, work.due).all()


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.integers(0, 2**16),
    st.sampled_from([0.0, 0.03, 0.2]),
    st.booleans(),
)
def test_where_everybodys_own_best_fits_it_is_what_the_planner_finds(
    dues: list[int], seed: int, margin: float, has_spread: bool
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.uniform(50, 600, (2, 44))
    made = replays.grid({"A": values[0].tolist(), "B": values[1].tolist()})
    site = replays.site(made, slots=[9, 9], pue=[1.0, 1.2])
    outlook = truth(made, site.model_regions, FIRST, FIRST + 44)
    if has_spread:
        outlook = replace(outlook, spread=rng.uniform(0, 90, (2, 44)))
    work = replays.work([(0, due, 1) for due in dues])
    one, other = (Rolling(site, work, margin=margin) for _ in range(2))
    for book in (one, other):
        book.waiting = np.arange(work.count)
        placed = np.arange(work.count) % 2 == 0
        book.region[placed] = 1
        book.start[placed] = work.due[placed] - 1
    assert one._own_best(FIRST, outlook)  # pyright: ignore[reportPrivateUsage]
    solved = other.assign(FIRST, other.waiting, outlook, Terms(margin=margin))
    other.put(FIRST, other.waiting, solved.region, solved.window)
    chosen = one.choosing(FIRST, outlook, Terms(margin=margin))
    mine, theirs = (chosen[book.region, book.start - FIRST] for book in (one, other))
    assert mine == pytest.approx(theirs, rel=1e-6)


def test_newcomers_take_nothing_twice() -> None:
    rates = np.array([[5.0, 1, 9, 9, 9]])
    free = np.array([[1, 1, 1, 0, 1]])
    # Three groups: due after two windows, after three, and one that takes two windows together.
    due, windows = np.array([3, 2, 5, 2]), np.array([1, 1, 2, 1])
    region, column = newcomers.place(due, windows, rates, free, [0])
    # The two most pressing share the first two windows; the third window is left to the next; two in a row are none.
    assert column.tolist() == [2, 1, -1, 0]
    assert region.tolist() == [0, 0, -1, 0]
    barred, nowhere = newcomers.place(due[:1], windows[:1], np.ones((2, 5)), np.ones((2, 5), dtype=np.int64), [1])
    assert (barred.tolist(), nowhere.tolist()) == ([1], [0])


def test_an_hourly_value_is_one_value_for_its_hour() -> None:
    hours = 300 + 100 * np.sin(np.arange(24 * 6))
    made = replays.grid({"A": hours.tolist()}, step=12)
    walk = Walk(made, replays.site(made, slots=[1]).model_regions, every=1)
    at = FIRST + 5 * 288 + 5
    values = walk.outlook(at, 40).g_per_kwh[0]
    # The running hour has seven windows left.
    assert [len(set(part.tolist())) for part in (values[:7], values[7:19], values[19:31])] == [1, 1, 1]
    assert len(set(values.tolist())) == 4
