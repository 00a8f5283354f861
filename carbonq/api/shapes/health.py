"""The shapes of the open routes."""

from __future__ import annotations

from typing import Annotated, Literal

from carbonq.api.shapes.words import Shape, eg


class Alive(Shape):
    """That the process answers."""

    status: Literal["ok"]


class Checks(Shape):
    """What was looked at: `ok`, or the code of what is wrong."""

    database: Annotated[str, eg("ok")]
    broker: Annotated[str, eg("ok")]


class Ready(Shape):
    """Whether jobs can be taken."""

    status: Annotated[Literal["ready", "not ready"], eg("ready")]
    checks: Checks
    live_workers: Annotated[dict[str, int], eg({"fr": 1, "se": 0})]
