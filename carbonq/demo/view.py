"""Draw pictures of the demonstration: a live panel where a person looks on, a line per change elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from carbonq.demo.picture import Picture
from carbonq.units import WINDOW, window_of

#: Windows drawn, from the submit on: a little more than the deadline of two hours.
WINDOWS = 25

_BARS = "▁▂▃▄▅▆▇█"
_COLOURS = ("green", "green", "green3", "yellow3", "yellow3", "dark_orange", "red", "red")
_MARKS = {"waiting": "dim", "placed": "cyan", "running": "bold black on yellow", "done": "green"}


class View(Protocol):
    """What the story needs of a view."""

    def note(self, text: str) -> None:
        """Tell something that happened."""
        ...

    def draw(self, picture: Picture) -> None:
        """Show the state now."""
        ...

    def live(self) -> AbstractContextManager[object]:
        """Be live within this context."""
        ...


class PlainView:
    """A line for each thing that changed; for pipes and logs."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._last = ""

    def note(self, text: str) -> None:
        """Write the text."""
        self._write(text)

    def draw(self, picture: Picture) -> None:
        """Write a line if anything but the time changed."""
        jobs = ", ".join(f"{job.label} {job.ended}/{job.total} ({job.phase})" for job in picture.jobs)
        running = (
            ", ".join(sorted(f"{c.label}@{c.region}" for c in picture.chunks if c.state == "running")) or "nothing"
        )
        line = f"{jobs}; running: {running}"
        if line != self._last:
            self._last = line
            rates = ", ".join(f"{region.name} {_rate(region.moer)}" for region in picture.regions)
            self._write(f"{picture.now:%H:%M:%S}  {line}; MOER {rates}")

    def live(self) -> AbstractContextManager[object]:
        """Need nothing."""
        return nullcontext()


class LiveView:
    """One panel that is drawn over again."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._start: datetime | None = None
        self._notes: list[str] = []

    def note(self, text: str) -> None:
        """Print the text above the panel."""
        self._console.print(Text(text))

    def draw(self, picture: Picture) -> None:
        """Draw the panel anew."""
        if self._start is None:
            self._start = window_of(picture.now)
        title = f"{self._title}, grid time {picture.now:%Y-%m-%d %H:%M:%S}Z"
        self._live.update(Panel(self._body(picture, self._start), title=title, border_style="green"))

    def live(self) -> AbstractContextManager[object]:
        """Keep the panel alive."""
        return self._live

    def _body(self, picture: Picture, start: datetime) -> RenderableType:
        return Group(_jobs(picture), Text(), _timeline(picture, start), Text(), _legend())


def _jobs(picture: Picture) -> Table:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, min_width=14)
    for job in picture.jobs:
        bar = ProgressBar(total=job.total, completed=job.ended)
        table.add_row(job.label, bar, f"{job.ended:,}/{job.total:,}", job.phase)
    return table


def _timeline(picture: Picture, start: datetime) -> Table:
    windows = [start + index * WINDOW for index in range(WINDOWS)]
    now = window_of(picture.now)
    values = [float(rate) for region in picture.regions for at, rate in region.ahead.items() if at in windows]
    low, high = min(values, default=0.0), max(values, default=1.0)
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_row("", Text(_hours(windows)), Text("MOER now", style="dim"))
    for region in picture.regions:
        rates = Text()
        for at in windows:
            rate = region.ahead.get(at)
            level = 0 if rate is None or high <= low else round((float(rate) - low) / (high - low) * (len(_BARS) - 1))
            style = _COLOURS[level] + (" reverse" if at == now else "")
            rates.append("··" if rate is None else _BARS[level] * 2, style=style)
        table.add_row(Text(region.name, style="bold"), rates, _rate(region.moer))
        for label in dict.fromkeys(chunk.label for chunk in picture.chunks):
            table.add_row(Text(f"  {label}", style="dim"), _placed(picture, region.name, label, windows), "")
    return table


def _placed(picture: Picture, region: str, label: str, windows: Sequence[datetime]) -> Text:
    counts: Counter[datetime] = Counter()
    states: dict[datetime, str] = {}
    for chunk in picture.chunks:
        if chunk.region == region and chunk.label == label and chunk.window_at is not None:
            counts[chunk.window_at] += 1
            if states.get(chunk.window_at) != "running":
                states[chunk.window_at] = chunk.state
    row = Text()
    for at in windows:
        row.append(f"{counts[at]:<2}" if counts[at] else "  ", style=_MARKS.get(states.get(at, ""), ""))
    return row


def _hours(windows: Sequence[datetime]) -> str:
    """Label every sixth window with its time."""
    return "".join(f"{at:%H:%M}".ljust(12) for at in windows[::6])


def _legend() -> Text:
    text = Text("chunks: ")
    for state, style in _MARKS.items():
        text.append(f" {state} ", style=style)
    return text.append("  bars: MOER by window; reversed: now", style="dim")


def _rate(rate: object) -> str:
    return "unknown" if rate is None else f"{float(str(rate)):.0f} g/kWh"
