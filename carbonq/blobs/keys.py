"""Which keys are safe. Pure."""

from __future__ import annotations

import re

#: Longest key in characters.
MAX_CHARS = 512

#: Keys are relative paths of plain names: no empty part, no part that begins with a dot.
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")


def safe(key: str) -> str:
    """Return the key. Raises ValueError when it could name anything outside the store or inside its staging."""
    if len(key) > MAX_CHARS or _KEY.fullmatch(key) is None:
        raise ValueError(f"{key!r} is no blob key: plain names of letters, digits, '.', '_', '-' joined by '/'")
    return key
