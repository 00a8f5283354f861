"""Choose the meters of a worker: the best that this host has for each component. Nothing is metered twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from carbonq.errors import ConfigError
from carbonq.meters import rapl
from carbonq.meters.cpu_time import CpuTimeMeter, Watts, watts_of_this_cpu
from carbonq.meters.nvml import NvmlMeter
from carbonq.meters.protocol import Component, Meter

logger = logging.getLogger(__name__)


def discover(
    *, gpus: tuple[str, ...], watts_per_core: float | None, pids: Callable[[], Sequence[int]], may_use_rapl: bool
) -> list[Meter]:
    """Return a GPU meter where there is one, and RAPL or else the CPU-time estimate.

    Args:
        gpus: indices or UUIDs of the worker's GPUs; empty: all it sees, if any.
        watts_per_core: W of one busy hardware thread for the estimate; None: from the table.
        pids: the engine's processes besides this one.
        may_use_rapl: RAPL counts the whole host, so only the one worker of a host may use it.

    Raises ConfigError when GPUs were named and cannot be metered.
    """
    meters: list[Meter] = []
    try:
        meters.append(NvmlMeter(gpus))
    except ConfigError as error:
        if gpus:
            raise
        logger.info("GPU energy is not metered: %s", error)
    counters = rapl.find() if may_use_rapl else []
    if any(meter.component is Component.CPU for meter in counters):
        meters.extend(counters)
    else:
        # The estimate's watts include memory, so a DRAM counter beside it would count that twice.
        watts = Watts("configured", watts_per_core) if watts_per_core is not None else watts_of_this_cpu()
        meters.append(CpuTimeMeter(watts, pids))
    return meters
