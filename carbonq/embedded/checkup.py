"""Look over a machine that carbonq is to run on: one finding a check, each with its way out. Changes nothing."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from carbonq import wiring
from carbonq.config import Settings
from carbonq.embedded import address, broker, ports
from carbonq.errors import CarbonqError, ConfigError
from carbonq.store import clocks, schema
from carbonq.store.database import Database

#: Below this much free space a check warns, below a tenth of it it fails, in bytes.
ENOUGH_DISK = 2_000_000_000

MIN_PYTHON = (3, 11)


class State(StrEnum):
    """How a check came out; only FAIL keeps carbonq from working."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check, in a sentence."""

    check: str
    state: State
    finding: str


def check_broker(settings: Settings) -> None:
    """Raise ConfigError when there is no broker: the one of the settings is silent, or no program to embed one."""
    for found in _broker(settings):
        if found.state is State.FAIL:
            raise ConfigError(found.finding)


def run(settings: Settings) -> list[Finding]:
    """Make all checks; a check that raises a carbonq error is a finding too."""
    checks: tuple[tuple[str, Callable[[Settings], Iterator[Finding]]], ...] = (
        ("python", _python),
        ("broker", _broker),
        ("ports", _ports),
        ("database", _database),
        ("models", _models),
        ("meters", _meters),
        ("grid", _grid),
        ("disk", _disk),
    )
    findings: list[Finding] = []
    for name, check in checks:
        try:
            findings.extend(check(settings))
        except CarbonqError as error:
            findings.append(Finding(name, State.FAIL, error.message))
    return findings


def _python(_settings: Settings) -> Iterator[Finding]:
    version = platform.python_version()
    if sys.version_info < MIN_PYTHON:
        yield Finding("python", State.FAIL, f"Python {version}; carbonq needs 3.11 or later")
    else:
        yield Finding("python", State.OK, f"Python {version} on {platform.machine()}")


def _broker(settings: Settings) -> Iterator[Finding]:
    if settings.broker_url is None:
        yield Finding("broker", State.OK, f"embedded, {broker.find_program()}")
        return
    # Of a list of brokers the first is looked at.
    parts = urlsplit(settings.broker_url.get_secret_value().partition(";")[0])
    where = f"{parts.hostname or 'localhost'}:{parts.port or (5672 if parts.scheme.startswith('amqp') else 6379)}"
    host, _, port = where.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
    except OSError as error:
        yield Finding("broker", State.FAIL, f"nothing answers at {where} ({error}); check CARBONQ_BROKER_URL")
    else:
        yield Finding("broker", State.OK, f"{parts.scheme} at {where} answers")


def _ports(settings: Settings) -> Iterator[Finding]:
    found = address.running(settings.data_dir)
    if found is not None:
        yield Finding("ports", State.OK, f"carbonq runs: {found.api_url}, Flower {found.flower_url}")
        return
    ports.choose(settings.host, settings.port, what="the API", setting="CARBONQ_PORT")
    ports.choose(address.LOOPBACK, settings.flower_port, what="Flower", setting="CARBONQ_FLOWER_PORT")
    yield Finding("ports", State.OK, f"{settings.host}:{settings.port} and Flower's {settings.flower_port} are free")


def _database(settings: Settings) -> Iterator[Finding]:
    database = Database(settings.resolved_database_url)
    shown = database.engine.url.render_as_string(hide_password=True)
    if _is_absent(database):
        folder = Path(database.engine.url.database or "").parent
        if settings.database_url is not None and not folder.is_dir():
            raise ConfigError(f"the folder {folder} of CARBONQ_DATABASE_URL does not exist; make it or name another")
        yield Finding("database", State.OK, f"{shown} is made at the first `carbonq up`")
        return
    try:
        current = schema.current(database)
        if schema.is_newer(database):
            schema.check_usable(database)
            yield Finding(
                "database", State.WARN, f"{shown} is at schema {current}, newer than this carbonq; upgrade it"
            )
            return
        if current != schema.head():
            yield Finding("database", State.WARN, f"{shown} is at schema {current}; run `carbonq db upgrade`")
            return
        with database.read() as tx:
            clock = clocks.get(tx)
        kind = "no clock yet" if clock is None else f"{clock.kind.value} clock"
        yield Finding("database", State.OK, f"{shown}, schema {current}, {kind}")
    finally:
        database.dispose()


def _is_absent(database: Database) -> bool:
    """Say whether it is a SQLite file that nobody has made yet; opening it would make it."""
    return database.is_sqlite and not Path(database.engine.url.database or "").is_file()


def _models(settings: Settings) -> Iterator[Finding]:
    for model in wiring.make_models(settings).values():
        try:
            wiring.find_model(settings, model)
        except ConfigError as error:
            yield Finding("models", State.WARN, f"{model.name} cannot be used: {error.message}")
        else:
            yield Finding("models", State.OK, f"{model.name} ({model.engine}, {model.endpoint.value})")


def _meters(settings: Settings) -> Iterator[Finding]:
    for region in settings.regions:
        meters = wiring.make_meters(settings, region, pids=lambda: (), may_use_rapl=len(settings.regions) == 1)
        try:
            shown = [f"{meter.component.value}: {meter.kind.value} ({meter.quality.value})" for meter in meters]
        finally:
            for meter in meters:
                meter.close()
        yield Finding("meters", State.OK, f"{region}: {', '.join(shown) or 'none'}")


def _grid(settings: Settings) -> Iterator[Finding]:
    from carbonq.clock import GridClock

    database = Database(settings.resolved_database_url)
    clock = GridClock.real()
    try:
        if not _is_absent(database):
            with database.read() as tx:
                clock = clocks.get(tx) or clock
    except CarbonqError:
        pass  # the database has a finding of its own
    finally:
        database.dispose()
    sources = wiring.make_sources(settings, clock)
    for (zone, signal), source in sources.items():
        forecast = source.forecast(zone, clock.now())
        if forecast is None:
            yield Finding("grid", State.WARN, f"{zone} {signal.value}: {source.name} has no forecast for now")
            continue
        label = ", ".join(
            word
            for word, is_so in (("estimated", forecast.is_estimated), ("never settles", not forecast.may_settle))
            if is_so
        )
        text = f"{zone} {signal.value}: {source.name}, issued {forecast.issued_at:%Y-%m-%d %H:%M}Z"
        yield Finding("grid", State.OK, f"{text} ({label})" if label else text)
    for zone in {region.zone for region in settings.regions.values()}:
        if not any(name == zone for name, _ in sources):
            raise ConfigError(f"zone {zone} has no source; set [zones.{zone}.marginal]")


def _disk(settings: Settings) -> Iterator[Finding]:
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
