"""Make an installation ready: schema, regions, settings, clock, local key. Safe at every start and from several hosts.

The database decides: a second start finds the clock and the key that the first one wrote.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from carbonq.clock import GridClock
from carbonq.errors import ConfigError
from carbonq.model import Region
from carbonq.services import installation
from carbonq.services.installation import Shared
from carbonq.store import admin_log, clocks, keys, regions, schema
from carbonq.store.admin_log import Action
from carbonq.store.database import Database
from carbonq.store.dialect import serialise

logger = logging.getLogger(__name__)

#: Name of the file in ``data_dir`` that holds this machine's own API key.
KEY_FILE = "api-key"


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a prepared installation has: its clock and the plaintext of this machine's own key."""

    clock: GridClock
    api_key: str


def prepare(
    db: Database,
    *,
    configured: Sequence[Region],
    data_dir: Path,
    tenant: str,
    shared: Shared | None = None,
    clock: GridClock | None = None,
) -> Prepared:
    """Bring schema, regions, shared settings, clock and local key up to date.

    ``clock`` is written at the first start only (None: real time). Raises ConfigError when the database is newer than
    the code or the folder cannot be written, StoreUnavailable when the database does not answer.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"data_dir {data_dir} cannot be made: {error.strerror}") from error
    installed, changed = install(db, configured=configured, shared=shared, clock=clock)
    for one in changed:
        logger.warning("the installation's settings changed: %s", one)
    return Prepared(installed, local_key(db, data_dir, tenant))


def install(
    db: Database,
    *,
    configured: Sequence[Region] | None,
    shared: Shared | None = None,
    clock: GridClock | None = None,
    actor: str | None = None,
) -> tuple[GridClock, list[str]]:
    """Bring schema, regions, shared settings and clock up to date, and no key: a fleet does it before it starts.

    Without ``configured`` and ``shared`` regions and settings stay as they are. ``clock`` as for ``prepare``; ``actor``
    is who the log of admin actions names where settings change (None: it is not logged). Returns the clock in force and
    what changed in the shared settings. Raises ConfigError and StoreUnavailable.
    """
    schema.upgrade(db)
    with db.write() as tx:
        serialise(tx, "setup")
        if configured is not None:
            regions.sync(tx, configured)
        changed = [] if shared is None else installation.put(tx, shared)
        if changed and actor is not None:
            done = Action(actor, "config.pushed", "installation", after={"changed": changed})
            admin_log.append(tx, done)
        return clocks.ensure(tx, clock or GridClock.real()), changed


def local_key(db: Database, data_dir: Path, tenant: str) -> str:
    """Return this machine's own key from ``data_dir/api-key``; makes one if there is none that the database knows."""
    path = data_dir / KEY_FILE
    if path.is_file():
        plaintext = path.read_text(encoding="utf-8").strip()
        with db.read() as tx:
            if keys.find_by_hash(tx, keys.hash_key(plaintext)) is not None:
                return plaintext
    with db.write() as tx:
        _, plaintext = keys.create(tx, tenant, "local", True)
        # Written before the commit: a key that nobody knows is harmless, a row without its key is not.
        _write_private(path, plaintext + "\n")
    return plaintext


def _write_private(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    try:
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
