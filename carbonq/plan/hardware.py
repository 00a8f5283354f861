"""What a chunk takes in each region beside the hour's rate: energy by hardware, embodied and transfer carbon. Pure.

Microjoules and gCO2e of one chunk. What is not stated of a region counts nothing: it is left out of the decision, and
the ledger leaves it empty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from carbonq import estimate
from carbonq.model import Model, Region, Throughput
from carbonq.units import UJ_PER_KWH

FloatArray = npt.NDArray[np.float64]

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


def weighted_price_g(regions: Sequence[Region], energy_uj: FloatArray, price_weight_g: float) -> FloatArray:
    """Return the grams that the price of some energy (by region) weighs; a price not stated counts as the dearest.

    All 0 where nothing is weighed or no price is stated, as in planning.
    """
    prices = np.array([math.nan if one.price_per_kwh is None else float(one.price_per_kwh) for one in regions])
    if price_weight_g <= 0 or np.isnan(prices).all():
        return np.zeros(len(regions))
    pue = np.array([float(one.pue) for one in regions])
    return price_weight_g * pue * np.nan_to_num(prices, nan=float(np.nanmax(prices))) * energy_uj / UJ_PER_KWH
