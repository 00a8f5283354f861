"""What a chunk takes in each region beside the hour's rate: energy by hardware, embodied and transfer carbon. Pure.

Microjoules and gCO2e of one chunk. What is not stated of a region counts nothing: it is left out of the decision, and
the ledger leaves it empty.
"""

from __future__ import annotations

from collections.abc import Mapping

from carbonq import estimate
from carbonq.model import Model, Region, Throughput

#: Bytes of a token where the model is not known any more.
_BYTES_PER_TOKEN = 4.0


def round_to_digits(value: int, digits: int = 3) -> int:
    """Round a whole number to its first digits, half up: chunks that differ by less are planned as one kind."""
    unit = 10 ** max(0, len(str(abs(value))) - digits)
    return (value + unit // 2) // unit * unit


def energy_uj(
    tokens: int,
    est_energy_uj: int,
    region: Region,
    model: Model | None,
    learned: Mapping[tuple[str, str], Throughput],
) -> int:
    """Return what some tokens take on a region's hardware; the chunk's own estimate where nothing is known of it."""
    if model is None:
        return est_energy_uj
    return estimate.energy_uj(tokens, estimate.speed(model, region.hardware, learned).uj_per_token)


def extra_g(
    tokens: int,
    est_duration_s: float,
    region: Region,
    model: Model | None,
    learned: Mapping[tuple[str, str], Throughput],
    *,
    home: str,
) -> float:
    """Return the grams that embodied carbon and the way from ``home`` add, whatever the hour.

    ``embodied_kg x 1000 x duration / (life_h x 3600)`` for the machine seconds on one slot there, and ``bytes / 1e9 x
    kWh per GB x g per kWh`` for the input's bytes, as docs/methodology.md has them; each 0 where it is not stated.
    """
    grams = 0.0
    if region.embodied_kg is not None and region.life_h is not None:
        seconds = est_duration_s
        if model is not None:
            seconds = estimate.duration_s(tokens, estimate.speed(model, region.hardware, learned).tokens_per_s)
        grams += float(region.embodied_kg) * 1000 * seconds / (float(region.life_h) * 3600)
    if region.name != home and region.transfer_kwh_per_gb is not None and region.transfer_g_per_kwh is not None:
        size = tokens * (_BYTES_PER_TOKEN if model is None else model.chars_per_token)
        grams += size / 1e9 * float(region.transfer_kwh_per_gb) * float(region.transfer_g_per_kwh)
    return grams
