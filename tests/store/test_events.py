"""Events on both databases."""

from __future__ import annotations

from carbonq.store import events
from carbonq.store.database import Database
from carbonq.store.events import NewEvent
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
