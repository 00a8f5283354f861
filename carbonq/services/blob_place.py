"""Tell whether this host's blobs are those of the installation: a share that is not mounted is an empty folder.

The inputs of the newest jobs lie where the API keeps blobs. A host that finds none of them looks in the wrong place: it
must run nothing and finish nothing, or it would fail work whose files are safe elsewhere.
"""

from __future__ import annotations

import logging

from carbonq.blobs import BlobStore
from carbonq.errors import ConfigError, NotFound, StoreUnavailable
from carbonq.store import jobs
from carbonq.store.database import Database

logger = logging.getLogger(__name__)

#: How many jobs are looked at: one whose input is lost must not make the place look wrong.
JOBS = 5


def elsewhere(db: Database, blobs: BlobStore) -> str | None:
    """Return a sentence where the place is wrong; None where an input is there, or no job is kept to tell by.

    Raises StoreUnavailable when the database or the store does not answer, or the inputs may not be read.
    """
    with db.read() as tx:
        keys = jobs.newest_inputs(tx, JOBS)
    for key in keys:
        try:
            blobs.info(key)
        except NotFound:
            continue
        return None
    if not keys:
        return None
    return (
        f"{blobs.name} holds the input of none of the newest jobs (e.g. {keys[0]}), so it is not where the API keeps "
        "blobs; mount it, or set CARBONQ_BLOB_URL as there (where all blobs are lost for good, submit a new job)"
    )


def check_at_start(db: Database, blobs: BlobStore, *, may_refuse: bool = True) -> None:
    """Raise ConfigError where a process of a fleet would work on the wrong place; a store that is away is logged.

    The API only logs (``may_refuse`` false): where all blobs are lost, the new job that ends the alarm must come in.
    On SQLite all processes share one host and its folder, so there is nothing to compare.
    """
    if db.is_sqlite:
        return
    try:
        wrong = elsewhere(db, blobs)
    except StoreUnavailable as error:
        logger.warning("cannot tell yet whether the blobs are those of the installation: %s", error)
        return
    if wrong is not None and may_refuse:
        raise ConfigError(wrong)
    if wrong is not None:
        logger.error("%s", wrong)
