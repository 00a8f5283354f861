"""Checks of one host: Python, ports, models, meters and GPUs, disk."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator

from carbonq import wiring
from carbonq.config import Settings
from carbonq.embedded import address, ports
from carbonq.embedded.finding import Finding, State
from carbonq.errors import ConfigError

#: Below this much free space a check warns, below a tenth of it it fails, in bytes.
ENOUGH_DISK = 2_000_000_000

MIN_PYTHON = (3, 11)


def check_python() -> Iterator[Finding]:
    """Look at the interpreter."""
    version = platform.python_version()
    if sys.version_info < MIN_PYTHON:
        yield Finding("python", State.FAIL, f"Python {version}; carbonq needs 3.11 or later")
    else:
        yield Finding("python", State.OK, f"Python {version} on {platform.machine()}")


def check_ports(settings: Settings) -> Iterator[Finding]:
    """Try the ports of API and Flower."""
    found = address.running(settings.data_dir)
    if found is not None:
        yield Finding("ports", State.OK, f"carbonq runs: {found.api_url}, Flower {found.flower_url}")
        return
    ports.choose(settings.host, settings.port, what="the API", setting="CARBONQ_PORT")
    ports.choose(address.LOOPBACK, settings.flower_port, what="Flower", setting="CARBONQ_FLOWER_PORT")
    yield Finding("ports", State.OK, f"{settings.host}:{settings.port} and Flower's {settings.flower_port} are free")


def check_models(settings: Settings, *, region: str | None) -> Iterator[Finding]:
    """Look for the files of all models, or of those that a region serves; a missing one that was named there fails."""
    named = None if region is None else settings.regions[region].models
    for model in wiring.make_models(settings).values():
        if named is not None and model.name not in named:
            continue
        try:
            wiring.find_model(settings, model)
        except ConfigError as error:
            # As the worker does: one that only ships with carbonq is left out, one that was asked for must be there.
            is_asked_for = region is not None and (named is not None or model.name in settings.models)
            state = State.FAIL if is_asked_for else State.WARN
            yield Finding("models", state, f"{model.name} cannot be used: {error.message}")
        else:
            yield Finding("models", State.OK, f"{model.name} ({model.engine}, {model.endpoint.value})")


def check_meters(settings: Settings, *, region: str | None) -> Iterator[Finding]:
    """Open the meters of all regions, or of the one whose worker runs here; GPUs that are named must be there."""
    for name in settings.regions if region is None else (region,):
        alone = len(settings.regions) == 1 or region is not None
        try:
            meters = wiring.make_meters(settings, name, pids=lambda: (), may_use_rapl=alone)
        except ConfigError as error:
            yield Finding("meters", State.FAIL, f"{name}: {error.message}; regions.{name}.gpus or --gpus names them")
            continue
        shown = [f"{meter.component.value}: {meter.kind.value} ({meter.quality.value})" for meter in meters]
        for meter in meters:
            meter.close()
        yield Finding("meters", State.OK, f"{name}: {', '.join(shown) or 'none'}")


def check_disk(settings: Settings) -> Iterator[Finding]:
    """Look for room and rights in the data folder."""
    folder = settings.data_dir.resolve()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; move it away or set CARBONQ_DATA_DIR to another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} may not be written to; give this user the right, or set CARBONQ_DATA_DIR")
    free = shutil.disk_usage(folder).free
    state = State.OK if free >= ENOUGH_DISK else State.WARN if free >= ENOUGH_DISK // 10 else State.FAIL
    way_out = "" if state is State.OK else "; make room or move CARBONQ_DATA_DIR"
    yield Finding("disk", state, f"{free / 1e9:.1f} GB free at {folder}{way_out}")
