"""Events on both databases."""

from __future__ import annotations

import threading
from datetime import timedelta

from sqlalchemy import text

from carbonq.store import events, retention
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import machine_now
from carbonq.store.events import Mark, NewEvent
from tests.store.rows import T0


def test_events_come_back_in_order_and_by_owner(database: Database) -> None:
    rows = [NewEvent("job.created", T0, "a", "job_1", {"items": 3}), NewEvent("job.created", T0, "b", "job_2")]
    with database.write() as tx:
        events.append_many(tx, rows)
        events.append_many(tx, [NewEvent("job.completed", T0, "a", "job_1")])
        events.append_many(tx, [])
    with database.read() as tx:
        everything = events.after(tx, None)
        assert [event.type for event in everything] == ["job.created", "job.created", "job.completed"]
        mine = events.after(tx, "a", "job_1")
        assert [event.type for event in mine] == ["job.created", "job.completed"]
        assert mine[0].data == {"items": 3}
        assert events.after(tx, "a", "job_1", mine[0].event_id) == mine[1:]
        assert events.after(tx, "b", "job_1") == []
        assert len(events.after(tx, None, limit=2)) == 2


def _append(tx: Tx, *names: str) -> None:
    events.append_many(tx, [NewEvent("job.created", T0, "a", name) for name in names])


class Reader:
    """Reads tenant a's events from the beginning on, as a stream or a webhook does."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.mark: Mark | None = None
        self.last = 0

    def look(self) -> list[str | None]:
        with self.database.read() as tx:
            self.mark = events.advance(tx, self.mark)
            if self.mark.settled is None:
                return []
            found = events.of_topic(tx, "a", self.last, self.mark.settled, limit=100)
        self.last = max(self.last, self.mark.settled)
        return [one.job_id for one in found]

    def wait(self, *wanted: str) -> None:
        """Look until these were read. Another test that writes on the same server can hold a reader up."""
        read: list[str | None] = []
        for _ in range(500):
            read += self.look()
            if len(read) >= len(wanted):
                break
            threading.Event().wait(0.01)
        assert read == list(wanted)


def test_a_reader_misses_no_event_of_a_transaction_that_commits_later(database: Database) -> None:
    """On PostgreSQL the lower number becomes visible after the higher one."""
    reader = Reader(database)
    assert reader.look() == []
    if database.is_sqlite:  # the second writer would wait for the first
        with database.write() as tx:
            _append(tx, "first", "second")
    else:
        with database.write() as slow:
            _append(slow, "first")
            with database.write() as quick:
                _append(quick, "second")
            for _ in range(3):
                assert reader.look() == [], "the first one could still come"
    reader.wait("first", "second")


def test_a_reader_misses_no_event_of_a_younger_transaction(postgresql: Database) -> None:
    """The lower number is that of a transaction which no snapshot counts yet: none has ended that is younger."""
    reader = Reader(postgresql)
    assert reader.look() == []
    with postgresql.write() as younger:
        with postgresql.write() as older:
            older.execute(text("SELECT pg_current_xact_id()"))
            _append(younger, "first")
            _append(older, "second")
        for _ in range(3):
            assert reader.look() == []
    reader.wait("first", "second")


def test_events_are_read_while_others_write(postgresql: Database) -> None:
    """Somebody always writes on a busy server: readers wait for those that ran when a number was first seen."""
    reader = Reader(postgresql)
    for _ in range(500):
        if reader.look() == [] and reader.mark == Mark(0):
            break
        threading.Event().wait(0.01)
    with postgresql.write() as first:
        _append(first, "1")
        with postgresql.write() as second:
            _append(second, "2")
            assert reader.look() == []
        assert reader.look() == []
        with postgresql.write() as third:
            _append(third, "3")
            first.commit()
            reader.wait("1", "2")  # whoever began later has a higher number
            assert reader.look() == []
        reader.wait("3")


def test_a_server_that_was_made_anew_settles_again(postgresql: Database) -> None:
    """Transaction ids begin anew with a server: what an older one's said is no reason to wait for ever."""
    with postgresql.write() as tx:
        _append(tx, "1")
    reader = Reader(postgresql)
    reader.mark = Mark(0, 0, fence=10**15)
    reader.wait("1")


def test_the_newest_event_is_never_deleted(database: Database) -> None:
    """Numbers that began again would be taken for events that readers know."""
    with database.write() as tx:
        _append(tx, "1", "2", "3")
        later = machine_now(tx) + timedelta(days=1)
        assert retention.delete_events(tx, before=later, limit=10) == 2
        assert retention.delete_events(tx, before=later, limit=10) == 0
        _append(tx, "4")
        assert [one.event_id for one in events.after(tx, "a")] == [3, 4]


def test_tenants_see_what_is_theirs_and_meant_for_them(database: Database) -> None:
    rows = [
        NewEvent("job.created", T0, "a", "job_1", {"items": 3}),
        NewEvent("chunk.lost", T0, "a"),
        NewEvent("region.paused", T0),
        NewEvent("job.completed", T0, "b", "job_2"),
        NewEvent("batch.completed", T0, "a", data={"id": "batch_1", "output_file_id": None}),
    ]
    with database.write() as tx:
        events.append_many(tx, rows)
    with database.read() as tx:
        mine = events.of_topic(tx, "a", 0, 10, limit=10)
        assert [one.type for one in mine] == ["job.created", "batch.completed"]
        assert [one.type for one in events.of_topic(tx, "a", 0, 10, batch_id="batch_1", limit=10)] == [
            "batch.completed"
        ]
        assert [events.told(one) for one in mine] == [
            {"id": "job_1", "items": 3},
            {"id": "batch_1", "output_file_id": None},
        ]
        assert [one.event_id for one in events.between(tx, 1, 4, limit=10)] == [4]
        assert events.final_of(tx, "b", job_id="job_2") == 4
        assert events.final_of(tx, "a", job_id="job_2") is None
        assert events.final_of(tx, "a", batch_id="batch_1") == 5
