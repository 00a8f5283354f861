"""A replay's figures as JSON values and as a table: every saving stands beside its baseline, and all are simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from carbonq.replay.capacity import Point
from carbonq.replay.figures import CONFIDENCE, Blocks, Outcome, Share, find, saving, share_of
from carbonq.replay.policies import BASELINES, POLICIES
from carbonq.replay.site import UNLIMITED, Site
from carbonq.replay.work import Work
from carbonq.units import iso, window_at

#: What the two signals are called where a person reads.
SIGNALS = {"moer": "marginal (MOER)", "aer": "average (AER)"}


@dataclass(frozen=True, slots=True)
class Context:
    """What is said beside the figures: where the files, the work and the assumptions came from."""

    intensity: Sequence[str]
    forecast: Sequence[str]
    work: str
    power_w: float
    notes: Sequence[str]


def to_json(
    site: Site, work: Work, made: Sequence[Outcome], blocks: Blocks, context: Context, *, left_out: int, past: int
) -> dict[str, Any]:
    """Return everything as JSON values."""
    best = find(made, "perfect")
    bases = [one for one in made if one.name in BASELINES]
    return {
        "simulated": True,
        "signal": site.grid.signal.value,
        "unit": "gCO2e/kWh",
        "grid": {
            "intensity": list(context.intensity),
            "forecast": list(context.forecast),
            "step_min": {zone: 5 * site.grid.steps[zone] for zone in site.regions},
        },
        "work": {
            "from": context.work,
            "jobs": len(set(work.job.tolist())),
            "pieces": work.count,
            "pieces_left_out": left_out,
            "pieces_past_the_data": past,
            "energy_kwh": work.energy_kwh,
            "power_w_per_slot": context.power_w,
            "first_release": iso(window_at(int(work.release.min()))) if work.count else None,
            "last_deadline": iso(window_at(int(work.due.max()))) if work.count else None,
        },
        "regions": [
            {
                "region": name,
                "is_home": row == site.home,
                "slots": None if site.slots[row] >= UNLIMITED else int(site.slots[row]),
                "pue": float(site.pue[row]),
            }
            for row, name in enumerate(site.regions)
        ],
        "policies": [_outcome(one, bases, best, blocks) for one in made],
        "intervals": {
            "method": "percentile bootstrap over blocks of release time",
            "block": blocks.length,
            "blocks": blocks.count,
            "resamples": len(blocks.draws),
            "confidence": CONFIDENCE,
        },
        "notes": list(context.notes),
    }


def _outcome(one: Outcome, bases: Sequence[Outcome], best: Outcome | None, blocks: Blocks) -> dict[str, Any]:
    return {
        "policy": one.name,
        "what": POLICIES[one.name.partition(" ")[0]],
        "simulated_g": one.grams,
        "g_per_kwh": one.g_per_kwh,
        "cost": one.cost,
        "jobs_late": one.missed,
        "jobs_not_finished": one.unfinished,
        "late_h_mean": one.late_h,
        "delay_h_mean": one.delay_h,
        "moves_per_piece": one.moves_per_piece,
        "is_proven_optimum": one.is_exact,
        "saved_against": {base.name: _share(saving(one, base, blocks)) for base in bases if base is not one},
        "share_of_perfect_against": {
            base.name: _share(share_of(one, base, best, blocks))
            for base in bases
            if best is not None and one is not best and base is not one
        },
    }


def _share(share: Share) -> dict[str, float | None]:
    return {"pct": share.pct, "low": share.low, "high": share.high}


def table(made: Sequence[Outcome], blocks: Blocks) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows for a terminal."""
    best = find(made, "perfect")
    bases = [one for one in made if one.name in BASELINES]
    has_cost = any(one.cost is not None for one in made)
    columns = ["POLICY", "KGCO2E", "G/KWH", *([] if not has_cost else ["COST"])]
    columns += [f"SAVED VS {base.name.upper()} %" for base in bases]
    columns += [] if best is None or not bases else [f"OF PERFECT VS {bases[0].name.upper()} %"]
    is_short = any(one.unfinished for one in made)
    columns += ["LATE", *(["NOT FINISHED"] if is_short else []), "DELAY H", "MOVES"]
    rows: list[list[str]] = []
    for one in made:
        row = [one.name, f"{one.grams / 1000:.2f}", f"{one.g_per_kwh:.1f}"]
        row += [] if not has_cost else ["" if one.cost is None else f"{one.cost:.2f}"]
        row += ["" if base is one else text(saving(one, base, blocks)) for base in bases]
        if best is not None and bases:
            row.append("" if one is best or one is bases[0] else text(share_of(one, bases[0], best, blocks)))
        row += [str(one.missed), *([str(one.unfinished)] if is_short else []), f"{one.delay_h:.1f}"]
        row += [f"{one.moves_per_piece:.2f}" if one.moves_per_piece else ""]
        rows.append(row)
    return columns, rows


def text(share: Share) -> str:
    """Write a share with its interval."""
    if share.pct is None:
        return ""
    if share.low is None or share.high is None:
        return f"{share.pct:.1f}"
    return f"{share.pct:.1f} [{share.low:.1f}, {share.high:.1f}]"


def curve_table(points: Sequence[Point], blocks: Blocks) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of a capacity curve; each region's first point is what its others are compared with."""
    has_cost = any(one.outcome.cost is not None for one in points)
    columns = ["REGION", "SLOTS", "KGCO2E", "SAVED VS FIRST %", *([] if not has_cost else ["COST"])]
    is_short = any(one.outcome.unfinished for one in points)
    columns += ["LATE", *(["NOT FINISHED"] if is_short else []), "LATE H", "DELAY H"]
    rows: list[list[str]] = []
    for one in points:
        made = one.outcome
        row = [one.region, str(one.slots), f"{made.grams / 1000:.2f}", ""]
        first = next(other for other in points if other.region == one.region)
        if first is not one:
            row[3] = text(saving(made, first.outcome, blocks))
        row += [] if made.cost is None else [f"{made.cost:.2f}"]
        row += [str(made.missed), *([str(made.unfinished)] if is_short else [])]
        rows.append([*row, f"{made.late_h:.1f}", f"{made.delay_h:.1f}"])
    return columns, rows


def curve_json(
    site: Site,
    points: Sequence[Point],
    blocks: Blocks,
    *,
    least_g: float,
    notes: Sequence[str],
    left_out: int,
    past: int,
) -> dict[str, Any]:
    """Return a capacity curve as JSON values; ``least_g`` is what no number of slots can go below."""
    firsts: dict[str, Point] = {}
    for one in points:
        firsts.setdefault(one.region, one)
    return {
        "simulated": True,
        "signal": site.grid.signal.value,
        "policy": "carbonq",
        "points": [
            {
                "region": one.region,
                "slots": one.slots,
                "simulated_g": one.outcome.grams,
                "cost": one.outcome.cost,
                "jobs_late": one.outcome.missed,
                "jobs_not_finished": one.outcome.unfinished,
                "late_h_mean": one.outcome.late_h,
                "delay_h_mean": one.outcome.delay_h,
                "saved_against_first": _share(saving(one.outcome, firsts[one.region].outcome, blocks)),
            }
            for one in points
        ],
        "no_capacity_below_g": least_g,
        "pieces_left_out": left_out,
        "pieces_past_the_data": past,
        "notes": list(notes),
    }
