"""``carbonq forecast`` on a real API and a real database."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from carbonq.cli import connect, forecast
from carbonq.errors import InvalidRequest, NotFound
from carbonq.model import Signal
from carbonq.services.refresh import refresh
from carbonq.store import forecasts, sources
from carbonq.testing import FakeGrid, RecordedSignal
from tests.api.harness import Harness

HOUR = timedelta(hours=1)


def run(*words: str, text: str | None = None) -> Result:
    return CliRunner().invoke(forecast.app, list(words), input=text)


def shown(*words: str) -> Any:
    found = run(*words, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


@pytest.fixture
def api(harness: Harness, url: str, monkeypatch: pytest.MonkeyPatch) -> Harness:
    monkeypatch.setenv("CARBONQ_API_URL", url)
    monkeypatch.setenv("CARBONQ_API_KEY", harness.acme)
    start = harness.clock.now() - 3 * HOUR
    recorded = RecordedSignal("ZONE_FR", start, [100 + i for i in range(300)])
    refresh(harness.db, {("ZONE_FR", Signal.MOER): (FakeGrid([recorded], name="first"),)}, harness.clock)
    return harness


def test_show_sets_the_forecast_beside_the_outlook(api: Harness) -> None:
    (found,) = shown("show", "ZONE_FR", "--horizon", "2h")
    assert (found["forecast"]["source"], found["outlook"]["source"]) == ("first", "first")
    assert len(found["outlook"]["values"]) == 24
    lines = run("show", "ZONE_FR", "--horizon", "2h").stdout.splitlines()
    head = dict(line.split(maxsplit=1) for line in lines[:5])
    assert head["zone"] == "ZONE_FR" and head["signal"] == "marginal (moer), gCO2e/kWh" and head["source"] == "first"
    assert head["outlook"].startswith("▁") and head["outlook"].endswith("█")
    assert lines[5].split() == ["time", "(UTC)", "forecast", "outlook", "spread", "basis"]
    assert len(lines) == 6 + 24
    day = run("show", "ZONE_FR").stdout.splitlines()
    assert len(day) == 6 + 48  # half-hours


def test_show_without_a_zone_has_a_line_for_each(api: Harness) -> None:
    lines = run("show").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["zone", "ZONE_FR", "ZONE_SE"]
    assert "first" in lines[1] and "·" in lines[2]
    averages = shown("show", "--signal", "average")
    assert {one["outlook"]["signal"] for one in averages} == {"aer"}
    assert {one["outlook"]["is_down"] for one in averages} == {True}


@pytest.mark.parametrize("horizon", ["6", "8d", "h", "-1h", "0h"])
def test_a_horizon_is_a_span(api: Harness, horizon: str) -> None:
    refused = run("show", f"--horizon={horizon}").exception
    assert isinstance(refused, InvalidRequest) and "write it as 90m, 6h or 2d" in refused.message


def test_a_zone_that_is_unknown(api: Harness) -> None:
    refused = run("show", "MARS").exception
    assert isinstance(refused, NotFound) and "ZONE_FR" in refused.message


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation of one zone whose rates are a CSV file, with a fallback that is not there."""
    from carbonq import config, wiring

    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    rows = [f"{now + (i - 24) * HOUR:%Y-%m-%dT%H:%MZ},{200 + i}" for i in range(48)]
    (tmp_path / "rates.csv").write_text("time_utc,g_per_kwh\n" + "\n".join(rows) + "\n")
    (tmp_path / "carbonq.toml").write_text(
        'data_dir = "data"\n[regions.r]\nzone = "Z"\n[[zones.Z.marginal]]\nsource = "csv"\npath = "rates.csv"\n'
        '[[zones.Z.marginal]]\nsource = "csv"\npath = "absent.csv"\n'
    )
    monkeypatch.chdir(tmp_path)
    runtime, _ = wiring.prepare(config.load())
    runtime.close()
    return tmp_path


def test_fetch_asks_now_and_says_what_came_or_why_not(installed: Path) -> None:
    (row,) = shown("fetch")
    assert (row["zone"], row["signal"], row["source"], row["result"]) == ("Z", "moer", "csv:rates.csv", "fresh")
    assert (row["forecasts"], row["observations"] > 20, row["error"]) == (1, True, None)
    assert shown("fetch", "Z")[0]["observations"] == 0  # at once again: asked, nothing new
    (installed / "rates.csv").unlink()
    failed = run("fetch", "--json")
    assert failed.exit_code == 1
    first, second = json.loads(failed.stdout)
    assert (first["result"], second["source"]) == ("failed", "csv:absent.csv")
    assert "No such file" in first["error"] and "No such file" in second["error"]
    unknown = run("fetch", "Y").exception
    assert isinstance(unknown, NotFound) and "known zones: Z" in unknown.message
    with connect.open_database() as (_, database), database.read() as tx:
        assert [one.failures for one in sources.states(tx)] == [1, 1]


def test_import_takes_files_packed_files_and_a_pipe(installed: Path) -> None:
    text = "time_utc,value\n2021-04-30T12:00Z,812.4\n2021-04-30T12:05Z,\n"
    (installed / "old.csv").write_text(text)
    with gzip.open(installed / "old.csv.gz", "wt") as file:
        file.write(text)
    words = ["--zone", "Z", "--signal", "average", "--source", "archive", "--unit", "lbs_co2_per_mwh"]
    expected = {"lines": 2, "missing": 1, "observations": 1, "forecasts": 0, "zone": "Z", "source": "archive"}
    assert shown("import", "old.csv", *words) == expected
    for again in (run("import", "old.csv.gz", *words, "--json"), run("import", "-", *words, "--json", text=text)):
        assert json.loads(again.stdout) == expected | {"observations": 0}
    with connect.open_database() as (_, database), database.read() as tx:
        at = datetime(2021, 4, 30, 12, tzinfo=UTC)
        (found,) = forecasts.observed(tx, "Z", Signal.AER, at, at + HOUR)
        assert forecasts.observed(tx, "Z", Signal.MOER, at, at + HOUR) == []
    assert (str(found.g_per_kwh), found.source, found.may_settle) == ("368.498441388", "archive", True)
    elsewhere = run("import", "old.csv", *["Y" if word == "Z" else word for word in words])
    assert "no zone 'Y' is configured" in elsewhere.stderr and "known zones: Z" in elsewhere.stderr
    assert "configured" not in run("import", "old.csv", *words).stderr


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("absent.csv", None, "cannot read absent.csv: "),
        ("bad.csv", b"time_utc,value\n2021-04-30T12:00Z,x\n", "x is no number"),
        ("bad.csv", b"\xff\xfe\x00", "no UTF-8"),
        ("bad.csv.gz", b"no gzip", "cannot read bad.csv.gz"),
    ],
)
def test_what_cannot_be_imported_is_one_sentence(installed: Path, file: str, content: bytes | None, words: str) -> None:
    if content is not None:
        (installed / file).write_bytes(content)
    options = ["--zone", "Z", "--signal", "marginal", "--source", "s", "--unit", "g/kWh"]
    refused = run("import", file, *options).exception
    assert isinstance(refused, InvalidRequest) and words in refused.message
    assert run("import", file, *options, "--gas", "ch4").exit_code == 2
