"""Ticks are single flight: one that comes while the one before still runs does nothing, whatever that one ends with."""

from __future__ import annotations

import threading

import pytest

from carbonq import rooms, telemetry
from carbonq.errors import StoreUnavailable


def test_a_tick_that_comes_while_the_one_before_runs_does_nothing() -> None:
    runs, go = threading.Event(), threading.Event()
    ran: list[int] = []
    alive: list[int] = []

    def act() -> None:
        ran.append(1)
        runs.set()
        assert go.wait(10)

    tick = rooms.load("workers", "ticks")._single_flight("reap", act, lambda: alive.append(1))
    before = telemetry.TICKS_SKIPPED.labels("reap")._value.get()
    first = threading.Thread(target=tick)
    first.start()
    assert runs.wait(10)
    second = threading.Thread(target=tick)
    second.start()
    second.join(5)
    assert not second.is_alive(), "it does not wait for the first"
    assert telemetry.TICKS_SKIPPED.labels("reap")._value.get() == before + 1
    go.set()
    first.join(10)
    assert (len(ran), len(alive)) == (1, 1)
    tick()
    assert len(ran) == 2


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ZeroDivisionError()])
def test_a_tick_that_fails_lets_the_next_one_run(error: Exception) -> None:
    ran: list[int] = []

    def act() -> None:
        ran.append(1)
        raise error

    tick = rooms.load("workers", "ticks")._single_flight("reap", act, lambda: None)
    tick()
    tick()
    assert len(ran) == 2
