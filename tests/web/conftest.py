"""Fixtures of the dashboard's tests: a day of work that all share, in this process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.harness import build_harness
from tests.databases import opened
from tests.web.world import World


@pytest.fixture(scope="module")
def world(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The same for all tests of a file: making it costs most of them."""
    folder = tmp_path_factory.mktemp("web")
    shutil.copy(sqlite_template, folder / "web.db")
    database = opened(f"sqlite:///{folder / 'web.db'}")
    yield World(build_harness(database, folder / "blobs"))
    database.dispose()
