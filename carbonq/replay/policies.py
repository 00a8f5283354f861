"""The policies that a replay compares, and their run over the same work. Names are what a person types and reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from carbonq.errors import InvalidRequest
from carbonq.plan.evidence import IntArray
from carbonq.replay import fixed, hindsight
from carbonq.replay.rolling import Ran, Rolling, roll
from carbonq.replay.site import Site
from carbonq.replay.walk import Walk
from carbonq.replay.work import Work

#: Policies by name, with what they do; the first five are baselines.
POLICIES = {
    "at-once": "at once in the home region, first come, first served",
    "round-robin": "at once, jobs going round the regions in turn",
    "best-time": "home region, best time, chosen with hindsight",
    "best-region": "at once in the single region that proved best in hindsight",
    "carbonq": "planned with the forecasts as issued, re-planned as they change",
    "carbonq-home": "the same, in the home region alone",
    "perfect": "best time and region, chosen with hindsight: the limit of the possible",
}
BASELINES = ("at-once", "round-robin", "best-time", "best-region")


@dataclass(frozen=True, slots=True)
class Rules:
    """How planned policies plan: margins of moves (shares), re-planning interval and publication delay (windows)."""

    margins: tuple[float, ...] = (0.03,)
    every: int = 3
    delay: int | None = None
    displacement: float = 0.0


def label(name: str, margin: float, margins: Sequence[float]) -> str:
    """Return a planned policy's name, with its margin where there are several."""
    return name if len(margins) == 1 else f"{name} {100 * margin:g}%"


#: Policies that run all work in the home region.
_AT_HOME = frozenset({"at-once", "best-time", "carbonq-home"})


def run(
    site: Site,
    work: Work,
    names: Sequence[str],
    rules: Rules,
    *,
    report: Callable[[str], None] = lambda _text: None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Ran]:
    """Run the work by each policy; planned ones once for each margin. Raises InvalidRequest for an unknown policy."""
    for name in names:
        if name not in POLICIES:
            raise InvalidRequest(f"policy {name!r} is unknown; known are {', '.join(POLICIES)}", param="policy")
        if name in _AT_HOME and not site.slots[site.home]:
            raise InvalidRequest(
                f"policy {name} runs at home, and --slots leaves {site.regions[site.home]} none: "
                "name another --home, or the policies to run",
                param="slots",
            )
    made: dict[str, Ran] = {}
    rolling: dict[str, Rolling] = {}
    for name, what in POLICIES.items():
        if name not in names:
            continue
        if name in {"carbonq", "carbonq-home"}:
            rows = [site.home] if name == "carbonq-home" else None
            for margin in rules.margins:
                rolling[label(name, margin, rules.margins)] = Rolling(
                    site, work, margin=margin, displacement=rules.displacement, rows=rows
                )
            continue
        report(f"running {name}: {what}")
        made[name] = _single(site, work, name)
    if rolling:
        report(f"planning every {5 * rules.every} minutes of the recording: {', '.join(rolling)}")
        made |= rolled(site, work, rolling, rules, progress=progress)
    order = [label(name, m, rules.margins) for name in POLICIES for m in rules.margins] + list(POLICIES)
    return {name: made[name] for name in sorted(made, key=lambda one: _place(one, order))}


def rolled(
    site: Site,
    work: Work,
    variants: dict[str, Rolling],
    rules: Rules,
    *,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Ran]:
    """Run planned variants in step over the same outlooks."""
    delays = None if rules.delay is None else dict.fromkeys(site.regions, rules.delay)
    walk = Walk(site.grid, site.model_regions, every=rules.every, delays=delays)
    found = roll(list(variants.values()), walk, work, every=rules.every, report=progress)
    return dict(zip(variants, found, strict=True))


def _place(name: str, order: Sequence[str]) -> tuple[int, int]:
    return list(POLICIES).index(name.partition(" ")[0]), order.index(name)


def _single(site: Site, work: Work, name: str) -> Ran:
    match name:
        case "at-once":
            return fixed.at_once(work, site.slots, site.home)
        case "round-robin":
            return fixed.round_robin(work, site.slots)
        case "best-time":
            return hindsight.perfect(site, work, rows=[site.home])
        case "best-region":
            ways = [fixed.at_once(work, site.slots, row) for row in np.flatnonzero(site.slots).tolist()]
            return min(ways, key=lambda one: _badness(site, work, one, site.slots))
        case _:
            return hindsight.perfect(site, work)


def _badness(site: Site, work: Work, ran: Ran, _slots: IntArray) -> tuple[int, float]:
    """Rank ways to run everything at once: fewest pieces late, then least carbon on the pieces that are known."""
    late = int((ran.start + work.windows > work.due).sum())
    grams = site.grams(work, ran.region, ran.start)
    known = ~np.isnan(grams)
    return late, float(grams[known].mean()) if known.any() else float("inf")
