"""What the tests of group commit share, and a process that is killed in the middle of it: imports little."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from sqlalchemy import select

from carbonq.blobs.folder import FolderStore
from carbonq.model import NewJob
from carbonq.services.checked import Checked, check
from carbonq.services.group_commit import GroupCommit, GroupStore, Waiting
from carbonq.services.standing import Standing
from carbonq.store import tables
from carbonq.store.database import Database
from tests.services.jobs import World, lines, request


def store_of(world: World, blobs: FolderStore | None = None, **options: Any) -> GroupStore:
    return GroupStore(
        world.db,
        blobs or world.blobs,
        world.clock,
        Standing(world.db, world.clock, world.models),
        home_region="north",
        regions=lambda: world.regions,
        treatments=world.treatments,
        **options,
    )


def checked(world: World, source: bytes, asked: NewJob) -> Checked:
    return check(
        source,
        asked,
        models=world.models,
        regions=world.regions,
        clock=world.clock,
        limits=world.limits,
        throughputs=world.learned,
    )


def waiting(world: World, source: bytes, **changes: Any) -> Waiting:
    return Waiting(checked(world, source, replace(request(), **changes)), source)


def inputs_of(world: World) -> dict[str, list[bytes]]:
    """Return the lines of each job as its items say where they are."""
    found: dict[str, list[bytes]] = {}
    with world.db.read() as tx:
        columns = (
            tables.jobs.c.job_id,
            tables.jobs.c.input_blob,
            tables.items.c.line_offset,
            tables.items.c.line_bytes,
        )
        rows = tx.execute(select(*columns).join(tables.items).order_by(tables.jobs.c.job_id, tables.items.c.idx)).all()
    for job_id, key, offset, size in rows:
        with world.blobs.open(key) as stream:
            stream.seek(offset)
            found.setdefault(job_id, []).append(stream.read(size))
    return found


def settle(store: GroupStore, came: Sequence[Waiting]) -> None:
    """Give the store what came, in the groups that the queue makes of it."""
    queue = GroupCommit(store.settle)
    futures = [queue.put(one.checked, one.data) for one in came]
    queue.close()
    for one, future in zip(came, futures, strict=True):
        assert future.done()
        if future.exception() is None:
            one.future.set_result(future.result())
        else:
            one.future.set_exception(future.exception())


#: Points of a group's way at which a process is killed, and how many of its jobs are there after it.
POINTS = {
    "before the blob is synced": ("carbonq.blobs.folder", "FolderStaged.prepare", False, 0),
    "before the transaction": ("carbonq.blobs.folder", "FolderStaged.prepare", True, 0),
    "jobs and items are written": ("carbonq.store.items", "insert_of_jobs", True, 0),
    "the blob has its key, the commit is to come": ("carbonq.blobs.folder", "FolderStaged.publish", True, 0),
    "committed, and nobody was told": ("carbonq.services.group_commit", "GroupStore._store", True, 4),
}


def die_at(point: str, store: GroupStore, group: Sequence[Waiting]) -> None:
    """Be killed at a point while a group is stored."""
    module, path, is_after, _ = POINTS[point]
    owner: Any = import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    function = getattr(owner, name)

    def dying(*arguments: Any, **named: Any) -> None:
        if is_after:
            function(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, dying)
    store.settle(group)


def check_kills(url: str, root: Path) -> None:
    """Fork a child for each point, and look at what it leaves."""
    world = World(Database(url), root)
    before = 0
    for point, (*_, stored) in POINTS.items():
        group = [waiting(world, lines(2)) for _ in range(4)]
        world.db.dispose()
        pid = os.fork()
        if not pid:
            die_at(point, store_of(world), group)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, point
        before += stored
        assert world.stored() == (before, 2 * before), point
        assert all(len(found) == 2 for found in inputs_of(world).values()), point
        settle(store_of(world), group[:1])  # whoever sends again is served
        before += 1
        assert world.stored() == (before, 2 * before), point
