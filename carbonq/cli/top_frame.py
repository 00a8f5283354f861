"""What ``carbonq top`` shows at one moment, and how it looks; it asks nothing and decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from carbonq.budget import Book
from carbonq.model import ChunkState
from carbonq.readable import grams
from carbonq.units import plain

Json = dict[str, Any]

#: How long a window is.
_WINDOW = timedelta(minutes=5)

#: How many characters a bar has.
_BAR = 10

#: How many budgets are shown, and from which share used on in yellow.
_BUDGETS = 4
_NEARLY = 0.8


def make(
    regions: Json,
    plan: Json,
    jobs: Sequence[Json],
    events: Sequence[Json] | None,
    budgets: Sequence[Json] = (),
) -> Json:
    """Put a frame together from the answers of the API; ``events`` newest last, None where nobody listened."""
    now = datetime.fromisoformat(regions["clock"]["now"])
    planned: Counter[str] = Counter()
    for cell in plan["placements"]:
        planned[cell["region"]] += cell["chunks"]
    running = Counter(one["region"] for one in plan["chunks"] if one["state"] == ChunkState.RUNNING.value)
    newest = plan["plan"]
    return {
        "clock": regions["clock"],
        "decides_by": regions["decides_by"],
        "is_signal_down": None if newest is None else newest["is_overlay"],
        "regions": [_region(one, planned[one["name"]], running[one["name"]]) for one in regions["data"]],
        "budgets": sorted(map(_budget, filter(_has_period, budgets)), key=lambda one: -one["used_share"]),
        "jobs": [_job(one, now) for one in jobs],
        "events": None if events is None else list(events),
    }


def _region(region: Json, planned: int, running: int) -> Json:
    moer = region["moer"] or {}
    return {
        "name": region["name"],
        "state": region["state"],
        "is_healthy": region["is_healthy"],
        "is_home": region["is_home"],
        "moer_g_per_kwh": moer.get("g_per_kwh"),
        "moer_is_stale": moer.get("is_stale"),
        "moer_is_estimated": moer.get("is_estimated"),
        "slots": region["slots"],
        "slots_taken": region["slots_taken"],
        "live_workers": region["live_workers"],
        "your_chunks_running": running,
        "your_chunks_queued": max(0, planned - running),
    }


def _job(job: Json, now: datetime) -> Json:
    """Return a job with its slack: the time between the end of its last planned window and its deadline."""
    deadline = datetime.fromisoformat(job["deadline_at"])
    placed: Json = job.get("placement") or {}
    last = placed.get("last_window_at")
    # A chunk that has no window yet may end at any time.
    is_known = last is not None and not placed["states"][ChunkState.WAITING.value]
    ends = max(now, datetime.fromisoformat(last) + _WINDOW) if is_known and last is not None else None
    return {
        "id": job["id"],
        "phase": job["phase"],
        "model": job["model"],
        "items": job["progress"]["total"],
        "items_ended": job["progress"]["ended"],
        "deadline_at": job["deadline_at"],
        "due_in_s": round((deadline - now).total_seconds()),
        "slack_s": None if ends is None else round((deadline - ends).total_seconds()),
        "next_window_at": placed.get("next_window_at"),
        "regions": placed.get("regions"),
    }


def _has_period(budget: Json) -> bool:
    """Say whether a budget is of a month or day; what each item by itself has left is nothing to watch."""
    return budget["status"]["started_at"] is not None


def _budget(budget: Json) -> Json:
    """Return a budget with the share of its cap that is spent or reserved."""
    now, cap_g = budget["status"], Decimal(budget["cap_g"])
    used_g = Decimal(now["spent_g"]) + Decimal(now["reserved_g"])
    return {
        "level": budget["level"],
        "name": budget["name"],
        "period": budget["period"],
        "book": budget["book"],
        "cap_g": budget["cap_g"],
        "used_g": plain(used_g),
        "used_share": round(float(used_g / cap_g), 4),
        "burn_rate": now["burn_rate"],
        "waiting_chunks": now["waiting_chunks"],
    }


def render(frame: Json, hint: str | None = None) -> Group:
    """Draw a frame for a terminal."""
    parts: list[Any] = [_heading(frame), _regions(frame)]
    if frame["budgets"]:
        parts.append(_budgets(frame["budgets"]))
    parts.append(_jobs(frame))
    if frame["events"]:
        parts.append(_events(frame["events"]))
    if hint is not None:
        parts.append(Text(hint, style="dim"))
    return Group(*parts)


def _heading(frame: Json) -> Text:
    clock = frame["clock"]
    text = Text("carbonq  ", style="bold")
    text.append(f"{datetime.fromisoformat(clock['now']):%d %b %H:%M:%SZ}", style="not bold")
    if clock["factor"] != 1:
        text.append(f" ({clock['kind']} clock, {clock['factor']:g} times as fast)", style="not bold dim")
    if frame["is_signal_down"]:
        text.append("  no signal: work runs in the nearest region, by deadline", style="bold red")
    return text


def _regions(frame: Json) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in ("region", "state", "MOER g/kWh", "slots taken", "workers", "your chunks run", "queued"):
        table.add_column(name, justify="left" if name in {"region", "state", "slots taken"} else "right")
    for one in frame["regions"]:
        is_well = one["is_healthy"] and one["state"] == "active"
        state = one["state"] if one["is_healthy"] or one["state"] != "active" else "no worker"
        bar = _bar(one["slots_taken"], one["slots"])
        table.add_row(
            f"{one['name']} (home)" if one["is_home"] else one["name"],
            Text(state, style="green" if is_well else "red"),
            _rate(one),
            f"{bar} {one['slots_taken']}/{one['slots']}",
            str(one["live_workers"]),
            str(one["your_chunks_running"]),
            str(one["your_chunks_queued"]),
        )
    return table


def _rate(region: Mapping[str, Any]) -> Text:
    value = region["moer_g_per_kwh"]
    if value is None:
        return Text("unknown", style="red")
    text = Text(f"{float(value):.0f}")
    if region["moer_is_stale"]:
        text.append(" stale", style="yellow")
    return text


def _budgets(budgets: Sequence[Json]) -> Text:
    """Draw the line of budgets: what of each is spent or reserved, of which cap, and how fast it burns."""
    text = Text("budgets  ", style="bold", no_wrap=True, overflow="ellipsis")
    for number, one in enumerate(budgets[:_BUDGETS]):
        is_full = one["used_share"] >= 1 or one["waiting_chunks"]
        style = "red" if is_full else "yellow" if one["used_share"] >= _NEARLY else "green"
        text.append(" · " if number else "", style="not bold")
        text.append(f"{one['name']} {one['used_share']:.0%} of {grams(one['cap_g'])}", style=f"not bold {style}")
        notes = [f"a {one['period']}"]
        if one["book"] != Book.IMPACT.value:
            notes.append(f"{one['book']} book")
        if one["burn_rate"]:
            notes.append(f"burn {one['burn_rate']:.2f}")
        if one["waiting_chunks"]:
            notes.append(f"{one['waiting_chunks']:,} wait")
        text.append(f" {', '.join(notes)}", style="not bold dim")
    more = len(budgets) - _BUDGETS
    text.append(f" · and {more:,} more" if more > 0 else "", style="not bold dim")
    return text.append("\n")


def _jobs(frame: Json) -> Table | Text:
    if not frame["jobs"]:
        return Text("no open job\n", style="dim")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in ("job", "phase", "model", "items", "", "due in", "slack", "next window"):
        table.add_column(name, justify="right" if name in {"items", "due in", "slack"} else "left", no_wrap=True)
    for one in frame["jobs"]:
        at = one["next_window_at"]
        table.add_row(
            one["id"],
            one["phase"],
            one["model"],
            f"{one['items_ended']:,}/{one['items']:,}",
            _bar(one["items_ended"], one["items"]),
            _span(one["due_in_s"]),
            _slack(one["slack_s"]),
            "" if at is None else f"{datetime.fromisoformat(at):%d %b %H:%MZ}",
        )
    return table


def _slack(slack_s: int | None) -> Text:
    if slack_s is None:
        return Text("-")
    return Text(_span(slack_s), style="red" if slack_s < 0 else "yellow" if slack_s < 1800 else "green")


def _events(events: Sequence[Json]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in ("event at", "what", "of"):
        table.add_column(name, no_wrap=True)
    for one in reversed(events):
        table.add_row(f"{datetime.fromisoformat(one['created_at']):%H:%M:%SZ}", one["type"], one["of"])
    return table


def _bar(done: int, total: int) -> str:
    filled = min(_BAR, round(_BAR * done / total)) if total else 0
    return "█" * filled + "░" * (_BAR - filled)


def _span(seconds: float) -> str:
    """Write a span in its two largest units."""
    sign, left = ("-", -int(seconds)) if seconds < 0 else ("", int(seconds))
    days, hours, minutes = left // 86_400, left % 86_400 // 3_600, left % 3_600 // 60
    if days:
        return f"{sign}{days} d {hours} h"
    return f"{sign}{hours} h {minutes:02} min" if hours else f"{sign}{minutes} min {left % 60:02} s"
