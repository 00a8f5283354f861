"""Carbon figures for the event that ends a job or batch: what its object shows at that moment, by the same names.

Provisional figures settle later; an event is not told again, the object is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from carbonq.errors import InvalidRequest
from carbonq.model import Quality, RateStatus
from carbonq.ratebook import worst
from carbonq.services import summary
from carbonq.store.database import Tx
from carbonq.units import wh

Json = dict[str, Any]


def of_job(tx: Tx, job_id: str) -> Json | None:
    """Return a job's figures; None where nothing of it ran, or on two clocks."""
    try:
        return _told(summary.of_job(tx, job_id))
    except InvalidRequest:  # figures of two clocks are not added up
        return None


def of_batch(tx: Tx, batch_id: str) -> Json | None:
    """Return a batch's figures; None where nothing of it ran, or on two clocks."""
    try:
        return _told(summary.of_batch(tx, batch_id))
    except InvalidRequest:
        return None


def with_status(sums: Mapping[str, Any]) -> Json:
    """Return sums with the least final ``status`` and the worst ``quality`` of their entries."""
    status = worst(RateStatus(one) for one in sums["emission_status"])
    qualities = [Quality(one) for one in sums["energy_quality"]]
    # Best first, and the levels are declared in that order.
    quality = max(qualities, key=list(Quality).index, default=None)
    return {**sums, "status": status.value, "quality": None if quality is None else quality.value}


def _told(sums: Mapping[str, Any] | None) -> Json | None:
    if sums is None:
        return None
    known = with_status(sums)
    is_metered = known["entries"] > known["unmetered_entries"]
    return {
        "actual_gco2e": _float(known["emission_g"]),
        "baseline_gco2e": _float(known["baseline_g"]),
        "saved_gco2e": _float(known["saved_g"]),
        "inventory_gco2e": _float(known["inventory_g"]),
        "energy_wh": wh(known["energy_uj"]) if is_metered else None,
        "signal": "marginal",
        "quality": known["quality"],
        "status": known["status"],
    }


def _float(text: str | None) -> float | None:
    return None if text is None else float(text)
