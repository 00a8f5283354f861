"""The API process: settings in, uvicorn out."""

from __future__ import annotations

import errno
import gc
import logging
import socket
import sys
from collections.abc import Callable

from fastapi import FastAPI

from carbonq import ids, telemetry, wiring
from carbonq.api.allowance import Allowance
from carbonq.api.app import create_app
from carbonq.api.auth import KeyRing, check_exposure, is_loopback
from carbonq.api.context import Api, Limits
from carbonq.api.directory import Directory
from carbonq.api.dispatcher import Dispatcher
from carbonq.api.feed import Feed
from carbonq.api.interactive import Router
from carbonq.api.limits import RateLimits
from carbonq.api.nudger import Nudger
from carbonq.api.server import Server, server_config
from carbonq.config import Settings
from carbonq.errors import ConfigError
from carbonq.plan.routing import Rules
from carbonq.services import blob_place, trends
from carbonq.services.budget_room import Gate
from carbonq.services.group_commit import GroupCommit, GroupStore
from carbonq.services.rates import RateCache
from carbonq.services.standing import Standing
from carbonq.store import keys
from carbonq.tickets import Tickets
from carbonq.tracing import OFF, Traces

logger = logging.getLogger(__name__)

#: Database connections kept open: about as many requests look at the database at the same time.
_POOL_SIZE = 10

#: How long a thread may keep the interpreter while others want it, in seconds; Python's default is ten times as long.
_SWITCH_S = 0.0005


def make_api(runtime: wiring.Runtime, tickets: Tickets, traces: Traces = OFF) -> Api:
    """Put the API's context together; plain values from here on."""
    settings = runtime.settings
    limits = Limits(
        chunk_fill=settings.chunk_fill,
        interactive_slo_ms=settings.interactive_slo_ms,
        max_chunk_items=settings.max_chunk_items,
        max_input_bytes=settings.max_input_bytes,
        max_items=settings.max_items,
        max_line_bytes=settings.max_line_bytes,
        realtime_timeout_s=settings.realtime_timeout_s,
        realtime_queue_limit=settings.realtime_queue_limit,
        webhooks_may_be_private=settings.webhooks_may_be_private,
    )
    directory = Directory(runtime.db, worker_alive_s=settings.worker_alive_s)
    dispatcher = Dispatcher(
        tickets,
        directory,
        timeout_s=limits.realtime_timeout_s,
        queue_limit=limits.realtime_queue_limit,
        slo_s=settings.realtime_slo_s,
    )
    rates = RateCache(runtime.regions, settle_after_s=settings.settle_after_s, max_stale_s=settings.max_stale_s)
    rules = Rules(settings.interactive_gain, settings.interactive_gain_g_per_kwh, settings.interactive_switches)
    settings_key = None if settings.api_key is None else settings.api_key.get_secret_value()
    allowance = Allowance(runtime.db, runtime.clock, defaults=wiring.make_quota(settings))
    rate_limits = RateLimits(
        requests_per_minute=settings.requests_per_minute,
        tokens_per_minute=settings.tokens_per_minute,
        quota_of=allowance.of,
        redis_url=wiring.redis_url(settings),
        prefix=settings.queue_prefix,
    )
    gate = Gate(runtime.db, runtime.clock, runtime.models, max_stale_s=settings.max_stale_s)
    store = GroupStore(
        runtime.db,
        runtime.blobs,
        runtime.clock,
        Standing(runtime.db, runtime.clock, runtime.models),
        home_region=settings.first_region,
        regions=lambda: list(directory.snapshot.regions.values()) or list(runtime.regions),
        quota_of=allowance.of,
        treatments=wiring.make_treatments(settings),
        gate=gate,
        learned=lambda: directory.snapshot.learned,
    )
    return Api(
        db=runtime.db,
        blobs=runtime.blobs,
        clock=runtime.clock,
        models=runtime.models,
        regions=runtime.regions,
        home_region=settings.first_region,
        limits=limits,
        keyring=KeyRing(runtime.db, settings_key=settings_key, settings_tenant=settings.tenant),
        allowance=allowance,
        rate_limits=rate_limits,
        allowed_hosts=settings.allowed_hosts if is_loopback(settings.host) else None,
        directory=directory,
        dispatcher=dispatcher,
        router=Router(directory, dispatcher.load, rates, runtime.clock, rules=rules),
        rates=rates,
        trends=trends.make(
            runtime.db,
            runtime.clock,
            runtime.regions,
            settle_after_s=settings.settle_after_s,
            max_stale_s=settings.max_stale_s,
        ),
        settle_after_s=settings.settle_after_s,
        max_stale_s=settings.max_stale_s,
        replan_margin=settings.replan_margin,
        price_weight_g=settings.price_weight_g,
        tickets=tickets,
        nudger=Nudger(tickets),
        group=GroupCommit(store.settle),
        feed=Feed(runtime.db, limit=settings.max_event_streams, limit_per_key=settings.max_event_streams_per_key),
        treatments=wiring.make_treatments(settings),
        traces=traces,
        gate=gate,
        flower_url=settings.flower_url,
        budget_thresholds=wiring.make_budget_thresholds(settings),
        metrics_name_tenants=settings.metrics_name_tenants,
    )


def has_shared_key(runtime: wiring.Runtime) -> bool:
    """Say whether anybody but this machine's own programs was given a key. Raises StoreUnavailable."""
    given = runtime.settings.api_key
    with runtime.db.read() as tx:
        if keys.has_shared(tx):
            return True
        if given is None:
            return False
        # The embedded stack passes the local key on as the setting: that one is no invitation to others.
        stored = keys.find_by_hash(tx, keys.hash_key(given.get_secret_value()))
    return stored is None or not stored.is_local


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket (0: any free port). Raises ConfigError naming the port and the way out."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol must be named: asyncio switches Nagle's algorithm off only then, and it costs 40 ms an answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is already in use; stop what uses it or set CARBONQ_PORT to another one "
                "(0: any free one)"
            ) from error
        raise ConfigError(
            f"the API cannot listen on {host} port {port}: {error.strerror or error}; check CARBONQ_HOST and "
            "CARBONQ_PORT"
        ) from error
    return listener


def main(settings: Settings, *, extend: Callable[[FastAPI], None] = lambda _: None) -> None:
    """Serve until a stop signal; ``extend`` as for ``create_app``.

    Raises ConfigError (schema, broker, port, no key on an open address) and StoreUnavailable before serving.
    """
    telemetry.set_up_logging(settings.log_level)
    runtime = wiring.open_runtime(settings, pool_size=_POOL_SIZE)
    blob_place.check_at_start(runtime.db, runtime.blobs, may_refuse=False)
    check_exposure(settings.host, has_shared_key=has_shared_key(runtime))
    tickets = wiring.make_tickets(settings)
    traces = wiring.make_traces(settings, "api", ids.new("api"))
    listener = listen(settings.host, settings.port)
    api = make_api(runtime, tickets, traces)
    server = Server(server_config(create_app(api, extend=extend)), api.feed.close)
    # An event loop that waits for the interpreter beside threads with queries makes every answer slow.
    sys.setswitchinterval(_SWITCH_S)
    # What is loaded by now stays; a full collection need not look through it again.
    gc.collect()
    gc.freeze()
    logger.info("listening on %s port %d", settings.host, listener.getsockname()[1])
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
        traces.close()
        tickets.close()
        runtime.close()
