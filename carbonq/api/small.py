"""Small submits: read and checked in memory, and stored together with those that come at the same time.

Most of what a larger one costs (a staged file, threads, a transaction) is the same for one line as for thousands.
"""

from __future__ import annotations

import asyncio

from fastapi import Request

from carbonq.api.context import Api
from carbonq.model import Job, NewJob, Region
from carbonq.services import submit
from carbonq.services.checked import check

#: Largest body that is small, in bytes: checking it holds up the event loop for some milliseconds.
MAX_BYTES = 64 * 1024


def is_small(request: Request) -> bool:
    """Say whether a request states a length that makes its body small."""
    length = request.headers.get("content-length", "")
    return length.isascii() and length.isdigit() and int(length) <= MAX_BYTES


async def store(
    api: Api, data: bytes, new: NewJob, *, regions: list[Region], limits: submit.Limits
) -> tuple[Job, bool]:
    """Store a job whose input is ``data`` and return what ``submit`` would, once it is durable.

    Raises what ``submit`` raises, and Unavailable where too much waits already.
    """
    checked = check(
        data,
        new,
        models=api.models,
        regions=regions,
        clock=api.clock,
        limits=limits,
        throughputs=api.directory.snapshot.learned,
    )
    return await asyncio.wrap_future(api.group.put(checked, data))
