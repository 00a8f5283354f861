"""Run the demonstration from nothing to its verdict, and tell it to a person or a log."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from carbonq import wiring
from carbonq.clock import GridClock
from carbonq.demo import day, report, setting, story
from carbonq.demo.facts import Condition, conditions
from carbonq.demo.view import LiveView, PlainView, View
from carbonq.embedded.stack import Stack

#: What start and warm-up take on two cores; the clock is set back by as much.
START_UP = timedelta(seconds=22)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a demonstration."""

    told: story.Told
    day: day.Day
    typical: str
    conditions: Sequence[Condition]
    total_s: float

    @property
    def is_met(self) -> bool:
        """Say whether every claim came true."""
        return all(condition.is_met for condition in self.conditions)

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "jobs": [asdict(job) for job in self.told.jobs],
            "realtime": asdict(self.told.realtime) if self.told.realtime else None,
            "ledger": asdict(self.told.check) if self.told.check else None,
            "replay": asdict(self.day),
            "typical": self.typical,
            "conditions": [asdict(condition) for condition in self.conditions],
            "total_s": self.total_s,
            "is_met": self.is_met,
        }


def run(parent: Path, *, is_quiet: bool) -> Outcome:
    """Run it in a new folder under ``parent``; ``is_quiet`` sends the telling to stderr.

    Raises CarbonqError for what keeps it from running at all.
    """
    began_at = time.monotonic()
    console = Console(stderr=is_quiet, highlight=False)

    def write(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    folder = setting.make_folder(parent)
    settings = setting.load(folder)
    regions = wiring.make_regions(settings)
    scene = day.choose(regions)
    view: View = LiveView(console, "carbonq demo") if console.is_terminal else PlainView(write)
    view.note(f"carbonq demo in {folder}: two regions, two cores are enough, grid time at {setting.FACTOR:g}x")
    view.note(scene.typical)
    clock = GridClock.accelerated(scene.start_at - START_UP * setting.FACTOR, setting.FACTOR)
    stack = Stack(settings, report=view.note, clock=clock)
    with _interruptible(stack), stack, stack.client() as client:
        view.note(
            f"API {stack.api_url}, Flower {stack.flower_url} (user carbonq, password in {folder}/flower-password)"
        )
        told = story.tell(client, view, folder)
        meters = _meters(stack)
    replay = day.replay(scene, regions)
    total_s = time.monotonic() - began_at
    found = conditions(told.jobs, told.realtime, told.check, total_s=total_s)
    outcome = Outcome(told, replay, scene.typical, found, total_s)
    _tell(write, outcome, meters=meters, start=f"{scene.start_at:%Y-%m-%d %H:%M}Z")
    return outcome


def _tell(write: Callable[[str], None], outcome: Outcome, *, meters: str, start: str) -> None:
    write("")
    for line in report.jobs(outcome.told.jobs):
        write(line)
    write(report.realtime(outcome.told.realtime))
    write("")
    for line in report.day(outcome.day):
        write(line)
    write("")
    for line in report.estimates(meters=meters, factor=setting.FACTOR, start=start):
        write(line)
    write("")
    if outcome.told.check is not None:
        write(f"Ledger: {outcome.told.check.path} ({outcome.told.check.lines:,} lines)")
        write(f"Checker: {outcome.told.check.verdict}")
    for line in report.verdict(outcome.conditions):
        write(line)
    write("everything held" if outcome.is_met else "NOT everything held")


def _meters(stack: Stack) -> str:
    """Say how energy was metered, from the meters this host has."""
    region = next(iter(stack.settings.regions))
    meters = wiring.make_meters(stack.settings, region, pids=lambda: (), may_use_rapl=False)
    try:
        parts = [f"{meter.component.value} by {meter.kind.value} ({meter.quality.value})" for meter in meters]
    finally:
        for meter in meters:
            meter.close()
    has_gpu = any(meter.component.value == "gpu" for meter in meters)
    return ", ".join(parts) + ("" if has_gpu else "; no GPU here, so every energy figure is an estimate")


@contextmanager
def _interruptible(stack: Stack) -> Generator[None]:
    """Turn SIGINT and SIGTERM into an exception, so that the stack stops in order; a second one kills at once."""
    asked = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        if asked.is_set():
            stack.stop_hard()
            return
        asked.set()
        sys.stderr.write("stopping; once more to kill everything at once\n")
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
