"""What a flow can want done, step by step, and how a driver takes it on. Pure.

A flow yields steps and gets their outcome; the drivers in ``blocking.py`` and ``awaiting.py`` carry them out and decide
nothing. An error of the transport is raised in the flow where it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import httpx

from carbonq.client.calls import Call

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Send:
    """Send a call and return its ``Answer``."""

    call: Call[Any]


@dataclass(frozen=True, slots=True)
class Open:
    """Send a call, leave its answer open for ``Read``, and return status and headers. Closes what was open before."""

    call: Call[Any]


@dataclass(frozen=True, slots=True)
class Read:
    """Return the next bytes of the open answer; None at its end."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Let machine seconds pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Tell:
    """Call back with a value; a coroutine is awaited by the client that can."""

    callback: Callable[[Any], Any]
    value: Any


@dataclass(frozen=True, slots=True)
class Give:
    """Hand a value to whoever iterates."""

    value: Any


Step = Send | Open | Read | Sleep | Tell | Give
Flow = Generator[Step, Any, T]


@dataclass(frozen=True, slots=True)
class Manner:
    """Where requests go and how often they are sent again; ``awaits_start``: a server never reached yet may come up."""

    url: str
    retries: int
    awaits_start: bool = True
    on_retry: Callable[[str], Any] | None = None
    """Told in a sentence why and when something is tried again."""


@dataclass(slots=True)
class Course(Generic[T]):
    """A flow on its way: where it stands, and what came of it."""

    flow: Flow[T]
    outcome: Any = None
    failure: httpx.HTTPError | None = None
    result: T | None = None

    def step(self) -> Step | None:
        """Hand over the last step's outcome and return the next step; None at the end. Raises what the flow does."""
        outcome, failure = self.outcome, self.failure
        self.outcome = self.failure = None
        try:
            return self.flow.send(outcome) if failure is None else self.flow.throw(failure)
        except StopIteration as end:
            self.result = end.value
            return None
