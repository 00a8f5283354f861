"""The fakes keep the seams' contracts: the type checker sees the assignments, the tests the behaviour."""

from datetime import timedelta
from decimal import Decimal

import orjson
import pytest

from carbonq.clock import Clock
from carbonq.engines.protocol import Engine, EngineRequest, Stopped
from carbonq.errors import BrokerUnavailable, EngineError, SignalUnavailable
from carbonq.grid.protocol import GridSource
from carbonq.meters.protocol import Meter, MeterLost
from carbonq.model import Endpoint
from carbonq.testing import FAKE_EPOCH, FakeClock, FakeEngine, FakeGrid, FakeMeter, MemoryTickets, RecordedSignal
from carbonq.units import WINDOW


def request(custom_id: str, text: str = "two words") -> EngineRequest:
    return EngineRequest(custom_id, {"input": text})


def test_clock_runs_by_its_factor_only_when_told() -> None:
    fake = FakeClock(factor=75)
    clock: Clock = fake
    assert clock.now() == clock.now() == FAKE_EPOCH
    fake.advance_machine(4)
    assert clock.now() == FAKE_EPOCH + WINDOW
    fake.advance(75)
    assert fake.machine() == 5
    fake.set(FAKE_EPOCH)
    assert fake.machine() == 0


def test_engine_answers_fails_as_scripted_and_chokes_on_poison() -> None:
    fake = FakeEngine(failures=[EngineError("once", is_retryable=True)], poison=["p"], bad_items={"b": "too_odd"})
    engine: Engine = fake
    with pytest.raises(EngineError, match="once"):
        engine.run([request("a")], lambda: False)
    good, bad = engine.run([request("a"), request("b")], lambda: False)
    assert good.body_json is not None
    assert orjson.loads(good.body_json)["data"][0]["embedding"] == [1.0, 0.0]
    assert good.prompt_tokens == 2
    assert (bad.status_code, bad.error_code, bad.body_json) == (400, "too_odd", None)
    with pytest.raises(EngineError, match="choked on p"):
        engine.run([request("a"), request("p")], lambda: False)
    with pytest.raises(Stopped):
        engine.run([request("a")], lambda: True)
    assert fake.calls == [["a"], ["a", "b"], ["a", "p"], ["a"]]


def test_chat_engine_gives_chat_answers() -> None:
    engine = FakeEngine(endpoint=Endpoint.CHAT)
    [result] = engine.run([EngineRequest("a", {"messages": [{"role": "user", "content": "x y"}]})], lambda: False)
    assert result.body_json is not None
    assert orjson.loads(result.body_json)["choices"][0]["message"]["content"] == "answer to a"
    assert (result.prompt_tokens, result.completion_tokens) == (2, 3)


def test_meter_counts_what_is_burnt_or_scripted() -> None:
    fake = FakeMeter(readings=[5])
    meter: Meter = fake
    assert meter.read_uj() == 5
    fake.burn(7)
    assert meter.read_uj() == 12
    fake.lose()
    with pytest.raises(MeterLost):
        meter.read_uj()


def test_grid_issues_forecasts_and_publishes_only_what_is_over() -> None:
    fake = FakeGrid([RecordedSignal("z", FAKE_EPOCH, [100, None, 300])])
    grid: GridSource = fake
    now = FAKE_EPOCH + WINDOW + timedelta(seconds=1)
    forecast = grid.forecast("z", now)
    assert forecast is not None
    assert (forecast.issued_at, list(forecast.values)) == (FAKE_EPOCH + WINDOW, [None, Decimal(300)])
    assert [o.g_per_kwh for o in grid.observations("z", FAKE_EPOCH, now, now)] == [Decimal(100)]
    later = FAKE_EPOCH + 3 * WINDOW
    assert [o.g_per_kwh for o in grid.observations("z", FAKE_EPOCH, later, later)] == [Decimal(100), Decimal(300)]
    assert grid.forecast("z", later) is None
    fake.is_down = True
    with pytest.raises(SignalUnavailable):
        grid.forecast("z", now)


def test_tickets_remember_and_can_be_down() -> None:
    tickets = MemoryTickets(answer=lambda region, payload: {"region": region, **payload})
    tickets.flexible([("r", "chunk_1")])
    tickets.nudge("dispatch")
    assert tickets.realtime("r", {"x": 1}, 1.0) == {"region": "r", "x": 1}
    assert (tickets.sent, tickets.nudges) == ([("r", "chunk_1")], ["dispatch"])
    tickets.is_down = True
    with pytest.raises(BrokerUnavailable):
        tickets.flexible([("r", "chunk_2")])
