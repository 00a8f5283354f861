"""``carbonq report`` on a database of its own, and against a real API."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from carbonq.cli import connect, main
from carbonq.cli import report as command
from carbonq.clock import ClockKind
from carbonq.errors import ConfigError, InvalidRequest
from carbonq.render import fonts
from carbonq.render.formats import Format
from carbonq.store.database import Database
from carbonq.testing import FakeClock
from tests.api.harness import Harness
from tests.api.test_ledger import book as book_for
from tests.services.booked import configure, store
from tests.unit.bookings import W0, batch, book, overhead

pytestmark = pytest.mark.timeout(120)

#: The month of the entries.
MONTH = f"{W0:%Y-%m}"

STATEMENT = f"""month,region,kwh,pue,location_based_gco2e
{MONTH},eu-home,0.02,1.1,5
"""


@pytest.fixture
def here(sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A database in the data folder of this installation, some days after its entries."""
    monkeypatch.setenv("CARBONQ_DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    configure(sqlite_database)
    monkeypatch.setattr(connect, "clock_of", lambda _database: FakeClock(start=W0))
    return sqlite_database


@pytest.fixture
def elsewhere(harness: Harness, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Harness:
    """An API, and no database here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CARBONQ_API_URL", url)
    monkeypatch.setenv("CARBONQ_API_KEY", harness.acme)
    return harness


def run(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main.app, ["report", *words], input=stdin)


def rows(text: str) -> Sequence[Sequence[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def test_a_report_to_a_file_in_the_format_of_its_name(here: Database, tmp_path: Path) -> None:
    store(here, book(), overhead())
    for name, begins in (("r.html", b"<!doctype html>"), ("r.pdf", b"%PDF-"), ("r.json", b"{"), ("r.csv", b"section,")):
        done = run("--month", MONTH, "-o", name)
        assert (done.exit_code, done.stdout, done.stderr) == (0, "", f"wrote {name}\n"), done.stderr
        assert (tmp_path / name).read_bytes().startswith(begins)
    assert run("--month", MONTH, "-o", "r.dat", "--format", "csv").exit_code == 0
    assert (tmp_path / "r.dat").read_bytes().startswith(b"section,")
    assert isinstance(run("--month", MONTH, "-o", "r.xlsx").exception, InvalidRequest)
    assert isinstance(run("--month", MONTH, "-o", "no/r.html").exception, InvalidRequest)
    assert isinstance(run("--month", MONTH, "-o", "r.html", "--format", "pdf", "--json").exception, InvalidRequest)


def test_data_goes_to_stdout_and_the_running_month_is_the_default(here: Database) -> None:
    store(here, book(), overhead())
    made = json.loads(run("--json").stdout)
    assert (made["head"]["month"], made["head"]["tenant"]) == (MONTH, None)
    assert made["totals"]["entries"] == len(book().entries)
    assert run("--month", "running").stdout.startswith("<!doctype html>")
    section = rows(run("--format", "csv", "--section", "totals.energy").stdout)
    assert "energy_uj" in section[0] and len(section) > 2
    assert isinstance(run("--format", "html", "--section", "days").exception, InvalidRequest)


def test_a_tenants_report_has_its_own_figures(here: Database) -> None:
    store(here, book(), overhead())
    (tenant,) = {entry["tenant"] for entry in book().entries}
    of_all, own = json.loads(run("--json").stdout), json.loads(run("--json", "--tenant", tenant).stdout)
    assert (of_all["totals"]["overhead_entries"] > 0, own["totals"]["overhead_entries"]) == (True, 0)
    assert json.loads(run("--json", "--tenant", "nobody").stdout)["totals"]["entries"] == 0
    assert "has no entry of tenant nobody" in run("--tenant", "nobody").stdout


def test_what_cannot_be_reported_is_told(here: Database) -> None:
    for words, said in (
        (["--month", "2026-13"], "2026-13"),
        (["--month", "2999-01"], "has not begun"),
        (["--as-of", "yesterday"], "--as-of"),
    ):
        error = run(*words).exception
        assert isinstance(error, InvalidRequest) and said in error.message, words
    assert "The ledger has no entry" in run().stdout


def test_entries_of_two_clocks_are_not_added_up(here: Database) -> None:
    store(here, book(), book(replace(batch(), engine_batch_id="eb_2", clock=ClockKind.SIMULATED)))
    error = run().exception
    assert isinstance(error, InvalidRequest) and error.param == "clock" and "simulated" in error.message
    one = json.loads(run("--json", "--clock", "simulated").stdout)
    assert one["head"]["clock"] == "simulated" and one["totals"]["entries"] == len(book().entries)


def test_a_terminal_gets_no_page_and_no_pdf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for fmt in (Format.PDF, Format.HTML):
        for output in (None, "-"):
            with pytest.raises(InvalidRequest, match=f"-o report.{fmt}"):
                command._target(output, fmt)
    assert command._target(None, Format.JSON) == command._target("-", Format.CSV) == "-"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert command._target(None, Format.PDF) == "-"


def test_a_pdf_without_its_packages(here: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fonts, "find_spec", lambda _name: None)
    error = run("-o", "r.pdf").exception
    assert isinstance(error, ConfigError) and "carbonq[report]" in error.message
    assert list(tmp_path.glob("r.pdf*")) == []
    assert run("-o", "r.html").exit_code == 0


def test_a_providers_statement_stands_beside_the_inventory_book(here: Database, tmp_path: Path) -> None:
    store(here, book())
    region = json.loads(run("--json").stdout)["regions"][0]["region"]
    (tmp_path / "s.csv").write_text(STATEMENT, encoding="utf-8")
    mapped = ["--provider-statement", "s.csv", "--provider-region", f"eu-home={region}"]
    found = json.loads(run("--json", *mapped).stdout)["statement"]
    assert found["rows"][0]["region"] == region and found["rows"][0]["stated_as"] == ["eu-home"]
    assert float(found["rows"][0]["stated_g"]) == 5
    page = run(*mapped).stdout
    assert "Beside the statement of" in page and "eu-home" in page
    piped = run("--json", "--provider-statement", "-", "--provider-region", f"eu-home={region}", stdin=STATEMENT)
    assert json.loads(piped.stdout)["statement"] == found
    renamed = STATEMENT.replace("location_based_gco2e", "Emissions")
    (tmp_path / "s.csv").write_text(renamed, encoding="utf-8")
    assert isinstance(run("--json", *mapped).exception, InvalidRequest)
    assert json.loads(run("--json", *mapped, "--provider-column", "location_g=Emissions").stdout)["statement"] == found


def test_a_statement_that_cannot_be_read(here: Database, tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("month,region,kwh\nmärz".encode("latin-1"))
    (tmp_path / "s.csv").write_text(STATEMENT, encoding="utf-8")
    for words, said in (
        (["--provider-statement", "none.csv"], "No such file"),
        (["--provider-statement", "latin.csv"], "UTF-8"),
        (["--provider-statement", "s.csv", "--tenant", "acme"], "all that ran"),
        (["--provider-statement", "s.csv", "--provider-region", "nothing"], "maps no region"),
        (["--provider-statement", "s.csv", "--provider-column", "colour=blue"], "names no column"),
    ):
        error = run(*words).exception
        assert isinstance(error, InvalidRequest) and said in error.message, (words, error)


@pytest.mark.parametrize("fmt", list(Format))
def test_the_apis_report_is_that_of_the_keys_tenant(elsewhere: Harness, tmp_path: Path, fmt: Format) -> None:
    book_for(elsewhere, "eb_1", tenant="acme")
    book_for(elsewhere, "eb_9", tenant="rival", items=5)
    assert run("-o", f"r.{fmt}").exit_code == 0
    made = (tmp_path / f"r.{fmt}").read_bytes()
    assert b"rival" not in made
    if fmt is Format.JSON:
        assert (json.loads(made)["head"]["tenant"], json.loads(made)["totals"]["entries"]) == ("acme", 3)
    else:
        assert made.startswith({"csv": b"section,", "html": b"<!doctype", "pdf": b"%PDF-"}[fmt.value])


def test_what_goes_with_a_database_is_refused_elsewhere(elsewhere: Harness, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(STATEMENT, encoding="utf-8")
    for words in (["--tenant", "rival"], ["--provider-statement", "s.csv"]):
        refused = run(*words)
        assert refused.exit_code == 2 and "goes with a database" in refused.stderr
    assert isinstance(run("--month", "2026-13").exception, InvalidRequest)
    assert isinstance(run("--as-of", "2999-01-01T00:00Z").exception, InvalidRequest)
