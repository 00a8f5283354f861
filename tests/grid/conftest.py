"""Fixtures of the sources' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.grid.provider import OPEN, Provider


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A provider with an empty script."""
    made = Provider()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def closed_clients() -> Iterator[None]:
    """Close the connections of every client that ``make_http`` made."""
    yield
    while OPEN:
        client = OPEN.pop()._client
        if client is not None:
            client.close()
