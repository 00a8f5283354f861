"""Every tick is scheduled, expires, and goes to the queue whose worker knows it."""

from __future__ import annotations

from carbonq import rooms
from carbonq.tickets import TICK_QUEUES, tick_task


def test_every_tick_has_an_interval_a_queue_and_an_expiry() -> None:
    schedule = rooms.load("beat", "schedule").schedule(1.0)
    assert set(schedule) == set(TICK_QUEUES)
    for tick, entry in schedule.items():
        assert entry["task"] == tick_task(tick)
        assert entry["options"]["queue"] == TICK_QUEUES[tick]
        assert entry["options"]["expires"] >= entry["schedule"]


def test_grid_bound_ticks_follow_the_clock() -> None:
    intervals = rooms.load("beat", "schedule").intervals_s
    assert (intervals(1.0)["refresh"], intervals(75.0)["refresh"]) == (60.0, 1.0)
    assert (intervals(1.0)["settle"], intervals(75.0)["settle"]) == (300.0, 4.0)
    assert intervals(75.0)["dispatch"] == intervals(1.0)["dispatch"] == 1.0
