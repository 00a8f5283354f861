"""A region worker's sign of life: while the database is away its loop still turns; after a defect it does not count."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from carbonq import rooms
from carbonq.errors import StoreUnavailable
from carbonq.liveness import SignOfLife, signs
from carbonq.store.database import Database


def life(folder: Path, db: Any) -> Any:
    site = SimpleNamespace(db=db)  # the heartbeat comes no further
    return rooms.load("workers", "lifecycle").Life(site, None, None, SignOfLife(folder, "worker-se"))


def test_the_loop_counts_while_the_database_is_away(tmp_path: Path) -> None:
    away = Database("postgresql://127.0.0.1:1/nowhere?connect_timeout=1")
    with pytest.raises(StoreUnavailable):
        life(tmp_path, away).announce()
    assert signs(tmp_path, "worker-se")[0].age_s < 5
    away.dispose()


def test_a_heartbeat_that_failed_is_no_sign_of_life(tmp_path: Path) -> None:
    with pytest.raises(AttributeError):
        life(tmp_path, None).announce()
    assert signs(tmp_path, "worker-se") == []
