"""Whether carbonq decides where a job runs, only watches, or leaves it alone to be compared with. Pure.

Work that is observed or held out runs as it would without carbonq: at once, first come first served, in its home
region. Of what is observed a plan is kept beside (a *shadow*); what is held out is measured against what was planned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from carbonq.model import Region, RegionState, Treatment
from carbonq.plan.policy import nearest_region


@dataclass(frozen=True, slots=True)
class TreatmentRules:
    """Who is only observed, and which share of the jobs of the others is held out."""

    is_observed: bool = False
    observed_tenants: frozenset[str] = frozenset()
    holdout_share: float = 0.0


def treatment_of(job_id: str, tenant: str, rules: TreatmentRules) -> Treatment:
    """Return what becomes of a job: the same at every call, and by nothing that its sender can choose.

    A job is held out when the first 64 bits of ``SHA-256("holdout " + job_id)``, as a fraction, are below the share.
    """
    if rules.is_observed or tenant in rules.observed_tenants:
        return Treatment.OBSERVED
    digest = hashlib.sha256(f"holdout {job_id}".encode()).digest()
    is_held_out = int.from_bytes(digest[:8]) / 2**64 < rules.holdout_share
    return Treatment.HELD_OUT if is_held_out else Treatment.PLANNED


def home_of(home: str, allowed: Sequence[str] | None, model: str, regions: Sequence[Region]) -> str | None:
    """Return the region where work runs at once: its home, whether a worker is there or not, as without carbonq.

    Where the job may not run there, or it does not serve the model, or takes no new work by its operator's word, the
    nearest region that may; None if there is none.
    """
    usable = [region for region in regions if allowed is None or region.name in allowed]
    for region in usable:
        if region.name == home and region.serves(model) and region.state is RegionState.ACTIVE:
            return home
    nearest = nearest_region(usable, model)
    return None if nearest is None else nearest.name
