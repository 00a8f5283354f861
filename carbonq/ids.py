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


def new(prefix: str) -> str:
    """Return a fresh identifier such as ``job_01jd...``: 48 bits of time, 80 bits of chance."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    digits: list[str] = []
    for _ in range(26):
        digits.append(_ALPHABET[value & 31])
        value >>= 5
    return f"{prefix}_{''.join(reversed(digits))}"
