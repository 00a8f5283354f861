"""An API around fakes: a real database and blob store, tickets that live in memory, a clock that stands still."""

from __future__ import annotations

import base64
import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from carbonq.api.allowance import Allowance
from carbonq.api.app import create_app
from carbonq.api.auth import KeyRing
from carbonq.api.background import Refresh
from carbonq.api.context import Api, ApiTickets, Limits
from carbonq.api.directory import Directory
from carbonq.api.dispatcher import Dispatcher
from carbonq.api.feed import Feed
from carbonq.api.interactive import Router
from carbonq.api.nudger import Nudger
from carbonq.api.process import listen
from carbonq.api.server import Server, server_config
from carbonq.blobs import BlobStore
from carbonq.blobs.folder import FolderStore
from carbonq.clock import Clock
from carbonq.model import Endpoint, Model, Region
from carbonq.models import BUILTIN
from carbonq.services import trends
from carbonq.services.budget_room import Gate
from carbonq.services.group_commit import GroupCommit, GroupStore
from carbonq.services.rates import RateCache
from carbonq.services.standing import Standing
from carbonq.store import keys, regions
from carbonq.store.database import Database
from carbonq.testing import FakeClock, MemoryTickets

EMBEDDER = "wordllama-256"
CHATTER = "smollm2-135m-instruct"

REGIONS = (
    Region("fr", "ZONE_FR", 2, Decimal("1.2"), "stated", "cpu", latency_ms=5.0),
    Region("se", "ZONE_SE", 1, Decimal("1.1"), "stated", "cpu", latency_ms=20.0),
)

CARBON = {
    "entry_ids": ["eb_1.1.0"],
    "energy_uj": 720_000,
    "energy_wh": 0.0002,
    "facility_energy_wh": 0.00024,
    "gco2e": 0.00008,
    "inventory_gco2e": None,
    "saved_gco2e": None,
    "baseline_gco2e": None,
    "baseline": None,
    "region": "fr",
    "signal": "marginal",
    "intensity_g_per_kwh": 400.0,
    "pue": 1.2,
    "quality": "estimated",
    "status": "provisional",
    "inventory_status": "missing",
    "requested_model": "wordllama-256",
    "downgraded": None,
    "method": "1",
    "windows": [{"window": "2026-01-01T12:00:00.000000Z", "moer": None, "aer": None}],
}


def answer(region: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Answer a realtime request as ``services/realtime.py`` would, with vectors of four numbers."""
    body = payload["body"]
    if payload["endpoint"] == Endpoint.EMBEDDINGS:
        texts = [body["input"]] if isinstance(body.get("input"), str) else body.get("input")
        if not isinstance(texts, list):
            wrong = {"code": "invalid_value", "message": "input is no text", "param": "input"}
            return {"status_code": 400, "error": wrong}
        vector: Any = [0.5, -0.5, 0.25, 1.0]
        if body.get("encoding_format") == "base64":
            vector = base64.b64encode(struct.pack("<4f", *vector)).decode()
        data = [{"object": "embedding", "index": index, "embedding": vector} for index in range(len(texts))]
        result: dict[str, Any] = {"object": "list", "data": data, "model": payload["model"]}
        usage: dict[str, Any] = {"prompt_tokens": 3, "total_tokens": 3}
    else:
        choice = {"index": 0, "message": {"role": "assistant", "content": "short"}, "finish_reason": "stop"}
        result = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "choices": [choice]}
        result["model"] = payload["model"]
        usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    return {
        "status_code": 200,
        "body_json": json.dumps(result),
        "usage": usage,
        "carbon_json": json.dumps({**CARBON, "region": region, "why": payload.get("why")}),
        "engine_s": 0.001,
    }


@dataclass
class Harness:
    """A prepared API, its fakes, and the keys of two tenants."""

    api: Api
    db: Database
    clock: FakeClock
    tickets: MemoryTickets
    acme: str
    rival: str

    def headers(self, tenant: str = "acme") -> dict[str, str]:
        return {"Authorization": f"Bearer {getattr(self, tenant)}"}

    def add_worker(self, region: str, worker_id: str | None = None) -> None:
        with self.db.write() as tx:
            regions.register_worker(
                tx,
                worker_id=worker_id or f"worker-{region}",
                region=region,
                host="h",
                pid=1,
                slots=1,
                software_version="1",
                hardware="cpu",
            )
        self.api.directory.refresh()


def build_api(
    db: Database,
    root: Path,
    *,
    clock: Clock,
    tickets: ApiTickets,
    models: dict[str, Model] | None = None,
    settings_key: str | None = None,
    blobs: BlobStore | None = None,
    slo_s: float = 10.0,
    **limits: Any,
) -> Api:
    """Put a context together as ``process.make_api`` does, from plain values."""
    given: dict[str, Any] = {
        "chunk_fill": 0.6,
        "interactive_slo_ms": 5000.0,
        "max_input_bytes": 200 * 1024 * 1024,
        "max_items": 50_000,
        "max_line_bytes": 4 * 1024 * 1024,
        "realtime_timeout_s": 5.0,
        "realtime_queue_limit": 8,
        **limits,
    }
    kept = Limits(**given)
    directory = Directory(db, worker_alive_s=3600.0)
    dispatcher = Dispatcher(
        tickets, directory, timeout_s=kept.realtime_timeout_s, queue_limit=kept.realtime_queue_limit, slo_s=slo_s
    )
    rates = RateCache(REGIONS)
    blobs = blobs or FolderStore(root)
    allowance = Allowance(db, clock)
    gate = Gate(db, clock, dict(BUILTIN) if models is None else models, max_stale_s=7200.0)
    store = GroupStore(
        db,
        blobs,
        clock,
        Standing(db, clock, dict(BUILTIN) if models is None else models),
        home_region="fr",
        regions=lambda: list(directory.snapshot.regions.values()) or list(REGIONS),
        quota_of=allowance.of,
        gate=gate,
        learned=lambda: directory.snapshot.learned,
    )
    return Api(
        db=db,
        blobs=blobs,
        clock=clock,
        models=dict(BUILTIN) if models is None else models,
        regions=REGIONS,
        home_region="fr",
        limits=kept,
        keyring=KeyRing(db, settings_key=settings_key, settings_tenant="default"),
        allowance=allowance,
        directory=directory,
        dispatcher=dispatcher,
        router=Router(directory, dispatcher.load, rates, clock),
        rates=rates,
        trends=trends.make(db, clock, REGIONS, settle_after_s=0.0, max_stale_s=7200.0),
        settle_after_s=0.0,
        max_stale_s=7200.0,
        tickets=tickets,
        nudger=Nudger(tickets),
        group=GroupCommit(store.settle),
        feed=Feed(db, period_s=0.05),
        gate=gate,
    )


def build_harness(db: Database, root: Path, **limits: Any) -> Harness:
    clock = FakeClock()
    tickets = MemoryTickets(answer=answer)
    with db.write() as tx:
        regions.sync(tx, REGIONS)
        _, acme = keys.create(tx, "acme", "ci", False)
        _, rival = keys.create(tx, "rival", "ci", False)
    api = build_api(db, root, clock=clock, tickets=tickets, **limits)
    harness = Harness(api, db, clock, tickets, acme, rival)
    harness.add_worker("fr")
    harness.add_worker("se")
    return harness


@contextmanager
def serving(
    api: Api, *, background: list[Refresh] | None = None, wrap: Callable[[Any], Any] = lambda app: app
) -> Iterator[str]:
    """Serve an API by uvicorn on a free port, in a thread, and yield its URL; ``wrap`` puts something before it."""
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = Server(server_config(wrap(create_app(api, background=background))), api.feed.close)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        until(lambda: server.started, "the server to start")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(15)
        listener.close()
        assert not thread.is_alive()


def until(condition: Callable[[], object], what: str, *, timeout_s: float = 10.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"waited {timeout_s:g} s for {what}"
        threading.Event().wait(0.01)
