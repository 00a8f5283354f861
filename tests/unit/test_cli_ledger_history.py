"""``carbonq ledger settle|restate|history|restatements`` on a database of its own, and the same over HTTP's shapes."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from carbonq.cli.main import app
from carbonq.clock import GridClock
from carbonq.store import admin_log, clocks
from carbonq.store.database import Database
from tests.services.booked import configure, lines, store
from tests.services.test_restate import say
from tests.unit.bookings import W0, book, rate_book


@pytest.fixture
def filled(sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """An installation with five entries and what the grid said of them."""
    database = sqlite_database
    monkeypatch.setenv("CARBONQ_DATABASE_URL", f"sqlite:///{tmp_path / 'carbonq.db'}")
    monkeypatch.setenv("CARBONQ_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("CARBONQ_SETTLE_WITHIN_DAYS", "3000")  # nothing is given up
    with database.write() as tx:
        clocks.ensure(tx, GridClock.real())
    configure(database)
    store(database, book(rates=rate_book()))
    say(database, "Z-AWAY", W0, "200")
    return database


def run(*arguments: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["ledger", *arguments])
    assert done.exit_code == code, done.output
    return done


def read(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def test_from_provisional_to_restated_with_all_that_was_before(filled: Database) -> None:
    done = read("settle", "--report")
    assert (done["revisions"], done["restated"]) == (5, 0)
    (found,) = (one for one in done["accuracy"] if one["book"] == "moer")
    assert (found["zone"], found["lead"], found["entries"]) == ("Z-AWAY", "under 1 h", 5)
    assert (found["mean_g_per_kwh"], found["mae_g_per_kwh"]) == (100.25, 100.25)  # 300.25 was foretold
    assert found["p50_relative"] == found["p95_relative"] == 0.50125
    entry_id = lines(filled)[0]["entry_id"]
    say(filled, "Z-AWAY", W0, "210")
    assert read("settle") == {"revisions": 0, "restated": 5}
    document = read("history", entry_id)
    assert [one["reason"] for one in document["revisions"]] == ["initial", "settled", "restated"]
    text = run("history", entry_id).stdout
    assert "200 -> 210" in text
    assert "test corrected moer of Z-AWAY" in text
    (one,) = read("restatements")
    assert (one["revisions"], one["is_automatic"], one["zone"]) == (5, True, "Z-AWAY")
    changes = read("history", "--month", "2026-03", "--since", "2026-03-03T00:00Z")["changes"]
    assert {(one["month"], one["reason"]) for one in changes} >= {("2026-03", "settled"), ("2026-03", "restated")}


def test_a_dry_run_says_and_changes_nothing(filled: Database) -> None:
    read("settle")
    span = ("--from", "2026-03-01T00:00Z", "--to", "2026-04-01T00:00Z", "--reason", "model of March")
    assert "nothing to restate" in run("restate", *span).output
    say(filled, "Z-AWAY", W0, "210")
    done = read("restate", *span, "--dry-run")
    assert (done["revisions"], done["is_dry_run"], done["restatement_id"]) == (5, True, None)
    assert done["sums"]["emission_g"]["before"] != done["sums"]["emission_g"]["after"]
    assert {line["revision"] for line in lines(filled)} == {"2"}
    done = read("restate", *span, "--zone", "Z-AWAY", "--signal", "moer")
    assert done["revisions"] == 5
    assert {line["restatement_id"] for line in lines(filled)} == {done["restatement_id"]}
    assert read("settle") == {"revisions": 0, "restated": 0}
    with filled.read() as tx:  # neither the dry run nor what found nothing to do is an act
        log = [(one.action, one.subject) for one in admin_log.page(tx)]
    assert log == [
        ("ledger.settled", "ledger"),
        ("ledger.restated", done["restatement_id"]),
        ("ledger.settled", "ledger"),
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["restate", "--from", "x", "--to", "2026-04-01T00:00Z", "--reason", "r"], "--from is 'x'"),
        (["restate", "--from", "2026-04-01T00:00Z", "--to", "2026-03-01T00:00Z", "--reason", "r"], "holds no window"),
        (["restate", "--from", "2026-03-01T00:00Z", "--to", "2026-04-01T00:00Z", "--reason", " "], "needs a reason"),
        (["history"], "name an entry"),
        (["history", "eb_1.1.0", "--since", "2026-03-01T00:00Z"], "name an entry"),
        (["history", "eb_1.1.0", "--month", "2026-03"], "--month goes with --since"),
        (["history", "--since", "2026-03-01T00:00Z", "--month", "March"], "month is 'March'"),
        (["history", "eb_none.1.0"], "no ledger entry"),
    ],
)
def test_what_is_wrong_is_said(filled: Database, arguments: list[str], sentence: str) -> None:
    from carbonq.errors import CarbonqError

    done = CliRunner().invoke(app, ["ledger", *arguments])
    assert done.exit_code != 0
    assert isinstance(done.exception, CarbonqError | SystemExit)
    assert sentence in (done.output + str(done.exception))


def test_leads_and_quantiles_by_hand() -> None:
    from carbonq.services.accuracy import measure
    from carbonq.store.accuracy import Pair
    from tests.unit.bookings import rate

    def pair(foretold: str, settled: str, hours: float | None, energy: int) -> Pair:
        issued = {} if hours is None else {"issued_at": W0 - timedelta(hours=hours)}
        old = rate(value=foretold, **({"issued_at": None} if hours is None else issued))
        return Pair("moer", old, rate(value=settled), 1, energy)

    found = measure(
        [
            pair("110", "100", 0.5, 3),
            pair("80", "100", 0.5, 1),
            pair("100", "0", 0.5, 0),
            pair("90", "100", 5, 1),
            pair("100", "100", 30, 1),
            pair("50", "100", None, 1),
        ]
    )
    assert [one.lead for one in found] == ["observed", "under 1 h", "1 to 6 h", "24 h and more"]
    first = found[1]
    assert (first.entries, first.energy_uj, first.unrelated) == (3, 4, 1)
    assert (first.mean_g_per_kwh, first.mae_g_per_kwh) == (2.5, 12.5)
    assert (first.p50_relative, first.p95_relative) == (0.1, 0.2)
