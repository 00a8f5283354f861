"""The order of the tests: files that start whole installations come first, the longest of them before all else."""

from __future__ import annotations

from pathlib import Path

import pytest

#: The longest first: each file goes to one of the processes, and none must begin when all others are done.
LONGEST = ("chaos", "benches", "up", "operations", "compose", "wheel", "hosts", "dockerfile", "roles", "ending")

HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    if item.path.parent != HERE:
        return len(LONGEST) + 1
    name = item.path.stem.removeprefix("test_")
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)
