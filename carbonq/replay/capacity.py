"""What more slots would be worth: carbon, cost and lateness of planned work against the slots of one region.

All points go through the same outlooks in step, so they differ by their slots alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from carbonq.errors import InvalidRequest
from carbonq.plan.evidence import IntArray
from carbonq.replay import hindsight
from carbonq.replay.figures import Blocks, Outcome, outcomes, past_the_data
from carbonq.replay.policies import Rules, rolled
from carbonq.replay.rolling import Ran, Rolling
from carbonq.replay.site import Site
from carbonq.replay.work import Work

#: The most points of one curve set.
MAX_POINTS = 64


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a curve: the region whose slots vary, how many it has, and what came of planned work."""

    region: str
    slots: int
    outcome: Outcome


def points(site: Site, ranges: dict[str, Sequence[int]]) -> list[tuple[str, IntArray]]:
    """Return (region, slots of all regions) for each point: one region varies, the others keep the site's slots.

    Raises InvalidRequest for more than ``MAX_POINTS``.
    """
    made: list[tuple[str, IntArray]] = []
    for region, counts in ranges.items():
        for count in counts:
            slots = site.slots.copy()
            slots[site.regions.index(region)] = count
            made.append((region, slots))
    if len(made) > MAX_POINTS:
        raise InvalidRequest(f"--slots asks for {len(made)} points; at most {MAX_POINTS}", param="slots")
    return made


def curve(
    site: Site,
    work: Work,
    ranges: dict[str, Sequence[int]],
    rules: Rules,
    blocks: Blocks,
    *,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[Point], int, int]:
    """Replay planned work at each point.

    Return the points, how many pieces are left out (rate unknown), and how many of those ran past the data.
    """
    wanted = points(site, ranges)
    names = [f"{region}={int(slots[site.regions.index(region)])}" for region, slots in wanted]
    variants = {
        name: Rolling(site, work, margin=rules.margins[0], displacement=rules.displacement, slots=slots)
        for name, (_, slots) in zip(names, wanted, strict=True)
    }
    ran: dict[str, Ran] = rolled(site, work, variants, rules, progress=progress)
    made, left_out = outcomes(site, work, ran, blocks, {n: s for n, (_, s) in zip(names, wanted, strict=True)})
    found = [
        Point(region, int(slots[site.regions.index(region)]), outcome)
        for (region, slots), outcome in zip(wanted, made, strict=True)
    ]
    return found, left_out, past_the_data(site, work, list(ran.values()))


def limit(site: Site, work: Work) -> float:
    """Return the grams below which no number of slots brings this work, even with hindsight."""
    best = hindsight.alone(site, work, range(len(site.regions)))
    return float(np.nansum(site.grams(work, best.region, best.start)))
