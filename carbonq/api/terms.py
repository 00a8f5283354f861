"""Where a request may carry its terms, in their order of precedence; what they mean: ``carbonq/terms.py``.

Line of the input > object ``carbon`` of the body > metadata ``carbonq_*`` > headers ``X-Carbonq-*`` > what the input
file was uploaded with > the API key's defaults > the server's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, cast

from carbonq import terms
from carbonq.errors import InvalidRequest
from carbonq.terms import Carrier, Terms

#: Beginnings of metadata keys and headers that are ours.
METADATA_PREFIX = "carbonq_"
HEADER_PREFIX = "x-carbonq-"


def read(
    *,
    now: datetime,
    takes: Collection[str],
    body: object = None,
    metadata: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    file: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Terms:
    """Return the terms of a request; ``body`` is its member ``carbon`` as it came.

    Spans count from grid time ``now``; ``takes`` are the keys that this kind of work knows (``terms.BATCH_KEYS``,
    ``terms.REALTIME_KEYS``). Raises InvalidRequest naming the key, e.g. ``carbon.deadlin``.
    """
    carriers = [Carrier(as_object(body))]
    carriers.append(Carrier(_of_metadata(metadata or {}), f"metadata.{METADATA_PREFIX}{{}}".format))
    carriers.append(Carrier(_of_headers(headers or {}), _header_name, is_shared=True))
    carriers.append(Carrier(file or {}, "carbon.{} of the input file".format, is_shared=True))
    carriers.append(Carrier(_known(defaults or {}), "the API key's default {}".format, is_shared=True))
    return terms.read(carriers, now=now, takes=takes)


def as_object(value: object, *, param: str = "carbon") -> Mapping[str, Any]:
    """Return a member ``carbon`` that must be an object, or absent. Raises InvalidRequest."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(f'{param} must be an object such as {{"deadline": "6h"}}', param=param)
    return cast("dict[str, Any]", value)


def _of_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(METADATA_PREFIX): value
        for name, value in metadata.items()
        if name.startswith(METADATA_PREFIX)
    }


def of_headers(headers: Mapping[str, str], takes: Collection[str]) -> dict[str, Any]:
    """Return what the headers ``X-Carbonq-*`` say of some keys, as written."""
    return {key: value for key, value in _of_headers(headers).items() if key in takes}


def _of_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Read our headers. Raises InvalidRequest for one that came twice: nobody could tell which of them is meant."""
    found: dict[str, str] = {}
    for name, value in headers.items():  # of a request they are all there, the same name again, too
        if not name.lower().startswith(HEADER_PREFIX):
            continue
        key = name.lower().removeprefix(HEADER_PREFIX).replace("-", "_")
        if key in found:
            shown = _header_name(key)
            raise InvalidRequest(
                f"the header {shown} came twice, as {found[key]!r:.100} and {value!r:.100}; send it once", param=shown
            )
        found[key] = value
    return found


def _header_name(key: str) -> str:
    return "X-Carbonq-" + "-".join(part.capitalize() for part in key.split("_"))


def _known(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that this version knows: a key that was made by another one must go on working."""
    return {name: value for name, value in defaults.items() if name in terms.KEYS}
