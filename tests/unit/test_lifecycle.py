"""A region worker's sign of life: while the database is away its loop still turns; after a defect it does not count."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from carbonq import rooms
from carbonq.errors import StoreUnavailable
from carbonq.liveness import SignOfLife, signs
from carbonq.store.database import Database
from tests.system.processes import until


@pytest.fixture
def announce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Announce a worker with a database; its heartbeat goes on in a thread, ten times a second."""
    room = rooms.load("workers", "lifecycle")
    monkeypatch.setattr(room, "HEARTBEAT_S", 0.1)
    made: list[Any] = []

    def one(db: Any) -> None:
        site = SimpleNamespace(db=db)  # the heartbeat comes no further
        made.append(room.Life(site, None, None, SignOfLife(tmp_path, "worker-se")))
        made[-1].announce()

    yield one
    for life in made:
        life._over.set()
        life._heartbeat.join()


def test_the_loop_counts_while_the_database_is_away(tmp_path: Path, announce: Callable[[Any], None]) -> None:
    away = Database("postgresql://127.0.0.1:1/nowhere?connect_timeout=1")
    with pytest.raises(StoreUnavailable):
        announce(away)
    (path,) = (tmp_path / "run").glob("*.alive")
    os.utime(path, (1, 1))
    until(lambda: signs(tmp_path, "worker-se")[0].age_s < 60, 10, "next heartbeat")  # it tries again
    away.dispose()


def test_a_heartbeat_that_failed_is_no_sign_of_life(tmp_path: Path, announce: Callable[[Any], None]) -> None:
    with pytest.raises(AttributeError):
        announce(None)
    assert signs(tmp_path, "worker-se") == []
