"""What providers answer: JSON with exact numbers, and their own words in the many shapes of error bodies. Pure.

Numbers become ``int`` or ``Decimal``, never float; NaN and infinities become Decimals, so that ``readings.number`` can
refuse them by field and row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias, cast

#: Parsed JSON: dict, list, str, int, Decimal, bool or None.
Json: TypeAlias = Any

#: Where providers put their words: WattTime (three ways), Electricity Maps, NESO, ProblemDetails, FastAPI.
_WORDS = ("error", "message", "msg", "title", "detail", "description", "reason", "code", "errors")
_SHOWN_CHARS = 300
_SHORTEST_SECRET = 4


def parse_json(body: bytes) -> Json:
    """Parse JSON with exact numbers. Raises ValueError with what is wrong, never with the body's text."""
    if not body.strip():
        raise ValueError("the answer is empty")
    try:
        return json.loads(body, parse_float=Decimal, parse_constant=Decimal)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error


def said(body: Json, text: str) -> str:
    """Return the provider's own words in an error answer; ``body`` is None when ``text`` is no JSON.

    Knows strings and objects with error, message, msg, title, detail (also FastAPI's list with ``loc``), errors, in
    any nesting; of an HTML page the title, of an XML document its reasons. Empty when there is nothing to say.
    """
    if body is not None:
        return shown("; ".join(dict.fromkeys(_words(body))))
    if re.match(r"\s*<(\?xml|\w+_MarketDocument)", text):  # ENTSO-E
        reasons = re.findall(r"<(?:\w+:)?text>(.*?)</", text, re.DOTALL)
        return shown("; ".join(reasons)) if reasons else shown(text)
    if re.match(r"\s*(<!doctype html|<html)", text, re.IGNORECASE):
        title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
        return f"an HTML page, {shown(title.group(1))!r}" if title else "an HTML page"
    return shown(text)


def shown(text: str, hidden: Collection[str] = ()) -> str:
    """Return text as one printable line of at most 300 characters, without the ``hidden`` strings."""
    # The longest first: a part of a secret may be a secret too.
    for secret in sorted((one for one in hidden if len(one) >= _SHORTEST_SECRET), key=len, reverse=True):
        text = text.replace(secret, "***")
    line = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return line if len(line) <= _SHOWN_CHARS else f"{line[: _SHOWN_CHARS - 1]}…"


def _words(body: Json) -> Iterator[str]:
    if isinstance(body, str):
        if body.strip():
            yield body.strip()
    elif isinstance(body, Mapping):
        fields = cast("Mapping[str, Json]", body)
        where = fields.get("loc")
        if isinstance(where, Sequence) and "msg" in fields:  # FastAPI: which parameter is wrong
            place = ".".join(str(one) for one in cast("Sequence[Json]", where))
            yield f"{place}: {fields['msg']}"
            return
        for name in _WORDS:
            if name == "errors" and isinstance(fields.get(name), Mapping):  # ProblemDetails: by parameter
                for key, value in cast("Mapping[str, Json]", fields[name]).items():
                    yield f"{key}: {'; '.join(_words(value))}"
            elif name in fields:
                yield from _words(fields[name])
    elif isinstance(body, Sequence):
        for one in cast("Sequence[Json]", body):
            yield from _words(one)
