"""Say in one sentence what is wrong with a setting: where it stands, what is wrong, and who gave it. Pure."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from carbonq.config import layers, tree
from carbonq.config.layers import Layer
from carbonq.config.origins import nearest

_UNKNOWN = "there is no such setting"

#: What pydantic calls a place where a table or a list is missing.
_KINDS = {"model_type": "a table", "model_attributes_type": "a table", "dict_type": "a table", "tuple_type": "a list"}


def sentence(error: ValidationError, layer: Layer) -> str:
    """Say what is wrong with one setting: a misspelt name first, because it often makes another one be missing."""
    problems = error.errors()
    first = next((one for one in problems if one["type"] == "extra_forbidden"), problems[0])
    what = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return what
    path = tree.without_tags(first["loc"])
    match first["type"]:
        case "extra_forbidden":
            what = _UNKNOWN + nearest(str(path[-1]), tree.siblings(first["loc"]))
        case "union_tag_not_found":
            path, what = _no_source(path, layer)
        case "union_tag_invalid":
            context = first.get("ctx", {})
            path = (*path, "source")
            what = f"there is no source {str(context['tag'])!r}{_choice(str(context['tag']), context['expected_tags'])}"
        case "literal_error":
            expected = str(first.get("ctx", {})["expected"]).replace(" or ", ",")
            hint = nearest(str(first["input"]), [part.strip("' ") for part in expected.split(",")])
            what += _shown(first) + hint
        case kind:
            what = (f"must be {_KINDS[kind]}" if kind in _KINDS else what) + _shown(first)
    return f"setting {tree.dotted(path)}: {what}{_told(path, layer)}"


def _no_source(path: tree.Place, layer: Layer) -> tuple[tree.Place, str]:
    """Say that a table of a source does not say which it is: most likely the word is misspelt."""
    given = [str(place[len(path)]) for place in layer if place[: len(path)] == path and len(place) > len(path)]
    for name in given:
        if name not in tree.fields(path) and nearest("source", [name]):
            return (*path, name), _UNKNOWN + "; did you mean 'source'?"
    return path, "it must say which source it is: source = ..."


def _choice(name: str, expected: str) -> str:
    known = [part.strip("' ") for part in expected.split(",")]
    return nearest(name, known) or f"; there are {', '.join(known)}"


def _shown(problem: ErrorDetails) -> str:
    value: Any = problem.get("input")
    is_shown = isinstance(value, str | int | float) and not tree.is_secret(problem["loc"])
    return f" (it is {value!r})" if is_shown and "://" not in str(value) else ""


def _told(path: tree.Place, layer: Layer) -> str:
    """Say who gave the value, or else whoever gave its table."""
    exact = layers.origin(layer, path)
    told = [exact] if exact else layers.origins_below(layer, path)
    if not told and (above := layers.origin(layer, path[:-1])):
        told = [above]
    return f"; set by {', '.join(told)}" if told else ""
