"""Walk the tree of settings: what may stand at a place, which values are secrets or lists. Pure: looks at types only.

A place is a path such as ``("zones", "SE", "marginal", 0, "path")``.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from carbonq.config.settings import Settings

#: Where a setting stands.
Place = tuple[int | str, ...]


def dotted(path: Sequence[int | str]) -> str:
    """Write a place as people do: ``zones.SE.marginal.0.path``."""
    return ".".join(str(part) for part in path)


def siblings(loc: Sequence[int | str]) -> Mapping[str, Any]:
    """Return the fields known beside the last part of an error's place."""
    return fields(loc[:-1])


def fields(path: Sequence[int | str]) -> Mapping[str, FieldInfo]:
    """Return the fields of the tables that may stand at a place."""
    found: dict[str, FieldInfo] = {}
    for model in _models(_at(path)):
        found |= model.model_fields
    return found


def owner(path: Sequence[int | str]) -> tuple[type[BaseModel], str] | None:
    """Return the class and field that a place belongs to: the last field on the way; None where there is none."""
    found: tuple[type[BaseModel], str] | None = None
    places: list[Any] = [Settings]
    for part in path:
        for model in _models(places):
            if part in model.model_fields:
                found = (model, str(part))
                break
        places = [one for place in places for one in _step(place, part)]
    return found


def is_known(path: Sequence[int | str]) -> bool:
    """Say whether anything may stand at a place."""
    return bool(_at(path))


def is_secret(loc: Sequence[int | str]) -> bool:
    """Say whether the value at a place is, or holds, a secret."""
    return any(_holds_secret(found) for found in _at(loc))


def is_secret_leaf(path: Sequence[int | str]) -> bool:
    """Say whether the value at a place is itself a secret."""
    return any(one is SecretStr for place in _at(path) for one in alternatives(place))


def is_file(path: Sequence[int | str]) -> bool:
    """Say whether the value at a place is the path of a file or folder."""
    return any(one is Path for place in _at(path) for one in alternatives(place))


def is_composite(path: Sequence[int | str]) -> bool:
    """Say whether a table or a list stands at a place."""
    return any(_is_model(one) or get_origin(one) in {dict, tuple} for place in _at(path) for one in alternatives(place))


def is_list(path: Sequence[int | str]) -> bool:
    """Say whether a list stands at a place."""
    return any(get_origin(one) is tuple for place in _at(path) for one in alternatives(place))


def is_list_of_tables(path: Sequence[int | str]) -> bool:
    """Say whether a list of tables stands at a place."""
    return is_list(path) and any(True for _ in _models(_at((*path, 0))))


def is_named(path: Sequence[int | str]) -> bool:
    """Say whether a table whose keys are names that people give stands at a place."""
    return any(get_origin(one) is dict for place in _at(path) for one in alternatives(place))


def without_tags(loc: Sequence[int | str]) -> Place:
    """Return a place as it is written in TOML: the tags of unions that pydantic adds are left out."""
    path: list[int | str] = []
    places: list[Any] = [Settings]
    for part in loc:
        inner = [one for place in places for one in _step(place, part)]
        if not _is_tag(places, part):
            path.append(part)
        places = inner or places
    return tuple(path)


def _at(loc: Sequence[int | str]) -> list[Any]:
    places: list[Any] = [Settings]
    for part in loc:
        places = [one for place in places for one in _step(place, part)]
    return places


def _is_tag(places: Sequence[Any], part: int | str) -> bool:
    return any(_tag(one) == part for place in places for one in alternatives(place))


def _tag(model: Any) -> str | None:
    field = model.model_fields.get("source") if _is_model(model) else None
    values = get_args(field.annotation) if field is not None and get_origin(field.annotation) is Literal else ()
    return str(values[0]) if len(values) == 1 else None


def _step(place: Any, part: int | str) -> Iterator[Any]:
    """Yield what lies at ``part`` of a place: a field, the value of a key, an item, or the tagged alternative."""
    for one in alternatives(place):
        if _is_model(one):
            if _tag(one) == part:
                yield one
            elif part in one.model_fields:
                yield one.model_fields[part].annotation
        elif get_origin(one) is dict:
            yield get_args(one)[1]
        elif get_origin(one) is tuple and isinstance(part, int):
            yield get_args(one)[0]


def alternatives(place: Any) -> Iterator[Any]:
    """Yield the types that an annotation allows."""
    origin = get_origin(place)
    if origin is Annotated:
        yield from alternatives(get_args(place)[0])
    elif origin in {Union, types.UnionType}:
        for one in get_args(place):
            yield from alternatives(one)
    else:
        yield place


def _models(places: Sequence[Any]) -> Iterator[type[BaseModel]]:
    yield from (one for place in places for one in alternatives(place) if _is_model(one))


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)


def _holds_secret(place: Any) -> bool:
    for one in alternatives(place):
        if one is SecretStr or any(_holds_secret(inner) for inner in get_args(one)):
            return True
        if _is_model(one) and any(_holds_secret(field.annotation) for field in one.model_fields.values()):
            return True
    return False
