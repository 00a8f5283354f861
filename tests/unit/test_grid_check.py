"""What `carbonq doctor` says of grid sources, and which files keep a stack from starting."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from carbonq import config
from carbonq.clock import GridClock
from carbonq.config import Settings
from carbonq.embedded import checkup, grid_check
from carbonq.embedded.finding import State
from carbonq.errors import ConfigError
from carbonq.model import Signal
from carbonq.services.refresh import refresh
from carbonq.store import clocks, sources
from carbonq.store.database import Database
from carbonq.testing import FakeGrid, RecordedSignal

HOUR = timedelta(hours=1)


def csv_file(folder: Path, values: Sequence[object], *, name: str = "rates.csv") -> dict[str, str]:
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - 24 * HOUR
    rows = [f"{(start + i * HOUR):%Y-%m-%dT%H:%MZ},{value}" for i, value in enumerate(values)]
    (folder / name).write_text("time_utc,g_per_kwh\n" + "\n".join(rows) + "\n")
    return {"source": "csv", "path": str(folder / name)}


def annual_file(folder: Path, *rows: str) -> dict[str, str]:
    (folder / "factors.csv").write_text("zone,year,value,unit,reference\n" + "\n".join(rows) + "\n")
    return {"source": "annual", "path": str(folder / "factors.csv")}


def settings(folder: Path, **zones: dict[str, Any]) -> Settings:
    regions = {f"r{zone.lower()}": {"zone": zone} for zone in zones}
    return config.load(data_dir=folder / "data", zones=zones, regions=regions)


def said(given: Settings, state: State | None = None) -> list[str]:
    return [one.finding for one in grid_check.check_grid(given) if state in {None, one.state}]


def test_a_file_that_is_missing_or_wrong_keeps_the_stack_from_starting(tmp_path: Path) -> None:
    absent = {"source": "csv", "path": str(tmp_path / "absent.csv")}
    with pytest.raises(ConfigError, match=r"zones\.A\.average: cannot read .*absent\.csv: .*No such file"):
        checkup.check_before_start(settings(tmp_path, A={"average": absent}))
    good = csv_file(tmp_path, range(200, 260))
    checkup.check_before_start(settings(tmp_path, A={"marginal": good}))
    bad = csv_file(tmp_path, [200, "high", 300], name="bad.csv")
    with pytest.raises(ConfigError, match=r"zones\.A\.marginal: bad\.csv, line 3: high is no number"):
        checkup.check_before_start(settings(tmp_path, A={"marginal": [good, bad]}))
    late = annual_file(tmp_path, "A,2999,500,g/kWh,ministry")
    with pytest.raises(ConfigError, match=r"no factor of A up to 20\d\d \(its years: 2999\)"):
        checkup.check_before_start(settings(tmp_path, A={"average": late}))


def test_a_whole_series_within_0_and_100_is_a_warning(tmp_path: Path) -> None:
    index = csv_file(tmp_path, [10 + i for i in range(60)])
    warnings = said(settings(tmp_path, A={"marginal": index}), State.WARN)
    assert any("A marginal: csv:rates.csv" in one and "lie within 0 and 100" in one for one in warnings)
    assert sum("lie within" in one for one in warnings) == 1
    real = csv_file(tmp_path, [90 + i for i in range(60)])
    assert not any("lie within" in one for one in said(settings(tmp_path, A={"marginal": real})))


def test_stored_rates_of_a_week_are_looked_at_too(tmp_path: Path) -> None:
    """A live source's forecast of today may look fine."""
    given = settings(tmp_path, A={"marginal": csv_file(tmp_path, [90 + i for i in range(60)])})
    database = installed(given)
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    source = FakeGrid([RecordedSignal("A", now - 12 * HOUR, [20 + i % 50 for i in range(144)])], name="csv:rates.csv")
    refresh(database, {("A", Signal.MOER): (source,)}, GridClock.real())
    database.dispose()
    assert any("all 144 values lie within 0 and 100" in one for one in said(given, State.WARN))


def installed(given: Settings) -> Database:
    from carbonq import wiring

    runtime, _ = wiring.prepare(given)
    runtime.close()
    return Database(given.resolved_database_url)


def test_one_kind_of_signal_is_said(tmp_path: Path) -> None:
    rates = csv_file(tmp_path, range(200, 260))
    only_marginal = said(settings(tmp_path, A={"marginal": rates}), State.WARN)
    assert only_marginal == ["no average source for any zone: its inventory book stays empty"]
    (only_average,) = said(settings(tmp_path, A={"average": rates}), State.WARN)
    assert "plans are made by average rates, and the impact book stays empty" in only_average
    mixed = said(settings(tmp_path, A={"marginal": rates, "average": rates}, B={"average": rates}), State.WARN)
    assert mixed == [
        "no marginal source for B: to the planner nothing is known of its rates, because average ones are never "
        "ranked against marginal ones"
    ]
    assert said(settings(tmp_path, A={"marginal": rates, "average": rates}), State.WARN) == []
    assert said(settings(tmp_path, A={}), State.FAIL) == ["zone A has no source; set [zones.A.marginal]"]


def test_annual_factors_alone_are_said_to_move_no_work(tmp_path: Path) -> None:
    factors = annual_file(tmp_path, "A,2023,0.5554,kg/kWh,MEE 2025-47", "A,2022,0.6,kg/kWh,older")
    warnings = said(settings(tmp_path, A={"average": factors}), State.WARN)
    assert "A has annual factors only: no work is moved in time there" in warnings
    assert any("0.5554 kg/kWh of 2023 (MEE 2025-47): no work is moved in time" in one for one in warnings)
    beside = said(settings(tmp_path, A={"average": [csv_file(tmp_path, range(200, 260)), factors]}), State.WARN)
    assert "A has annual factors only: no work is moved in time there" not in beside


def test_a_source_that_fails_beside_one_that_works_is_a_warning(tmp_path: Path) -> None:
    absent = {"source": "csv", "path": str(tmp_path / "absent.csv")}
    good = csv_file(tmp_path, range(200, 260))
    given = settings(tmp_path, A={"marginal": [absent, good], "average": good})
    assert said(given, State.FAIL) == []
    (warning,) = said(given, State.WARN)
    assert warning.startswith("A marginal: csv:absent.csv (preferred): cannot read")
    alone = settings(tmp_path, A={"marginal": absent, "average": good})
    assert len(said(alone, State.FAIL)) == 1


def test_what_the_installation_last_heard_is_said(tmp_path: Path) -> None:
    rates = csv_file(tmp_path, range(200, 260))
    given = settings(tmp_path, A={"marginal": rates, "average": rates})
    database = installed(given)
    with database.read() as tx:
        clock = clocks.get(tx)
    assert clock is not None
    source = FakeGrid([], name="csv:rates.csv")
    refresh(database, {("A", Signal.MOER): (source,)}, clock)
    warnings = said(given, State.WARN)
    assert any("left 1 in a row unanswered (answered never): csv:rates.csv has nothing" in one for one in warnings)
    assert any(one.startswith("A marginal is stale: nothing was ever told") for one in warnings)
    with database.write() as tx:
        sources.take(tx, "A", Signal.MOER, "csv:rates.csv", now=clock.now() - HOUR, every_s=0)
    with database.read() as tx:
        asked_at = sources.states(tx)[0].asked_at
    assert asked_at is not None and asked_at < clock.now() - HOUR / 2
    assert not any("stale" in one for one in said(given))
    database.dispose()
