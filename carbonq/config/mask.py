"""Hide secrets in what is shown of settings: secret values, passwords in addresses, parameters that look like keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import SecretStr

from carbonq.config.tree import Place

MASK = "********"

#: Names of parameters that hold secrets.
_TELLING = re.compile(r"key|token|secret|passw|auth|sign|credential|appid|code", re.IGNORECASE)


def masked(path: Place, value: Any) -> Any:
    """Return the value at a place as it may be shown: plain, with secrets hidden."""
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, tuple):
        return [masked(path, one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, str):
        return MASK if "params" in path and _TELLING.search(str(path[-1])) else _address(value)
    return str(value) if isinstance(value, Path) else value


def _address(value: str) -> str:
    """Hide the password of an address, and what its parameters hold that look like keys."""
    if "://" not in value:
        return value
    try:
        parts = urlsplit(value)
        queries = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return MASK
    if "@" in parts.netloc:
        parts = parts._replace(netloc=f"{MASK}@{parts.netloc.rpartition('@')[2]}")
    if any(_TELLING.search(name) for name, _ in queries):
        hidden = [(name, MASK if _TELLING.search(name) else one) for name, one in queries]
        parts = parts._replace(query=urlencode(hidden, safe="*{}:/"))
    return parts.geturl()
