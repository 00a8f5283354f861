"""Choose the meters of a worker: the best that this host has for each component, or what was asked for.

Nothing is metered twice: RAPL only where one worker has the host, no DRAM counter beside an estimate that includes
memory, and nothing beside a meter of the whole host.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Literal, TypeVar

from carbonq.errors import ConfigError
from carbonq.meters import rapl
from carbonq.meters.amd import AmdMeter
from carbonq.meters.calibrated import CalibratedMeter
from carbonq.meters.cpu_time import CpuTimeMeter, Watts, watts_of_this_cpu
from carbonq.meters.dcgm import DcgmMeter
from carbonq.meters.external import ExternalMeter, Place
from carbonq.meters.nvml import NvmlMeter
from carbonq.meters.protocol import Component, Meter, MeterKind
from carbonq.meters.rated import RatedMeter

logger = logging.getLogger(__name__)

_Value = TypeVar("_Value")

#: Where a component's energy may come from; ``auto`` is the best there is.
Source = Literal["auto", "none", "nvml", "amd", "dcgm", "rapl", "cpu_time", "external", "tdp", "nameplate"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for one component; what is None takes the meter's own default."""

    by: Source = "auto"
    watts: float | None = None
    uncertainty_pct: float | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    value: str | None = None
    unit: str | None = None
    form: Literal["json", "csv"] = "json"
    period_s: float = 1.0
    lag_s: float | None = None
    is_whole_host: bool = False
    factor: Decimal | None = None
    factor_on: date | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """What meters need to know of the worker: its GPUs, watts of a busy core, engine processes, right to use RAPL."""

    gpus: tuple[str, ...]
    watts_per_core: float | None
    pids: Callable[[], Sequence[int]]
    may_use_rapl: bool


def discover(
    *,
    gpus: tuple[str, ...],
    watts_per_core: float | None,
    pids: Callable[[], Sequence[int]],
    may_use_rapl: bool,
    wanted: Mapping[Component, Wanted] | None = None,
) -> list[Meter]:
    """Return the meters of a worker, at most one for each component.

    Args:
        gpus: indices or UUIDs of the worker's GPUs; empty: all it sees, if any.
        watts_per_core: W of one busy hardware thread for the estimate; None: from the table.
        pids: the engine's processes besides this one.
        may_use_rapl: RAPL counts the whole host, so only the one worker of a host may use it.
        wanted: what was asked for; a component that is not there takes the best there is.

    Raises ConfigError when GPUs were named, or a meter was asked for, that cannot be had.
    """
    host = Host(gpus, watts_per_core, pids, may_use_rapl)
    asked = {component: (wanted or {}).get(component, Wanted()) for component in Component}
    meters: list[Meter] = []
    try:
        whole = [component for component, one in asked.items() if one.by == "external" and one.is_whole_host]
        for component in whole[:1] or Component:
            is_estimated = any(one.component is Component.CPU and one.kind is not MeterKind.RAPL for one in meters)
            if component is Component.DRAM and asked[component].by == "auto" and is_estimated:
                continue  # the estimate's watts include memory, and a meter of the CPU may
            meters += _calibrated(_SOURCES[asked[component].by](host, component, asked[component]), asked[component])
    except ConfigError as error:
        for meter in meters:
            meter.close()
        raise ConfigError(error.message) from error
    return meters


def _calibrated(meters: Sequence[Meter], wanted: Wanted) -> list[Meter]:
    if wanted.factor is None or wanted.factor_on is None:
        return list(meters)
    return [CalibratedMeter(meter, wanted.factor, wanted.factor_on, wanted.uncertainty_pct) for meter in meters]


def _auto(host: Host, component: Component, wanted: Wanted) -> list[Meter]:
    if component is Component.GPU:
        return _first_gpu(host, component, wanted)
    counters = _rapl_of(component) if host.may_use_rapl else []
    if component is Component.CPU and not counters:
        return _cpu_time(host, component, wanted)
    return counters


def _first_gpu(host: Host, component: Component, wanted: Wanted) -> list[Meter]:
    reasons: list[str] = []
    for make in (_nvml, _amd):
        try:
            return make(host, component, wanted)
        except ConfigError as error:
            reasons.append(error.message)
    if host.gpus:
        raise ConfigError(reasons[0] if "No module" in reasons[1] else "; ".join(reasons))
    logger.info("GPU energy is not metered: %s", "; ".join(reasons))
    return []


def _nvml(host: Host, _component: Component, wanted: Wanted) -> list[Meter]:
    more = {} if wanted.lag_s is None else {"lag_s": wanted.lag_s}
    return [NvmlMeter(host.gpus, host.pids, **more)]


def _amd(host: Host, _component: Component, wanted: Wanted) -> list[Meter]:
    more = {} if wanted.lag_s is None else {"lag_s": wanted.lag_s}
    return [AmdMeter(host.gpus, **more)]


def _dcgm(host: Host, _component: Component, wanted: Wanted) -> list[Meter]:
    url = _needed(wanted.url, "url", wanted)
    more = {} if wanted.lag_s is None else {"lag_s": wanted.lag_s}
    return [DcgmMeter(url, host.gpus, headers=wanted.headers, period_s=wanted.period_s, **more)]


def _rapl_of(component: Component) -> list[Meter]:
    return [meter for meter in rapl.find() if meter.component is component]


def _rapl(host: Host, component: Component, _wanted: Wanted) -> list[Meter]:
    if not host.may_use_rapl:
        # Another worker has come to the host: what was asked for would count its energy, too.
        return _cpu_time(host, component, _wanted) if component is Component.CPU else []
    found = _rapl_of(component)
    if not found:
        raise ConfigError(f"RAPL cannot be read for {component.value}; see that {rapl.POWERCAP} has it and may be read")
    return found


def _cpu_time(host: Host, _component: Component, _wanted: Wanted) -> list[Meter]:
    stated = host.watts_per_core
    watts = Watts("configured", stated) if stated is not None else watts_of_this_cpu()
    return [CpuTimeMeter(watts, host.pids)]


def _external(_host: Host, component: Component, wanted: Wanted) -> list[Meter]:
    place = Place(
        _needed(wanted.url, "url", wanted),
        _needed(wanted.value, "value", wanted),
        _needed(wanted.unit, "unit", wanted),
        wanted.form,
        wanted.headers,
    )
    return [
        ExternalMeter(
            place,
            component,
            period_s=wanted.period_s,
            lag_s=wanted.lag_s or 0.0,
            uncertainty_pct=wanted.uncertainty_pct,
        )
    ]


def _rated(_host: Host, component: Component, wanted: Wanted) -> list[Meter]:
    watts = _needed(wanted.watts, "watts", wanted)
    is_upper_bound = wanted.by == "nameplate"
    return [RatedMeter(component, watts, is_upper_bound=is_upper_bound, uncertainty_pct=wanted.uncertainty_pct)]


def _none(_host: Host, _component: Component, _wanted: Wanted) -> list[Meter]:
    return []


def _needed(value: _Value | None, name: str, wanted: Wanted) -> _Value:
    if value is None:
        raise ConfigError(f"the meter {wanted.by!r} needs {name}")
    return value


#: One line for each source.
_SOURCES: Mapping[Source, Callable[[Host, Component, Wanted], list[Meter]]] = {
    "auto": _auto,
    "none": _none,
    "nvml": _nvml,
    "amd": _amd,
    "dcgm": _dcgm,
    "rapl": _rapl,
    "cpu_time": _cpu_time,
    "external": _external,
    "tdp": _rated,
    "nameplate": _rated,
}
