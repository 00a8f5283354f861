"""What items would have caused if each had run at once in the nearest region: the report's avoidable carbon. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from decimal import Decimal

from carbonq.model import Rate, RateStatus, Region, Signal
from carbonq.report.document import Avoidable
from carbonq.report.gather import Arrived
from carbonq.report.sums import Sums
from carbonq.units import LEDGER_CONTEXT, from_quanta, grams

#: How the comparison is made.
WORDS = (
    "Avoidable carbon compares what items of jobs caused with the same IT energy run at once in the nearest region: of "
    "the regions configured now that serve the model and that the job allows, the one with the lowest stated latency; "
    "in the five-minute window in which the job was submitted, with no queue; at that region's PUE as stated now and "
    "the marginal rate observed there. Only figures alike in status are compared (settled with settled, provisional "
    "with observed but not final). Hardware is taken to use the same energy everywhere. Calls without a job (realtime, "
    "interactive) ran at once anyway and are left out, and so is what lacks energy, a rate on either side, or its job."
)

_FINAL = frozenset({RateStatus.SETTLED, RateStatus.RESTATED})

Lookup = Callable[[Signal, str, datetime], tuple[Rate | None, RateStatus]]


def nearest(regions: Sequence[Region], model: str, allowed: tuple[str, ...] | None) -> Region | None:
    """Return the region with the lowest stated latency that serves a model and that a job allows; None: none does."""
    usable = [one for one in regions if one.serves(model) and (not allowed or one.name in allowed)]
    return min(usable, key=lambda one: (one.latency_ms, one.name), default=None)


def compare(
    arrived: Iterable[tuple[Arrived, Sums]], regions: Sequence[Region], lookup: Lookup, item_energy_uj: int
) -> tuple[Avoidable, ...]:
    """Return the comparison, a row for each status. ``lookup`` gives the observed rate of a zone's window."""
    by_name = {one.name: one for one in regions}
    found: dict[str, tuple[Sums, Decimal]] = {}
    for key, sums in arrived:
        region = by_name[key.region]
        rate, status = lookup(Signal.MOER, region.zone, key.window_at)
        name = _alike(RateStatus(key.status), status)
        if rate is None or name is None:
            continue
        known, nearest_g = found.get(name, (Sums(), Decimal(0)))
        alternative = grams(sums.energy_uj, region.pue, rate.g_per_kwh)
        found[name] = (known.plus(sums), LEDGER_CONTEXT.add(nearest_g, alternative))
    return tuple(
        Avoidable(
            status=name,
            entries=sums.entries,
            energy_uj=sums.energy_uj,
            coverage=sums.energy_uj / item_energy_uj if item_energy_uj else None,
            emission_g=from_quanta(sums.emission),
            nearest_g=nearest_g,
            avoided_g=LEDGER_CONTEXT.subtract(nearest_g, from_quanta(sums.emission)),
        )
        for name, (sums, nearest_g) in sorted(found.items())
    )


def _alike(ran: RateStatus, nearest_status: RateStatus) -> str | None:
    """Return the status that both figures have; None where they are not alike or one is missing."""
    if ran in _FINAL and nearest_status in _FINAL:
        return RateStatus.SETTLED.value
    return ran.value if ran is nearest_status and ran is not RateStatus.MISSING else None
