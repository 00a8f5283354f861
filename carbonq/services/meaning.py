"""Check what a request for a job means here: that its model, regions, deadline and small fields make sense. No I/O."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal

from carbonq import estimate
from carbonq.errors import InvalidRequest
from carbonq.model import Endpoint, Model, NewJob, Region
from carbonq.units import iso

#: Longest idempotency key, product line and workload, in characters.
MAX_NAME_CHARS = 255

#: Metadata as OpenAI bounds it: pairs, characters of a key, characters of a value.
MAX_METADATA = (16, 64, 512)


def check_meaning(request: NewJob, models: Mapping[str, Model], regions: Sequence[Region], now: datetime) -> Model:
    """Return the model a request names, if all its fields make sense here. Raises InvalidRequest naming the field."""
    model = find_model(request.model, request.endpoint, models)
    known = {region.name: region for region in regions}
    for name in request.regions or ():
        if name not in known:
            raise _unknown("region", name, known, code="region_not_found")
    if request.regions is not None and not request.regions:
        raise InvalidRequest("region is an empty list; leave it out to allow every region", param="region")
    if not estimate.allowed_regions(regions, request.regions, model.name):
        serving = sorted(region.name for region in regions if region.serves(model.name))
        raise InvalidRequest(
            f"none of the allowed regions serves model {model.name!r}; it runs in: {', '.join(serving) or 'no region'}",
            param="region",
        )
    if request.deadline_at <= now:
        raise InvalidRequest(
            f"deadline {iso(request.deadline_at)} is in the past (grid time is {iso(now)}); "
            "give a later time or a span such as 6h",
            param="deadline",
            code="deadline_in_the_past",
        )
    _check_small_fields(request)
    return model


def find_model(name: str, endpoint: Endpoint, models: Mapping[str, Model]) -> Model:
    """Return a model that answers an endpoint. Raises InvalidRequest."""
    model = models.get(name)
    if model is None:
        raise _unknown("model", name, models, code="model_not_found")
    if model.endpoint is not endpoint:
        able = sorted(other.name for other in models.values() if other.endpoint is endpoint)
        raise InvalidRequest(
            f"model {model.name!r} answers {model.endpoint}, not {endpoint}; "
            f"models for that: {', '.join(able) or 'none'}",
            param="model",
        )
    return model


def _check_small_fields(request: NewJob) -> None:
    cap = request.max_carbon_g
    if cap is not None and not (cap.is_finite() and cap > Decimal(0)):
        raise InvalidRequest(f"max_carbon_g is {cap}; it must be above 0 grams", param="max_carbon_g")
    if request.idempotency_key == "":
        raise InvalidRequest(
            "Idempotency-Key is empty; send a fresh random text or leave it out", param="Idempotency-Key"
        )
    names = {
        "product_line": request.product_line,
        "workload": request.workload,
        "Idempotency-Key": request.idempotency_key,
    }
    for param, value in names.items():
        if value is not None and (len(value) > MAX_NAME_CHARS or not value.isprintable()):
            raise InvalidRequest(f"{param} must be printable text of at most {MAX_NAME_CHARS} characters", param=param)
    pairs, key_chars, value_chars = MAX_METADATA
    metadata = request.metadata
    if len(metadata) > pairs or any(
        len(key) > key_chars or len(value) > value_chars or "\0" in key + value for key, value in metadata.items()
    ):
        raise InvalidRequest(
            f"metadata may hold {pairs} pairs, keys of {key_chars} and values of {value_chars} characters",
            param="metadata",
        )


def _unknown(what: str, name: str, known: Iterable[str], *, code: str) -> InvalidRequest:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return InvalidRequest(
        f"there is no {what} {name!r}; {hint}known {what}s: {', '.join(names) or 'none'}", param=what, code=code
    )
