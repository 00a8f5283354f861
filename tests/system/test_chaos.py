"""Real processes, really killed: nothing is lost, nothing is counted twice (invariants 1 to 4).

``make chaos`` runs every scenario on each of its backends, ``make test`` those of ``SHORT``.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.system import chaos, scenarios, scenarios_away, scenarios_quiet
from tests.system.backends import NAMES
from tests.system.chaos import SCENARIOS, Stacks

pytestmark = [pytest.mark.system, pytest.mark.timeout(280)]

#: Where scenarios register themselves.
MODULES: tuple[ModuleType, ...] = (scenarios, scenarios_away, scenarios_quiet)

#: What every run of the tests does, by backend.
SHORT = {
    "sqlite-redis": (
        "settings_alone_choose_database_and_broker",
        "a_worker_is_killed_in_a_commit",
        "the_broker_loses_every_message",
        "a_worker_lives_and_hears_nothing",
    ),
    "postgresql-rabbitmq": (
        "settings_alone_choose_database_and_broker",
        "a_worker_is_killed_in_an_engine_batch",
        "a_zombie_wakes_after_its_lease",
        "a_stopped_worker_gives_its_chunk_back_uncounted",
        "realtime_calls_do_not_wait_for_flexible_work",
        "the_database_is_away_while_a_worker_finishes",
    ),
}

#: Those that share an installation come first on each backend.
ALL = [
    (backend, one.name)
    for backend in NAMES
    for one in sorted(SCENARIOS.values(), key=lambda one: (one.is_alone, bool(one.settings)))
    if backend in one.backends
]


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    made = Stacks(tmp_path_factory)
    yield made
    made.close()


@pytest.mark.parametrize(("backend", "name"), [(backend, name) for backend, names in SHORT.items() for name in names])
def test_short(stacks: Stacks, backend: str, name: str) -> None:
    with chaos.healed(stacks, backend, SCENARIOS[name]) as found:
        chaos.run(found, name)


@pytest.mark.chaos
@pytest.mark.parametrize(("backend", "name"), ALL)
def test_chaos(stacks: Stacks, backend: str, name: str) -> None:
    with chaos.healed(stacks, backend, SCENARIOS[name]) as found:
        chaos.run(found, name)
