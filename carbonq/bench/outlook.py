"""How good the outlook is on recorded forecasts, beside the source's own forecast and holding the last value.

Reads every file of a folder whose columns it knows and reports on what is there; nothing is sent anywhere. All figures
are of windows predicted before they were learned, unless they say ``in hindsight``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from carbonq.bench import outlook_figures as figures
from carbonq.bench.outlook_files import HALF_HOUR, HOUR, Issued, Recordings, read
from carbonq.bench.outlook_walk import Table, gather, learn_days, predict, walk
from carbonq.plan.blend import Skill, bucket_of
from carbonq.plan.forecaster import WINDOWS_A_DAY, FloatArray, Series
from carbonq.units import WINDOW_S, window_at

#: Leads reported, in minutes.
LEADS_MIN = (5, 15, 30, 60, 120, 180)

#: What is known at the issue time ``t``, by publication delay in minutes.
KNOWN = {
    -5: "generous: the settled value of the window that begins at t",
    0: "the window that ends at t",
    5: "the window that ended 5 minutes before t",
    10: "the window that ended 10 minutes before t",
    30: "the window that ended 30 minutes before t",
}

Report = Callable[[str], None]


def bench(folder: Path, *, delays_min: Sequence[int] = (0, -5, 10, 30), report: Report = print) -> dict[str, Any]:
    """Measure on the files in ``folder`` and return JSON values. Raises ValueError for a file that cannot be read.

    The first delay is the one that savings are reported for.
    """
    began = time.perf_counter()
    found = read(folder)
    notes = list(found.notes)
    for kind, there in (
        ("5-minute forecasts as issued", found.five_minute),
        ("hourly forecasts as issued", found.hourly),
        ("half-hourly forecasts as issued", found.half_hourly),
    ):
        if not there:
            notes.append(f"no file with {kind}: nothing is reported on them")
    return {
        "bench": "outlook",
        "files": found.files,
        "notes": notes,
        "five_minute": {zone: _five_minute(zone, found, delays_min, report) for zone in found.five_minute},
        "hourly": {zone: _hourly(zone, found, report) for zone in found.hourly},
        "half_hourly": {zone: _half_hourly(zone, found, report) for zone in found.half_hourly},
        "duration_s": round(time.perf_counter() - began, 1),
    }


def _days(table: Table) -> list[int]:
    return sorted(set((table.origins // WINDOWS_A_DAY).tolist()))


def _month(day: int) -> str:
    return datetime.fromtimestamp(day * WINDOWS_A_DAY * WINDOW_S, UTC).strftime("%Y-%m")


def _five_minute(zone: str, found: Recordings, delays_min: Sequence[int], report: Report) -> dict[str, Any]:
    issued, observed = found.five_minute[zone], found.observed[zone]
    first, last = window_at(int(issued.origins[0])), window_at(int(issued.origins[-1]))
    result: dict[str, Any] = {"issues": len(issued.origins), "first_issue": f"{first:%F}", "last_issue": f"{last:%F}"}
    by_delay: dict[str, Any] = {}
    for delay_min in delays_min:
        table = gather(issued, observed, issued.origins, np.arange(figures.WAIT + 1), delay_min // 5)
        days = _days(table)
        outlook, skill = walk(table, days)
        by_delay[str(delay_min)] = {
            "known": KNOWN.get(delay_min, f"the window that ended {delay_min} minutes before t"),
            "walked_forward": _errors(table, outlook, np.ones(len(table.origins), dtype=np.bool_)),
        }
        _say(report, f"{zone}, published {delay_min} min later", by_delay[str(delay_min)]["walked_forward"])
        if delay_min == delays_min[0]:
            result["spread_by_lead_min"] = _spreads(skill)
            result["months"] = _by_month(table, days, outlook, zone, report)
    return result | {"by_publication_delay_min": by_delay}


def _by_month(table: Table, days: list[int], walked: FloatArray, zone: str, report: Report) -> dict[str, Any]:
    """Errors and savings by month: walked forward, and with the weights learned from the other months alone."""
    months = list(dict.fromkeys(map(_month, days)))
    found: dict[str, Any] = {}
    for month in months:
        mine = [day for day in days if _month(day) == month]
        start, end = mine[0] * WINDOWS_A_DAY, (mine[-1] + 1) * WINDOWS_A_DAY
        rows = (table.origins >= start) & (table.origins < end)
        found[month] = {"walked_forward": _errors(table, walked, rows) | _savings(table, walked, rows)}
        if len(months) > 1:
            frozen = _frozen(table, [day for day in days if _month(day) != month], rows)
            found[month]["learned_on_the_other_months"] = _errors(table, frozen, rows) | _savings(table, frozen, rows)
    every = np.ones(len(table.origins), dtype=np.bool_)
    found["all"] = {"walked_forward": _savings(table, walked, every)}
    before = [day for day in days if _month(day) != months[-1]]
    if before:
        frozen = _frozen(table, before, table.origins >= (before[-1] + 1) * WINDOWS_A_DAY)
        rows = ~np.isnan(frozen[:, 1])
        name = f"learned up to {_month(before[-1])}, reported on {months[-1]}"
        found[name] = _errors(table, frozen, rows) | _savings(table, frozen, rows)
    for month, values in found.items():
        saved = values.get("walked_forward", values)["saving_pct"]
        report(f"{zone} {month}: saved {saved}")
    return found


def _frozen(table: Table, days: list[int], rows: Any) -> FloatArray:
    """Return the outlook of some rows with the weights learned on some days, the only ones that count."""
    skill = learn_days(Skill(), table, days)
    outlook = np.full(table.truth.shape, np.nan)
    chosen = np.flatnonzero(rows)
    outlook[chosen] = predict(skill, table, chosen)
    return outlook


def _errors(table: Table, outlook: FloatArray, rows: Any) -> dict[str, Any]:
    by_lead: dict[str, Any] = {}
    for lead_min in LEADS_MIN:
        column = lead_min // 5
        truth = table.truth[rows, column]
        by_lead[str(lead_min)] = _beside(
            figures.mae(outlook[rows, column], truth),
            figures.mae(table.provider[rows, column], truth),
            figures.mae(table.hold[rows], truth),
        )
    return {"mae_by_lead_min": by_lead}


def _beside(outlook: float, provider: float, hold: float) -> dict[str, float]:
    return {
        "outlook": round(outlook, 2),
        "provider": round(provider, 2),
        "hold": round(hold, 2),
        "below_provider_pct": round(100 * (1 - outlook / provider), 1),
        "below_the_better_pct": round(100 * (1 - outlook / min(provider, hold)), 1),
    }


def _savings(table: Table, outlook: FloatArray, rows: Any) -> dict[str, Any]:
    """Savings of a 5-minute job that may wait three hours, against running in the window that begins at once.

    ``placed once`` and ``moved`` choose among the 36 windows after the running one; ``moved, from now on`` among that
    one and the next 35, as the planner does. Where a forecast lacks the running window, the last value holds.
    """
    usable = rows & figures.followed(table.origins) & ~np.isnan(table.truth[:, : figures.WAIT + 1]).any(axis=1)
    usable &= ~np.isnan(outlook).all(axis=1)
    if not usable.any():
        return {"saving_pct": {}, "jobs": 0}
    now, later = slice(0, figures.WAIT), slice(1, figures.WAIT + 1)
    provider = table.provider.copy()
    provider[:, 0] = table.hold
    truth, at_once = table.truth, table.truth[:, 0]
    saved: dict[str, float] = {}
    for name, said in (("provider", provider), ("outlook", outlook)):
        for how, columns, choose in (
            ("placed once", later, figures.chosen_once),
            ("moved", later, figures.chosen_again),
            ("moved, from now on", now, figures.chosen_again),
        ):
            chosen = choose(np.where(np.isnan(said[:, columns]), np.inf, said[:, columns]))
            saved[f"{name}, {how}"] = round(figures.saving(truth[:, columns], chosen, at_once, usable), 2)
    for name, columns in (("perfect foresight", later), ("perfect foresight, from now on", now)):
        best = np.argmin(np.where(np.isnan(truth[:, columns]), np.inf, truth[:, columns]), axis=1)
        saved[f"{name}, in hindsight"] = round(figures.saving(truth[:, columns], best, at_once, usable), 2)
    return {
        "saving_pct": saved,
        "jobs": int(usable.sum()),
        "at_once_g_per_kwh": round(float(at_once[usable].mean()), 1),
    }


def _spreads(skill: Skill) -> dict[str, float | None]:
    buckets = bucket_of(np.array([lead // 5 for lead in LEADS_MIN]))
    values = skill.spread[1, buckets].tolist()
    return {str(lead): None if np.isnan(v) else round(v, 1) for lead, v in zip(LEADS_MIN, values, strict=True)}


def _say(report: Report, what: str, errors: dict[str, Any]) -> None:
    parts = [
        f"{lead} min {one['outlook']:.1f} (provider {one['provider']:.1f}, hold {one['hold']:.1f})"
        for lead, one in errors["mae_by_lead_min"].items()
    ]
    report(f"{what}: MAE {', '.join(parts)}")


def _hourly(zone: str, found: Recordings, report: Report) -> dict[str, Any]:
    """Learned from a moment each hour, judged at the issues; an hour's value counts as known an hour after its end."""
    issued, observed = found.hourly[zone], found.observed[zone]
    table, outlook = _long(issued, observed, HOUR, delay=HOUR)
    at_issue = np.isin(table.origins, issued.origins)
    result: dict[str, Any] = {"issues": len(issued.origins), "mape_pct_by_day": {}}
    halves = {"all issues": at_issue, "second half": at_issue & (table.origins >= np.median(issued.origins))}
    for name, rows in halves.items():
        by_day: dict[str, Any] = {}
        for day in range(issued.values.shape[1] // 24):
            columns = slice(24 * day, 24 * day + 24)
            truth = table.truth[rows, columns]
            hold = np.broadcast_to(table.hold[rows][:, None], truth.shape)
            by_day[str(day + 1)] = _beside(
                figures.mape(outlook[rows, columns], truth),
                figures.mape(table.provider[rows, columns], truth),
                figures.mape(hold, truth),
            )
        result["mape_pct_by_day"][name] = by_day
    days = result["mape_pct_by_day"]["all issues"]
    report(f"{zone}: MAPE by day " + ", ".join(f"{d['outlook']:.1f} ({d['provider']:.1f})" for d in days.values()))
    return result


def _half_hourly(zone: str, found: Recordings, report: Report) -> dict[str, Any]:
    issued, observed = found.half_hourly[zone], found.observed[zone]
    table, outlook = _long(issued, observed, HALF_HOUR, delay=HALF_HOUR)
    rows = np.isin(table.origins, issued.origins)
    result: dict[str, Any] = {"issues": len(issued.origins), "mae_by_lead_h": {}}
    for first, end in ((0, 2), (2, 6), (6, 12), (12, 24), (24, 48)):
        columns = slice(2 * first, 2 * end)
        truth = table.truth[rows, columns]
        hold = np.broadcast_to(table.hold[rows][:, None], truth.shape)
        result["mae_by_lead_h"][f"{first}-{end}"] = _beside(
            figures.mae(outlook[rows, columns], truth),
            figures.mae(table.provider[rows, columns], truth),
            figures.mae(hold, truth),
        )
    report(
        f"{zone}: "
        + ", ".join(f"{k} h {v['outlook']:.1f} ({v['provider']:.1f})" for k, v in result["mae_by_lead_h"].items())
    )
    return result


def _long(issued: Issued, observed: Series, step: int, *, delay: int) -> tuple[Table, FloatArray]:
    first = int(issued.origins[0])
    origins = np.arange(first, int(issued.origins[-1]) + 1, step)
    leads = np.arange(0, issued.values.shape[1] * step, step)
    table = gather(issued, observed, origins, leads, delay)
    outlook, _ = walk(table, _days(table))
    return table, outlook
