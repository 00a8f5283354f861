"""``carbonq top``: regions, budgets, jobs and events on the terminal, as they change."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carbonq.cli import connect, output
from carbonq.cli.output import AsJson, emit_json
from carbonq.errors import CarbonqError, Unavailable

if TYPE_CHECKING:
    from carbonq.client import Client

#: States of jobs that are shown.
_OPEN = ("waiting", "running", "finishing")

#: How many open jobs are looked at to find those with the nearest deadlines.
_LOOKED_AT = 100


@connect.remote
def top(
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    every: Annotated[float, typer.Option("--every", min=0.5, max=600, help="Seconds between two looks.")] = 2.0,
    jobs: Annotated[int, typer.Option("--jobs", min=0, max=50, help="Jobs shown, nearest deadline first.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Watch regions with their rates, slots and workers, your open jobs with their slack, and what happens.

    Slack is the time between the end of a job's last planned window and its deadline. Budgets stand in one line, the
    most used first. The key q ends it. Where stdout is no terminal, and with --json, one frame is printed.

    Example: carbonq top

    Example: carbonq top --once --url https://carbonq.example

    Example: carbonq top --json | jq '.regions[] | {name, moer_g_per_kwh}'
    """
    from carbonq.cli import top_frame

    with connect.open_client() as client:
        frame = _look(client, jobs, None)
        if as_json:
            emit_json(frame)
        elif once or not sys.stdout.isatty():
            output.console().print(top_frame.render(frame))
        else:
            with _heard() as events, _keys() as wait_for_q:
                _watch(lambda: _look(client, jobs, events()), frame, every, wait_for_q)


def _look(client: Client, limit: int, events: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Ask the API for a frame."""
    from carbonq.cli import top_frame

    regions = client.request("GET", "/v1/regions")
    plan = client.plan(hours=0.1)
    known = sorted(client.jobs(limit=_LOOKED_AT, states=_OPEN), key=lambda job: job.deadline_at)[:limit]
    budgets = [one.raw for one in client.budgets()]
    return top_frame.make(regions, plan, [client.job(job.id).raw for job in known], events, budgets)


def _watch(
    look: Callable[[], dict[str, Any]], frame: dict[str, Any], every_s: float, wait_for_q: Callable[[float], bool]
) -> None:
    """Draw frames until q is pressed; an API that is away for a while is said, and waited for."""
    from rich.live import Live

    from carbonq.cli import top_frame

    console = output.console()
    console.soft_wrap = False
    hint = "q ends"
    with Live(top_frame.render(frame, hint), console=console, screen=True, auto_refresh=False) as live:
        while not wait_for_q(every_s):
            try:
                frame, hint = look(), "q ends"
            except Unavailable as error:
                hint = f"as of the last answer; {error.message} (q ends)"
            live.update(top_frame.render(frame, hint), refresh=True)


@contextmanager
def _heard() -> Generator[Callable[[], list[dict[str, Any]]]]:
    """Listen to events by a connection of its own; yields what returns the last ones, newest last."""
    heard: deque[dict[str, Any]] = deque(maxlen=8)

    def listen() -> None:
        # Without it frames go on as before: they are asked for.
        with contextlib.suppress(CarbonqError), connect.open_client() as client:
            for event in client.events():
                of = str(event.data.get("id", ""))
                heard.append({"type": event.type, "created_at": event.created_at.isoformat(), "of": of})

    thread = threading.Thread(target=_in_context(listen), name="events", daemon=True)
    thread.start()
    yield lambda: list(heard)


def _in_context(act: Callable[[], None]) -> Callable[[], None]:
    """Return ``act`` bound to this thread's --url and --quiet."""
    import contextvars

    context = contextvars.copy_context()
    return lambda: context.run(act)


@contextmanager
def _keys() -> Generator[Callable[[float], bool]]:
    """Yield what waits some seconds and says whether q was pressed; without a terminal to read from, only waits."""
    try:
        import termios
        import tty
    except ImportError:  # Windows
        yield _only_wait
        return
    if not sys.stdin.isatty():
        yield _only_wait
        return
    kept = termios.tcgetattr(sys.stdin.fileno())
    tty.setcbreak(sys.stdin.fileno())
    try:
        yield _is_q_pressed
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, kept)


def _only_wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _is_q_pressed(seconds: float) -> bool:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            pressed = os.read(sys.stdin.fileno(), 64)
            if not pressed or b"q" in pressed.lower():
                return True
    return False
