"""Fixtures of the API's tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from carbonq.store import schema
from carbonq.store.database import Database
from tests.api.harness import Harness, build_harness, serving


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file to copy: migrating anew for each test would take most of the time."""
    path = tmp_path_factory.mktemp("template") / "carbonq.db"
    database = Database(f"sqlite:///{path}")
    schema.upgrade(database)
    database.dispose()
    return path


@pytest.fixture
def harness(empty_database: Path, tmp_path: Path) -> Iterator[Harness]:
    """A prepared API with two tenants and a live worker in each of two regions."""
    shutil.copy(empty_database, tmp_path / "api.db")
    database = Database(f"sqlite:///{tmp_path / 'api.db'}")
    yield build_harness(database, tmp_path / "blobs")
    database.dispose()


@pytest.fixture
def url(harness: Harness) -> Iterator[str]:
    """The address of a real server for the harness's API."""
    with serving(harness.api) as address:
        yield address


@pytest.fixture
def http(harness: Harness, url: str) -> Iterator[httpx.Client]:
    """A client with the key of tenant acme."""
    with httpx.Client(base_url=url, headers=harness.headers(), timeout=30, trust_env=False) as client:
        yield client
