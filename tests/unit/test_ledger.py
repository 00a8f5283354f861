"""What an engine batch is booked as."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq import booking, ledger
from carbonq.booking import EngineBatch, Fact
from carbonq.methods import METHODS, may_compare
from carbonq.model import EntryKind, Quality, RateKind, RateStatus, Signal
from carbonq.ratebook import RateBook
from carbonq.units import WINDOW, grams
from tests.unit.bookings import (
    AWAY,
    FACTS,
    HOME,
    PATIENT,
    W0,
    WRITER,
    batch,
    book,
    engine_batches,
    item,
    overhead,
    part,
    rate,
    rate_book,
    rate_books,
)


@settings(max_examples=60, **PATIENT)
@given(engine_batches(), rate_books())
def test_shares_sum_to_one_and_every_component_to_the_meter(made: EngineBatch, rates: RateBook) -> None:
    booked = book(made, rates)
    for row, metered in zip(booked.engine_batches, made.parts, strict=True):
        entries = [entry for entry in booked.entries if entry["part"] == row["part"]]
        assert len(entries) == len(made.items) == row["items"]
        assert sum(entry["share_num"] for entry in entries) == row["weight"] == entries[0]["share_den"]
        for name in ("gpu_uj", "cpu_uj", "dram_uj"):
            total = getattr(metered, name)
            assert row[name] == total
            if total is None:
                assert all(entry[name] is None for entry in entries)
            else:
                assert sum(entry[name] for entry in entries) == total
        if row["energy_uj"] is not None:
            assert sum(entry["energy_uj"] for entry in entries) == row["energy_uj"]


@settings(max_examples=60, **PATIENT)
@given(engine_batches(), rate_books())
def test_grams_are_those_of_the_formulas(made: EngineBatch, rates: RateBook) -> None:
    booked = book(made, rates)
    by_id = {row["rate_id"]: row for row in booked.rates}
    pues = {row["fact_id"]: row["pue"] for row in booked.facts}
    for entry in booked.entries:
        energy, moer = entry["energy_uj"], by_id.get(entry["moer_rate_id"])
        base, aer = by_id.get(entry["baseline_rate_id"]), by_id.get(entry["aer_rate_id"])
        emission = None if energy is None or moer is None else grams(energy, made.fact.pue, moer["g_per_kwh"])
        baseline = (
            None
            if energy is None or base is None
            else grams(energy, pues[entry["baseline_fact_id"]], base["g_per_kwh"])
        )
        assert entry["emission_g"] == emission
        assert entry["inventory_g"] == (
            None if energy is None or aer is None else grams(energy, made.fact.pue, aer["g_per_kwh"])
        )
        assert entry["baseline_g"] == baseline
        alike = entry["moer_status"] == entry["baseline_moer_status"]
        is_known = emission is not None and baseline is not None and alike
        assert entry["saved_g"] == (baseline - emission if is_known else None)
        assert (moer is None) == (entry["moer_status"] == RateStatus.MISSING)
        assert moer is None or moer["signal"] is Signal.MOER
        assert aer is None or aer["signal"] is Signal.AER


@settings(max_examples=40, **PATIENT)
@given(engine_batches(), rate_books())
def test_a_booking_survives_the_spool_exactly(made: EngineBatch, rates: RateBook) -> None:
    booked = book(made, rates)
    assert booking.loads(booking.dumps(booked)) == booked


def test_what_is_no_booking_is_not_taken_for_one() -> None:
    for data in (b"", b"[]", b'{"figures": [{}]}', b'{"facts": []}'):
        with pytest.raises(ValueError, match=r"spooled booking|Expecting"):
            booking.loads(data)


def test_a_batch_over_a_window_edge_has_one_entry_per_window_and_counts_tokens_once() -> None:
    booked = book(batch([item(tokens=(9, 0, 0)), item(1, tokens=(1, 0, 0))], [part(0), part(1, cpu=7)]))
    assert [row["parts"] for row in booked.engine_batches] == [2, 2]
    assert [(e["part"], e["window_at"], e["prompt_tokens"], e["share_num"]) for e in booked.entries] == [
        (1, W0, 9, 9),
        (1, W0, 1, 1),
        (2, W0 + WINDOW, 0, 9),
        (2, W0 + WINDOW, 0, 1),
    ]
    assert booked.figures is not None
    first = booked.figures[0]
    assert first.entry_ids == (booked.entries[0]["entry_id"], booked.entries[2]["entry_id"])
    assert first.energy_uj == booked.entries[0]["energy_uj"] + booked.entries[2]["energy_uj"]
    assert first.emission_g == booked.entries[0]["emission_g"] + booked.entries[2]["emission_g"]
    assert booked.figures.quality is Quality.ESTIMATED
    assert booked.figures.status is RateStatus.PROVISIONAL


def test_one_missing_rate_makes_the_items_emission_unknown_not_smaller() -> None:
    booked = book(batch(parts=[part(0), part(1)]), rate_book([rate()]))
    assert booked.entries[0]["emission_g"] is not None
    assert booked.figures is not None and booked.figures[0].emission_g is None
    assert booked.figures.status is RateStatus.MISSING
    assert booked.entries[-1]["emission_g"] is None
    assert booked.entries[-1]["moer_rate_id"] is None


def test_generation_weighs_tokens_by_kind() -> None:
    booked = book(batch([item(tokens=(100, 40, 10)), item(1, tokens=(60, 0, 0))], model=WRITER))
    assert [entry["share_num"] for entry in booked.entries] == [60 + 4 * 10, 60]


def test_unmetered_energy_is_unknown_and_not_zero() -> None:
    booked = book(batch(parts=[part(cpu=None)]))
    entry = booked.entries[0]
    assert entry["energy_uj"] is None
    assert entry["emission_g"] is None
    assert entry["baseline_g"] is None
    assert booked.engine_batches[0]["energy_uj"] is None
    assert booked.figures is not None and booked.figures[0].energy_uj is None


def test_embodied_carbon_is_the_hardware_over_its_life_for_the_time_and_share() -> None:
    booked = book(batch([item(tokens=(3, 0, 0)), item(1, tokens=(1, 0, 0))]))
    exact = Decimal(150_000) * Decimal("0.8") * 3 / 4 / (35_040 * 3600)
    assert booked.entries[0]["embodied_g"] == exact.quantize(Decimal("1e-15"))
    assert book(batch(fact=FACTS["home"])).entries[0]["embodied_g"] is None


def test_realtime_has_no_baseline() -> None:
    booked = book(batch([item(baseline_region=None, baseline_window_at=None)]))
    entry = booked.entries[0]
    assert {entry[name] for name in entry if name.startswith("baseline_")} == {None}
    assert entry["saved_g"] is None


def test_a_saving_may_be_negative() -> None:
    rates = [rate("Z-AWAY", W0, "500"), rate("Z-HOME", W0 - WINDOW, "100")]
    assert book(rates=rate_book(rates)).entries[0]["saved_g"] < 0


def test_no_saving_between_a_provisional_and_a_settled_rate() -> None:
    rates = [rate("Z-AWAY", W0), rate("Z-HOME", W0 - WINDOW, kind=RateKind.OBSERVED)]
    entry = book(rates=rate_book(rates)).entries[0]
    assert (entry["moer_status"], entry["baseline_moer_status"]) == ("provisional", "settled")
    assert entry["baseline_g"] is not None
    assert entry["saved_g"] is None


def test_it_says_which_rates_a_settlement_is_to_look_for() -> None:
    rates = [rate("Z-AWAY", W0), rate("Z-HOME", W0 - WINDOW, kind=RateKind.OBSERVED)]
    booked = book(rates=rate_book(rates))
    assert [(row["signal"], row["zone"], row["window_at"]) for row in booked.awaited] == [
        ("moer", "Z-AWAY", W0),  # provisional
        ("aer", "Z-AWAY", W0),  # missing
    ]


def test_a_region_that_is_not_configured_any_more_has_no_rates_and_waits_for_none() -> None:
    booked = book(batch([item(baseline_region="gone")]))
    entry = booked.entries[0]
    assert (entry["baseline_region"], entry["baseline_moer_status"], entry["baseline_g"]) == ("gone", "missing", None)
    assert {row["zone"] for row in booked.awaited} == {"Z-AWAY"}


@pytest.mark.parametrize("kind", [EntryKind.IDLE, EntryKind.WASTED, EntryKind.GAP])
def test_overhead_is_one_whole_entry_per_part_and_nobodys_item(kind: EntryKind) -> None:
    booked = overhead(kind, [part(0, cpu=5), part(1, gpu=3, cpu=4)])
    assert [(e["kind"], e["share_num"], e["share_den"], e["energy_uj"]) for e in booked.entries] == [
        (kind.value, 1, 1, 5),
        (kind.value, 1, 1, 7),
    ]
    assert {(e["tenant"], e["job_id"], e["item"], e["prompt_tokens"]) for e in booked.entries} == {
        (None, None, None, 0)
    }
    assert booked.entries[0]["emission_g"] is not None


def test_items_cannot_be_booked_as_overhead_nor_overhead_as_items() -> None:
    with pytest.raises(ValueError, match="not overhead"):
        overhead(EntryKind.ITEM)
    with pytest.raises(ValueError, match="no items or no model"):
        book(batch([]))
    with pytest.raises(ValueError, match="no items or no model"):
        book(batch(model=None))


def test_a_fact_is_stored_once_however_often_it_is_stated() -> None:
    assert Fact.of(HOME).fact_id == Fact.of(HOME).fact_id != Fact.of(AWAY).fact_id
    assert [row["region"] for row in book(batch([item(), item(1, baseline_region="away")])).facts] == ["away", "home"]


def test_ids_depend_on_every_field_of_a_rate() -> None:
    same = rate()
    others = [
        rate("Z-HOME"),
        rate(window_at=W0 + WINDOW),
        rate(value="250.50"),
        rate(signal=Signal.AER),
        rate(retrieved_at=W0 + timedelta(hours=1)),
        rate(gas="co2e"),
        rate(is_estimated=True),
    ]
    assert rate().rate_id == same.rate_id
    assert len({one.rate_id for one in [same, *others]}) == 8


#: Digests of formulas that entries were booked with. A text that changes is another method: add one, change none.
FORMULAS = {
    "cq-2026-1": "51930c97d3403880",
    "cq-2026-2": "19a44f8576b28b46",
}


def test_a_registered_formula_never_changes() -> None:
    found = {name: hashlib.sha256(method.formulas.encode()).hexdigest()[:16] for name, method in METHODS.items()}
    assert found == FORMULAS
    assert list(METHODS)[-1] == ledger.METHOD
    assert all(method.identifier == name and method.constants for name, method in METHODS.items())


@given(st.sampled_from([*RateStatus]), st.sampled_from([*RateStatus, None]))
def test_statuses_compare_by_method(status: RateStatus, other: RateStatus | None) -> None:
    final = {RateStatus.SETTLED, RateStatus.RESTATED}
    assert may_compare("cq-2026-1", status, other) is (status is other)
    assert may_compare("cq-2026-2", status, other) is (status is other or {status, other} == final)


@given(st.lists(st.sampled_from(list(RateStatus)), min_size=1))
def test_the_worst_status_is_missing_before_all(statuses: list[RateStatus]) -> None:
    found = ledger.worst(statuses)
    assert found in statuses
    if RateStatus.MISSING in statuses:
        assert found is RateStatus.MISSING
