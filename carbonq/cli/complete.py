"""What a shell can complete beside commands and options: jobs, regions and models, if the API is quick."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from carbonq.cli import connect

if TYPE_CHECKING:
    from carbonq.client import Client

#: Seconds that the API may take: whoever pressed Tab waits.
_PATIENCE_S = 1.0

_MOST_JOBS = 50

Found = list[tuple[str, str]]


def job_ids(incomplete: str) -> Found:
    """Return the newest jobs that begin so, with their state."""
    return _asked(
        lambda client: [(job.id, f"{job.state}, {job.model}") for job in client.jobs(limit=_MOST_JOBS)], incomplete
    )


def regions(incomplete: str) -> Found:
    """Return the regions that begin so, with their zone."""
    return _asked(lambda client: [(region.name, region.zone) for region in client.regions()], incomplete)


def models(incomplete: str) -> Found:
    """Return the models that begin so, with what they are for."""
    return _asked(lambda client: [(one["id"], str(one.get("endpoint", ""))) for one in client.models()], incomplete)


def _asked(ask: Callable[[Client], Found], incomplete: str) -> Found:
    """Ask the API; no answer completes nothing, and a shell in the middle of a line is no place for a complaint."""
    from carbonq.errors import CarbonqError

    try:
        with connect.open_client(timeout_s=_PATIENCE_S, retries=0) as client:
            return [one for one in ask(client) if one[0].startswith(incomplete)]
    except CarbonqError:
        return []
