"""Published tables that can be rebuilt from a person's own copy of the data. None of the data ships."""

from __future__ import annotations

from carbonq.errors import InvalidRequest
from carbonq.replay.published import Scenario
from carbonq.replay.scenarios_gaia import GAIA
from carbonq.replay.scenarios_lwa import LWA
from carbonq.replay.scenarios_slack import SLACK

SCENARIOS = {one.name: one for one in (*LWA, *SLACK, *GAIA)}


def scenario(name: str) -> Scenario:
    """Return a scenario by its name. Raises InvalidRequest naming those there are."""
    if name not in SCENARIOS:
        raise InvalidRequest(f"scenario {name!r} is unknown; known are {', '.join(SCENARIOS)}", param="name")
    return SCENARIOS[name]
