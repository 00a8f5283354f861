"""Flaws in processes of carbonq, which a test arms while they run.

A flaw is a file ``POINT@PROCESS`` in the folder that ``FLAWED_FOLDER`` names, where PROCESS is the last argument of the
command line. Its text says what happens when the process comes to that point: ``die`` (as by kill -9, once), ``hold``
(wait until the file is gone; ``POINT@PROCESS.reached`` is written first), ``again`` (do the same once more),
``die WORD`` (whenever an item of the engine call holds WORD).
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

REGIONS = ("north", "south")


@dataclass(frozen=True)
class Point:
    """A function of carbonq, before or after which a flaw happens, in processes of some kinds."""

    module: str
    name: str
    is_after: bool
    processes: tuple[str, ...]


POINTS = {
    "engine": Point("carbonq.engines.wordllama", "WordLlamaEngine.run", False, REGIONS),
    # Fenced, items ended, segments stored; the entries, the report and the end of the lease are still to come.
    "commit-middle": Point("carbonq.store.results", "insert_segments", True, REGIONS),
    "commit-done": Point("carbonq.services.commit", "_apply", True, REGIONS),
    "spooled": Point("carbonq.services.commit", "_spool", True, REGIONS),
    # The dispatcher publishes before it commits.
    "ticket-out": Point("carbonq.tickets", "Tickets.flexible", True, ("control",)),
    "reaping": Point("carbonq.services.reap", "_book", True, ("control",)),
    "finishing": Point("carbonq.store.jobs", "finish", False, ("control",)),
    "chunking": Point("carbonq.store.chunks", "insert_many", True, ("control-slow",)),
    "accepting": Point("carbonq.store.items", "insert_of_jobs", True, ("api",)),
}


def install(process: str) -> None:
    """Make the points of a process look into the folder each time they are passed; without a folder there are none."""
    if "FLAWED_FOLDER" not in os.environ:
        return
    folder = Path(os.environ["FLAWED_FOLDER"])
    for name, point in POINTS.items():
        if process not in point.processes:
            continue
        owner: Any = import_module(point.module)
        *path, attribute = point.name.split(".")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, attribute, _flawed(getattr(owner, attribute), folder / f"{name}@{process}", point))


def _flawed(function: Callable[..., Any], flaw: Path, point: Point) -> Callable[..., Any]:
    @functools.wraps(function)
    def passed(*arguments: Any, **named: Any) -> Any:
        if not point.is_after:
            _happen(flaw, arguments)
            return function(*arguments, **named)
        found = function(*arguments, **named)
        if _happen(flaw, arguments) == "again":
            function(*arguments, **named)
        return found

    return passed


def _happen(flaw: Path, arguments: tuple[Any, ...]) -> str:
    try:
        act, _, word = flaw.read_text().partition(" ")
    except FileNotFoundError:
        return ""
    if act == "die" and word:
        if any(word in str(request.body) for request in arguments[1]):
            os.kill(os.getpid(), signal.SIGKILL)
    elif act == "die":
        try:
            flaw.unlink()
        except FileNotFoundError:
            return ""  # another one of its kind was faster
        os.kill(os.getpid(), signal.SIGKILL)
    elif act == "hold":
        flaw.with_name(f"{flaw.name}.reached").touch()
        pause = threading.Event()
        while flaw.exists():
            pause.wait(0.02)
    return act


class Flaws:
    """The test's side: arm and disarm."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def arm(self, point: str, *processes: str, act: str) -> None:
        assert set(processes) <= set(POINTS[point].processes)
        for process in processes:
            self._path(point, process, ".reached").unlink(missing_ok=True)
            made = self._path(point, process, ".new")
            made.write_text(act)
            made.replace(self._path(point, process))

    def disarm(self, point: str, *processes: str) -> None:
        for process in processes:
            self._path(point, process).unlink(missing_ok=True)

    def clear(self) -> None:
        for path in self.folder.iterdir():
            path.unlink(missing_ok=True)

    def reached(self, point: str, *processes: str) -> str | None:
        """The process that waits at a point where it is held."""
        return next((one for one in processes if self._path(point, one, ".reached").exists()), None)

    def _path(self, point: str, process: str, suffix: str = "") -> Path:
        return self.folder / f"{point}@{process}{suffix}"
