"""Which tick comes how often. Every tick carries ``expires``: one that nobody took in time is worthless."""

from __future__ import annotations

from typing import Any

from carbonq.tickets import TICK_QUEUES, tick_task


def intervals_s(factor: float) -> dict[str, float]:
    """Return machine seconds between ticks; those bound to grid time come faster on an accelerated clock."""
    return {
        "deliver": 1.0,
        "dispatch": 1.0,
        "expire": 5.0,
        "finish": 1.0,
        "plan": 2.0,
        "reap": 2.0,
        "refresh": max(1.0, 60.0 / factor),
        "retire": 60.0,
        "seal": 180.0,
        "settle": max(2.0, 300.0 / factor),
        "targets": max(2.0, 60.0 / factor),
        "validate": 2.0,
    }


def schedule(factor: float, queue_prefix: str = "") -> dict[str, dict[str, Any]]:
    """Return Celery beat's schedule."""
    return {
        tick: {
            "task": tick_task(tick),
            "schedule": seconds,
            "options": {"queue": queue_prefix + TICK_QUEUES[tick], "expires": max(2.0, seconds)},
        }
        for tick, seconds in intervals_s(factor).items()
    }
