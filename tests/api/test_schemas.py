"""What clients send is read strictly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq.api import job_terms
from carbonq.api.schemas import JOB_FIELDS, find_model, job_query, names, new_job, parse_deadline
from carbonq.errors import InvalidRequest
from carbonq.model import Endpoint, LatePolicy, NewJob
from carbonq.models import BUILTIN
from carbonq.units import iso

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
GOOD = {"endpoint": "/v1/embeddings", "model": "wordllama-256", "deadline": "6h"}


def job(idempotency_key: str | None = None, **values: Any) -> NewJob:
    return new_job(
        {name: value for name, value in {**GOOD, **values}.items() if value is not None},
        tenant="acme",
        api_key_id="key_1",
        now=NOW,
        models=BUILTIN,
        idempotency_key=idempotency_key,
    )


def test_a_whole_job_is_read() -> None:
    found = job(
        idempotency_key="abc",
        regions=["fr", "se", "fr"],
        max_carbon_g=0.1,
        product_line="search",
        workload="nightly",
        late_policy="expire",
        metadata={"a": "b"},
    )
    assert found == NewJob(
        tenant="acme",
        endpoint=Endpoint.EMBEDDINGS,
        model="wordllama-256",
        deadline_at=NOW + timedelta(hours=6),
        api_key_id="key_1",
        regions=("fr", "se"),
        max_carbon_g=Decimal("0.1"),
        product_line="search",
        workload="nightly",
        late_policy=LatePolicy.EXPIRE,
        idempotency_key="abc",
        metadata={"a": "b"},
    )


@pytest.mark.parametrize(
    ("text", "seconds"), [("90m", 5400), ("6h", 21600), ("2d", 172800), ("30s", 30), ("1.5 h", 5400), ("20MIN", 1200)]
)
def test_spans(text: str, seconds: int) -> None:
    assert parse_deadline(text, NOW) == NOW + timedelta(seconds=seconds)


def test_times_with_a_zone() -> None:
    assert parse_deadline("2026-01-02T01:00:00+01:00", NOW) == datetime(2026, 1, 2, tzinfo=UTC)
    with pytest.raises(InvalidRequest, match="time zone"):
        parse_deadline("2026-01-02T01:00:00", NOW)


@given(st.one_of(st.text(max_size=20), st.integers(), st.none(), st.floats()))
def test_any_deadline_is_a_time_after_now_or_refused_by_name(value: Any) -> None:
    try:
        assert parse_deadline(value, NOW).tzinfo is not None
    except InvalidRequest as error:
        assert error.param == "deadline"


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"dealine": "6h"}, "dealine", "did you mean 'deadline'"),
        ({"deadline": None}, "deadline", "is missing"),
        ({"deadline": "soon"}, "deadline", "6h, 90m or 2d"),
        ({"deadline": "0h"}, "deadline", "more than 0"),
        ({"deadline": "99d"}, "deadline", "31 days"),
        ({"deadline": "9999-12-31T23:59:59Z"}, "deadline", "31 days"),
        ({"deadline": "9999-12-31T23:59:59-10:00"}, "deadline", "neither a span"),
        ({"endpoint": None}, "endpoint", "either endpoint"),
        ({"kind": "embeddings"}, "endpoint", "either endpoint"),
        ({"endpoint": "/v1/images"}, "endpoint", "/v1/embeddings"),
        ({"endpoint": None, "kind": "translate"}, "kind", "summarize"),
        ({"model": None}, "model", "wordllama-256"),
        ({"model": "gpt-9"}, "model", "wordllama-256"),
        ({"model": "smollm2-135m-instruct"}, "model", "answers /v1/chat/completions"),
        ({"regions": 3}, "regions", "list of names"),
        ({"max_carbon_g": "much"}, "max_carbon_g", "number of grams"),
        ({"max_carbon_g": 0}, "max_carbon_g", "above 0"),
        ({"max_carbon_g": "NaN"}, "max_carbon_g", "number of grams"),
        ({"max_carbon_g": True}, "max_carbon_g", "number of grams"),
        ({"max_carbon_g": "1e999999"}, "max_carbon_g", "1E-15 to 1E[+]15 grams"),
        ({"max_carbon_g": 1e-300}, "max_carbon_g", "1E-15 to 1E[+]15 grams"),
        ({"model": 5}, "model", "model is 5, which is no name"),
        ({"endpoint": None, "kind": []}, "kind", "summarize"),
        ({"endpoint": {}}, "endpoint", "/v1/embeddings"),
        ({"workload": "a\0b"}, "workload", "printable"),
        ({"product_line": ""}, "product_line", "1 to 255"),
        ({"workload": 7}, "workload", "1 to 255"),
        ({"late_policy": "never"}, "late_policy", "finish_late, expire"),
        ({"metadata": {"a": 1}}, "metadata", "texts"),
        ({"idempotency_key": ""}, "Idempotency-Key", "1 to 255"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as raised:
        job(**change)
    assert raised.value.param == param


def test_a_kind_stands_for_its_endpoint() -> None:
    assert job(endpoint=None, kind="embeddings").endpoint is Endpoint.EMBEDDINGS
    assert job(endpoint=None, kind="summarize", model="smollm2-135m-instruct").endpoint is Endpoint.CHAT


def test_query_parameters() -> None:
    assert job_query([("region", "fr"), ("region", "se"), ("model", "m")]) == {"regions": ["fr", "se"], "model": "m"}
    with pytest.raises(InvalidRequest, match="twice"):
        job_query([("model", "a"), ("model", "b")])


def test_names() -> None:
    assert names("fr, se,", param="p") == ("fr", "se")
    assert names(None, param="p") is None
    for wrong in ([1], [], "", " , ", [" "]):  # none of them may become "everywhere"
        with pytest.raises(InvalidRequest):
            names(wrong, param="p")


def test_find_model_names_those_that_fit() -> None:
    with pytest.raises(InvalidRequest, match="none"):
        find_model({}, "x", Endpoint.CHAT)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(JOB_FIELDS)), ANY_JSON)
def test_any_value_of_any_field_is_taken_or_refused_by_name(name: str, value: Any) -> None:
    values = {"model": "wordllama-256", "deadline": "6h", name: value}
    if name not in {"endpoint", "kind"}:
        values["kind"] = "embeddings"
    try:
        new_job(values, tenant="acme", api_key_id=None, now=NOW, models=BUILTIN, idempotency_key=None)
    except InvalidRequest as error:
        assert error.param in {name, "endpoint"}


@pytest.mark.parametrize(
    ("fields", "headers", "defaults", "workload"),
    [
        ({"workload": "field", "carbon": {"workload": "body"}}, {"X-Carbonq-Workload": "header"}, {}, "field"),
        ({"carbon": {"workload": "body"}, "metadata": {"carbonq_workload": "meta"}}, {}, {}, "body"),
        ({"metadata": {"carbonq_workload": "meta"}}, {"X-Carbonq-Workload": "header"}, {}, "meta"),
        ({}, {"X-Carbonq-Workload": "header"}, {"workload": "key"}, "header"),
        ({}, {"X-Carbonq-Slo-Ms": "5"}, {"workload": "key", "session": "passed over"}, "key"),
        ({}, {}, {}, None),
    ],
)
def test_terms_of_a_job_in_their_order(
    fields: dict[str, Any], headers: dict[str, str], defaults: dict[str, Any], workload: str | None
) -> None:
    found = job_terms.completed(fields, headers=headers, defaults=defaults, now=NOW)
    assert found.get("workload") == workload
    assert "carbon" not in found and found.get("metadata") == fields.get("metadata")


def test_terms_become_fields_exactly() -> None:
    carbon = {"deadline": "6h", "regions": "fr,se", "max_gco2e": "0.10", "late_policy": "expire"}
    found = job_terms.completed({"carbon": carbon}, headers={}, defaults={}, now=NOW)
    assert found == {
        "deadline": iso(NOW + timedelta(hours=6)),
        "regions": ["fr", "se"],
        "max_carbon_g": "0.10",
        "late_policy": "expire",
    }
    for wrong, param in (({"deadlin": "6h"}, "carbon.deadlin"), ({"slo_ms": 5}, "carbon.slo_ms"), (7, "carbon")):
        with pytest.raises(InvalidRequest) as refused:
            job_terms.completed({"carbon": wrong}, headers={}, defaults={}, now=NOW)
        assert refused.value.param == param
