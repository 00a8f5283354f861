"""Look over a machine that carbonq is to run on: one finding a check, each with its way out. Leaves nothing behind.

The checks run side by side, each with a time limit, so that a host which does not answer costs seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from carbonq import wiring
from carbonq.config import Settings, Sources
from carbonq.embedded import grid_check, host_check, installation_check
from carbonq.embedded.finding import Finding, State, found
from carbonq.errors import ConfigError, InvalidRequest

__all__ = ["Finding", "State", "check_before_start", "run"]


def check_before_start(settings: Settings) -> None:
    """Raise ConfigError for what would keep a stack from working and takes long to show.

    That is no broker, a file of rates that is missing or wrong, GPUs that are not there, traces that cannot be sent.
    """
    wiring.check_traces(settings)
    findings = [*installation_check.check_broker(settings), *grid_check.check_files(settings)]
    for region, values in settings.regions.items():
        if values.gpus:
            findings += host_check.check_meters(settings, region=region)
    for one in findings:
        if one.state is State.FAIL:
            raise ConfigError(one.finding)


def run(settings: Settings, *, region: str | None = None, sources: Sources | None = None) -> list[Finding]:
    """Make all checks, or with ``region`` those of a host that runs a worker of it.

    ``sources``: what this host was told, to be compared with the installation's settings. A check that raises a carbonq
    error is a finding, too. Raises InvalidRequest for an unknown region.
    """
    if region is not None and settings.regions and region not in settings.regions:
        known = ", ".join(sorted(settings.regions)) or "none"
        raise InvalidRequest(f"unknown region {region!r}; known regions: {known}")
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "python": host_check.check_python,
        "broker": lambda: installation_check.check_broker(settings, region=region),
        "ports": lambda: host_check.check_ports(settings),
        "database": lambda: installation_check.check_database(settings, region=region),
        "settings": lambda: iter(()) if sources is None else installation_check.check_settings(settings, sources),
        "clock": lambda: installation_check.check_clock(settings),
        "workers": lambda: installation_check.check_workers(settings),
        "blobs": lambda: installation_check.check_blobs(settings, region=region),
        "models": lambda: host_check.check_models(settings, region=region),
        "meters": lambda: host_check.check_meters(settings, region=region),
        "grid": lambda: grid_check.check_grid(settings),
        "disk": lambda: host_check.check_disk(settings),
    }
    if region is not None:  # neither the API nor the sources of rates are the business of a worker's host
        del checks["ports"], checks["grid"]
        if not settings.regions:  # nobody could say what the region is: the database has a finding
            del checks["models"], checks["meters"]
    begun = [found(name, check) for name, check in checks.items()]
    return [finding for findings in begun for finding in findings()]
