"""Check a job whose whole input is in memory, before anything of it is stored: no database, no disk.

What needs the database (was it sent before, may it come, is there room) is left to who stores it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from carbonq.clock import Clock
from carbonq.errors import Infeasible
from carbonq.model import Model, NewJob, Region, Throughput
from carbonq.services import meaning, submit
from carbonq.services.accepted import Asked


@dataclass(frozen=True, slots=True)
class Checked:
    """A job that makes sense; ``infeasible``: it is late even alone, and only refused if it is not a repeated one."""

    request: NewJob
    found: submit.Input
    asked: Asked
    fingerprint: str | None
    infeasible: Infeasible | None = None


class InMemory:
    """An input in memory, to be read like a staged one."""

    def __init__(self, data: bytes) -> None:
        """Hold the bytes."""
        self._data = data
        self.size = len(data)

    def open(self) -> io.BytesIO:
        """Read from the beginning."""
        return io.BytesIO(self._data)


def check(
    data: bytes,
    request: NewJob,
    *,
    models: Mapping[str, Model],
    regions: Sequence[Region],
    clock: Clock,
    limits: submit.Limits,
    throughputs: Mapping[tuple[str, str], Throughput],
) -> Checked:
    """Check the meaning of a request and every line of its input. Raises InvalidRequest naming the field or line."""
    now = clock.now()
    model = meaning.check_meaning(request, models, regions, now)
    source = InMemory(data)
    found = submit.read_input(source, request, model, limits)
    infeasible, chunk_s = None, 0.0
    try:
        chunk_s = submit.check_feasible(
            request,
            model,
            regions,
            found,
            now=now,
            factor=clock.factor,
            limits=limits,
            throughputs=throughputs,
        )
    except Infeasible as error:
        infeasible = error
    asked = Asked(model, request.regions, found.est_tokens, chunk_s, request.deadline_at)
    return Checked(request, found, asked, submit.fingerprint_of(source, request), infeasible)
