"""Hide secrets in what is shown of settings: secret values, passwords in addresses, parameters that look like keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import SecretStr

from carbonq.config.tree import Place

MASK = "********"


def masked(path: Place, value: Any) -> Any:
    """Return the value at a place as it may be shown: plain, with secrets hidden."""
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, tuple):
        return [masked(path, one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, str):
        return MASK if "params" in path and not _is_template(value) else _address(value)
    return str(value) if isinstance(value, Path) else value


def _is_template(value: str) -> bool:
    """Say whether a parameter is filled in at each call. What is not may be a key, whatever its name."""
    return "{" in value


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
    if any(not _is_template(one) for _, one in queries):
        hidden = [(name, one if _is_template(one) else MASK) for name, one in queries]
        parts = parts._replace(query=urlencode(hidden, safe="*{}:/"))
    return parts.geturl()
