from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from carbonq.errors import BrokerUnavailable
from carbonq.model import Maintenance, Region, RegionState
from carbonq.services.dispatch import dispatch
from carbonq.store import deaf
from carbonq.store import regions as region_rows
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from carbonq.store.tables import placements, workers
from carbonq.units import WINDOW
from tests.services.planning import (
    NORTH,
    SOUTH,
    START,
    Broker,
    SetClock,
    add_chunks,
    change,
    chunk,
    open_regions,
    place,
    run,
)

LATER = START + timedelta(hours=5)


def send(db: Database, broker: Broker, clock: SetClock | None = None, redispatch_after_s: float = 10) -> int:
    return dispatch(db, broker, clock or SetClock(), redispatch_after_s=redispatch_after_s, worker_alive_s=15)


def test_chunks_whose_window_has_come_get_a_ticket_each_up_to_the_free_slots(database: Database) -> None:
    open_regions(database, replace(NORTH, slots=2), SOUTH)
    broker = Broker()
    now, also, full, later, south = add_chunks(database, 5)
    (running,) = add_chunks(database, 1, prefix="r")
    run(database, running, "socal")
    place(database, now, "norcal", START, latest_start_at=LATER)
    place(database, also, "norcal", START - WINDOW, latest_start_at=LATER - WINDOW)
    place(database, full, "norcal", START, latest_start_at=LATER + WINDOW)
    place(database, later, "norcal", START + WINDOW, latest_start_at=LATER)
    place(database, south, "socal", START, latest_start_at=LATER)
    assert send(database, broker) == 2
    assert broker.sent == [("norcal", also), ("norcal", now)]
    row = chunk(database, now)
    assert broker.shown[now] == f"region=norcal, model={row.model}, items={row.items_count}"
    assert chunk(database, now).dispatched_at is not None
    assert chunk(database, now).placement_id == "plc_x"
    assert [chunk(database, one).dispatched_at for one in (full, later, south)] == [None] * 3
    assert send(database, broker) == 0


def test_a_dead_planner_means_by_the_deadline_not_never(database: Database) -> None:
    open_regions(database, NORTH, SOUTH)
    broker = Broker()
    (waiting,) = add_chunks(database, 1, prefix="w")
    (placed,) = add_chunks(database, 1, prefix="p")
    change(database, waiting, latest_start_at=START)
    place(database, placed, "socal", START + 9 * WINDOW, latest_start_at=START)
    assert send(database, broker) == 2
    assert sorted(broker.sent) == [("norcal", waiting), ("socal", placed)]
    row = chunk(database, waiting)
    assert (row.state, row.region, row.window_at) == ("placed", "norcal", START)
    with database.read() as tx:
        made = tx.execute(select(placements)).one()
    assert (made.chunk_id, made.reason, made.plan_id, made.g_per_kwh) == (waiting, "deadline", "dispatcher", None)
    assert made.placement_id == row.placement_id


def test_without_a_latest_start_the_deadline_counts(sqlite_database: Database) -> None:
    open_regions(sqlite_database, NORTH)
    broker = Broker()
    add_chunks(sqlite_database, 1, hours=-1)
    assert send(sqlite_database, broker) == 1


def test_an_urgent_chunk_goes_where_there_is_room(sqlite_database: Database) -> None:
    open_regions(sqlite_database, NORTH, SOUTH)
    broker = Broker()
    running, urgent, bound, other = add_chunks(sqlite_database, 4)
    run(sqlite_database, running, "norcal")
    place(sqlite_database, urgent, "norcal", START, latest_start_at=START)
    place(sqlite_database, bound, "norcal", START, latest_start_at=START - WINDOW)
    change(sqlite_database, bound, regions=["norcal"])
    place(sqlite_database, other, "socal", START, latest_start_at=LATER)
    assert send(sqlite_database, broker) == 1
    assert broker.sent == [("socal", urgent)]


def test_a_region_without_a_live_worker_or_on_pause_gets_nothing(sqlite_database: Database) -> None:
    open_regions(sqlite_database, NORTH, SOUTH, without_worker=("socal",))
    with sqlite_database.write() as tx:
        region_rows.set_state(tx, "norcal", RegionState.PAUSED)
    broker = Broker()
    a, b, c = add_chunks(sqlite_database, 3)
    place(sqlite_database, a, "norcal", START, latest_start_at=LATER)
    place(sqlite_database, b, "socal", START, latest_start_at=LATER)
    place(sqlite_database, c, "socal", START, latest_start_at=START)
    assert send(sqlite_database, broker) == 0
    with sqlite_database.write() as tx:
        region_rows.set_state(tx, "norcal", RegionState.ACTIVE)
    assert send(sqlite_database, broker) == 1
    assert broker.sent == [("norcal", c)]


def test_a_backoff_is_respected(sqlite_database: Database) -> None:
    open_regions(sqlite_database, NORTH)
    broker = Broker()
    (name,) = add_chunks(sqlite_database, 1)
    with sqlite_database.read() as tx:
        machine = machine_now(tx)
    place(sqlite_database, name, "norcal", START, latest_start_at=START, not_before=machine + timedelta(hours=1))
    assert send(sqlite_database, broker) == 0
    change(sqlite_database, name, not_before=machine)
    assert send(sqlite_database, broker) == 1


def test_unclaimed_tickets_go_out_again_and_those_of_a_lost_region_go_back(database: Database) -> None:
    open_regions(database, NORTH, SOUTH, without_worker=("socal",))
    broker = Broker()
    again, lost, fresh = add_chunks(database, 3)
    with database.read() as tx:
        machine = machine_now(tx)
    old = machine - timedelta(seconds=60)
    place(database, again, "norcal", START, latest_start_at=LATER, dispatched_at=old)
    place(database, lost, "socal", START, latest_start_at=LATER, dispatched_at=old)
    place(database, fresh, "socal", START, latest_start_at=LATER, dispatched_at=machine + timedelta(seconds=60))
    assert send(database, broker) == 1
    assert broker.sent == [("norcal", again)]
    assert chunk(database, again).dispatched_at > old + timedelta(seconds=30)
    row = chunk(database, lost)
    assert (row.state, row.region, row.window_at, row.dispatched_at) == ("waiting", None, None, None)
    assert chunk(database, fresh).state == "placed"


def test_without_a_broker_nothing_counts_as_sent(database: Database) -> None:
    open_regions(database, NORTH)
    broker = Broker(is_away=True)
    (name,) = add_chunks(database, 1)
    place(database, name, "norcal", START, latest_start_at=LATER)
    with pytest.raises(BrokerUnavailable):
        send(database, broker)
    assert chunk(database, name).dispatched_at is None
    broker.is_away = False
    assert send(database, broker) == 1


def test_nothing_starts_that_a_maintenance_would_cut_off(database: Database) -> None:
    def closed(after_s: float, slots: int) -> Maintenance:
        begin = START + timedelta(seconds=after_s)
        return Maintenance(begin, begin + timedelta(hours=1), slots)

    broker = Broker()
    open_regions(database, replace(NORTH, slots=2, maintenance=(closed(100, 1),)), SOUTH)
    first, second, short = add_chunks(database, 3)
    change(database, short, est_duration_s=60.0)
    for name in (first, second, short):
        place(database, name, "norcal", START, latest_start_at=LATER)
    # 170 s of work reach into the maintenance, which leaves one slot; the short one ends before.
    assert send(database, broker) == 2
    assert broker.sent == [("norcal", first), ("norcal", short)]
    with database.write() as tx:
        region_rows.sync(tx, [replace(NORTH, slots=9, maintenance=(closed(-10, 0),)), SOUTH])
    change(database, second, latest_start_at=START)
    # One that must start goes where there is no maintenance.
    assert send(database, broker) == 1
    assert broker.sent[-1] == ("socal", second)
    # And where there is none, it waits: it would be cut off.
    (last,) = add_chunks(database, 1, prefix="l", regions=("norcal",), latest_start_at=START)
    with database.write() as tx:
        region_rows.sync(tx, [replace(NORTH, slots=9, maintenance=(closed(100, 0),)), SOUTH])
    assert send(database, broker) == 0
    change(database, last, est_duration_s=90.0)
    assert send(database, broker) == 1


def unheard(db: Database, name: str, region: str, *, sends: int = deaf.SENDS, **values: object) -> None:
    """A ticket that went out often, a while ago, to a region whose worker lives and took nothing since."""
    with db.write() as tx:
        then = machine_now(tx) - timedelta(seconds=deaf.DEAF_AFTER_S + 10)
        tx.execute(update(workers).where(workers.c.region == region).values(started_at=then, last_claimed_at=None))
    place(db, name, region, START, dispatched_at=then, ticket_at=then, tickets_sent=sends, **values)


def test_what_nobody_takes_goes_elsewhere_when_its_deadline_presses(database: Database) -> None:
    open_regions(database, replace(NORTH, slots=4), SOUTH)
    broker = Broker()
    pressing, patient, bound, second = add_chunks(database, 4)
    for name, at, regions in (
        (pressing, START, None),
        (patient, LATER, None),
        (bound, START, ["norcal"]),
        (second, START, None),
    ):
        unheard(database, name, "norcal", latest_start_at=at, regions=regions)
    assert send(database, broker) == 4
    # The other region has one slot; the rest is sent again to where it was.
    assert sorted(broker.sent) == [("norcal", patient), ("norcal", bound), ("norcal", second), ("socal", pressing)]
    row = chunk(database, pressing)
    assert (row.state, row.region, row.tickets_sent, row.placement_id == "plc_x") == ("placed", "socal", 1, False)
    with database.read() as tx:
        made = tx.execute(select(placements)).one()
    assert (made.chunk_id, made.region, made.reason) == (pressing, "socal", "deadline")
    # A new one whose time has come goes where somebody listens, too.
    with database.write() as tx:
        region_rows.sync(tx, [replace(NORTH, slots=9), replace(SOUTH, slots=2)])
    (fresh,) = add_chunks(database, 1, prefix="f", latest_start_at=START)
    place(database, fresh, "norcal", START, latest_start_at=START)
    assert send(database, broker) == 1
    assert broker.sent[-1] == ("socal", fresh)


@pytest.mark.parametrize("regions", [(NORTH,), (NORTH, SOUTH)])
def test_what_nobody_takes_stays_where_no_other_region_listens(
    sqlite_database: Database, regions: tuple[Region, ...]
) -> None:
    open_regions(sqlite_database, *regions)
    broker = Broker()
    (name,) = add_chunks(sqlite_database, 1)
    if SOUTH in regions:
        (other,) = add_chunks(sqlite_database, 1, prefix="o")
        unheard(sqlite_database, other, "socal", latest_start_at=LATER)
    unheard(sqlite_database, name, "norcal", latest_start_at=START)
    send(sqlite_database, broker)
    assert ("norcal", name) in broker.sent
    assert chunk(sqlite_database, name).placement_id == "plc_x"
