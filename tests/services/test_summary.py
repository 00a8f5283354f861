"""Sums keep apart what must not be added."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import orjson
import pytest

from carbonq.clock import ClockKind
from carbonq.errors import InvalidRequest
from carbonq.model import EntryKind
from carbonq.services import summary
from carbonq.store import ledger
from carbonq.store.database import Database
from carbonq.store.figures import Scope
from tests.services.booked import configure, lines, observe, store
from tests.unit.bookings import FACTS, RECORDED, W0, batch, book, item, overhead, part, rate, rate_book


def test_items_overhead_books_and_savings_each_stand_by_themselves(database: Database) -> None:
    booked, idle = book(), overhead(parts=[part(cpu=77)])
    store(database, booked, idle)
    found = summary.summarize(database)
    assert found["clock"] == "real"
    assert (found["entries"], found["overhead_entries"]) == (5, 1)
    assert found["energy_uj"] == 1_000_003  # the items' own; idle stands below
    assert Decimal(found["emission_g"]) == sum(Fraction(row["emission_g"]) for row in booked.entries)
    assert [(row["kind"], row["quality"], row["energy_uj"]) for row in found["energy"]] == [
        ("idle", "estimated", 77),
        ("item", "estimated", 1_000_003),
    ]
    assert {row["status"] for row in found["impact"]} == {"provisional"}
    (saving,) = found["saving"]
    assert saving["compared_energy_uj"] == 1_000_003
    difference = Decimal(saving["baseline_g"]) - Decimal(saving["compared_emission_g"])
    assert Decimal(saving["saved_g"]) == difference
    assert saving["transfer_g"] is None
    assert orjson.loads(orjson.dumps(found)) == found


def test_a_saving_is_stated_on_the_energy_it_was_compared_on_alone(database: Database) -> None:
    store(database, book(), book(batch([item(5, baseline_region=None, baseline_window_at=None)], [part(cpu=9)])))
    found = summary.summarize(database)
    assert found["energy_uj"] == 1_000_012
    assert found["compared_energy_uj"] == 1_000_003
    assert Decimal(found["compared_emission_g"]) < Decimal(found["emission_g"])


def test_what_has_no_rate_or_meter_is_counted_and_never_zero(database: Database) -> None:
    store(database, book(rates=rate_book([])), book(batch(parts=[part(cpu=None)])))
    found = summary.summarize(database)
    assert (found["unrated_entries"], found["unmetered_entries"]) == (10, 5)
    assert found["emission_g"] is None
    assert found["saved_g"] is None


def test_clocks_are_never_mixed(database: Database) -> None:
    store(database, book(), book(batch(clock=ClockKind.ACCELERATED)))
    with pytest.raises(InvalidRequest, match=r"accelerated \(5\), real \(5\); choose one") as caught:
        summary.summarize(database)
    assert caught.value.param == "clock"
    assert summary.summarize(database, Scope(clock="real"))["entries"] == 5


def test_provisional_and_settled_stand_apart(database: Database) -> None:
    from carbonq.services.settle import settle

    configure(database)
    store(database, book(), book(batch(parts=[part(1)])))
    observe(database, "Z-AWAY", W0, "100")
    assert settle(database, W0.replace(hour=9), settle_after_s=0) == 5
    found = summary.summarize(database)
    assert [(row["status"], row["entries"]) for row in found["impact"]] == [("provisional", 5), ("settled", 5)]


def test_a_job_is_none_before_it_ran_and_its_items_only_after(database: Database) -> None:
    store(database, book(batch([item(0), item(1, job_id="job_2")])), overhead())
    with database.read() as tx:
        assert summary.of_job(tx, "job_3") is None
        found = summary.of_job(tx, "job_2")
    assert found is not None
    assert found["entries"] == 1
    assert found["energy_quality"] == ["estimated"]


def test_books_of_different_rates_are_listed_by_their_own_status(database: Database) -> None:
    store(database, book(rates=rate_book([rate()])))
    found = summary.summarize(database)
    assert [(row["status"], row["inventory_g"]) for row in found["inventory"]] == [("missing", None)]
    assert [row["status"] for row in found["impact"]] == ["provisional"]


def whole(database: Database) -> list[dict[str, str]]:
    return [line for line in lines(database) if line["kind"] == "item"]


def test_sums_by_dimension_are_those_of_their_entries(database: Database) -> None:
    mixed = [item(n, tenant="acme" if n % 2 else "other", workload=None if n == 4 else "w") for n in range(5)]
    store(database, book(batch(mixed, [part(0), part(300)])), book(batch(fact=FACTS["home"])), overhead())
    found = summary.summarize(database, by=["tenant", "workload", "region", "month", "day"])
    assert found["by"] == ["tenant", "workload", "region", "month", "day"]
    items = [group for group in found["groups"] if group["tenant"] is not None]
    for group in items:
        mine = [
            line
            for line in whole(database)
            if (line["tenant"], line["workload"] or None, line["region"], line["window"][:10])
            == (group["tenant"], group["workload"], group["region"], group["day"])
        ]
        assert group["month"] == group["day"][:7]
        assert group["entries"] == len(mine) > 0
        assert group["items"] == sum(line["part"] == "1" for line in mine)
        assert group["energy_uj"] == sum(int(line["energy_uj"]) for line in mine)
        assert Decimal(group["inventory_g"] or 0) == sum(Fraction(line["inventory_g"] or 0) for line in mine)
    assert len(items) == 7
    assert sum(group["energy_uj"] for group in items) == found["energy_uj"]
    (nobody,) = [group for group in found["groups"] if group["tenant"] is None]
    assert (nobody["items"], nobody["entries"], nobody["overhead_entries"]) == (0, 0, 1)
    assert nobody["sci"]["impact"]["direct"]["total_g"] is None


@pytest.mark.parametrize("by", [["colour"], ["tenant", "tenant"]])
def test_a_dimension_that_is_none_is_refused(sqlite_database: Database, by: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="sums may be taken by tenant, product_line") as caught:
        summary.summarize(sqlite_database, by=by)
    assert caught.value.param == "by"


def test_the_score_counts_overhead_by_energy_and_keeps_the_books_apart(database: Database) -> None:
    store(
        database,
        book(batch([item(0, tokens=(600, 0, 0)), item(1, tokens=(400, 0, 0), tenant="other")], [part(cpu=3_000)])),
        book(batch([item(2, tokens=(10, 0, 0), tenant="other", job_id="job_2")], [part(cpu=1_000)])),
        overhead(parts=[part(cpu=400)]),
        overhead(EntryKind.WASTED, parts=[part(cpu=80)]),
    )
    score = summary.summarize(database, Scope(tenant="acme"))["sci"]
    mine, everything = whole_of(database, "acme"), lines(database)
    assert score["units"] == {"items": 1, "tokens": 600, "jobs": 1}
    extra = [line for line in everything if line["kind"] != "item"]
    share = Fraction(1_800, 4_000)
    for book_, column in (("impact", "emission_g"), ("inventory", "inventory_g")):
        direct = Fraction(mine[column]) + Fraction(mine["embodied_g"])
        added = share * sum(Fraction(line[column]) + Fraction(line["embodied_g"]) for line in extra)
        assert Fraction(score[book_]["direct"]["per_item_g"]) == direct
        assert abs(Fraction(score[book_]["with_overhead"]["per_item_g"]) - direct - added) < Fraction(1, 10**15)
        assert Fraction(score[book_]["kg_per_million_tokens"]) == round_15(Fraction(mine[column]) * 10**6 / 600) / 1000
    assert score["impact"] != score["inventory"]
    assert Fraction(score["kwh_per_million_tokens"]) == round_15(Fraction(1_800, 3_600_000_000_000) * 10**6 / 600)
    by_tenant = summary.summarize(database, by=["tenant"])
    scores = {group["tenant"]: group["sci"] for group in by_tenant["groups"]}
    assert scores["acme"] == score
    assert scores["other"]["units"] == {"items": 2, "tokens": 410, "jobs": 2}
    assert by_tenant["sci"]["units"]["jobs"] == 2
    together = sum(Fraction(scores[tenant]["impact"]["with_overhead"]["total_g"]) for tenant in ("acme", "other"))
    everything_g = sum(Fraction(line["emission_g"]) + Fraction(line["embodied_g"]) for line in everything)
    assert abs(together - everything_g) < Fraction(2, 10**15)


def whole_of(database: Database, tenant: str) -> dict[str, str]:
    (line,) = [line for line in whole(database) if line["tenant"] == tenant]
    return line


def round_15(value: Fraction) -> Fraction:
    return Fraction(round(value * 10**15), 10**15)


def test_a_score_is_not_given_where_an_input_is_unknown(database: Database) -> None:
    store(database, book(batch(fact=FACTS["home"])), book(batch(parts=[part(cpu=None)])))
    score = summary.summarize(database)["sci"]
    # The home region states no hardware and has no average rate; the other one's batch had no meter.
    assert score["unknown"] == {"energy": 5, "emission": 5, "inventory": 10, "embodied": 5}
    assert score["kwh_per_million_tokens"] is None
    assert score["impact"]["direct"]["per_item_g"] is None
    assert score["units"]["items"] == 10


def test_a_summary_as_of_a_time_is_what_it_was(database: Database) -> None:
    booked = book()
    store(database, booked)
    before = summary.summarize(database)
    later = RECORDED + timedelta(days=1)
    row = booked.entries[0]
    again = row | {"revision": 2, "supersedes": f"{row['entry_id']}#1", "recorded_at": later, "emission_g": Decimal(9)}
    with database.write() as tx:
        ledger.append_revisions(tx, [], [again])
    assert summary.summarize(database) != before
    assert summary.summarize(database, Scope(as_of=RECORDED)) == before
    assert summary.summarize(database, Scope(as_of=RECORDED - timedelta(seconds=1)))["entries"] == 0
