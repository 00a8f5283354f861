"""Make ``docs/settings.md`` of the settings classes: one table a class. Pure: a walk over the types."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from carbonq.config import tree
from carbonq.config.scope import scope_of
from carbonq.config.settings import Settings

_HEAD = """\
# Settings

Made by `carbonq config docs`; a test fails when this file and the code differ. `carbonq config show` prints the
settings in force and where each comes from.

The first that says something wins: arguments of a command; variables `CARBONQ_A__B__C`; for secrets
`CARBONQ_A__B__C_FILE`, the path of a file that holds the value; the settings file (`CARBONQ_CONFIG`, else
`carbonq.toml` in the working folder); what the installation's database keeps; the default.

In variables `__` goes one level down and a number picks an item of a list (left out: the first), as in
`CARBONQ_REGIONS__SE__SLOTS=2` and `CARBONQ_ZONES__SE__MARGINAL__1__PATH=rates.csv`. A table or list may be given whole,
as JSON; a plain list also with commas. Names of regions, zones and models match those known already whatever their
case, with `_` for `-` and `.`; a new region or model gets small letters. An unknown name fails at any depth and is
answered with the nearest known one.

*Whose* says which settings all hosts must agree on:

- *all hosts*: kept in the database by `carbonq up`, `carbonq db upgrade` and `carbonq config push`. A host that says
  nothing takes them from there. One that says something else does not start where it concerns regions, zones, models,
  home_region, isolate_tenants or queue_prefix, and warns where it concerns others.
- *this host*: never kept, never compared.
- *this host, else as stored*: never compared; a host that says nothing takes what the installation was made with, so
  that hosts alike need not repeat it.
"""

_COLUMNS = "| name | type | default | limits | meaning | variable | whose |"

_RULE = "|---|---|---|---|---|---|---|"


def document() -> str:
    """Return the document, with a newline at its end."""
    blocks = [_HEAD]
    places: dict[type[BaseModel], list[tuple[str, ...]]] = {}
    for place, model in tables():
        places.setdefault(model, []).append(place)
    blocks += [_block(found, model) for model, found in places.items()]
    return "\n".join(blocks)


def tables() -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    """Yield every class of settings with its place, outermost first; names that people give are in capitals."""
    yield (), Settings
    yield from _below((), Settings)


def _below(place: tuple[str, ...], model: type[BaseModel]) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    for name, field in model.model_fields.items():
        for inner, steps in _inner(field.annotation, name):
            yield (*place, *steps), inner
            yield from _below((*place, *steps), inner)


def _inner(annotation: Any, name: str) -> Iterator[tuple[type[BaseModel], tuple[str, ...]]]:
    """Yield the classes inside an annotation with the steps that lead to them."""
    for one in tree.alternatives(annotation):
        if isinstance(one, type) and issubclass(one, BaseModel):
            yield one, (name,)
        elif get_origin(one) is dict:
            for inner, steps in _inner(get_args(one)[1], "NAME"):
                yield inner, (name, *steps)
        elif get_origin(one) is tuple:
            for inner, steps in _inner(get_args(one)[0], "N"):
                yield inner, (name, *steps)


def _block(places: list[tuple[str, ...]], model: type[BaseModel]) -> str:
    place = places[0]
    headings = [f"[{'.'.join(part for part in one if part != 'N')}]" for one in places]
    title = " and ".join(headings) if place else "Top level"
    source = model.model_fields.get("source")
    if source is not None and get_origin(source.annotation) is Literal:
        title += f' with source = "{get_args(source.annotation)[0]}"'
    rows = [_row(place, model, name, field) for name, field in model.model_fields.items() if not _is_tables(field)]
    below = [
        f"`{'.'.join([*(part for part in place if part != 'N'), name])}`: {field.description or 'a table'}"
        for name, field in model.model_fields.items()
        if _is_tables(field)
    ]
    text = f"\n## {title}\n\n{' '.join((model.__doc__ or '').split())}\n"
    if rows:
        text += "\n" + "\n".join([_COLUMNS, _RULE, *rows]) + "\n"
    if below:
        text += "\nTables below: " + " ".join(one if one.endswith(".") else one + "." for one in below) + "\n"
    return text


def _is_tables(field: FieldInfo) -> bool:
    return any(True for _ in _inner(field.annotation, ""))


def _row(place: tuple[str, ...], model: type[BaseModel], name: str, field: FieldInfo) -> str:
    variable = "CARBONQ_" + "__".join((*place, name)).upper()
    if SecretStr in tree.alternatives(field.annotation):
        variable = f"`{variable}`, `{variable}_FILE`"
    else:
        variable = f"`{variable}`"
    cells = (
        f"`{name}`",
        _type(field.annotation),
        _default(field),
        _limits(field),
        (field.description or "").replace("|", "\\|"),
        variable,
        "this host" if place[:1] == ("accounts",) else scope_of(model, name).value,
    )
    return "| " + " | ".join(cells) + " |"


_NAMES: Mapping[Any, str] = {
    bool: "true or false",
    float: "number",
    int: "whole number",
    str: "text",
    Path: "path",
    SecretStr: "secret",
    types.NoneType: "",
}


def _type(annotation: Any) -> str:
    names: list[str] = []
    for one in tree.alternatives(annotation):
        if get_origin(one) is Literal:
            names.append(", ".join(f"`{value}`" for value in get_args(one)))
        elif get_origin(one) is tuple:
            names.append(f"list of {_type(get_args(one)[0])}")
        elif get_origin(one) is dict:
            names.append(f"table of {_type(get_args(one)[1])}")
        else:
            names.append(_NAMES.get(one, one.__name__.lower()))
    return " or ".join(name for name in names if name)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if value is None or value in ((), {}, ""):
        return "unset" if value is None else "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _limits(field: FieldInfo) -> str:
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "multiple_of": "a multiple of"}
    found: list[str] = []
    for one in field.metadata:
        found += [
            f"{word} {getattr(one, name)}" for name, word in words.items() if getattr(one, name, None) is not None
        ]
        pattern = getattr(one, "pattern", None)
        if pattern is not None:
            found.append(f"`{pattern}`".replace("|", "\\|"))
    return ", ".join(found)
