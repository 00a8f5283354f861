"""Fixtures of the API's tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.api.harness import Harness, build_harness, serving
from tests.databases import opened


@pytest.fixture
def harness(sqlite_template: Path, tmp_path: Path) -> Iterator[Harness]:
    """A prepared API with two tenants and a live worker in each of two regions."""
    shutil.copy(sqlite_template, tmp_path / "api.db")
    database = opened(f"sqlite:///{tmp_path / 'api.db'}")
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
