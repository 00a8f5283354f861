"""Read ``CARBONQ_A__B__C`` variables and ``CARBONQ_A__B__C_FILE``, which name files that hold secrets.

``__`` nests, a number picks an item of a list of tables (left out: the first). A name that people give (a region, a
zone, a model) is matched with those known already whatever its case; ``-`` and ``.`` may be written ``_``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carbonq.config import tree
from carbonq.config.origins import nearest
from carbonq.config.tree import Place
from carbonq.errors import ConfigError

PREFIX = "CARBONQ_"

_FILE = "_FILE"

#: Tables whose names have small letters only.
_SMALL = {("regions",), ("models",)}


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable: the setting it gives and its value, read from its file where it names one."""

    name: str
    path: Place
    value: Any
    is_file: bool


def read(environ: Mapping[str, str], names_at: Callable[[Place], Iterable[str]]) -> list[Variable]:
    """Return the variables that are settings, the strongest last; ``names_at`` gives the names known at a table.

    One that nests deeper is stronger than the whole table in JSON, and a value than the file that holds one.

    Raises ConfigError for one that is a misspelt setting; others are left alone: schedulers make variables such as
    CARBONQ_SERVICE_HOST by themselves.
    """
    found: list[Variable] = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and name != f"{PREFIX}CONFIG" and environ[name]:
            one = _variable(name, environ[name], names_at)
            if one is not None:
                found.append(one)
    return sorted(found, key=lambda one: (len(one.path), not one.is_file))


def _variable(name: str, text: str, names_at: Callable[[Place], Iterable[str]]) -> Variable | None:
    place: Place = ()
    parts = name.removeprefix(PREFIX).split("__")
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        if tree.is_list_of_tables(place) and not part.isdecimal():
            place = (*place, 0)
        step = _step(place, part, names_at)
        if step is None and is_last and part.upper().endswith(_FILE):
            step = _step(place, part[: -len(_FILE)], names_at)
            if step is not None:
                return Variable(name, (*place, step), _read_file(name, (*place, step), text), is_file=True)
        if step is None:
            if not place and not _is_like_one(part):
                return None
            raise ConfigError(f"{name} is no setting{_hint(place, parts, index)}")
        place = (*place, step)
        # The name of a header or of a region may end in _FILE, but a value that is read from a file is meant.
        if is_last and isinstance(step, str) and name.endswith(_FILE) and tree.is_named(place[:-1]):
            shorter = (*place[:-1], _name(place[:-1], part[: -len(_FILE)], names_at))
            if tree.is_secret_leaf(shorter):
                return Variable(name, shorter, _read_file(name, shorter, text), is_file=True)
    return Variable(name, place, _value(name, place, text), is_file=False)


def _step(place: Place, part: str, names_at: Callable[[Place], Iterable[str]]) -> int | str | None:
    fields = tree.fields(place)
    if part.lower() in fields:
        return part.lower()
    if tree.is_named(place):
        return _name(place, part, names_at)
    if tree.is_list_of_tables(place) and part.isdecimal():
        return int(part)
    return None


def _name(place: Place, part: str, names_at: Callable[[Place], Iterable[str]]) -> str:
    plain = _plain(part)
    known = next((name for name in names_at(place) if _plain(name) == plain), None)
    return known or (part.lower() if place in _SMALL else part)


def _plain(name: str) -> str:
    return name.casefold().replace("-", "_").replace(".", "_")


def _is_like_one(part: str) -> bool:
    # SERVICE_HOST, SERVICE_PORT_...: Kubernetes' own of a service named carbonq, whatever setting they resemble.
    return not part.startswith("SERVICE_") and bool(nearest(part.lower(), _writable(()), cutoff=0.75))


def _writable(place: Place) -> list[str]:
    """Return the names that may follow a place in a variable."""
    fields = list(tree.fields(place))
    return [*fields, *(f"{name}_file" for name in fields if tree.is_secret_leaf((*place, name)))]


def _hint(place: Place, parts: list[str], index: int) -> str:
    known = _writable(place)
    if not known:
        return f": {tree.dotted(place)} has nothing below it" if place else ""
    hint = nearest(parts[index].lower(), known)
    if not hint:
        return f"; {tree.dotted(place)} has {', '.join(sorted(known))}" if place else ""
    right = hint.split("'")[1].upper()
    return f"; did you mean {PREFIX}{'__'.join([*parts[:index], right, *parts[index + 1 :]])}?"


def _read_file(name: str, path: Place, file: str) -> str:
    if not tree.is_secret_leaf(path):
        raise ConfigError(
            f"{name}: {tree.dotted(path)} is no secret, so it is not read from a file; set {name.removesuffix(_FILE)}"
        )
    try:
        text = Path(file).read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"{name}: cannot read {file}: {reason}") from error
    if not text or len(text.splitlines()) > 1:
        raise ConfigError(f"{name}: {file} {'is empty' if not text else 'has several lines'}; it must hold one line")
    return text


def _value(name: str, path: Place, text: str) -> Any:
    if not tree.is_composite(path):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if value is None or isinstance(value, dict):
        return value
    if not tree.is_list(path):
        raise ConfigError(f"{name} must be an object in JSON: {tree.dotted(path)} is a table")
    if tree.is_list_of_tables(path):
        if not isinstance(value, list):
            raise ConfigError(f"{name} must be a list in JSON: {tree.dotted(path)} is a list of tables")
        return value
    return value if isinstance(value, list) else [part.strip() for part in text.split(",")]
