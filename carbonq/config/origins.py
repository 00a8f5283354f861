"""Read the settings file (``CARBONQ_CONFIG``, else ``carbonq.toml`` in the working folder) with its keys' lines."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from carbonq.errors import ConfigError

#: A header of a table or of an item of a list of tables, and a key with its value.
_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"\s*((?:\"[^\"]*\"|'[^']*'|[\w.-])+)\s*=")
_PART = re.compile(r"\"([^\"]*)\"|'([^']*)'|([\w-]+)")


def config_path() -> Path | None:
    """Return the settings file in force, if any. Raises ConfigError when CARBONQ_CONFIG names none."""
    named = os.environ.get("CARBONQ_CONFIG")
    if named:
        if not Path(named).is_file():
            raise ConfigError(f"CARBONQ_CONFIG names {named}, which is no file")
        return Path(named)
    return Path("carbonq.toml") if Path("carbonq.toml").is_file() else None


def read_toml(path: Path, known: Mapping[str, Any]) -> tuple[dict[str, Any], dict[tuple[int | str, ...], int]]:
    """Read a settings file and the line of each key; unknown top-level names fail with the nearest known one.

    Raises ConfigError.
    """
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    lines = _lines(text)
    for name in values:
        if name not in known:
            line = lines.get((name,))
            where = f"{path} line {line}" if line else f"{path}"
            raise ConfigError(f"{where}: unknown setting {name!r}{nearest(name, known)}")
    return values, lines


def _lines(text: str) -> dict[tuple[int | str, ...], int]:
    """Return the line of each key and table, as far as they are written one to a line; the rest has its table's."""
    found: dict[tuple[int | str, ...], int] = {}
    counts: dict[tuple[int | str, ...], int] = {}
    table: tuple[int | str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header is not None:
            table = _parts(header[2])
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                found.setdefault(table, number)
                table = (*table, counts[table])
        key = None if header is not None else _KEY.match(line)
        place = table if key is None else (*table, *_parts(key[1]))
        if header is not None or key is not None:
            for length in range(1, len(place) + 1):
                found.setdefault(place[:length], number)
            found[place] = min(found[place], number)
    return found


def _parts(text: str) -> tuple[int | str, ...]:
    return tuple(next(one for one in match if one) for match in _PART.findall(text) if any(match))


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return a hint at the known name that is most like ``name``; empty when none is."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {match[0]!r}?" if match else ""
