"""The terms of a job, from whichever carrier they came, as the fields that a submit may also state itself.

A field of the job > its object ``carbon`` > metadata ``carbonq_*`` > headers ``X-Carbonq-*`` > the API key's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from carbonq import terms
from carbonq.api import terms as carriers

#: Keys of ``carbon`` that a job knows, by the field that says the same.
FIELDS: Mapping[str, str] = {
    "deadline": "deadline",
    "downgrade": "downgrade",
    "late_policy": "late_policy",
    "max_carbon_g": "max_gco2e",
    "product_line": "product_line",
    "regions": "regions",
    "workload": "workload",
}


def completed(
    values: Mapping[str, Any], *, headers: Mapping[str, str], defaults: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    """Return a job's fields with what its other carriers say where they say nothing.

    Raises InvalidRequest naming the key as its carrier does.
    """
    given = dict(values)
    body, metadata = given.pop("carbon", None), given.get("metadata")
    said = terms.dump(
        carriers.read(
            now=now,
            takes=FIELDS.values(),
            body=body,
            metadata=cast("dict[str, str]", metadata) if isinstance(metadata, dict) else None,
            headers=headers,
            defaults=defaults,
        )
    )
    for field, key in FIELDS.items():
        if given.get(field) is None and key in said:
            given[field] = said[key]
    return given
