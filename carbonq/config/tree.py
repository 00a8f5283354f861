"""Walk the tree of settings: which names are known at a place, and which values are secrets."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr

from carbonq.config.settings import Settings


def siblings(loc: Sequence[int | str]) -> Mapping[str, Any]:
    """Return the fields known beside the last part of an error's place."""
    found: dict[str, Any] = {}
    for model in _models(_at(loc[:-1])):
        found |= model.model_fields
    return found


def is_secret(loc: Sequence[int | str]) -> bool:
    """Say whether the value at a place is, or holds, a secret."""
    return any(_holds_secret(found) for found in _at(loc))


def without_tags(loc: Sequence[int | str]) -> list[str]:
    """Return a place as it is written in TOML: the tags of unions that pydantic adds are left out."""
    path: list[str] = []
    places: list[Any] = [Settings]
    for part in loc:
        inner = [one for place in places for one in _step(place, part)]
        if not _is_tag(places, part):
            path.append(str(part))
        places = inner or places
    return path


def _at(loc: Sequence[int | str]) -> list[Any]:
    places: list[Any] = [Settings]
    for part in loc:
        places = [one for place in places for one in _step(place, part)]
    return places


def _is_tag(places: Sequence[Any], part: int | str) -> bool:
    return any(_tag(one) == part for place in places for one in _alternatives(place))


def _tag(model: Any) -> str | None:
    field = model.model_fields.get("source") if _is_model(model) else None
    values = get_args(field.annotation) if field is not None and get_origin(field.annotation) is Literal else ()
    return str(values[0]) if len(values) == 1 else None


def _step(place: Any, part: int | str) -> Iterator[Any]:
    """Yield what lies at ``part`` of a place: a field, the value of a key, an item, or the tagged alternative."""
    for one in _alternatives(place):
        if _is_model(one):
            if _tag(one) == part:
                yield one
            elif part in one.model_fields:
                yield one.model_fields[part].annotation
        elif get_origin(one) in {dict, Mapping}:
            yield get_args(one)[1]
        elif get_origin(one) is tuple:
            yield get_args(one)[0]


def _alternatives(place: Any) -> Iterator[Any]:
    origin = get_origin(place)
    if origin is Annotated:
        yield from _alternatives(get_args(place)[0])
    elif origin in {Union, types.UnionType}:
        for one in get_args(place):
            yield from _alternatives(one)
    else:
        yield place


def _models(places: Sequence[Any]) -> Iterator[type[BaseModel]]:
    yield from (one for place in places for one in _alternatives(place) if _is_model(one))


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)


def _holds_secret(place: Any) -> bool:
    for one in _alternatives(place):
        if one is SecretStr or any(_holds_secret(inner) for inner in get_args(one)):
            return True
        if _is_model(one) and any(_holds_secret(field.annotation) for field in one.model_fields.values()):
            return True
    return False
