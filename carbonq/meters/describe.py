"""Say how the figures of several meters together were obtained. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from carbonq.meters.protocol import Component, Meter, MeterInfo, MeterKind
from carbonq.model import Quality


def describe(meters: Sequence[Meter]) -> MeterInfo:
    """Return kinds, quality, uncertainty and devices of meters that count together."""
    kinds = {meter.component: meter.kind for meter in meters}
    stated = [meter.uncertainty_pct for meter in meters]
    known = [value for value in stated if value is not None]
    return MeterInfo(
        gpu_meter=kinds.get(Component.GPU, MeterKind.NONE),
        cpu_meter=kinds.get(Component.CPU, MeterKind.NONE),
        dram_meter=kinds.get(Component.DRAM, MeterKind.NONE),
        quality=_quality({meter.quality for meter in meters}),
        # The largest bounds the sum's, and no bound is known unless every meter states one.
        uncertainty_pct=max(known) if known and len(known) == len(stated) else None,
        device_ids=tuple(device for meter in meters for device in meter.device_ids),
    )


def _quality(qualities: set[Quality]) -> Quality:
    if Quality.UPPER_BOUND in qualities:
        return Quality.UPPER_BOUND
    if len(qualities) > 1:
        return Quality.MIXED
    return next(iter(qualities), Quality.ESTIMATED)
