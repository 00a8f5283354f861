"""An installation that was made by an older version is upgraded with all its rows, on both databases."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
import sqlalchemy as sa

from carbonq import export, verify
from carbonq.model import ChunkState, ItemState, JobState, RegionState, Signal
from carbonq.services.settle import settle
from carbonq.store import (
    batches,
    chunks,
    clocks,
    events,
    exports,
    files,
    forecasts,
    items,
    jobs,
    keys,
    leases,
    placements,
    regions,
    results,
    schema,
    tables,
    throughputs,
)
from carbonq.store.database import Database
from carbonq.store.exports import Selection
from tests.databases import connected, postgres_database
from tests.store.older import BOOKED, HOUR, KEY, ROWS, T0, WINDOW, fill, upgrade
from tests.unit.bookings import W0

OLDER = schema._revisions()[:-1]


@pytest.fixture
def empty(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.dispose()


class History:
    """A database that goes from each version to the next one with its rows, and is copied on its way.

    Each test from the start again would make a hundred migrations of sixteen.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._passed = 0

    def copied_at(self, revision: str, url: str) -> Database:
        """Bring it to a version, the rows of all before in it, and copy it into ``url``, where nothing is yet."""
        wanted = OLDER.index(revision) + 1
        assert self._passed <= wanted, "tests run in the order of the versions"
        database = Database(self._url)
        for one in OLDER[self._passed : wanted]:
            upgrade(database, one)
            with database.write() as tx:
                fill(tx, one)
        self._passed = wanted
        assert schema.current(database) == revision
        database.dispose()
        if url.startswith("sqlite"):
            shutil.copy(self._url.removeprefix("sqlite:///"), url.removeprefix("sqlite:///"))
        else:
            source, target = sa.make_url(self._url).database, sa.make_url(url).database
            with connected(sa.make_url(url).set(database="postgres").render_as_string(hide_password=False)) as server:
                server.execute(sa.text(f'DROP DATABASE "{target}" WITH (FORCE)'))
                server.execute(sa.text(f'CREATE DATABASE "{target}" TEMPLATE "{source}"'))
        return Database(url)


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, History]:
    return {"sqlite": History(f"sqlite:///{tmp_path_factory.mktemp('history') / 'carbonq.db'}")}


@pytest.fixture(params=["sqlite", "postgresql"])
def at_version(
    request: pytest.FixtureRequest, histories: dict[str, History], tmp_path: Path
) -> Iterator[Callable[[str], Database]]:
    """Open a copy of the installation as it was at a version."""
    opened: list[Database] = []
    with ExitStack() as stack:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path / 'carbonq.db'}"
        else:
            server = str(request.getfixturevalue("postgres_url"))
            url = stack.enter_context(postgres_database(server))
            if "postgresql" not in histories:
                histories["postgresql"] = History(request.getfixturevalue("postgres_history"))

        def at(revision: str) -> Database:
            opened.append(histories[request.param].copied_at(revision, url))
            return opened[0]

        yield at
        opened[0].dispose()


@pytest.fixture(scope="module")
def postgres_history(postgres_url: str) -> Iterator[str]:
    with postgres_database(postgres_url) as url:
        yield url


@pytest.mark.parametrize("start", OLDER)
def test_every_older_installation_is_upgraded_with_its_rows(at_version: Callable[[str], Database], start: str) -> None:
    database = at_version(start)
    assert schema.upgrade(database) == schema.head()
    schema.check_usable(database)
    with database.read() as tx:
        read_work(tx)
        read_planning(tx)
        if start >= "0015":
            read_batches(tx)
    read_ledger(database)


def read_batches(tx: sa.Connection) -> None:
    batch = batches.get(tx, "batch_1", "acme")
    assert (batch.state, batch.metadata, batch.expires_at) == ("in_progress", {"team": "search"}, T0 + 6 * HOUR)
    assert batches.find_repeated(tx, "acme", "once") == (batch, "f")
    file = files.get(tx, "file-1", "acme", T0)
    assert (file.lines, file.carbon) == (2, {"deadline": "6h"})


def read_work(tx: sa.Connection) -> None:
    job = jobs.get(tx, "job_1", "acme")
    assert (job.state, job.items_succeeded, job.max_carbon_g) == (JobState.RUNNING, 1, Decimal("12.50"))
    assert (job.regions, job.metadata, job.deadline_at) == (("away",), {"team": "é"}, T0 + 6 * HOUR)
    repeated = jobs.find_repeated(tx, "acme", "once")
    assert repeated is not None
    assert (repeated[0].job_id, repeated[1]) == ("job_1", "f")
    assert items.counts(tx, "job_1") == {ItemState.SUCCEEDED: 1, ItemState.WAITING: 1}
    assert [item.custom_id for item in items.of_chunk(tx, "chunk_1")] == ["doc-1"]
    (chunk,) = chunks.of_job(tx, "job_1")
    assert (chunk.state, chunk.token, chunk.est_energy_uj) == (ChunkState.RUNNING, 4, 360)
    assert leases.reported(tx, "chunk_1", 4) == {"burnt": []}
    assert [segment.blob for segment in results.segments_of(tx, "job_1", "output")] == ["segments/a"]
    assert [event.data for event in events.after(tx, "acme", "job_1")] == [{"succeeded": 1}]


def read_planning(tx: sa.Connection) -> None:
    clock = clocks.get(tx)
    assert clock is not None
    assert (clock.factor, clock.grid_epoch) == (1.0, T0)
    away, home = regions.load_all(tx, worker_alive_s=1)
    assert (away.name, home.zone, away.state, away.models) == ("away", "Z-HOME", RegionState.PAUSED, ("words",))
    assert (away.pue, away.embodied_kg) == (Decimal("1.20"), Decimal("1300.5"))
    assert [worker.pid for worker in regions.live_workers(tx, worker_alive_s=10**9)] == [7]
    (learned,) = throughputs.get_all(tx).values()
    assert (learned.tokens_per_s, learned.uj_per_token, learned.samples) == (1000.5, 12, 3)
    key = keys.find_by_hash(tx, keys.hash_key(KEY))
    assert key is not None
    assert (key.tenant, key.scopes) == ("acme", keys.USUAL_SCOPES)  # from before there were scopes: all but admin
    assert placements.last_inputs(tx) == "window 1"
    assert placements.caps(tx) == {}  # its only chunk runs
    issued = forecasts.newest_forecast(tx, "Z-AWAY", Signal.MOER, T0)
    assert issued is not None
    assert [str(value) for value in issued.values] == ["250.50", "None", "0"]
    assert issued.raw_per_g_per_kwh == Decimal("2.2046")
    (seen,) = forecasts.observed(tx, "Z-AWAY", Signal.MOER, T0, T0 + WINDOW)
    assert seen.g_per_kwh == Decimal("251.5")


def read_ledger(database: Database) -> None:
    """The old entries pass the checker as they are, and again when the old observation has settled them."""
    for again in (False, True):
        if again:
            assert settle(database, W0 + timedelta(hours=1), settle_after_s=0) == len(BOOKED.entries)
        pages = exports.csv_pages(database, Selection(all_revisions=True))
        report = verify.check(io.StringIO(b"".join(export.write_csv(pages)).decode(), newline=""))
        assert report.problems == []
        assert report.lines == len(BOOKED.entries) * (1 + again)


def test_rows_are_kept_for_every_table_there_ever_was(empty: Database) -> None:
    """A migration that adds tables adds rows for them above, or says here why it needs none."""
    later = {
        "schema_floor",
        "source_states",
        "outlook_skills",
        "seals",
        "seal_parts",
        "unsealed",
    }  # written by the migration; filled anew by the next tick
    schema.upgrade(empty)
    with empty.read() as tx:
        there = set(sa.inspect(tx).get_table_names()) - {"alembic_version"}
    assert there == set(tables.metadata.tables)
    ledger = {"facts", "rates", "engine_batches", "entries", "unsettled"}
    assert there - later - ledger == {table for rows in ROWS.values() for table in rows}
