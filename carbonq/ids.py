"""Identifiers: a prefix that says what it is, then 26 characters that sort by time (a UUIDv7 in Crockford base 32)."""

from __future__ import annotations

import os
import time
from typing import NewType

JobId = NewType("JobId", str)
ChunkId = NewType("ChunkId", str)
PlanId = NewType("PlanId", str)
PlacementId = NewType("PlacementId", str)
EngineBatchId = NewType("EngineBatchId", str)

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"

#: The last two characters of an identifier, in order.
_PAIRS = [high + low for high in _ALPHABET for low in _ALPHABET]


#: Chance for the next identifiers. Each look at the system's own lets other threads in, and an event loop that makes an
#: identifier for each request then waits for them.
_chances: list[int] = []

#: Identifiers that one look is for.
_AT_ONCE = 256

# A child must not make its parent's identifiers again.
os.register_at_fork(after_in_child=_chances.clear)


def new(prefix: str, separator: str = "_") -> str:
    """Return a fresh identifier such as ``job_01jd...``: 48 bits of time, 80 bits of chance."""
    return f"{prefix}{separator}{_digits((time.time_ns() // 1_000_000) << 80 | _chance(), 26)}"


def _chance() -> int:
    try:
        return _chances.pop()
    except IndexError:
        fresh = os.urandom(10 * _AT_ONCE)
        _chances.extend(int.from_bytes(fresh[at : at + 10], "big") for at in range(10, len(fresh), 10))
        return int.from_bytes(fresh[:10], "big")


def many(prefix: str, count: int) -> list[str]:
    """Return fresh identifiers that sort in their order: the first by chance, the others counted up from it.

    A hundred times faster than one by one, and only for what need not be hard to guess.
    """
    # A bit less of chance, so that counting up never reaches the time.
    first = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big") >> 1
    made: list[str] = []
    for head in range(first >> 10, (first + count - 1 >> 10) + 1):
        text = f"{prefix}_{_digits(head, 24)}"
        made += [text + pair for pair in _PAIRS]
    return made[first & 1023 :][:count]


def _digits(value: int, count: int) -> str:
    digits: list[str] = []
    for _ in range(count):
        digits.append(_ALPHABET[value & 31])
        value >>= 5
    return "".join(reversed(digits))
