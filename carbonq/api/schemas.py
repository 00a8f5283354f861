"""The shape of what clients send, read strictly: an unknown or misspelt field is named, never ignored.

Meaning (does the region exist, can the deadline be met) is checked by ``services/submit.py``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from carbonq.errors import InvalidRequest
from carbonq.model import Endpoint, LatePolicy, Model, NewJob
from carbonq.units import parse_iso

#: What a job can be called instead of its endpoint.
KINDS = {"embeddings": Endpoint.EMBEDDINGS, "summarize": Endpoint.CHAT, "chat": Endpoint.CHAT}

#: The fields of a new job, in the query of a streamed submit or in the JSON body.
JOB_FIELDS = frozenset(
    {
        "deadline",
        "endpoint",
        "kind",
        "late_policy",
        "max_carbon_g",
        "metadata",
        "model",
        "product_line",
        "regions",
        "workload",
    }
)

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)", re.IGNORECASE)
_SPAN_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}

#: Longest deadline, in seconds: beyond a month no grid forecast says anything.
_MAX_SPAN_S = 31 * 86_400

#: Longest name of a product line or workload, and longest idempotency key.
_MAX_NAME = 255

_MAX_METADATA = 16

#: Smallest and largest carbon cap, in grams: the last decimal of the ledger, and a billion tonnes.
_MIN_GRAMS = Decimal("1e-15")
_MAX_GRAMS = Decimal("1e15")


def parse_deadline(value: Any, now: datetime) -> datetime:
    """Read a span (``6h``, ``90m``, ``2d``) from grid time ``now``, or an ISO 8601 time. Raises InvalidRequest."""
    if isinstance(value, str):
        match = _SPAN.fullmatch(value.strip())
        if match is not None:
            seconds = float(match[1]) * _SPAN_S[match[2].lower()]
            if not 0 < seconds <= _MAX_SPAN_S:
                raise InvalidRequest(f"deadline {value!r} must be more than 0 and at most 31 days", param="deadline")
            return now + timedelta(seconds=seconds)
        try:
            at = parse_iso(value.strip())
        except (ValueError, OverflowError) as error:
            if "time zone" in str(error):
                raise InvalidRequest(f"deadline: {error}", param="deadline") from None
        else:
            if (at - now).total_seconds() > _MAX_SPAN_S:
                raise InvalidRequest(
                    f"deadline {value!r} is more than 31 days away; give one within a month", param="deadline"
                )
            return at
    raise InvalidRequest(
        f"deadline {value!r} is neither a span such as 6h, 90m or 2d nor a time such as 2026-11-30T06:00:00Z",
        param="deadline",
    )


def find_model(models: Mapping[str, Model], name: Any, endpoint: Endpoint) -> Model:
    """Return the named model, checked against the endpoint. Raises InvalidRequest naming the models that fit."""
    fitting = sorted(model.name for model in models.values() if model.endpoint is endpoint)
    if not isinstance(name, str) or not name:
        state = "is missing" if not name else f"is {name!r}, which is no name"
        raise InvalidRequest(f"model {state}; models for {endpoint}: {', '.join(fitting) or 'none'}", param="model")
    model = models.get(name)
    if model is None:
        raise InvalidRequest(
            f"there is no model {name!r}; models for {endpoint}: {', '.join(fitting) or 'none'}",
            param="model",
            code="model_not_found",
        )
    if model.endpoint is not endpoint:
        raise InvalidRequest(
            f"model {name} answers {model.endpoint}, not {endpoint}; models for it: {', '.join(fitting) or 'none'}",
            param="model",
            code="model_mismatch",
        )
    return model


def names(value: Any, *, param: str) -> tuple[str, ...] | None:
    """Read a list of names, or one text with commas; None or nothing means no restriction. Raises InvalidRequest."""
    if value is None:
        return None
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise InvalidRequest(f"{param} must be a list of names", param=param)
    found = tuple(dict.fromkeys(name.strip() for name in value if name.strip()))
    return found or None


def job_query(items: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Turn the query of a streamed submit into job fields; ``region`` may be repeated. Raises InvalidRequest."""
    values: dict[str, Any] = {}
    regions: list[str] = []
    for name, value in items:
        if name == "region":
            regions.append(value)
        elif name in values:
            raise InvalidRequest(f"{name} is given twice", param=name)
        else:
            values[name] = value
    if regions:
        values["regions"] = regions
    return values


def new_job(
    values: Mapping[str, Any],
    *,
    tenant: str,
    api_key_id: str | None,
    now: datetime,
    models: Mapping[str, Model],
    idempotency_key: str | None,
) -> NewJob:
    """Read the fields of a new job. Raises InvalidRequest naming the field."""
    for name in values:
        if name not in JOB_FIELDS:
            match = difflib.get_close_matches(name, [*JOB_FIELDS, "region"], n=1)
            hint = f"; did you mean {match[0]!r}?" if match else f"; known: region, {', '.join(sorted(JOB_FIELDS))}"
            raise InvalidRequest(f"{name!r} is not a field of a job{hint}", param=name)
    endpoint = _endpoint(values)
    if values.get("deadline") is None:
        raise InvalidRequest("deadline is missing; give a span such as 6h or a time with its zone", param="deadline")
    if idempotency_key is not None and not 0 < len(idempotency_key) <= _MAX_NAME:
        raise InvalidRequest(f"Idempotency-Key must have 1 to {_MAX_NAME} characters", param="Idempotency-Key")
    return NewJob(
        tenant=tenant,
        api_key_id=api_key_id,
        endpoint=endpoint,
        model=find_model(models, values.get("model"), endpoint).name,
        deadline_at=parse_deadline(values["deadline"], now),
        regions=names(values.get("regions"), param="regions"),
        max_carbon_g=_grams(values.get("max_carbon_g")),
        product_line=label(values.get("product_line"), param="product_line"),
        workload=label(values.get("workload"), param="workload"),
        late_policy=_late_policy(values.get("late_policy")),
        idempotency_key=idempotency_key,
        metadata=_metadata(values.get("metadata")),
    )


def _endpoint(values: Mapping[str, Any]) -> Endpoint:
    given, kind = values.get("endpoint"), values.get("kind")
    if (given is None) == (kind is None):
        raise InvalidRequest(
            f"give either endpoint ({', '.join(Endpoint)}) or kind ({', '.join(KINDS)})", param="endpoint"
        )
    if given is not None:
        if given not in list(Endpoint):
            raise InvalidRequest(f"endpoint {given!r} is not one of {', '.join(Endpoint)}", param="endpoint")
        return Endpoint(given)
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidRequest(f"kind {kind!r} is not one of {', '.join(KINDS)}", param="kind")
    return KINDS[kind]


def _grams(value: Any) -> Decimal | None:
    if value is None:
        return None
    try:
        # By way of text: 0.1 as a float is not the 0.1 that was written.
        grams = Decimal(str(value))
    except InvalidOperation:
        grams = Decimal("NaN")
    if isinstance(value, bool) or not grams.is_finite() or grams <= 0:
        raise InvalidRequest(f"max_carbon_g {value!r} is not a number of grams above 0", param="max_carbon_g")
    if not _MIN_GRAMS <= grams <= _MAX_GRAMS:
        raise InvalidRequest(
            f"max_carbon_g {value!r} is beyond what can be counted; give {_MIN_GRAMS} to {_MAX_GRAMS} grams",
            param="max_carbon_g",
        )
    return grams


def label(value: Any, *, param: str) -> str | None:
    """Return a product line or workload. Raises InvalidRequest."""
    if value is not None and not (isinstance(value, str) and 0 < len(value) <= _MAX_NAME and value.isprintable()):
        raise InvalidRequest(f"{param} must be printable text of 1 to {_MAX_NAME} characters", param=param)
    return value


def _late_policy(value: Any) -> LatePolicy:
    if value is None:
        return LatePolicy.FINISH_LATE
    if value not in list(LatePolicy):
        raise InvalidRequest(f"late_policy {value!r} is not one of {', '.join(LatePolicy)}", param="late_policy")
    return LatePolicy(value)


def _metadata(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if (
        not isinstance(value, dict)
        or len(value) > _MAX_METADATA
        or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items())
    ):
        raise InvalidRequest(f"metadata must be an object of at most {_MAX_METADATA} texts", param="metadata")
    return dict(value)
