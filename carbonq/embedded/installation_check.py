"""Checks of what all hosts share: broker, database, settings, clock, blobs; each with its way out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from carbonq import __version__, wiring
from carbonq.blobs import BlobStore
from carbonq.config import Settings, Sources
from carbonq.embedded import address, broker
from carbonq.embedded.finding import Finding, State
from carbonq.errors import BrokerUnavailable, ConfigError, Unavailable
from carbonq.services import blob_place, installation
from carbonq.store import clocks, deaf, regions, rights, schema
from carbonq.store import installation as installations
from carbonq.store.database import Database


def check_broker(settings: Settings, *, region: str | None = None) -> Iterator[Finding]:
    """Log in to the broker, or look for a program to embed one: a region worker has one only where a stack runs."""
    if settings.broker_url is None:
        if region is not None and address.running(settings.data_dir) is None:
            text = "no `carbonq up` runs on this data folder; on a host of its own a worker needs CARBONQ_BROKER_URL"
            yield Finding("broker", State.FAIL, text)
            return
        yield Finding("broker", State.OK, f"embedded, {broker.find_program()}")
        return
    # Of a list of brokers the first is named.
    parts = urlsplit(settings.broker_url.get_secret_value().partition(";")[0])
    where = f"{parts.hostname or 'localhost'}:{parts.port or (5672 if parts.scheme.startswith('amqp') else 6379)}"
    tickets = wiring.make_tickets(settings)
    try:
        tickets.ping()
    except BrokerUnavailable as error:
        text = f"{parts.scheme} at {where}: {error.message}; check CARBONQ_BROKER_URL (host, port, user, password)"
        yield Finding("broker", State.FAIL, text)
    else:
        yield Finding("broker", State.OK, f"{parts.scheme} at {where} takes this login")
    finally:
        tickets.close()


def check_database(settings: Settings, *, region: str | None) -> Iterator[Finding]:
    """Log in to the database, look at its schema, and at the rights that a region worker needs."""
    database = Database(settings.resolved_database_url)
    shown = database.engine.url.render_as_string(hide_password=True)
    if database.is_absent():
        folder = Path(database.engine.url.database or "").parent
        if settings.database_url is not None and not folder.is_dir():
            raise ConfigError(f"the folder {folder} of CARBONQ_DATABASE_URL does not exist; make it or name another")
        state = State.OK if region is None else State.FAIL
        way_out = "" if region is None else "; on a host of its own a worker needs CARBONQ_DATABASE_URL"
        yield Finding("database", state, f"{shown} is made at the first `carbonq up`{way_out}")
        return
    try:
        schema_found = _schema(database, shown, region=region)
        yield schema_found
        has_tables = region is not None and schema_found.state is not State.FAIL
        lacking = rights.missing(database, rights.REGION) if has_tables else []
        if lacking:
            some = ", ".join(lacking[:5]) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
            text = f"this login lacks {some}; `carbonq db roles | psql URL` grants what each role needs"
            yield Finding("database", State.FAIL, text)
    except Unavailable as error:
        way_out = "check CARBONQ_DATABASE_URL (host, port, user, password, database)"
        yield Finding("database", State.FAIL, f"{error.message.rstrip('.')}; {way_out}")
    finally:
        database.dispose()


def _schema(database: Database, shown: str, *, region: str | None) -> Finding:
    current = schema.current(database)
    if schema.is_newer(database):
        schema.check_usable(database)
        return Finding("database", State.WARN, f"{shown} is at schema {current}, newer than this carbonq; upgrade it")
    if current != schema.head():
        # `carbonq up` upgrades it itself; a worker on a host of its own does not start.
        state = State.WARN if region is None else State.FAIL
        found = "has no tables yet" if current is None else f"is at schema {current}, older than this carbonq's"
        return Finding("database", state, f"{shown} {found}; run `carbonq db upgrade`")
    with database.read() as tx:
        clock = clocks.get(tx)
    kind = "no clock yet" if clock is None else f"{clock.kind.value} clock"
    return Finding("database", State.OK, f"{shown}, schema {current}, {kind}")


def check_settings(settings: Settings, sources: Sources) -> Iterator[Finding]:
    """Compare what this host was told with what the installation's database keeps, and the versions of both."""
    database = Database(settings.resolved_database_url)
    try:
        if database.is_absent():
            return
        with database.read() as tx:
            kept = installations.load(tx) if installations.has_table(tx) else None
    except Unavailable:
        return  # the database has a finding of its own
    finally:
        database.dispose()
    if kept is None:
        text = "the database keeps none yet; `carbonq db upgrade` writes them where regions are configured"
        yield Finding("settings", State.WARN, text)
        return
    if kept.software_version != __version__:
        text = f"this is carbonq {__version__}, the installation's settings were written by {kept.software_version}"
        yield Finding("settings", State.WARN, text)
    differences = sources.differences(kept.settings)
    for one in differences:
        way_out = "take it away here, or run `carbonq config push` here and restart the others"
        yield Finding("settings", State.FAIL if one.is_decisive else State.WARN, f"{one}; {way_out}")
    if not differences:
        yield Finding("settings", State.OK, f"agree with the installation's ({kept.settings_digest[:12]})")


def check_clock(settings: Settings) -> Iterator[Finding]:
    """Compare this host's clock with the database's."""
    database = Database(settings.resolved_database_url)
    try:
        if database.is_absent():
            return
        offset_s = installation.clock_offset_s(database)
    except Unavailable:
        return  # the database has a finding of its own
    finally:
        database.dispose()
    warning = installation.check_clock(offset_s, limit_s=settings.max_clock_offset_s)
    if warning is not None:
        yield Finding("clock", State.WARN, warning)
    else:
        yield Finding("clock", State.OK, f"{offset_s:+.3f} s from the database's")


def check_workers(settings: Settings) -> Iterator[Finding]:
    """Count the live region workers, and name those that live and take nothing."""
    database = Database(settings.resolved_database_url)
    try:
        if database.is_absent() or schema.current(database) != schema.head():
            return
        with database.read() as tx:
            alive = regions.live_workers(tx, worker_alive_s=settings.worker_alive_s)
            silent = deaf.find(tx, alive)
    except Unavailable:
        return  # the database has a finding of its own
    finally:
        database.dispose()
    for one in silent:
        yield Finding("workers", State.FAIL, str(one))
    counts = Counter(worker.region for worker in alive)
    shown = ", ".join(f"{region}: {count}" for region, count in sorted(counts.items())) or "none runs"
    if not silent:
        yield Finding("workers", State.OK, shown)


def check_blobs(settings: Settings, *, region: str | None) -> Iterator[Finding]:
    """Write, read and delete a probe where blobs are kept."""
    is_shared = settings.database_url is not None and not settings.resolved_database_url.startswith("sqlite")
    if settings.blob_url is None:
        folder = settings.data_dir / "blobs"
        if not folder.is_dir():
            state = State.FAIL if region is not None else State.OK
            way_out = "; on a host of its own a worker needs CARBONQ_BLOB_URL" if region is not None else ""
            yield Finding("blobs", state, f"{folder} is made at the first `carbonq up`{way_out}")
            return
        if is_shared:
            text = f"{folder} is a folder of this host alone; several hosts need CARBONQ_BLOB_URL"
            yield Finding("blobs", State.WARN, text)
    store = wiring.make_blobs(settings)
    if settings.blob_url is not None and _is_absent_folder(store.name):  # writing a probe would make it
        text = f"the folder {store.name} of CARBONQ_BLOB_URL does not exist; make it, or mount what it is to be"
        yield Finding("blobs", State.FAIL if region is not None else State.WARN, text)
        return
    store.check("segments" if region is not None else "jobs")  # where the role may write
    yield Finding("blobs", State.OK, f"{store.name}: a probe was written, read and deleted")
    wrong = _elsewhere(settings, store) if is_shared else None
    if wrong is not None:
        yield Finding("blobs", State.FAIL, wrong)


def _is_absent_folder(name: str) -> bool:
    return "://" not in name and not Path(name).exists()


def _elsewhere(settings: Settings, store: BlobStore) -> str | None:
    database = Database(settings.resolved_database_url)
    try:
        try:
            has_tables = schema.current(database) == schema.head()
        except Unavailable:
            has_tables = False  # the database has a finding of its own
        return blob_place.elsewhere(database, store) if has_tables else None
    finally:
        database.dispose()
