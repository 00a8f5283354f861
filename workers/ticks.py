"""What the control workers do at each tick. Every tick is idempotent; two at once would only waste work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from celery import Celery

from carbonq import sourcing, telemetry, wiring
from carbonq.errors import CarbonqError
from carbonq.services import (
    budget_alarms,
    chunk,
    deliver,
    dispatch,
    expire,
    finish,
    finish_batches,
    gaps,
    hold,
    learn,
    plan,
    reap,
    restate,
    retire,
    seal,
    settle,
    submit,
    targets,
    traced,
    validate,
)
from carbonq.services.apart import Postponed
from carbonq.services.budget_room import Gate
from carbonq.services.budget_tick import Keeper
from carbonq.services.downgrade import Tiering
from carbonq.services.rates import RateCache
from carbonq.services.refresh import Refresher
from carbonq.services.watch import Watch
from carbonq.tickets import TICK_QUEUES, Tickets, tick_task
from carbonq.tracing import OFF, Traces

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Context:
    """What ticks work with."""

    runtime: wiring.Runtime
    tickets: Tickets
    name: str
    traces: Traces = OFF


def make(context: Context) -> Mapping[str, Callable[[], object]]:
    """Return what each tick does."""
    runtime, tickets, traces = context.runtime, context.tickets, context.traces
    settings, db, clock = runtime.settings, runtime.db, runtime.clock
    refresher = Refresher(db, sourcing.make_sources(settings, clock), clock, max_stale_s=settings.max_stale_s)
    rates = RateCache(runtime.regions, settle_after_s=settings.settle_after_s, max_stale_s=settings.max_stale_s)

    send_tickets = traced.ticking(traces, "dispatch", dispatch.dispatch, traced.of_tickets, kind="producer")
    watch = Watch(db, worker_alive_s=settings.worker_alive_s)

    def run_refresh() -> None:
        refresher.run()
        learn.learn_tick(db, clock.now())

    def run_reap() -> None:
        rates.refresh(db, clock.now())
        try:
            reaped = reap.reap(
                db,
                clock,
                rates=rates.book,
                models=runtime.models,
                max_attempts=settings.max_attempts,
                recorded_by=context.name,
            )
            if reaped:
                tickets.nudge("plan")
        finally:  # a chunk that cannot be reaped hides no host that fell silent
            gaps.book_gaps(
                db,
                clock,
                rates=rates.book,
                silent_s=2 * max(settings.lease_s, settings.worker_alive_s),
                alive_s=settings.worker_alive_s,
                recorded_by=context.name,
            )
            watch.look()

    def run_finish() -> None:
        try:
            finish.finish_jobs(db, runtime.blobs, clock)
        finally:  # a defect that one job meets must not hold up the batches of others
            finish_batches.finish_batches(db, runtime.blobs, clock, keep_results_days=settings.keep_results_days)

    rules = validate.Rules(
        models=runtime.models,
        home_region=settings.first_region,
        limits=submit.Limits(
            max_items=settings.max_items,
            max_line_bytes=settings.max_line_bytes,
            max_input_bytes=settings.max_input_bytes,
            chunk_fill=settings.chunk_fill,
        ),
        worker_alive_s=settings.worker_alive_s,
        max_stale_s=settings.max_stale_s,
        max_chunk_items=settings.max_chunk_items,
        price_weight_g=settings.price_weight_g,
        treatments=wiring.make_treatments(settings),
        quota=wiring.make_quota(settings),
        gate=Gate(db, clock, runtime.models, max_stale_s=settings.max_stale_s),
    )

    postponed = Postponed()

    def run_validate() -> None:
        if validate.validate(db, runtime.blobs, clock, rules, postponed, traces):
            tickets.nudge("plan")

    def run_expire() -> None:
        expire.expire(db, clock)
        hold.sweep(db, clock)

    def run_settle() -> None:
        patience_s = settle.seconds(settings.settle_within_days)
        try:
            settle.settle(db, clock.now(), settle_after_s=settings.settle_after_s, give_up_after_s=patience_s)
        finally:  # what is wrong with some entries must not hold up the corrections of others
            restate.restate_corrected(db, clock.now(), settle_after_s=settings.settle_after_s)

    deliverer = deliver.Deliverer(db, wiring.make_sender(settings), clock)
    keep = retire.Keep(
        results_days=settings.keep_results_days,
        events_days=settings.keep_events_days,
        plans_days=settings.keep_plans_days,
        forecasts_days=settings.keep_forecasts_days,
        thin_forecasts_after_days=settings.thin_forecasts_after_days,
        observations_days=settings.keep_observations_days,
    )
    return {
        "deliver": deliverer.run,
        "dispatch": lambda: send_tickets(
            db,
            tickets,
            clock,
            redispatch_after_s=settings.redispatch_after_s,
            worker_alive_s=settings.worker_alive_s,
        ),
        "expire": run_expire,
        "finish": run_finish,
        "plan": _planning(context),
        "reap": run_reap,
        "refresh": run_refresh,
        "retire": lambda: retire.retire(db, runtime.blobs, clock, keep),
        "seal": lambda: seal.seal(db),
        "settle": run_settle,
        "targets": lambda: targets.tick(db, clock),
        "validate": run_validate,
    }


def _planning(context: Context) -> Callable[[], None]:
    """Return the plan tick: new jobs are cut into chunks, work changes its tier, and what waits is placed."""
    runtime, tickets = context.runtime, context.tickets
    settings, db, clock = runtime.settings, runtime.db, runtime.clock
    chunk_jobs = traced.ticking(context.traces, "chunk", chunk.chunk_jobs, traced.of_chunking)
    plan_waiting = traced.ticking(context.traces, "plan", plan.plan_waiting, traced.of_plan)
    tier_policy = wiring.make_tiers(settings)
    tiering = Tiering(db, clock, models=runtime.models, regions=runtime.regions, policy=tier_policy)
    keeper = Keeper(
        db,
        clock,
        models=runtime.models,
        max_stale_s=settings.max_stale_s,
        worker_alive_s=settings.worker_alive_s,
    )
    thresholds = wiring.make_budget_thresholds(settings)

    def place() -> None:
        plan_waiting(
            db,
            clock,
            models=runtime.models,
            margin=settings.replan_margin,
            price_weight_g=settings.price_weight_g,
            worker_alive_s=settings.worker_alive_s,
            max_stale_s=settings.max_stale_s,
            on_placed=tiering.on_placed,
        )

    def run_plan() -> None:
        made = 0
        try:
            made = chunk_jobs(
                db,
                clock,
                models=runtime.models,
                regions=runtime.regions,
                max_chunk_items=settings.max_chunk_items,
                chunk_fill=settings.chunk_fill,
                chunk_wait_s=settings.chunk_wait_s,
                isolate_tenants=settings.isolate_tenants,
                factor=clock.factor,
                tier_policy=tier_policy,
            )
        finally:  # what has chunks is planned, whatever is wrong with a new job
            try:
                tiering.tidy()
                standing = keeper.tick()
                budget_alarms.tell(db, clock.now(), standing, thresholds)
            finally:  # what budgets hold back stays held, whatever is wrong
                place()
                if tiering.take_moved():
                    place()
        if made:
            tickets.nudge("dispatch")

    return run_plan


def register(
    app: Celery, context: Context, queue: str, alive: Callable[[], None] = lambda: None
) -> dict[str, Callable[[], None]]:
    """Make the ticks of one control queue known to its worker; also return them, to be run once at the start.

    ``alive`` is called after each tick that ran to its end, well or not.
    """
    acts = make(context)
    mine = {
        name: _single_flight(name, acts[name], alive) for name, home in sorted(TICK_QUEUES.items()) if home == queue
    }
    for tick, run in mine.items():
        app.task(name=tick_task(tick), ignore_result=True, shared=False)(run)
    return mine


def _single_flight(tick: str, act: Callable[[], object], alive: Callable[[], None]) -> Callable[[], None]:
    lock = threading.Lock()

    def run() -> None:
        if not lock.acquire(blocking=False):
            telemetry.TICKS_SKIPPED.labels(tick).inc()
            return
        try:
            with telemetry.timed(telemetry.TICK_SECONDS, tick):
                act()
        except CarbonqError as error:
            telemetry.TICK_ERRORS.labels(tick).inc()
            logger.warning("tick %s: %s", tick, error)
        except Exception:  # a process loop: the next tick tries again
            telemetry.TICK_ERRORS.labels(tick).inc()
            logger.exception("tick %s failed", tick)
        finally:
            lock.release()
        alive()

    run.__name__ = tick
    return run
