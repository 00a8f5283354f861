"""The shape of what clients send, read strictly: an unknown or misspelt field is named, never ignored.

Meaning (does the region exist, can the deadline be met) is checked by ``services/meaning.py``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from carbonq.errors import InvalidRequest
from carbonq.model import Endpoint, LatePolicy, Model, NewJob
from carbonq.terms import flag, grams, label, names, parse_deadline

#: What a job can be called instead of its endpoint.
KINDS = {"embeddings": Endpoint.EMBEDDINGS, "summarize": Endpoint.CHAT, "chat": Endpoint.CHAT}

#: The fields of a new job, in the query of a streamed submit or in the JSON body.
JOB_FIELDS = frozenset(
    {
        "deadline",
        "downgrade",
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

#: Longest idempotency key.
_MAX_NAME = 255

_MAX_METADATA = 16


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


def job_query(items: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Turn the query of a streamed submit into job fields; ``region`` may be repeated, ``metadata.KEY`` is one entry.

    Raises InvalidRequest.
    """
    values: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    regions: list[str] = []
    for name, value in items:
        target, key = (metadata, name[9:]) if name.startswith("metadata.") else (values, name)
        if name == "region":
            regions.append(value)
        elif key in target:
            raise InvalidRequest(f"{name} is given twice", param=name)
        else:
            target[key] = value
    given = {"regions": regions, "metadata": metadata}
    return values | {name: value for name, value in given.items() if value}


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
        max_carbon_g=grams(values.get("max_carbon_g"), param="max_carbon_g"),
        product_line=label(values.get("product_line"), param="product_line"),
        workload=label(values.get("workload"), param="workload"),
        late_policy=_late_policy(values.get("late_policy")),
        idempotency_key=idempotency_key,
        metadata=_metadata(values.get("metadata")),
        may_downgrade=flag(values.get("downgrade"), param="downgrade"),
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
