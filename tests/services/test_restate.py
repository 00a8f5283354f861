"""Restatement appends what changed, only where it changed, once; who, when and why stand beside; old figures stay."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import delete, func, select, text, update

from carbonq import verify
from carbonq.errors import InvalidRequest, NotFound
from carbonq.grid.protocol import Observation
from carbonq.model import EntryReason, Signal
from carbonq.ratebook import FALLBACK_PATIENCE_S
from carbonq.services import history, restate
from carbonq.services import settle as settling
from carbonq.services.finals import Finals
from carbonq.services.proof import prove
from carbonq.services.restate import Restated, Scope
from carbonq.services.seal import seal
from carbonq.services.settle import settle
from carbonq.store import forecasts, ledger, restatements, sources
from carbonq.store.database import Database
from carbonq.store.revisions import Stamp
from carbonq.store.tables import corrections, entries
from carbonq.store.tables import restatements as restatement_rows
from carbonq.units import WINDOW, grams
from tests.services.booked import configure, lines, observe, store
from tests.services.sealed import as_administrator, findings
from tests.unit.bookings import AWAY, W0, batch, book, item, part, rate, rate_book

BEFORE = W0 - WINDOW  # the baseline's window
LATER = W0 + timedelta(days=40)
DAY = Scope(W0 - timedelta(days=1), W0 + timedelta(days=1))


def say(database: Database, zone: str, window_at: datetime, value: str, **changes: Any) -> None:
    """Let the source say it as sources do, so that what it says anew is a correction."""
    values: dict[str, Any] = {
        "zone": zone,
        "signal": Signal.MOER,
        "source": "test",
        "window_at": window_at,
        "model": "2026-03",
        "gas": "co2",
        "method": None,
        "step_s": 300,
        "retrieved_at": LATER - timedelta(hours=1),
        "g_per_kwh": Decimal(value),
        "raw": Decimal(value),
        "raw_unit": "g/kWh",
        "is_estimated": False,
        "may_settle": True,
    }
    with database.write() as tx:
        forecasts.add_observations(tx, [Observation(**values | changes)])


def settled(database: Database, *more: Any) -> None:
    """One engine batch of five items, settled on both sides, and more bookings."""
    configure(database)
    store(database, book(), *more)
    for zone, at, value in (("Z-AWAY", W0, "100"), ("Z-HOME", BEFORE, "400")):
        say(database, zone, at, value)
    assert settle(database, W0 + WINDOW, settle_after_s=0) > 0


def corrected(database: Database, now: datetime = LATER) -> int:
    return restate.restate_corrected(database, now, settle_after_s=0)


def by_command(database: Database, scope: Scope = DAY, **options: Any) -> Restated:
    given = {"reason": "model of March", "now": LATER, "settle_after_s": 0, "recorded_by": "anna"}
    return restate.restate(database, scope, **given | options)


def waiting(database: Database) -> int:
    with database.read() as tx:
        return tx.execute(select(func.count()).select_from(corrections)).scalar_one()


def test_what_a_source_corrected_is_noticed_and_restated_once(database: Database) -> None:
    elsewhere = book(batch([item(7)], [part(3)]))  # in another window
    settled(database, elsewhere)
    before = lines(database, all_revisions=True)
    say(database, "Z-AWAY", W0, "120")
    assert corrected(database) == 5
    assert (corrected(database), waiting(database)) == (0, 0)
    after = lines(database, all_revisions=True)
    assert [line for line in after if line in before] == before  # nothing was changed or taken away
    found = [line for line in after if line not in before]
    assert {line["item"] for line in found} == {"0", "1", "2", "3", "4"}
    for line in found:
        assert (line["revision"], line["reason"], line["moer_status"]) == ("3", "restated", "restated")
        assert (line["moer_g_per_kwh"], line["baseline_moer_status"]) == ("120", "settled")
        assert Decimal(line["emission_g"]) == grams(int(line["energy_uj"]), AWAY.pue, Decimal(120))
        # Both rates are final, so the saving is still stated.
        assert Decimal(line["saved_g"]) == Decimal(line["baseline_g"]) - Decimal(line["emission_g"])
    with database.read() as tx:
        (one,) = restatements.find(tx, {line["restatement_id"] for line in found}).values()
        assert restatements.newest(tx, limit=9) == [(one, 5)]
    assert (one.is_automatic, one.recorded_by, one.signal, one.zone) == (True, "settle", Signal.MOER, "Z-AWAY")
    assert (one.start_at, one.end_at) == (W0, W0 + WINDOW)
    assert one.reason == "test corrected moer of Z-AWAY"


def test_a_corrected_baseline_restates_the_entries_that_ran_elsewhere_and_later(database: Database) -> None:
    settled(database)
    say(database, "Z-HOME", BEFORE, "300")
    assert corrected(database) == 5
    for line in lines(database):
        assert (line["moer_status"], line["baseline_moer_status"], line["reason"]) == (
            "settled",
            "restated",
            "restated",
        )
        assert line["baseline_moer_g_per_kwh"] == "300"


def test_both_books_are_restated_apart(database: Database) -> None:
    settled(database)
    say(database, "Z-AWAY", W0, "50", signal=Signal.AER)
    assert settle(database, LATER, settle_after_s=0) == 5
    say(database, "Z-AWAY", W0, "55", signal=Signal.AER)
    assert corrected(database) == 5
    for line in lines(database):
        assert (line["moer_status"], line["aer_status"], line["aer_g_per_kwh"]) == ("settled", "restated", "55")
        assert Decimal(line["inventory_g"]) == grams(int(line["energy_uj"]), AWAY.pue, Decimal(55))


def test_what_is_provisional_yet_is_settled_and_not_restated(database: Database) -> None:
    configure(database)
    store(database, book())
    say(database, "Z-AWAY", W0, "100")
    say(database, "Z-AWAY", W0, "120")
    assert waiting(database) == 1
    assert corrected(database) == 0
    assert settle(database, LATER, settle_after_s=0) == 5
    assert (corrected(database), waiting(database)) == (0, 0)
    assert {(line["moer_g_per_kwh"], line["reason"]) for line in lines(database)} == {("120", "settled")}


def test_a_value_that_is_imputed_again_restates_nothing(database: Database) -> None:
    settled(database)
    say(database, "Z-AWAY", W0, "120", is_estimated=True)
    assert corrected(database) == 0
    assert by_command(database).revisions == 0
    assert {line["moer_g_per_kwh"] for line in lines(database)} == {"100"}


def test_a_late_preferred_source_restates_by_command_only(database: Database) -> None:
    configure(database)
    store(database, book(rates=rate_book()))
    with database.write() as tx:
        sources.configure(tx, {("Z-AWAY", Signal.MOER): ("test", "spare")})
    observe(database, "Z-AWAY", W0, "222", source="spare")
    day = timedelta(seconds=FALLBACK_PATIENCE_S)
    assert settle(database, W0 + WINDOW + day, settle_after_s=0) == 5
    say(database, "Z-AWAY", W0, "111")
    say(database, "Z-AWAY", W0, "112")  # a correction, but of a source that settled nothing
    assert corrected(database) == 0
    done = by_command(database)
    assert done.revisions == 5
    assert {(line["moer_source"], line["moer_g_per_kwh"]) for line in lines(database)} == {("test", "112")}
    assert by_command(database).revisions == 0


def test_the_command_says_what_it_would_do_and_then_does_exactly_that(database: Database) -> None:
    settled(database)
    observe(database, "Z-AWAY", W0, "120", revision=2)
    observe(database, "Z-HOME", BEFORE, "390", revision=2)
    before = lines(database, all_revisions=True)
    would = by_command(database, is_dry_run=True)
    assert lines(database, all_revisions=True) == before
    assert (would.revisions, would.restatement_id) == (5, None)
    done = by_command(database)
    assert done.revisions == 5
    found = lines(database)
    for name in ("emission_g", "baseline_g", "saved_g"):
        old = sum(Decimal(line[name]) for line in before if line["revision"] == "2")
        assert would.sums[name] == (old, sum(Decimal(line[name]) for line in found)), name
    assert would.sums["inventory_g"][0] == would.sums["inventory_g"][1] is not None
    with database.read() as tx:
        (one,) = restatements.find(tx, [done.restatement_id or ""]).values()
    assert (one.recorded_by, one.reason, one.is_automatic) == ("anna", "model of March", False)
    assert (by_command(database).restatement_id, by_command(database).revisions) == (None, 0)


def test_a_scope_leaves_out_other_zones_signals_and_windows(database: Database) -> None:
    settled(database)
    say(database, "Z-AWAY", W0, "50", signal=Signal.AER)
    settle(database, LATER, settle_after_s=0)
    for zone, at, value in (("Z-AWAY", W0, "120"), ("Z-HOME", BEFORE, "390")):
        observe(database, zone, at, value, revision=2)
    observe(database, "Z-AWAY", W0, "55", revision=2, signal=Signal.AER)
    for scope in (
        Scope(W0 + WINDOW, LATER),
        Scope(W0, W0 + WINDOW, zone="Z-HOME"),
        Scope(BEFORE, W0, zone="Z-AWAY"),
        Scope(BEFORE, W0, signal=Signal.AER),
    ):
        assert by_command(database, scope).revisions == 0
    assert by_command(database, Scope(DAY.start_at, DAY.end_at, signal=Signal.AER)).revisions == 5
    assert {(line["moer_status"], line["aer_status"]) for line in lines(database)} == {("settled", "restated")}
    assert by_command(database, Scope(BEFORE, W0)).revisions == 5
    statuses = {(line["moer_status"], line["baseline_moer_status"]) for line in lines(database)}
    assert statuses == {("settled", "restated")}


def test_the_command_fills_in_what_was_given_up(database: Database) -> None:
    configure(database)
    store(database, book(rates=rate_book([rate(), rate("Z-HOME", BEFORE)])))
    observe(database, "Z-AWAY", W0, "99", is_estimated=True)
    assert settle(database, LATER, settle_after_s=0, give_up_after_s=86_400) == 5
    for line in lines(database):
        # The best there was: observed, though imputed; nothing is known of the average rate, and it stays missing.
        assert (line["moer_status"], line["moer_g_per_kwh"], line["aer_status"]) == ("unsettleable", "99", "missing")
    assert settle(database, LATER, settle_after_s=0, give_up_after_s=86_400) == 0
    observe(database, "Z-AWAY", W0, "101", revision=2)
    observe(database, "Z-AWAY", W0, "60", signal=Signal.AER)
    assert settle(database, LATER, settle_after_s=0, give_up_after_s=86_400) == 0
    assert by_command(database).revisions == 5
    for line in lines(database):
        assert (line["moer_status"], line["moer_g_per_kwh"], line["reason"]) == ("settled", "101", "restated")
        assert (line["aer_status"], line["aer_g_per_kwh"]) == ("settled", "60")


def test_nothing_is_given_up_before_its_time_nor_what_is_final(database: Database) -> None:
    configure(database)
    store(database, book(rates=rate_book()))
    observe(database, "Z-AWAY", W0, "99")
    assert settle(database, W0 + timedelta(days=1), settle_after_s=0, give_up_after_s=2 * 86_400) == 5
    assert {line["moer_status"] for line in lines(database)} == {"settled"}
    assert {line["baseline_moer_status"] for line in lines(database)} == {"provisional"}
    assert settle(database, LATER, settle_after_s=0, give_up_after_s=2 * 86_400) == 5
    assert {line["baseline_moer_status"] for line in lines(database)} == {"unsettleable"}
    assert {line["saved_g"] for line in lines(database)} == {""}


def test_a_final_rate_that_comes_while_it_gives_up_is_left_to_the_next_settlement(database: Database) -> None:
    configure(database)
    store(database, book(rates=rate_book()))
    observe(database, "Z-AWAY", W0, "99")
    act = settling._GivingUp(Finals(LATER, 0), Stamp(EntryReason.SETTLED, "settle"))
    assert settling._walk(database, (Signal.MOER, "Z-AWAY"), LATER, act, 100) == 0
    assert settle(database, LATER, settle_after_s=0) == 5


@pytest.mark.parametrize(
    ("scope", "reason", "field"),
    [(DAY, "  ", "reason"), (Scope(LATER, W0), "why", "to"), (Scope(W0, W0), "why", "to")],
)
def test_a_restatement_needs_a_reason_and_a_span(
    sqlite_database: Database, scope: Scope, reason: str, field: str
) -> None:
    with pytest.raises(InvalidRequest) as error:
        by_command(sqlite_database, scope, reason=reason)
    assert error.value.param == field


def test_the_history_of_an_entry_is_all_of_it(database: Database) -> None:
    settled(database)
    say(database, "Z-AWAY", W0, "120")
    corrected(database)
    entry_id = lines(database)[0]["entry_id"]
    found = history.of_entry(database, entry_id, tenant="acme")
    assert [(one["revision"], one["reason"]) for one in found["revisions"]] == [
        (1, "initial"),
        (2, "settled"),
        (3, "restated"),
    ]
    first, second, third = found["revisions"]
    assert (first["changed"], first["restatement"]) == ({}, None)
    assert second["changed"]["moer_status"] == ["provisional", "settled"]
    assert third["changed"]["moer_g_per_kwh"] == ["100", "120"]
    assert third["restatement"]["reason"] == "test corrected moer of Z-AWAY"
    assert "energy_uj" not in third["changed"]
    assert third["recorded_at"] >= second["recorded_at"]
    for tenant, wanted in (("other", entry_id), (None, "eb_none.1.0")):
        with pytest.raises(NotFound):
            history.of_entry(database, wanted, tenant=tenant)


def test_later_changes_added_to_the_figures_of_then_give_those_of_now(database: Database) -> None:
    settled(database)
    filed = lines(database)
    with database.read() as tx:
        since = tx.execute(select(func.max(entries.c.recorded_at))).scalar_one()
    late = book(batch([item(9, tokens=(5, 0, 0))]))
    with database.write() as tx:
        ledger.insert_bookings(tx, [late], recorded_at=since + timedelta(microseconds=1))
    say(database, "Z-AWAY", W0, "120")
    assert corrected(database) == 5
    settle(database, LATER, settle_after_s=0)
    found = history.later_changes(database, since=since, month="2026-03")
    now = lines(database)
    for name in ("emission_g", "baseline_g", "embodied_g", "saved_g"):
        known = [Decimal(one[name]) for one in found if one[name] is not None]
        sums = [sum(Decimal(line[name]) for line in some if line[name]) for some in (filed, now)]
        assert sums[0] + sum(known) == sums[1], name
    assert sum(one["energy_uj"] for one in found) == int(late.entries[0]["energy_uj"])
    assert {one["reason"] for one in found} == {"initial", "settled", "restated"}
    assert history.later_changes(database, since=since, month="2026-02") == []
    assert history.later_changes(database, since=since, tenant="other") == []
    assert len(history.later_changes(database, since=LATER + timedelta(days=10**4))) == 0


@pytest.mark.parametrize("month", ["2026-13", "March", "2026-3", "9999-12", "2026-03-01"])
def test_a_month_that_is_none_is_refused(month: str) -> None:
    with pytest.raises(InvalidRequest, match="month is"):
        history.month_span(month)


def test_a_zone_that_never_was_is_not_said_to_be_up_to_date(sqlite_database: Database) -> None:
    settled(sqlite_database)
    with pytest.raises(NotFound, match="zone 'NOPE'"):
        by_command(sqlite_database, Scope(W0, W0 + WINDOW, zone="NOPE"), is_dry_run=True)


def test_who_restated_and_why_is_bound_to_what_is_sealed(database: Database) -> None:
    settled(database)
    say(database, "Z-AWAY", W0, "120")
    own = by_command(database).restatement_id
    seal(database)
    assert findings(database) == []
    restated = next(line for line in lines(database, all_revisions=True) if line["restatement_id"] == own)
    proof = prove(database, restated["entry_id"], revision=int(restated["revision"]))
    assert verify.check_proof(proof).problems == []
    proof["restatements"][own]["recorded_by"] = "otto"
    assert verify.check_proof(proof).problems == [f"{own} is not the digest of its values"]
    with database.read() as tx:
        (row,) = (dict(one) for one in tx.execute(select(restatement_rows)).mappings())
    others = {"is_automatic": True, "signal": "aer", "zone": "Z", "recorded_by": "otto", "reason": "none"}
    others |= {name: row[name] + WINDOW for name in ("recorded_at", "start_at", "end_at")}
    assert {*others, "restatement_id"} == set(row)
    with as_administrator(database) as tx:
        if database.is_sqlite:
            tx.execute(text("DROP TRIGGER restatements_refuse_update"))
            tx.execute(text("DROP TRIGGER restatements_refuse_delete"))
    for change in [{name: value} for name, value in others.items()] + [None]:
        with as_administrator(database) as tx:
            if change is None:
                tx.execute(delete(restatement_rows))
            else:
                tx.execute(update(restatement_rows).values(row | change))
        (found,) = findings(database)
        assert (found.table, found.key) == ("restatements", own), change
