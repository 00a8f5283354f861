"""Every tick is scheduled, expires, and goes to the queue whose worker knows it."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from amqp.exceptions import ConnectionForced

from carbonq import rooms
from carbonq.tickets import TICK_QUEUES, make_celery, tick_task


def test_every_tick_has_an_interval_a_queue_and_an_expiry() -> None:
    schedule = rooms.load("beat", "schedule").schedule(1.0)
    assert set(schedule) == set(TICK_QUEUES)
    for tick, entry in schedule.items():
        assert entry["task"] == tick_task(tick)
        assert entry["options"]["queue"] == TICK_QUEUES[tick]
        assert entry["options"]["expires"] >= entry["schedule"]


def test_ticks_go_to_the_queues_of_their_installation() -> None:
    schedule = rooms.load("beat", "schedule").schedule(1.0, "one.")
    assert {entry["options"]["queue"] for entry in schedule.values()} == {"one.control", "one.control.slow"}


def test_grid_bound_ticks_follow_the_clock() -> None:
    intervals = rooms.load("beat", "schedule").intervals_s
    assert (intervals(1.0)["refresh"], intervals(75.0)["refresh"]) == (60.0, 1.0)
    assert (intervals(1.0)["settle"], intervals(75.0)["settle"]) == (300.0, 4.0)
    assert intervals(75.0)["dispatch"] == intervals(1.0)["dispatch"] == 1.0


def test_a_broker_that_goes_away_costs_one_line_and_is_found_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_celery("memory://")
    app.conf.beat_schedule = rooms.load("beat", "schedule").schedule(1.0)
    scheduler = rooms.load("beat", "scheduler").TickScheduler(app, lazy=True)
    scheduler.setup_schedule()
    entry = scheduler.schedule["dispatch"]
    sent: list[object] = []
    is_away = True

    def send_task(_name: str, *_arguments: object, producer: object, **_options: object) -> None:
        sent.append(producer)
        if is_away:
            raise ConnectionForced("shutdown")

    monkeypatch.setattr(app, "send_task", send_task)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            scheduler.apply_entry(entry, producer=scheduler.producer)
        is_away = False
        for _ in range(2):
            scheduler.apply_entry(entry, producer=scheduler.producer)
    assert sent == [None] * 5  # from the pool, never a connection that may be dead
    assert [record.exc_info for record in caplog.records] == [None, None]
    assert ["no ticks" in caplog.text, "answers again" in caplog.text] == [True, True]


#: A beat in the middle of its talk with a broker that never answers.
_TALKING = """
import signal, socket, sys
from carbonq import rooms
process = rooms.load("beat", "process")
process.END_S = 0.2
class Service:
    def stop(self, wait):
        print("stopping", wait, flush=True)
process.end_in_order(Service())
one, other = socket.socketpair()
try:
    signal.raise_signal(signal.SIGTERM)
    one.recv(1)
finally:
    print("interrupted", flush=True)
"""


def test_a_stop_signal_interrupts_no_talk_with_the_broker_and_ends_one_that_lasts() -> None:
    command = [sys.executable, "-c", _TALKING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "stopping False\n"), done.stderr
