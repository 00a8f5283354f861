"""What jobs, runs, calls and ticks say of themselves in spans: ids, figures and states, in carbonq's words.

Runs begin traces of their own and are linked to the submits of their items, because hours lie between. Figures are as
they were first booked: settlement changes the ledger, not a span. What is not known is None, which a span leaves out.
Nothing here is worked out where traces are off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from carbonq import answers, tracing
from carbonq.booking import Block, Booking, Entries
from carbonq.meters.protocol import MeterKind
from carbonq.model import Claim, Endpoint, EntryKind, Job, Model, WorkClass
from carbonq.store.batches import Batch
from carbonq.store.results import JobInfo
from carbonq.tickets import RUN_CHUNK, flexible_queue
from carbonq.tracing import Attributes, Kind, Span, Traces, Value
from carbonq.units import iso

if TYPE_CHECKING:  # a region worker has no use for the solver
    from carbonq.services.plan import PlanSummary

_P = ParamSpec("_P")
_R = TypeVar("_R", bound=str)
_T = TypeVar("_T")

#: Engine batches of one checkpoint that have spans of their own; how many more there were is said at the commit.
MAX_ENGINE_BATCHES = 100

_OPERATIONS = {Endpoint.EMBEDDINGS: "embeddings", Endpoint.CHAT: "chat"}

#: Engines that are another process: what they are asked is a client's call.
_REMOTE = frozenset({"openai_http"})


def operation(endpoint: Endpoint, model: str) -> dict[str, Value]:
    """Say what is asked of a model."""
    return {tracing.OPERATION: _OPERATIONS[endpoint], tracing.REQUEST_MODEL: model}


def of_job(job: Job) -> Attributes:
    """Describe a job that was stored."""
    return {
        **operation(job.endpoint, job.model),
        "carbonq.class": WorkClass.FLEXIBLE.value,
        "carbonq.job.id": job.job_id,
        "carbonq.items": job.items_total,
        "carbonq.deadline": iso(job.deadline_at),
    }


def of_batch(batch: Batch) -> Attributes:
    """Describe a batch, before or after its input was read."""
    return {
        tracing.OPERATION: _OPERATIONS[batch.endpoint],
        tracing.REQUEST_MODEL: batch.model,
        "carbonq.class": WorkClass.FLEXIBLE.value,
        "carbonq.batch.id": batch.batch_id,
        "carbonq.items": batch.items_total,
        "carbonq.deadline": iso(batch.expires_at),
    }


def of_call(payload: Mapping[str, Any], region: str) -> Attributes:
    """Describe a realtime or interactive call as it is sent to a region (``payload``: its ticket)."""
    return {
        **operation(Endpoint(payload["endpoint"]), payload["model"]),
        "carbonq.class": payload["class"],
        "carbonq.region": region,
        "carbonq.reason": payload["why"]["reason"],
    }


def tell_reply(span: Span, values: Mapping[str, Any]) -> None:
    """Tell a call's span what a region's worker answered: its tokens, or that it is an error."""
    usage, error = values.get("usage") or {}, values.get("error")
    span.set({tracing.INPUT_TOKENS: usage.get("prompt_tokens"), tracing.OUTPUT_TOKENS: usage.get("completion_tokens")})
    if error is not None:
        span.fail(str(error.get("code") or "engine_error"))


def of_plan(made: PlanSummary) -> Attributes | None:
    """Describe a round of planning; None where nothing was planned."""
    if made.plan_id is None:
        return None
    return {
        "carbonq.plan.id": made.plan_id,
        "carbonq.plan.trigger": made.trigger,
        "carbonq.plan.is_overlay": made.is_overlay,
        "carbonq.plan.objective_grams": made.objective_g,
        "carbonq.plan.lower_bound_grams": made.lower_bound_g,
        "carbonq.chunks": made.chunks,
        "carbonq.chunks_placed": made.placed,
        "carbonq.chunks_moved": made.moved,
        "carbonq.chunks_late": made.late,
        "carbonq.chunks_unplaced": made.unplaced,
    }


def of_chunking(made: int) -> Attributes | None:
    """Describe how jobs were cut; None where there was nothing to cut."""
    return {"carbonq.chunks": made} if made else None


def of_tickets(sent: int) -> Attributes | None:
    """Describe tickets that were sent; None where none was."""
    if not sent:
        return None
    return {
        tracing.MESSAGING_SYSTEM: "celery",
        tracing.MESSAGING_OPERATION: RUN_CHUNK,
        tracing.MESSAGING_OPERATION_TYPE: "send",
        tracing.BATCH_COUNT: sent,
    }


def ticking(
    traces: Traces,
    name: str,
    act: Callable[_P, _T],
    tell: Callable[[_T], Attributes | None],
    *,
    kind: Kind = "internal",
) -> Callable[_P, _T]:
    """Return ``act`` with a span of each call about which ``tell`` has something to say: most ticks find nothing."""
    if not traces.is_on:
        return act

    def acted(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        began_ns = time.time_ns()
        done = act(*args, **kwargs)
        told = tell(done)
        if told is not None:
            traces.record(name, began_ns, time.time_ns(), kind=kind, attributes=told)
        return done

    return acted


class Run:
    """The trace of one attempt at a chunk; its methods may be called from any thread."""

    def __init__(
        self, traces: Traces, claim: Claim, infos: Mapping[str, JobInfo], *, items: int, began_ns: int | None = None
    ) -> None:
        """Begin its span, linked to the submits of its jobs: to the oldest ones where there are too many."""
        self._traces = traces
        self._is_on = traces.is_on
        self._times: dict[str, tuple[int, int | None]] = {}
        self._endpoint, self._model, self._region = claim.chunk.endpoint, claim.chunk.model, claim.region
        if not self._is_on:
            self._span = traces.begin("run chunk")
            return
        contexts = dict.fromkeys(infos[job_id].trace_context for job_id in sorted(infos))
        links = [one for one in contexts if one is not None]
        self._span = traces.begin(
            "run chunk",
            kind="consumer",
            links=links,
            attributes=_of_claim(claim)
            | {
                "carbonq.items": items,
                "carbonq.jobs": len(infos),
                "carbonq.links_left_out": max(0, len(links) - tracing.MAX_LINKS) or None,
            },
            began_ns=began_ns,
        )

    def began(self, engine_batch_id: str) -> None:
        """Note that an engine call begins."""
        if self._is_on:
            self._times[engine_batch_id] = (time.time_ns(), None)

    def ended(self, engine_batch_id: str) -> None:
        """Note that an engine call is over; what it used is told with its commit."""
        if self._is_on and engine_batch_id in self._times:
            self._times[engine_batch_id] = (self._times[engine_batch_id][0], time.time_ns())

    def committed(self, bookings: Sequence[Booking], began_ns: int, *, items: int, error: str | None = None) -> None:
        """Tell of a checkpoint and of the engine batches that it booked."""
        if not self._is_on:
            return
        self._traces.record(
            "commit",
            began_ns,
            time.time_ns(),
            parent=self._span.context,
            attributes={
                "carbonq.region": self._region,
                "carbonq.items": items,
                "carbonq.entries": sum(len(one.entries) for one in bookings),
                "carbonq.engine_batches": len(bookings),
                "carbonq.engine_batches_left_out": max(0, len(bookings) - MAX_ENGINE_BATCHES) or None,
            },
            error=error,
        )
        for number, booked in enumerate(one for one in bookings if one.engine_batches):
            times = self._times.pop(str(booked.engine_batches[0]["engine_batch_id"]), None)
            if times is not None and number < MAX_ENGINE_BATCHES:
                self._engine_batch(times, _of_booking(booked, self._endpoint), _error_of(booked))

    def refused(self, began_ns: int, error: str) -> None:
        """Tell of a checkpoint that was not stored."""
        self._traces.record("commit", began_ns, time.time_ns(), parent=self._span.context, error=error)

    def result_of(self, result: _R) -> _R:
        """Tell what became of the attempt, and return it."""
        self._span.set({"carbonq.result": result})
        return result

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the span; engine calls that were never booked here are told without figures."""
        for times in list(self._times.values())[:MAX_ENGINE_BATCHES]:
            self._engine_batch(times, {}, "not_committed")
        self._times.clear()
        self._span.__exit__(kind, error, trace)

    def _engine_batch(self, times: tuple[int, int | None], more: Attributes, error: str | None) -> None:
        began_ns, ended_ns = times
        what = operation(self._endpoint, self._model)
        self._traces.record(
            f"{what[tracing.OPERATION]} {self._model}",
            began_ns,
            ended_ns or time.time_ns(),
            kind="client" if more.get(tracing.PROVIDER) in _REMOTE else "internal",
            parent=self._span.context,
            attributes={**what, "carbonq.region": self._region, **more},
            error=error,
        )


class Call:
    """The trace of one realtime call on its worker: a child of the API's span."""

    def __init__(self, traces: Traces, payload: Mapping[str, Any], model: Model, region: str) -> None:
        """Prepare; ``payload`` is the ticket's."""
        self._traces, self._payload, self._model, self._region = traces, payload, model, region
        self._began_ns = self._ended_ns = 0

    def begin(self) -> None:
        """Note that the engine begins."""
        self._began_ns = time.time_ns()

    def end(self) -> None:
        """Note that the engine is done."""
        self._ended_ns = time.time_ns()

    def telling(self, keep: Callable[[Booking], None]) -> Callable[[Booking], None]:
        """Return what keeps a booking and tells of it: its energy may be known only after the answer has left."""
        if not self._traces.is_on:
            return keep

        def kept(booked: Booking) -> None:
            keep(booked)
            if not booked.engine_batches:
                return
            endpoint = Endpoint(self._payload["endpoint"])
            what = operation(endpoint, self._model.name)
            found = _of_booking(booked, endpoint)
            self._traces.record(
                f"{what[tracing.OPERATION]} {self._model.name}",
                self._began_ns,
                self._ended_ns,
                kind="client" if found[tracing.PROVIDER] in _REMOTE else "internal",
                parent=self._payload.get("traceparent"),
                attributes={
                    **what,
                    "carbonq.region": self._region,
                    "carbonq.class": self._payload.get("class") or WorkClass.REALTIME.value,
                    **found,
                },
                error=_error_of(booked),
            )

        return kept


def _of_claim(claim: Claim) -> dict[str, Value]:
    chunk, placement = claim.chunk, claim.placement
    return {
        **operation(chunk.endpoint, chunk.model),
        tracing.MESSAGING_SYSTEM: "celery",
        tracing.MESSAGING_OPERATION: RUN_CHUNK,
        tracing.MESSAGING_OPERATION_TYPE: "process",
        tracing.DESTINATION: flexible_queue(claim.region),
        "carbonq.class": WorkClass.FLEXIBLE.value,
        "carbonq.region": claim.region,
        "carbonq.chunk.id": chunk.chunk_id,
        "carbonq.attempt": claim.attempt,
        "carbonq.worker.id": claim.worker_id,
        "carbonq.dispatch_lag_seconds": claim.lag_s,
        "carbonq.window": None if chunk.window_at is None else iso(chunk.window_at),
        "carbonq.placement.id": chunk.placement_id,
        "carbonq.placement.reason": placement and placement.reason,
        "carbonq.placement.signal": placement and placement.signal.value,
        "carbonq.placement.forecast": placement and placement.g_per_kwh,
    }


def _of_booking(booked: Booking, endpoint: Endpoint) -> dict[str, Value]:
    """Return what an engine batch used and emitted. The two books stand side by side, never as one figure."""
    first, figures = booked.engine_batches[0], booked.figures
    found: dict[str, Value] = {
        tracing.PROVIDER: first["engine"],
        tracing.RESPONSE_MODEL: first["model"],
        "carbonq.engine_batch.id": first["engine_batch_id"],
        "carbonq.window": iso(first["window_at"]),
        "carbonq.windows": len(booked.engine_batches),
        "carbonq.energy_quality": first["quality"],
        "carbonq.energy_meter": [
            f"{component}:{first[f'{component}_meter']}"
            for component in ("gpu", "cpu", "dram")
            if first[f"{component}_meter"] != MeterKind.NONE.value
        ],
    }
    block = _first_block(booked)
    if block is not None:
        kind = str(block.shared["kind"])
        found["carbonq.energy_kind"] = kind
        if kind == EntryKind.ITEM.value:
            found["carbonq.items"] = block.count
            found[tracing.INPUT_TOKENS] = _sum(block, "prompt_tokens")
            if endpoint is Endpoint.CHAT:
                found[tracing.CACHED_TOKENS] = _sum(block, "cached_tokens")
                found[tracing.OUTPUT_TOKENS] = _sum(block, "completion_tokens")
    if figures is not None:
        found |= {
            "carbonq.energy_joules": _whole(figures.energies_uj, 1e6),
            "carbonq.pue": figures.pue,
            "carbonq.intensity": answers.intensity(figures.parts),
            "carbonq.intensity_status": figures.status.value,
            "carbonq.emission_grams": _whole(figures.emissions, 1e15),
            "carbonq.inventory_grams": _whole(figures.inventories, 1e15),
            "carbonq.inventory_status": figures.inventory_status.value,
        }
    return found


def _first_block(booked: Booking) -> Block | None:
    return booked.entries.blocks[0] if isinstance(booked.entries, Entries) and booked.entries.blocks else None


def _error_of(booked: Booking) -> str | None:
    block = _first_block(booked)
    is_failure = block is not None and block.shared["kind"] != EntryKind.ITEM.value and block.shared["outcome"]
    return "engine_failed" if is_failure == "failed" else None


def _sum(block: Block, name: str) -> int:
    column: Any = block.own.get(name)
    shared: Any = block.shared.get(name)
    return sum(column) if column is not None else shared * block.count


def _whole(values: Sequence[int | None], scale: float) -> float | None:
    """Sum what items have; None where one of them is not known."""
    return None if None in values else sum(value for value in values if value is not None) / scale
