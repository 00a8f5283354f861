"""Fakes for tests, ours and yours: a clock, an engine, a meter, a grid source and tickets that live in memory.

They keep the seams' contracts (``engines/protocol.py``, ``meters/protocol.py``, ``grid/protocol.py``) and record what
was asked of them, so that a test says what it expects of the world instead of patching it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from carbonq.clock import ClockKind
from carbonq.engines.protocol import EngineRequest, EngineResult, ShouldStop, Stopped
from carbonq.errors import BrokerUnavailable, EngineError, SignalUnavailable
from carbonq.grid.protocol import Forecast, Observation, SourceNote
from carbonq.meters.protocol import Component, MeterKind, MeterLost
from carbonq.model import Endpoint, Quality, Signal
from carbonq.units import WINDOW, WINDOW_S, window_of

#: When a FakeClock begins unless told otherwise: a window's edge.
FAKE_EPOCH = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


class FakeClock:
    """A clock that stands still until told; ``machine()`` is the monotonic time that goes with it."""

    def __init__(
        self, start: datetime = FAKE_EPOCH, *, factor: float = 1.0, kind: ClockKind = ClockKind.SIMULATED
    ) -> None:
        self._start = start
        self._factor = factor
        self._kind = kind
        self._machine_s = 0.0
        self._lock = threading.Lock()

    @property
    def kind(self) -> ClockKind:
        """How this clock runs."""
        return self._kind

    @property
    def factor(self) -> float:
        """Grid seconds that pass in one machine second."""
        return self._factor

    def now(self) -> datetime:
        """Return the grid time."""
        return self._start + timedelta(seconds=self._machine_s * self._factor)

    def machine(self) -> float:
        """Return machine seconds since the start, for the hub and whatever else takes a monotonic clock."""
        return self._machine_s

    def advance(self, grid_s: float) -> None:
        """Let grid seconds pass."""
        self.advance_machine(grid_s / self._factor)

    def advance_machine(self, machine_s: float) -> None:
        """Let machine seconds pass."""
        with self._lock:
            self._machine_s += machine_s

    def set(self, at: datetime) -> None:
        """Jump to a grid time, backwards too (machine time then goes backwards as well)."""
        with self._lock:
            self._machine_s = (at - self._start).total_seconds() / self._factor


#: What a FakeEngine counts for a request: prompt, cached and completion tokens.
Tokens = Callable[[EngineRequest], tuple[int, int, int]]


def words(request: EngineRequest) -> tuple[int, int, int]:
    """Count one token a word of ``input`` or of the messages; a chat answer has three tokens."""
    if "messages" in request.body:
        text = " ".join(str(message.get("content", "")) for message in request.body["messages"])
        return len(text.split()), 0, 3
    given = request.body.get("input", "")
    texts: list[str] = [given] if isinstance(given, str) else [str(text) for text in given]
    return sum(len(text.split()) for text in texts), 0, 0


class FakeEngine:
    """An engine with scripted tokens, failures and poison; ``calls`` holds the custom ids of each ``run``.

    Args:
        endpoint: the shape of the answers.
        tokens: counts a request's tokens.
        failures: raised by the next calls, in order, one each; then the engine works.
        poison: custom ids that make the whole call raise EngineError, however often it is tried.
        bad_items: custom ids that get an error result of their own (``error_code``, 400).
        on_item: called before each item, e.g. to burn energy, advance a clock or wait for an event.
    """

    def __init__(
        self,
        *,
        endpoint: Endpoint = Endpoint.EMBEDDINGS,
        model: str = "fake-model",
        tokens: Tokens = words,
        failures: Iterable[Exception] = (),
        poison: Collection[str] = (),
        bad_items: Mapping[str, str] | None = None,
        on_item: Callable[[EngineRequest], None] | None = None,
        name: str = "fake",
        version: str = "1",
    ) -> None:
        self._endpoint = endpoint
        self._model = model
        self._tokens = tokens
        self._failures = list(failures)
        self._poison = frozenset(poison)
        self._bad_items = dict(bad_items or {})
        self._on_item = on_item
        self.name = name
        self.version = version
        self._lock = threading.Lock()
        self.calls: list[list[str]] = []
        self.is_loaded = False
        self.is_closed = False

    def load(self) -> None:
        """Remember that it was loaded."""
        self.is_loaded = True

    def run(self, requests: Sequence[EngineRequest], should_stop: ShouldStop) -> Sequence[EngineResult]:
        """Answer each request in order; see the class for what may happen instead."""
        with self._lock:
            self.calls.append([request.custom_id for request in requests])
            failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure
        poison = [request.custom_id for request in requests if request.custom_id in self._poison]
        if poison:
            raise EngineError(f"the engine choked on {poison[0]}", is_retryable=True)
        results: list[EngineResult] = []
        for request in requests:
            if should_stop():
                raise Stopped
            if self._on_item is not None:
                self._on_item(request)
            results.append(self._answer(request))
        return results

    def _answer(self, request: EngineRequest) -> EngineResult:
        prompt, cached, completion = self._tokens(request)
        if request.on_text is not None and self._endpoint is Endpoint.CHAT:
            for word in f"answer to {request.custom_id}".split(" "):
                request.on_text(word if word == "answer" else f" {word}")
        code = self._bad_items.get(request.custom_id)
        if code is not None:
            return EngineResult(
                status_code=400,
                body_json=None,
                prompt_tokens=prompt,
                error_code=code,
                error_message=f"{request.custom_id} is bad on purpose",
            )
        return EngineResult(200, json.dumps(self._body(request)).encode(), prompt, cached, completion)

    def _body(self, request: EngineRequest) -> dict[str, Any]:
        if self._endpoint is Endpoint.CHAT:
            message = {"role": "assistant", "content": f"answer to {request.custom_id}"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            identity = {"id": f"chatcmpl-{request.custom_id}", "object": "chat.completion", "created": 0}
            return {**identity, "model": self._model, "choices": [choice]}
        given = request.body.get("input", "")
        count = 1 if isinstance(given, str) else len(given)
        data = [{"object": "embedding", "index": index, "embedding": [1.0, 0.0]} for index in range(count)]
        return {"object": "list", "data": data, "model": self._model}

    def pids(self) -> Sequence[int]:
        """Return no process of its own."""
        return ()

    def close(self) -> None:
        """Remember that it was closed."""
        self.is_closed = True


class FakeMeter:
    """A counter that moves when told: ``burn`` adds to it, ``lose`` makes it fail, ``readings`` scripts it whole."""

    def __init__(
        self,
        component: Component = Component.CPU,
        *,
        kind: MeterKind = MeterKind.CPU_TIME,
        quality: Quality = Quality.ESTIMATED,
        uncertainty_pct: float | None = None,
        device_ids: Sequence[str] = ("fake-0",),
        start_uj: int = 0,
        readings: Iterable[int] = (),
        lag_s: float = 0.0,
    ) -> None:
        self.component = component
        self.kind = kind
        self.quality = quality
        self.uncertainty_pct = uncertainty_pct
        self.device_ids: Sequence[str] = tuple(device_ids)
        self.lag_s = lag_s
        self.next_marks: Sequence[str] = ()
        self.start_uj = self.last_read_uj = start_uj
        self._readings = list(readings)
        self._lock = threading.Lock()
        self._is_lost = False
        self.uj = start_uj
        self.reads = 0
        self.is_closed = False

    def burn(self, uj: int) -> None:
        """Count ``uj`` more."""
        with self._lock:
            self.uj += uj

    def lose(self) -> None:
        """Fail from now on with MeterLost."""
        self._is_lost = True

    def find(self) -> None:
        """Answer again after ``lose``."""
        self._is_lost = False

    def read_uj(self) -> int:
        """Return the next scripted reading, else the counter. Raises MeterLost after ``lose``."""
        with self._lock:
            self.reads += 1
            if self._is_lost:
                raise MeterLost("the fake meter was lost on purpose")
            if self._readings:
                self.uj = self._readings.pop(0)
            self.last_read_uj = self.uj
            return self.uj

    def marks(self) -> Sequence[str]:
        """Return ``next_marks``, once."""
        marks, self.next_marks = self.next_marks, ()
        return marks

    def close(self) -> None:
        """Remember that it was closed."""
        self.is_closed = True


@dataclass(frozen=True, slots=True)
class RecordedSignal:
    """A zone's windows from ``start_at`` on, in gCO2e/kWh: what was observed and, if it differs, what was forecast."""

    zone: str
    start_at: datetime
    actual: Sequence[Decimal | int | None]
    forecast: Sequence[Decimal | int | None] | None = None


class FakeGrid:
    """A grid source that plays recorded signals: an issue at each window, an observation once a window is over.

    ``is_down`` makes it raise SignalUnavailable; ``horizon`` is the number of windows a forecast covers.
    """

    def __init__(
        self,
        signals: Iterable[RecordedSignal],
        *,
        name: str = "fake-grid",
        signal: Signal = Signal.MOER,
        horizon: int = 288,
        may_settle: bool = True,
        is_estimated: bool = False,
    ) -> None:
        self._signals = {recorded.zone: recorded for recorded in signals}
        self._name = name
        self._signal = signal
        self._horizon = horizon
        self._may_settle = may_settle
        self._is_estimated = is_estimated
        self.is_down = False

    @property
    def name(self) -> str:
        """The source's name."""
        return self._name

    @property
    def signal(self) -> Signal:
        """Which book it feeds."""
        return self._signal

    def _zone(self, zone: str) -> RecordedSignal:
        if self.is_down or zone not in self._signals:
            raise SignalUnavailable(f"{self._name} has nothing for zone {zone}")
        return self._signals[zone]

    def forecast(self, zone: str, now: datetime) -> Forecast | None:
        """Return the issue of the window that holds ``now``; None before the first and after the last value."""
        recorded = self._zone(zone)
        start = window_of(now)
        skip = (start - recorded.start_at) // WINDOW
        series = recorded.forecast if recorded.forecast is not None else recorded.actual
        values = [_decimal(value) for value in series[skip : skip + self._horizon]] if skip >= 0 else []
        if not values:
            return None
        return Forecast(
            zone=zone,
            signal=self._signal,
            source=self._name,
            model=None,
            gas="co2",
            method=None,
            issued_at=start,
            retrieved_at=now,
            start_at=start,
            step_s=WINDOW_S,
            values=values,
            raw_unit="g/kWh",
            raw_per_g_per_kwh=Decimal(1),
            is_estimated=self._is_estimated,
            may_settle=self._may_settle,
        )

    def observations(self, zone: str, start: datetime, end: datetime, now: datetime) -> Sequence[Observation]:
        """Return the windows in ``[start, end)`` that are over by ``now``; a missing value has no observation."""
        recorded = self._zone(zone)
        found: list[Observation] = []
        for position, value in enumerate(recorded.actual):
            at = recorded.start_at + position * WINDOW
            if value is None or not (start <= at < end and at + WINDOW <= now):
                continue
            rate = Decimal(value)
            found.append(
                Observation(
                    zone=zone,
                    signal=self._signal,
                    source=self._name,
                    model=None,
                    gas="co2",
                    method=None,
                    window_at=at,
                    step_s=WINDOW_S,
                    retrieved_at=now,
                    g_per_kwh=rate,
                    raw=rate,
                    raw_unit="g/kWh",
                    is_estimated=self._is_estimated,
                    may_settle=self._may_settle,
                )
            )
        return found

    def revisions(self, zone: str, since: datetime, now: datetime) -> Sequence[Observation]:
        """Return nothing: recorded signals do not change."""
        return ()

    def check(self, zone: str, now: datetime) -> Sequence[SourceNote]:
        """Return nothing beside what its values show."""
        return ()

    def close(self) -> None:
        """Nothing to close."""


def _decimal(value: Decimal | int | None) -> Decimal | None:
    return None if value is None else Decimal(value)


def _no_answer(region: str, payload: dict[str, Any]) -> dict[str, Any]:
    raise BrokerUnavailable(f"nobody answers realtime requests in {region} in this test")


@dataclass
class MemoryTickets:
    """Tickets that go nowhere: ``sent`` holds (region, chunk_id), ``nudges`` the ticks, ``realtime_calls`` the calls.

    ``answer`` replies to realtime requests (``pieces`` are what a streamed one tells before); ``is_down`` makes every
    publish raise BrokerUnavailable.
    """

    answer: Callable[[str, dict[str, Any]], dict[str, Any]] = _no_answer
    is_down: bool = False
    sent: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    shown: dict[str, str] = field(default_factory=dict[str, str])
    nudges: list[str] = field(default_factory=list[str])
    realtime_calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])
    dropped: list[str] = field(default_factory=list[str])
    pieces: Sequence[str] = ()

    def flexible(self, pairs: Sequence[tuple[str, str]], shown: Mapping[str, str] | None = None) -> None:
        """Record tickets of (region, chunk_id), and what people are shown of them."""
        self._check()
        self.sent.extend(pairs)
        self.shown.update(shown or {})

    def nudge(self, tick: str) -> None:
        """Record that a tick was asked for."""
        self._check()
        self.nudges.append(tick)

    def realtime(
        self,
        region: str,
        payload: dict[str, Any],
        timeout_s: float,
        call_id: str | None = None,
        on_piece: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """Record a realtime request and answer it with ``answer``, after ``pieces`` where they are wanted."""
        self._check()
        self.realtime_calls.append((region, payload))
        if on_piece is not None:
            for piece in self.pieces:
                on_piece(piece)
        return self.answer(region, payload)

    def drop(self, call_id: str) -> None:
        """Record that nobody waits for a call any more."""
        self.dropped.append(call_id)

    def ping(self) -> None:
        """Raise BrokerUnavailable when down."""
        self._check()

    def _check(self) -> None:
        if self.is_down:
            raise BrokerUnavailable("the broker is down on purpose")
