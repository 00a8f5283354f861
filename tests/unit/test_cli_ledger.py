"""``carbonq ledger`` on a database of its own: data on stdout, sentences on stderr, exit 0, 1 or 2."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select, text
from typer.testing import CliRunner, Result

from carbonq import verify
from carbonq.cli.ledger import app
from carbonq.clock import ClockKind, GridClock
from carbonq.errors import ConfigError, InvalidRequest, NotFound
from carbonq.store import clocks
from carbonq.store.database import Database
from carbonq.store.tables import entries
from carbonq.units import WINDOW
from tests.services.booked import configure, observe, store
from tests.unit.bookings import W0, batch, book, item, overhead


@pytest.fixture
def database(sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setenv("CARBONQ_DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    configure(sqlite_database)
    return sqlite_database


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def test_an_export_passes_its_own_check_and_a_changed_one_does_not(database: Database, tmp_path: Path) -> None:
    store(database, book(), overhead())
    out = tmp_path / "ledger.csv"
    assert run("export", "-o", str(out)).exit_code == 0
    good = run("verify", str(out))
    assert (good.exit_code, good.stdout) == (0, "")
    assert "consistent: 6 lines recomputed, 2 whole and 0 partial" in good.stderr
    written = out.read_bytes().decode()
    cells = written.split("\r\n")[1].split(",")
    out.write_bytes(written.replace("provisional", "settled", 1).encode())
    bad = run("verify", str(out))
    assert bad.exit_code == 1
    assert bad.stdout.startswith(f"line 2: {cells[0]}: moer_status is 'settled'")
    assert json.loads(run("verify", "--json", str(out)).stdout)["is_consistent"] is False


def test_what_is_no_export_exits_with_2(database: Database, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n", encoding="utf-8")
    for name, why in (("x.csv", "missing"), ("none.csv", "No such file")):
        found = run("verify", name)
        assert found.exit_code == 2
        assert why in found.stderr


def test_an_export_to_stdout_can_be_narrowed(database: Database) -> None:
    store(database, book(batch([item(0), item(1, tenant="other", job_id="job_2")])), overhead())
    assert run("export").stdout.count("\n") == 4
    for option in (["--job", "job_2"], ["--tenant", "other"]):
        found = run("export", *option).stdout
        assert found.count("\n") == 2
        assert ",other," in found
    assert run("verify", "-", stdin=run("export", "--tenant", "other").stdout).exit_code == 0


def test_a_summary_says_what_is_estimated_provisional_and_which_clock(database: Database) -> None:
    assert "no such entries" in run("summary").stderr
    store(database, book(batch(clock=ClockKind.ACCELERATED)), overhead(clock=ClockKind.ACCELERATED))
    text = run("summary").stdout
    for part in ("accelerated: grid time did not run", "estimated", "provisional", "impact book", "inventory book"):
        assert part in text
    assert "baseline" in text
    assert "5 of items, 1 of overhead" in text
    assert json.loads(run("summary", "--json").stdout)["overhead_entries"] == 1
    assert json.loads(run("summary", "--json", "--product-line", "search").stdout)["entries"] == 5
    store(database, book())
    refused = run("summary")
    assert isinstance(refused.exception, InvalidRequest)
    assert json.loads(run("summary", "--json", "--clock", "real").stdout)["entries"] == 5


def test_settle_uses_the_installations_clock(database: Database) -> None:
    store(database, book())
    observe(database, "Z-AWAY", W0, "100")
    never_started = run("settle").exception
    assert isinstance(never_started, ConfigError)
    with database.write() as tx:
        clocks.ensure(tx, GridClock.accelerated(W0 + WINDOW, 1.0))
    assert json.loads(run("settle", "--json").stdout)["revisions"] == 5
    assert "nothing to settle" in run("settle").stderr
    assert run("export", "--all-revisions").stdout.count("\n") == 11


def test_without_a_ledger_it_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARBONQ_DATA_DIR", str(tmp_path / "nowhere"))
    monkeypatch.chdir(tmp_path)
    failed = run("summary").exception
    assert isinstance(failed, ConfigError)
    assert "nowhere" in failed.message
    assert not (tmp_path / "nowhere").exists()


def test_an_unknown_job_is_no_empty_ledger(database: Database) -> None:
    for command in ("export", "summary"):
        found = run(command, "--job", "job_none")
        assert isinstance(found.exception, NotFound)
        assert found.stdout == ""


def test_an_unknown_clock_is_a_usage_error(database: Database) -> None:
    assert run("summary", "--clock", "lunar").exit_code == 2


def test_the_database_is_checked_against_its_seals_and_a_filed_head(database: Database, tmp_path: Path) -> None:
    assert run("seal", "--head").exit_code == 1  # there is none yet
    store(database, book(), book())
    assert "10 entry revisions sealed" in run("seal").stderr
    head = run("seal", "--head").stdout.strip()
    store(database, overhead())
    good = run("verify", "--db", "--head", head)
    assert good.exit_code == 0, good.stderr
    assert "10 entry revisions under 1 seals, 1 wait for one; all as they were sealed" in good.stderr
    assert "11 lines recomputed" in good.stderr
    assert json.loads(run("verify", "--db", "--json").stdout)["is_consistent"] is True
    assert isinstance(run("proof", book().entries[0]["entry_id"]).exception, NotFound)
    with database.read() as tx:
        entry_id = tx.execute(select(entries.c.entry_id).limit(1)).scalar_one()
    out = tmp_path / "proof.json"
    assert run("proof", entry_id, "-o", str(out)).exit_code == 0
    assert verify.main(["--proof", str(out), "--head", head]) == 0
    assert verify.main(["--proof", str(out), "--head", "0" * 64]) == 1
    out.write_text("[" * 100_000)
    assert verify.main(["--proof", str(out)]) == 2
    assert verify.main(["--proof", str(tmp_path / "none.json")]) == 2
    lost = run("verify", "--db", "--head", "0" * 64)
    assert lost.exit_code == 1
    assert "no seal has this hash" in lost.stdout
    for wrong in (
        ["verify"],
        ["verify", "x.csv", "--db"],
        ["verify", "x.csv", "--head", head],
        ["verify", "--db", "--head", "x"],
    ):
        assert isinstance(run(*wrong).exception, InvalidRequest)
    with database.write() as tx:
        tx.execute(text("DROP TRIGGER entries_refuse_update"))
        tx.execute(text("UPDATE entries SET tenant = 'other' WHERE entry_id = :one"), {"one": entry_id})
    bad = run("verify", "--db")
    assert bad.exit_code == 1
    assert bad.stdout == f"entries {entry_id}#1: is not what seal 1 holds of it\n"
    named = json.loads(run("verify", "--db", "--json").stdout)["problems"]
    assert [(one["table"], one["key"]) for one in named] == [("entries", f"{entry_id}#1")]


def test_unsealed_lines_are_recomputed_too(database: Database) -> None:
    booked = book()
    rows = list(booked.entries)
    rows[1]["emission_g"] += 1
    booked = replace(booked, entries=rows)
    store(database, booked)
    bad = run("verify", "--db")
    assert bad.exit_code == 1
    assert f"entries {booked.entries[1]['entry_id']}: emission_g is 1." in bad.stdout
