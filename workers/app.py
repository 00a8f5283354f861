"""Start a Celery worker in this process. Never ``celery -A``: the names of these rooms may be somebody else's too."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import warnings
from collections.abc import Sequence

from celery import Celery
from celery.concurrency import get_implementation
from celery.exceptions import SecurityWarning
from celery.utils.nodenames import default_nodename, host_format
from kombu.exceptions import KombuError

logger = logging.getLogger(__name__)


def run(app: Celery, *, name: str, queues: Sequence[str], concurrency: int) -> None:
    """Serve queues with a pool of threads until a stop signal; returns after the running tasks have ended.

    Threads, because a model is loaded once and a GPU context does not survive a fork.
    """
    # Celery's warning about root is about messages that could run code: ours are JSON, and nothing else is accepted.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    # What ``worker_main`` does, without its command line: that imports Flower and all other commands, 0.4 s of CPU.
    worker = app.Worker(
        # With its process id: two workers of one region on one host would answer for each other in Flower.
        hostname=host_format(default_nodename(f"{name}-{os.getpid()}@%h")),
        queues=list(queues),
        pool_cls=get_implementation("threads"),
        concurrency=concurrency,
        without_gossip=True,
        without_mingle=True,
        loglevel=logging.getLevelName(logging.getLogger().level),
        quiet=True,
    )
    # What is loaded by now stays: looking through it again in every full collection takes 0.1 s of each chunk.
    gc.collect()
    gc.freeze()
    worker.start()


def purge(app: Celery, queues: Sequence[str]) -> None:
    """Throw away what lies in queues: ticks that nobody took are worthless, and thousands of them cost minutes."""
    with app.connection_for_write() as connection:
        for queue in queues:
            # A queue that does not exist yet cannot be purged, and need not be.
            with contextlib.suppress(KombuError, *connection.channel_errors):
                purged = connection.channel().queue_purge(queue)
                if purged:
                    logger.info("%d stale messages purged from %s", purged, queue)
