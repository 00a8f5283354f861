"""A whole carbonq in one process: the API, the ticks and a region's worker in a thread, tickets in memory.

What the OpenAI SDK sees is real from end to end: lines are validated, planned, run by wordllama under a meter, booked
and assembled. Only the broker, the meter and the grid are fakes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from carbonq.booking import Fact
from carbonq.clock import GridClock
from carbonq.engines.protocol import Engine, EngineRequest, EngineResult, ShouldStop
from carbonq.engines.wordllama import WordLlamaEngine
from carbonq.errors import Conflict, EngineError, InvalidRequest, QuotaExceeded, Unavailable
from carbonq.meters.hub import Hub
from carbonq.model import Endpoint, Scope, Signal
from carbonq.models import BUILTIN, WORDLLAMA_256
from carbonq.services import chunk, dispatch, finish, finish_batches, plan, realtime, submit, validate
from carbonq.services.deliver import Deliverer
from carbonq.services.rates import RateCache
from carbonq.services.run import run_chunk
from carbonq.services.site import Limits, Site
from carbonq.services.writebehind import WriteBehind
from carbonq.spool import Spool
from carbonq.store import forecasts, keys, regions
from carbonq.store.database import Database
from carbonq.testing import FakeEngine, FakeGrid, FakeMeter, MemoryTickets, RecordedSignal
from carbonq.units import WINDOW, window_of
from carbonq.webhooks.sender import Sender
from tests.api.harness import CHATTER, EMBEDDER, REGIONS, build_api, serving

#: What each item burns by the fake meter, in uJ.
ITEM_UJ = 12_345

#: What a realtime call fails with when its ``user`` is ``force-STATUS``.
FORCED: dict[str, Callable[[], Exception]] = {
    "409": lambda: Conflict("it is in another state"),
    "422": lambda: InvalidRequest("that key stands for another request", code="idempotency_key_reused"),
    "429": lambda: QuotaExceeded("too much at once", retry_after_s=1.0),
    "503": lambda: Unavailable("away for now", code="engine_away", retry_after_s=1.0),
}


@dataclass
class _Burning:
    """An engine that burns energy for each item; one whose user is ``force-502`` makes it fail."""

    inner: Engine
    meter: FakeMeter

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def version(self) -> str:
        return self.inner.version

    def load(self) -> None:
        self.inner.load()

    def pids(self) -> Sequence[int]:
        return self.inner.pids()

    def close(self) -> None:
        self.inner.close()

    def run(self, requests: Sequence[EngineRequest], should_stop: ShouldStop) -> Sequence[EngineResult]:
        if any(request.body.get("user") == "force-502" for request in requests):
            raise EngineError("out of memory", is_retryable=True)
        self.meter.burn(ITEM_UJ * len(requests))
        return self.inner.run(requests, should_stop)


@dataclass
class _Tickets(MemoryTickets):
    """Tickets whose nudges wake the worker's thread, and whose realtime calls tell their text as it comes."""

    woken: threading.Event = field(default_factory=threading.Event)
    streamed: Callable[[str, dict[str, Any], Callable[[str], None] | None], dict[str, Any]] | None = None

    def realtime(
        self,
        region: str,
        payload: dict[str, Any],
        timeout_s: float,
        call_id: str | None = None,
        on_piece: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        assert self.streamed is not None
        return self.streamed(region, payload, on_piece)

    def nudge(self, tick: str) -> None:
        self.woken.set()


class Watch:
    """Counts requests by their ``X-Test-Name`` and loses the first answer of one with ``X-Test-Lose``."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.seen: Counter[str] = Counter()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if scope["path"].startswith("/v1/_seen/"):
            await _plain(send, 200, str(self.seen[scope["path"].rpartition("/")[2]]))
            return
        name = headers.get(b"x-test-name", b"").decode()
        self.seen[name] += 1
        if b"x-test-lose" in headers and self.seen[name] == 1:
            await self._app(scope, receive, _drop)
            await _plain(send, 503, "a proxy lost the answer")
            return
        await self._app(scope, receive, send)


async def _drop(_message: Any) -> None:
    """Send nothing."""


async def _plain(send: Any, status: int, text: str) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": text.encode()})


class Stack:
    """The parts, and the thread that does what beat, the control workers and a region's worker do."""

    def __init__(self, db: Database, root: Path) -> None:
        self.db, self.clock = db, GridClock.real()
        self.tickets = _Tickets(streamed=self._answer)
        meter = FakeMeter()
        self._engines = {
            EMBEDDER: _Burning(WordLlamaEngine(WORDLLAMA_256), meter),
            CHATTER: _Burning(FakeEngine(endpoint=Endpoint.CHAT, model=CHATTER), meter),
        }
        for engine in self._engines.values():
            engine.load()
        self._prepare()
        self.api = build_api(db, root / "blobs", clock=self.clock, tickets=self.tickets, webhooks_may_be_private=True)
        self.api.directory.refresh()
        self._rates = RateCache(REGIONS)
        self._rates.refresh(db, self.clock.now())
        self.site = Site(
            db=db,
            blobs=self.api.blobs,
            spool=Spool(root / "spool"),
            tickets=self.tickets,
            clock=self.clock,
            hub=Hub([meter], self.clock),
            rates=self._rates.book,
            region=REGIONS[0],
            facts={region.name: Fact.of(region) for region in REGIONS},
            models=BUILTIN,
            engine_of=self._engines.__getitem__,
            worker_id="worker-fr",
            software_version="test",
            expect=lambda baselines: self._rates.refresh(db, self.clock.now(), baselines=baselines),
            limits=Limits(backoff_base_s=0.001, backoff_cap_s=0.002),
        )
        self._behind = WriteBehind(db, self.site.spool)
        self._sender = Sender(may_be_private=True)
        self._deliverer = Deliverer(db, self._sender, self.clock)
        self._rules = validate.Rules(
            BUILTIN, home_region="fr", limits=submit.Limits(), worker_alive_s=3600.0, max_stale_s=7200.0
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="worker", daemon=True)
        self.failure: BaseException | None = None

    def _prepare(self) -> None:
        """Store both regions, a worker in fr alone, and the same rates in both zones: waiting gains nothing."""
        start = window_of(self.clock.now()) - 12 * WINDOW
        with self.db.write() as tx:
            regions.sync(tx, REGIONS)
            regions.register_worker(
                tx,
                worker_id="worker-fr",
                region="fr",
                host="h",
                pid=1,
                slots=1,
                software_version="1",
                hardware="cpu",
            )
            for region in REGIONS:
                for signal, value in ((Signal.MOER, 123), (Signal.AER, 45)):
                    recorded = RecordedSignal(region.zone, start, [value] * 400)
                    issued = FakeGrid([recorded], name="grid", signal=signal).forecast(region.zone, self.clock.now())
                    assert issued is not None
                    forecasts.add_forecast(tx, issued)

    def key(self, tenant: str) -> str:
        """Make a key of a tenant."""
        with self.db.write() as tx:
            return keys.create(tx, tenant, "compat", False, scopes=frozenset(Scope))[1]

    def start(self) -> None:
        """Begin to work."""
        self._behind.start()
        self._thread.start()

    def stop(self) -> None:
        """End; raises what went wrong in the thread."""
        self._stop.set()
        self.tickets.woken.set()
        self._thread.join(30)
        self._behind.close()
        self._deliverer.close()
        self._sender.close()
        self.site.hub.close()
        if self.failure is not None:
            raise self.failure

    def _answer(self, region: str, payload: dict[str, Any], on_piece: Callable[[str], None] | None) -> dict[str, Any]:
        forced = FORCED.get(str(payload["body"].get("user", "")).removeprefix("force-"))
        if forced is not None:
            raise forced()
        return realtime.answer(self.site, payload, self._behind.put, on_text=on_piece)

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                self.tickets.woken.wait(1.0)
                self.tickets.woken.clear()
                self._cycle()
        except Exception as error:
            self.failure = error

    def _cycle(self) -> None:
        """Do each tick once, in the order of a batch's way, and run what got a ticket."""
        validate.validate(self.db, self.api.blobs, self.clock, self._rules)
        chunk.chunk_jobs(
            self.db,
            self.clock,
            models=BUILTIN,
            regions=REGIONS,
            max_chunk_items=10_000,
            chunk_fill=0.6,
            chunk_wait_s=0.0,
            isolate_tenants=False,
            factor=1.0,
        )
        plan.plan_waiting(self.db, self.clock, models=BUILTIN, worker_alive_s=3600.0)
        dispatch.dispatch(self.db, self.tickets, self.clock, redispatch_after_s=60.0, worker_alive_s=3600.0)
        sent, self.tickets.sent = self.tickets.sent, []
        for _, chunk_id in sent:
            run_chunk(self.site, chunk_id, threading.Event())
        finish.finish_jobs(self.db, self.api.blobs, self.clock)
        finish_batches.finish_batches(self.db, self.api.blobs, self.clock, keep_results_days=None)
        self._deliverer.run()


@contextmanager
def running(db: Database, root: Path) -> Generator[tuple[str, Stack]]:
    """Serve a stack; yield its URL."""
    stack = Stack(db, root)
    stack.start()
    try:
        with serving(stack.api, wrap=Watch) as url:
            yield url, stack
    finally:
        stack.stop()
