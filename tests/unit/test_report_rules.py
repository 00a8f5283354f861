"""The rules that add a month up: nothing is lost or told apart by how the entries came, and what is nearest."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from carbonq.booking import Fact
from carbonq.model import EntryKind, Quality, Rate, RateKind, RateStatus, Region, Signal
from carbonq.report import figures, scores
from carbonq.report.gather import Arrived, Gathered, Known, Mean
from carbonq.report.nearest import Lookup, compare, nearest
from carbonq.report.sums import Books, Cell, Sums
from tests.unit.bookings import HOME, rate

HOUR = datetime(2026, 3, 2, 8, tzinfo=UTC)
FACT = Fact.of(HOME)
MOER, AER = rate("Z-HOME", HOUR, "200.5"), rate("Z-HOME", HOUR, "90.25", signal=Signal.AER)

_statuses = st.sampled_from([one.value for one in RateStatus])
_amounts = st.integers(0, 10**18)


@st.composite
def cells(draw: st.DrawFn) -> Cell:
    entries = draw(st.integers(1, 50))
    moer, aer = draw(_statuses), draw(_statuses)
    unrated = entries if moer == "missing" else draw(st.integers(0, entries))
    unrated_aer = entries if aer == "missing" else draw(st.integers(0, entries))
    kind = draw(st.sampled_from(list(EntryKind))).value
    return Cell(
        region=draw(st.sampled_from(["home", "away"])),
        fact_id="fact",
        model=draw(st.sampled_from(["m", None])),
        quality=draw(st.sampled_from(list(Quality))).value,
        software_version="1",
        gpu_meter="none",
        cpu_meter="rapl",
        dram_meter="none",
        tenant=draw(st.sampled_from(["acme", "other", None])),
        product_line=draw(st.sampled_from(["search", None])),
        workload=None,
        job_id=draw(st.sampled_from(["job_1", "job_2", None])),
        kind=kind,
        method="cq-2026-2",
        moer_status=moer,
        aer_status=aer,
        moer_rate_id=None if moer == "missing" else "moer",
        aer_rate_id=None if aer == "missing" else "aer",
        baseline_region=draw(st.sampled_from(["home", None])),
        placement_id=None,
        is_saving=kind == "item" and draw(st.booleans()),
        sums=Sums(
            entries=entries,
            items=entries if kind == "item" else 0,
            unrated=unrated,
            unrated_aer=unrated_aer,
            prompt_tokens=draw(st.integers(0, 1000)),
            energy_uj=draw(_amounts),
            emission=0 if unrated == entries else draw(_amounts),
            inventory=0 if unrated_aer == entries else draw(_amounts),
            embodied=draw(_amounts),
        ),
    )


KNOWN = Known(facts={"fact": FACT}, rates={"moer": MOER, "aer": AER}, reasons={}, arrived={})


def gathered(some: list[Cell], tenant: str | None = None) -> Gathered:
    made = Gathered(tenant)
    made.add(HOUR, some, KNOWN)
    return made


@given(st.lists(cells(), max_size=8), st.sampled_from([None, "acme"]))
def test_every_section_that_tells_all_energy_sums_to_the_same(some: list[Cell], tenant: str | None) -> None:
    made = gathered(some, tenant)
    own = [cell for cell in some if tenant is None or cell.tenant == tenant]
    ours_uj = sum(cell.sums.energy_uj for cell in own if cell.kind != "host_other")
    totals = figures.totals(made)
    assert totals.item_energy_uj + totals.overhead_energy_uj == ours_uj
    assert sum(row.energy_uj for row in totals.energy) == sum(cell.sums.energy_uj for cell in own)
    for rows in (figures.days(made), figures.regions(made, {}), figures.inventory(made)):
        assert sum(row.energy_uj for row in rows) == ours_uj
    assert sum(row.energy_uj for row in figures.kinds(made)) == sum(cell.sums.energy_uj for cell in own)


@given(st.lists(cells(), max_size=6))
def test_both_books_are_told_apart_in_every_section(some: list[Cell]) -> None:
    made = gathered(some)
    for book, amount in (("impact", "emission"), ("inventory", "inventory")):
        wanted = sum(getattr(cell.sums, amount) for cell in some if cell.kind != "host_other")
        totals = figures.totals(made)
        parts = [getattr(totals, book), getattr(totals, f"{book}_overhead")]
        assert sum(Fraction(one.known_g or 0) for one in parts) * 10**15 == wanted
        for rows in (figures.days(made), figures.regions(made, {})):
            assert sum(Fraction(getattr(row, book).known_g or 0) for row in rows) * 10**15 == wanted
    found = sum(Fraction(row.inventory_g or 0) for row in figures.inventory(made)) * 10**15
    assert found == sum(cell.sums.inventory for cell in some if cell.kind != "host_other")


@given(st.lists(cells(), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_neither_order_nor_hours_change_what_is_not_by_hour(some: list[Cell], random: object) -> None:
    whole = gathered(some)
    mixed = list(some)
    random.shuffle(mixed)  # pyright: ignore[reportAttributeAccessIssue]
    parts = Gathered(None)
    for number, cell in enumerate(mixed):
        parts.add(HOUR + timedelta(hours=number), [cell], KNOWN)
    assert figures.totals(whole) == figures.totals(parts)
    assert figures.regions(whole, {}) == figures.regions(parts, {})
    assert scores.scores(whole, boundary="") == scores.scores(parts, boundary="")


def test_grams_of_a_book_say_which_are_final() -> None:
    books = Books()
    for status, quanta in (("provisional", 1), ("settled", 2), ("restated", 4), ("unsettleable", 8)):
        books.add(status, "missing", Sums(entries=1, emission=quanta * 10**15, unrated_aer=1))
    books.add("missing", "missing", Sums(entries=3, unrated=3, unrated_aer=3))
    found = books.impact
    assert (found.known_g, found.provisional_g, found.settled_g, found.unsettleable_g) == (15, 1, 6, 8)
    assert found.unknown_entries == 3
    assert books.inventory.known_g is None


def test_a_mean_rate_is_by_energy_and_none_without_any() -> None:
    mean = Mean()
    assert mean.value is None
    mean.add(Decimal(3), Decimal(100))
    mean.add(Decimal(1), Decimal(200))
    assert mean.value == 125


# --- the nearest region ---------------------------------------------------------------------------------------------


def region(name: str, latency_ms: float, models: tuple[str, ...] | None = None) -> Region:
    return replace(HOME, name=name, zone=name.upper(), latency_ms=latency_ms, models=models)


def test_the_nearest_region_serves_the_model_and_is_allowed() -> None:
    some = [region("b", 2), region("a", 2), region("closest", 1, ("other",))]
    for model, allowed, wanted in (
        ("m", None, "a"),
        ("other", None, "closest"),
        ("other", ("b",), "b"),
        ("m", (), "a"),
    ):
        found = nearest(some, model, allowed)
        assert found is not None
        assert found.name == wanted
    assert nearest(some, "m", ("gone",)) is None
    assert nearest([], "m", None) is None


def knows(found: Rate | None, status: RateStatus) -> Lookup:
    def lookup(signal: Signal, zone: str, window_at: datetime) -> tuple[Rate | None, RateStatus]:
        assert (signal, zone, window_at) == (Signal.MOER, "A", HOUR)
        return found, status

    return lookup


def test_only_figures_alike_in_status_are_compared() -> None:
    one = region("a", 1)
    observed = rate("A", HOUR, "100", kind=RateKind.OBSERVED)
    sums = Sums(entries=2, energy_uj=3_600_000_000_000, emission=10**16)
    pairs = {
        ("settled", RateStatus.SETTLED): "settled",
        ("restated", RateStatus.SETTLED): "settled",
        ("provisional", RateStatus.PROVISIONAL): "provisional",
        ("unsettleable", RateStatus.UNSETTLEABLE): "unsettleable",
        ("provisional", RateStatus.SETTLED): None,
        ("settled", RateStatus.PROVISIONAL): None,
        ("missing", RateStatus.MISSING): None,
    }
    for (ran, status), wanted in pairs.items():
        rows = compare([(Arrived("a", HOUR, ran), sums)], [one], knows(observed, status), sums.energy_uj * 2)
        assert [row.status for row in rows] == ([] if wanted is None else [wanted])
        for row in rows:
            assert (row.nearest_g, row.emission_g, row.avoided_g, row.coverage) == (150, 10, 140, 0.5)
    assert compare([(Arrived("a", HOUR, "settled"), sums)], [one], knows(None, RateStatus.SETTLED), 1) == ()
