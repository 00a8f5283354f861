"""Interactive calls: the cleanest region within the budget, sessions, queues that shed, clients that leave."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest

from carbonq.api.load import Load
from carbonq.errors import QuotaExceeded, Unavailable
from carbonq.model import RegionState
from carbonq.models import WORDLLAMA_256
from carbonq.store import forecasts, regions
from carbonq.testing import FakeGrid, RecordedSignal
from carbonq.units import WINDOW_S
from tests.api.harness import EMBEDDER, REGIONS, Harness, answer, until

EMBED = {"model": EMBEDDER, "input": "hello"}
PAYLOAD = {"body": EMBED, "endpoint": "/v1/embeddings", "model": EMBEDDER}


def set_rates(harness: Harness, **g_per_kwh: int) -> None:
    """Let a new forecast come in for each region, as from the next window on."""
    harness.clock.advance(WINDOW_S)
    now = harness.clock.now()
    zones = {region.name: region.zone for region in REGIONS}
    with harness.db.write() as tx:
        for region, value in g_per_kwh.items():
            signal = RecordedSignal(zones[region], now, actual=[value] * 24, forecast=[value] * 24)
            issued = FakeGrid([signal]).forecast(zones[region], now)
            assert issued is not None
            forecasts.add_forecast(tx, issued)
    harness.api.rates.refresh(harness.db, now)


def ask(http: httpx.Client, **carbon: Any) -> dict[str, Any]:
    response = http.post("/v1/embeddings", json={**EMBED, "carbon": {"class": "interactive", **carbon}})
    assert response.status_code == 200, response.text
    return response.json()["usage"]["carbon"]


def test_an_interactive_call_goes_to_the_cleanest_region_and_says_why(harness: Harness, http: httpx.Client) -> None:
    set_rates(harness, fr=300, se=100)
    found = ask(http)
    assert (found["class"], found["routing"]["reason"]) == ("interactive", "cleanest")
    assert [one["region"] for one in found["routing"]["candidates"]] == ["se", "fr"]
    assert "se" in found["routing"]["sentence"]
    assert found["why"] == {name: found["routing"][name] for name in ("reason", "sentence")}
    (region, payload), *_ = harness.tickets.realtime_calls
    assert (region, payload["class"]) == ("se", "interactive")
    assert http.post("/v1/embeddings", json=EMBED).headers["x-carbonq-region"] == "fr"  # realtime: the nearest


def test_small_gains_move_nothing_and_sessions_stay(harness: Harness, http: httpx.Client) -> None:
    set_rates(harness, fr=300, se=100)
    assert ask(http, session="chat-1")["routing"]["reason"] in {"forced", "cleanest"}
    ask(http)
    set_rates(harness, fr=88, se=100)
    assert ask(http)["routing"]["reason"] == "stayed"
    set_rates(harness, fr=40, se=100)
    pinned = ask(http, session="chat-1")["routing"]
    assert pinned["reason"] == "pinned" and pinned["pin_cost_g"] > 0
    assert ask(http)["routing"]["reason"] == "cleanest"
    assert [region for region, _ in harness.tickets.realtime_calls] == ["se", "se", "se", "se", "fr"]


def test_a_call_that_rules_the_present_region_out_is_not_told_that_it_is_down(
    harness: Harness, http: httpx.Client
) -> None:
    set_rates(harness, fr=300, se=100)
    ask(http, session="chat-1")
    for session in ({}, {"session": "chat-1"}):
        assert ask(http, regions=["fr"], **session)["routing"]["reason"] == "cleanest"
    assert ask(http)["routing"]["sentence"].startswith("se (")


def test_a_full_region_is_passed_over_while_another_has_room(harness: Harness, http: httpx.Client) -> None:
    load = harness.api.dispatcher.load
    for region in ("fr", "se"):
        load.answered(region, EMBEDDER, 4.0)
    load.in_flight["fr"] = 9
    assert http.post("/v1/embeddings", json=EMBED).headers["x-carbonq-region"] == "se"
    only = http.post("/v1/embeddings", json={**EMBED, "carbon": {"regions": ["fr"]}})
    assert only.status_code == 429 and int(only.headers["retry-after"]) > 1
    load.in_flight["se"] = 9
    assert http.post("/v1/embeddings", json=EMBED).status_code == 429


def test_calls_to_an_engine_of_unknown_speed_spread_before_they_queue(harness: Harness, http: httpx.Client) -> None:
    load = harness.api.dispatcher.load
    load.in_flight["fr"] = 1
    assert http.post("/v1/embeddings", json=EMBED).headers["x-carbonq-region"] == "se"
    load.in_flight["se"] = 1
    load.answered("fr", EMBEDDER, 0.1)
    assert http.post("/v1/embeddings", json=EMBED).headers["x-carbonq-region"] == "fr"


def test_calls_that_had_no_answer_in_time_make_the_next_ones_shed(harness: Harness, http: httpx.Client) -> None:
    def silent(region: str, payload: dict[str, Any]) -> dict[str, Any]:
        raise Unavailable("no answer", code="realtime_timeout")

    harness.tickets.answer = silent
    only = {**EMBED, "carbon": {"regions": ["fr"], "slo_ms": 1000}}
    assert http.post("/v1/embeddings", json=only).status_code == 503
    harness.api.dispatcher.load.in_flight["fr"] = 1
    shed = http.post("/v1/embeddings", json=only)
    assert (shed.status_code, shed.headers["retry-after"]) == (429, "4")


def test_without_signals_the_nearest_healthy_region_answers(harness: Harness, http: httpx.Client) -> None:
    assert ask(http)["routing"]["reason"] == "nearest"
    response = http.post("/v1/embeddings", json={**EMBED, "carbon": {"class": "interactive", "slo_ms": 0.001}})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "no_region_available")
    assert "fr" in response.json()["error"]["message"]


def test_a_region_that_an_operator_paused_is_not_called_down(harness: Harness, http: httpx.Client) -> None:
    with harness.db.write() as tx:
        regions.set_state(tx, "fr", RegionState.PAUSED)
    harness.api.directory.refresh()
    only = {**EMBED, "carbon": {"class": "interactive", "regions": ["fr"]}}
    response = http.post("/v1/embeddings", json=only)
    assert response.status_code == 503 and response.json()["error"]["message"].endswith("ms, paused")


@pytest.mark.parametrize(
    ("carbon", "param", "words"),
    [
        ({"class": "flexible"}, "carbon.class", "/v1/jobs"),
        ({"class": "soon"}, "carbon.class", "not one of realtime, interactive"),
        ({"class": []}, "carbon.class", "not one of realtime, interactive"),
        ({"class": "interactive", "slo_ms": 0}, "carbon.slo_ms", "at most 600,000"),
        ({"class": "interactive", "slo_ms": True}, "carbon.slo_ms", "milliseconds"),
        ({"class": "interactive", "regions": ["mars"]}, "carbon.regions", "known regions"),
        ({"session": "a"}, "carbon.session", "interactive"),
    ],
)
def test_what_makes_no_sense_names_the_field(http: httpx.Client, carbon: Any, param: str, words: str) -> None:
    response = http.post("/v1/embeddings", json={**EMBED, "carbon": carbon})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert words in response.json()["error"]["message"]


def test_headers_say_it_too(harness: Harness, http: httpx.Client) -> None:
    set_rates(harness, fr=300, se=100)
    headers = {"X-Carbonq-Class": "interactive", "X-Carbonq-Slo-Ms": "4000", "X-Carbonq-Session": "s"}
    response = http.post("/v1/embeddings", json=EMBED, headers=headers)
    assert response.headers["x-carbonq-class"] == "interactive" and response.headers["x-carbonq-region"] == "se"


def test_a_queue_longer_than_the_budget_is_shed_with_the_time_to_wait(harness: Harness) -> None:
    dispatcher, hold = harness.api.dispatcher, threading.Event()

    def slow(region: str, payload: dict[str, Any]) -> dict[str, Any]:
        assert hold.wait(20)
        return answer(region, payload)

    harness.tickets.answer = slow
    region = harness.api.directory.nearest(WORDLLAMA_256)
    dispatcher.load.answered(region.name, WORDLLAMA_256.name, 4.0)

    async def run() -> float | None:
        calls = [asyncio.create_task(dispatcher.call(PAYLOAD, model=WORDLLAMA_256, region=region)) for _ in range(3)]
        await asyncio.to_thread(until, lambda: dispatcher.in_flight == 3, "three calls")
        with pytest.raises(QuotaExceeded, match=r"would wait about 12\.0 s .* longer than the 10 s") as shed:
            await dispatcher.call(PAYLOAD, model=WORDLLAMA_256, region=region)
        with pytest.raises(QuotaExceeded, match="longer than the 1 s"):
            await dispatcher.call(PAYLOAD, model=WORDLLAMA_256, region=region, slo_s=1)
        hold.set()
        await asyncio.gather(*calls)
        return shed.value.retry_after_s

    assert asyncio.run(run()) == pytest.approx(2.0)


def test_load_forgets_what_is_old_and_waits_only_behind_full_lanes() -> None:
    now = [0.0]
    load = Load(lambda: now[0])
    load.answered("fr", "m", 2.0)
    load.in_flight["fr"] = 3
    assert [load.wait_s("fr", "m", lanes) for lanes in (1, 2, 4)] == [6.0, 2.0, 0.0]
    now[0] = 601.0
    assert load.engine_s("fr", "m") is None and load.wait_s("fr", "m", 1) == 0.0


def test_a_client_that_leaves_stops_its_call(harness: Harness, http: httpx.Client) -> None:
    hold = threading.Event()

    def slow(region: str, payload: dict[str, Any]) -> dict[str, Any]:
        assert hold.wait(20)
        return answer(region, payload)

    harness.tickets.answer = slow
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/embeddings", json=EMBED, timeout=0.3)
    until(lambda: harness.tickets.dropped, "the call to be dropped")
    hold.set()
    until(lambda: harness.api.dispatcher.in_flight == 0, "the call to end")
    assert len(harness.tickets.dropped) == 1


def test_a_far_region_is_no_choice_within_a_tight_budget(harness: Harness, http: httpx.Client) -> None:
    set_rates(harness, fr=300, se=100)
    snapshot = harness.api.directory.snapshot
    far = {name: replace(one, latency_ms=2_000.0 if name == "se" else 1.0) for name, one in snapshot.regions.items()}
    harness.api.directory.snapshot = replace(snapshot, regions=far)
    found = ask(http, slo_ms=1_000)["routing"]
    assert {one["region"]: one["verdict"] for one in found["candidates"]} == {"fr": "chosen", "se": "too_slow"}
