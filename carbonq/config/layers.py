"""Lay sources of settings over each other: each gives values at places, a later one wins. Pure.

Tables are merged; a list is replaced whole unless single items of it are named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from carbonq.config import tree
from carbonq.config.tree import Place
from carbonq.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody gave, and where it comes from."""

    value: Any
    origin: str


#: What was given, by place. An empty table or list is a value of its own.
Layer = dict[Place, Given]


def flatten(value: Any, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield the values of a tree with their places; before the items of a list of tables, the empty list."""
    if tree.is_list_of_tables(path) and isinstance(value, Mapping):
        value = [value]  # a single table is a list of one
    if isinstance(value, Mapping):
        table = cast(Mapping[str, Any], value)
        if path:
            yield path, {}
        for key, inner in table.items():
            yield from flatten(inner, (*path, key))
    elif isinstance(value, list | tuple) and tree.is_list_of_tables(path):
        yield path, []
        for index, inner in enumerate(cast(Sequence[Any], value)):
            yield from flatten(inner, (*path, index))
    else:
        yield path, value


def put(layer: Layer, path: Place, given: Given) -> None:
    """Lay a value over what is there."""
    for length in range(1, len(path) + 1):
        above = layer.get(path[:length])
        if above is not None and above.value not in ({}, []):
            del layer[path[:length]]
    if given.value == {}:
        layer.setdefault(path, given)
        return
    for below in [one for one in layer if one[: len(path)] == path]:
        del layer[below]
    layer[path] = given


def nested(layer: Layer) -> dict[str, Any]:
    """Return the values as a tree again. Raises ConfigError for an item of a list whose predecessor is missing."""
    root: dict[int | str, Any] = {}
    for path in sorted(layer, key=len):
        value = layer[path].value
        place = root
        for part in path[:-1]:
            place = place.setdefault(part, {})
        if value in ({}, []) and tree.is_composite(path) and (value == {} or tree.is_list_of_tables(path)):
            place.setdefault(path[-1], {})
        else:
            place[path[-1]] = value
    return cast(dict[str, Any], _listed(root, ()))


def _listed(value: Any, path: Place) -> Any:
    if not isinstance(value, dict):
        return value
    table = cast(dict[int | str, Any], value)
    inner = {key: _listed(one, (*path, key)) for key, one in table.items()}
    if not tree.is_list_of_tables(path):
        return inner
    for index in range(len(inner)):
        if index not in inner:
            raise ConfigError(f"{tree.dotted(path)} has no item {index}, but one after it")
    return [inner[index] for index in range(len(inner))]


def origin(layer: Layer, path: Place) -> str | None:
    """Return where the value at a place comes from; None when nobody gave it."""
    for length in range(len(path), 0, -1):
        found = layer.get(path[:length])
        if found is not None and (length == len(path) or found.value not in ({}, [])):
            return found.origin
    return None


def origins_below(layer: Layer, path: Place) -> list[str]:
    """Return where the values at and below a place come from, each once."""
    return list(dict.fromkeys(given.origin for place, given in layer.items() if place[: len(path)] == path))
