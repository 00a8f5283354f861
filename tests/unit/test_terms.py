"""Terms of work: values of every key, carriers in their order, unknown keys by name; what was written is read again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from carbonq import terms
from carbonq.api import terms as carried
from carbonq.errors import InvalidRequest
from carbonq.model import LatePolicy, WorkClass
from carbonq.terms import Carrier, OnBudget, Terms

NOW = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)


def read(**carriers: Any) -> Terms:
    return carried.read(now=NOW, takes=terms.BATCH_KEYS, **carriers)


def refused(**carriers: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as error:
        read(**carriers)
    return error.value


def test_every_key_is_read() -> None:
    found = terms.read(
        [
            Carrier(
                {
                    "class": "interactive",
                    "deadline": "90m",
                    "defer": True,
                    "downgrade": False,
                    "late_policy": "expire",
                    "max_gco2e": 0.1,
                    "on_budget": "wait",
                    "product_line": "search",
                    "regions": ["fr", "se"],
                    "session": "s",
                    "slo_ms": 250,
                    "workload": "w",
                }
            )
        ],
        now=NOW,
    )
    assert found == Terms(
        NOW + timedelta(minutes=90),
        ("fr", "se"),
        Decimal("0.1"),
        "search",
        "w",
        LatePolicy.EXPIRE,
        OnBudget.WAIT,
        WorkClass.INTERACTIVE,
        "s",
        250.0,
        True,
        False,
    )
    assert terms.load(terms.dump(found)) == found
    assert terms.load(terms.dump(Terms())) == Terms()


def test_the_first_carrier_that_says_something_counts() -> None:
    given: dict[str, Mapping[str, Any]] = {
        "body": {"deadline": "1h"},
        "metadata": {"carbonq_deadline": "2h", "carbonq_regions": "fr, se", "team": "search"},
        "headers": {"X-Carbonq-Deadline": "3h", "x-carbonq-regions": "no", "X-Carbonq-Max-Gco2e": "5"},
        "file": {"deadline": "4h", "max_gco2e": "6", "workload": "w"},
        "defaults": {"workload": "d", "product_line": "p", "of_another_version": 1},
    }
    found = read(**given)
    assert found == Terms(NOW + timedelta(hours=1), ("fr", "se"), Decimal(5), "p", "w")
    hours: list[float] = []
    for name in list(given):
        hours.append((terms_deadline(read(**given)) - NOW).total_seconds() / 3600)
        del given[name]
        if name == "file":
            break
    assert hours == [1, 2, 3, 4]
    line = terms.read([Carrier({"deadline": "10m"}, line=3)], now=NOW)
    assert line.over(found) == Terms(NOW + timedelta(minutes=10), ("fr", "se"), Decimal(5), "p", "w")


def terms_deadline(found: Terms) -> datetime:
    assert found.deadline is not None
    return found.deadline


@pytest.mark.parametrize(
    ("carrier", "param", "words"),
    [
        ({"body": {"deadlin": "1h"}}, "carbon.deadlin", "did you mean 'deadline'"),
        ({"body": {"session": "s"}}, "carbon.session", "belongs to a call answered now"),
        ({"body": ["6h"]}, "carbon", "must be an object"),
        ({"metadata": {"carbonq_region": "fr"}}, "metadata.carbonq_region", "did you mean 'regions'"),
        ({"headers": {"x-carbonq-max-gco2": "1"}}, "X-Carbonq-Max-Gco2", "did you mean 'max_gco2e'"),
        ({"headers": {"x-carbonq-deadline": "soon"}}, "X-Carbonq-Deadline", "neither a span"),
        ({"body": {"deadline": "32d"}}, "carbon.deadline", "at most 31 days"),
        ({"body": {"deadline": "2026-03-02T09:00:00"}}, "carbon.deadline", "time zone"),
        ({"body": {"deadline": 6}}, "carbon.deadline", "neither a span"),
        ({"body": {"max_gco2e": 0}}, "carbon.max_gco2e", "above 0"),
        ({"body": {"max_gco2e": "1e16"}}, "carbon.max_gco2e", "beyond what can be counted"),
        ({"body": {"regions": [1]}}, "carbon.regions", "list of names"),
        ({"body": {"regions": []}}, "carbon.regions", "names nothing"),
        ({"headers": {"x-carbonq-regions": ","}}, "X-Carbonq-Regions", "names nothing"),
        ({"body": {"workload": "w" * 256}}, "carbon.workload", "1 to 255"),
        ({"body": {"on_budget": "ignore"}}, "carbon.on_budget", "reject, run_anyway, wait"),
        ({"body": {"late_policy": "x" * 500}}, "carbon.late_policy", "finish_late, expire"),
        ({"body": {"defer": False}}, "carbon.defer", "give a nearer deadline"),
    ],
)
def test_what_is_wrong_is_named(carrier: dict[str, Any], param: str, words: str) -> None:
    error = refused(**carrier)
    assert error.param == param
    assert words in error.message
    assert len(error.message) < 400


def test_keys_of_another_kind_of_call_are_passed_over_where_they_go_with_every_call() -> None:
    assert read(headers={"X-Carbonq-Session": "s", "X-Carbonq-Workload": "w"}) == Terms(workload="w")
    assert read(defaults={"slo_ms": 5}) == Terms()


@pytest.mark.parametrize("carrier", ["body", "metadata", "headers", "file", "defaults"])
def test_a_downgrade_is_allowed_or_refused_by_any_carrier(carrier: str) -> None:
    name = {"metadata": "carbonq_downgrade", "headers": "X-Carbonq-Downgrade"}.get(carrier, "downgrade")
    for said in (True, False):
        found = read(**{carrier: {name: said if carrier == "body" else str(said).lower()}})
        assert found.downgrade is said
        assert terms.load(terms.dump(found)) == found
    assert read(body={"downgrade": False}, defaults={"downgrade": True}).downgrade is False
    assert read().downgrade is None
    error = refused(**{carrier: {name: "no"}})
    assert "'no' is neither true nor false" in error.message


def test_a_line_says_its_number() -> None:
    for values in ({"deadlin": "1h"}, {"deadline": "soon"}):
        with pytest.raises(InvalidRequest, match=r"^line 7: carbon\.deadlin") as error:
            terms.read([Carrier(values, line=7)], now=NOW)
        assert error.value.line == 7


def test_forms_spell_objects_with_brackets() -> None:
    given = [("carbon[deadline]", "6h"), ("carbon[regions][]", "fr"), ("carbon[regions][]", "se")]
    assert terms.flattened(given) == {"deadline": "6h", "regions": ["fr", "se"]}
    for wrong in (given[:1] * 2, [("carbon[a][b]", "1")], [("carbon[regions]", "fr"), *given[1:]]):
        with pytest.raises(InvalidRequest, match="given twice or is no key"):
            terms.flattened(wrong)


def test_limits_hold_at_the_limit() -> None:
    assert read(body={"workload": "w" * 255, "deadline": "31d", "max_gco2e": "1e15"}).deadline is not None
    assert terms.read([Carrier({"slo_ms": 600_000})], now=NOW).slo_ms == 600_000
    with pytest.raises(InvalidRequest, match="600,000"):
        terms.read([Carrier({"slo_ms": 600_001})], now=NOW)
