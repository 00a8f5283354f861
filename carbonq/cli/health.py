"""``carbonq health``: does one process of this machine do its work? Fast, one sentence, exit 0 or 1."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from carbonq import liveness
from carbonq.cli.output import AsJson, emit_json
from carbonq.errors import CarbonqError, Unavailable

#: Machine seconds that the API and Flower may take to answer.
_ANSWER_S = 3.0


class Watched(StrEnum):
    """The processes that can be asked for."""

    API = "api"
    BEAT = "beat"
    CONTROL = "control"
    CONTROL_SLOW = "control-slow"
    FLOWER = "flower"
    WORKER = "worker"


def health(
    process: Annotated[Watched, typer.Argument(help="Which process.")],
    region: Annotated[str | None, typer.Option("--region", help="Region of the worker.")] = None,
    stale_s: Annotated[
        float | None,
        typer.Option("--stale", min=0.1, help="Seconds of silence that are too long; unset: 30 (control-slow: 120)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a process of this machine and data folder does its work: exit 0, or 1 and what is wrong.

    API and Flower must answer; the others must have turned their loop lately, which a frozen process does not.

    Example: carbonq health worker --region norcal
    """
    if (process is Watched.WORKER) == (region is None):
        raise typer.BadParameter("--region goes with `carbonq health worker`, and that needs it")
    try:
        sentence = _check(process, region, stale_s)
    except CarbonqError as error:
        if not as_json:
            raise
        emit_json({"process": process.value, "region": region, "is_healthy": False, "finding": error.message})
        raise typer.Exit(1) from error
    if as_json:
        emit_json({"process": process.value, "region": region, "is_healthy": True, "finding": sentence})
    else:
        typer.echo(sentence)


def _check(process: Watched, region: str | None, stale_s: float | None) -> str:
    from carbonq import config

    settings = config.given().basics()
    match process:
        case Watched.API | Watched.FLOWER:
            from carbonq.embedded import address

            found = address.running(settings.data_dir)
            if process is Watched.API:
                return _ask("the API", found.api_url if found else address.api_url(settings), "/healthz")
            return _ask("Flower", found.flower_url if found else address.flower_url(settings), "/healthcheck")
        case Watched.WORKER:
            # Whether there is such a region is in the database, which a health check leaves alone.
            name = liveness.worker_name(str(region))
        case _:
            name = process.value
    limit_s = liveness.STALE_S[process.value] if stale_s is None else stale_s
    found = liveness.signs(settings.data_dir, name)
    if not found:
        raise Unavailable(f"no {name} process has given a sign of life on this machine in {settings.data_dir}")
    oldest = found[0]
    if oldest.age_s > limit_s:
        raise Unavailable(
            f"{name} (process {oldest.pid}) last turned its loop {oldest.age_s:.0f} s ago, which is more than "
            f"{limit_s:g} s: it is stuck, or what it works for is away (see its log)"
        )
    return f"{name} turned its loop {oldest.age_s:.1f} s ago"


def _ask(who: str, url: str, path: str) -> str:
    """Return a sentence when a server answers 200. Raises Unavailable."""
    from http.client import HTTPConnection, HTTPException
    from urllib.parse import urlsplit

    place = urlsplit(url)
    connection = HTTPConnection(place.hostname or "", place.port, timeout=_ANSWER_S)
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    except TimeoutError:
        raise Unavailable(f"{who} at {url} gave no answer within {_ANSWER_S:g} s") from None
    except (OSError, HTTPException) as error:
        raise Unavailable(f"{who} at {url} does not answer: {error}") from error
    finally:
        connection.close()
    if status != 200:
        raise Unavailable(f"{who} at {url} answered {path} with status {status}")
    return f"{who} answers at {url}"
