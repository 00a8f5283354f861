"""A checkpoint: what a chunk's run has to show since the last one, made durable in one fenced transaction.

Lines are written and synced as segment blobs first; then results, item states, counters, ledger entries, events and
the end of the lease are stored at once or not at all. Times named ``at`` are grid time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from carbonq import answers, batching, booking, ids, ledger
from carbonq.booking import Booking, EngineBatch, WorkItem
from carbonq.engines.protocol import EngineResult
from carbonq.errors import CarbonqError
from carbonq.model import AttemptOutcome, Claim, Item, ItemState, WorkClass
from carbonq.ratebook import Row
from carbonq.services import burnt as burnt_rows
from carbonq.services import progress, weighing
from carbonq.services.burnt import Burnt
from carbonq.services.site import Site
from carbonq.services.weighing import NO_SUMS, Sums, Weights
from carbonq.store import items as item_rows
from carbonq.store import jobs, leases, results, throughputs
from carbonq.store import ledger as ledger_rows
from carbonq.store.database import Tx
from carbonq.store.results import JobInfo, Segment
from carbonq.units import iso, parse_iso


class Overtaken(CarbonqError):
    """Some items ended by other hands (their deadline passed) while they ran; the checkpoint must leave them out."""

    code = "overtaken"

    def __init__(self, item_ids: Sequence[int]) -> None:
        super().__init__(f"{len(item_ids)} items ended while they ran")
        self.item_ids = item_ids


@dataclass(frozen=True, slots=True)
class Ran:
    """One engine call that gave results, in the order of its items; ``burnt`` is None when it used no energy."""

    items: Sequence[Item]
    results: Sequence[EngineResult]
    burnt: Burnt | None


@dataclass(frozen=True, slots=True)
class Final:
    """How the chunk's run ends with this checkpoint. ``backoff_s`` is machine seconds."""

    action: Literal["finish", "give_back"]
    outcome: AttemptOutcome
    is_counted: bool = True
    backoff_s: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Learned:
    """One sample of throughput: estimated tokens, machine seconds on one slot, uJ."""

    model: str
    hardware: str
    tokens: int
    seconds: float
    uj: int


@dataclass(slots=True)
class Checkpoint:
    """Plain values only, so that it can wait in the spool for the database."""

    chunk_id: str
    token: int
    attempt: int
    at: datetime
    ended: list[tuple[str, ItemState, str | None, list[int]]] = field(
        default_factory=list[tuple[str, ItemState, str | None, list[int]]]
    )
    segments: list[Segment] = field(default_factory=list[Segment])
    bookings: list[Booking] = field(default_factory=list[Booking])
    burnt: list[Burnt] = field(default_factory=list[Burnt])
    tenants: dict[str, str] = field(default_factory=dict[str, str])
    learned: Learned | None = None
    weighed: Sums = NO_SUMS
    stated: Weights = (0, 0, 0)
    final: Final | None = None

    @property
    def batch_ids(self) -> list[str]:
        """The engine batches whose energy this books."""
        return [one.engine_batch_id for one in self.burnt]

    @property
    def items_ended(self) -> int:
        """How many items end with this."""
        return sum(len(item_ids) for _, _, _, item_ids in self.ended)

    @property
    def first_entries(self) -> list[Row]:
        """One entry of each of its bookings; they are stored together or not at all."""
        return [booked.entries[0] for booked in self.bookings if booked.entries]


class Writer:
    """Turns what ran into a checkpoint: books energy, writes lines, stores them as segments."""

    def __init__(self, site: Site, claim: Claim, infos: Mapping[str, JobInfo]) -> None:
        """Prepare for one claim; ``infos`` are the jobs of its items."""
        self._site = site
        self._claim = claim
        self._infos = infos
        self._stated = site.models[claim.chunk.model]
        self._model = site.weighed.of(self._stated)
        self._why = answers.why(claim.placement)
        self._sums: dict[str, Sums] = {}
        self._number = 0

    def write(
        self,
        ran: Sequence[Ran],
        wasted: Sequence[Burnt],
        cancelled: Sequence[Item],
        *,
        overtaken: Mapping[int, ItemState],
        learned: Learned | None,
        final: Final | None,
    ) -> Checkpoint:
        """Book, write lines, and store segments. ``overtaken`` items get no line and keep their state.

        Raises StoreUnavailable when the disk refuses; nothing is stored then.
        """
        site, claim = self._site, self._claim
        made = Checkpoint(
            claim.chunk.chunk_id, claim.token, claim.attempt, site.clock.now(), learned=learned, final=final
        )
        lines: dict[tuple[str, str], list[bytes]] = {}
        ended: dict[tuple[str, ItemState, str | None], list[int]] = {}
        for one in ran:
            self._write_batch(one, made, lines, ended, overtaken)
        for item in cancelled:
            if item.item_id not in overtaken:
                ended.setdefault((item.job_id, ItemState.CANCELLED, None), []).append(item.item_id)
        for one in wasted:
            made.bookings.append(self._waste(one))
            made.burnt.append(one)
        made.ended = [(*key, item_ids) for key, item_ids in ended.items()]
        made.tenants = {key[0]: self._infos[key[0]].tenant for key in ended}
        if learned is not None and self._sums:
            made.stated = weighing.stated_of(self._stated)
            for sums in self._sums.values():
                made.weighed = made.weighed.plus(sums)
        self._store(made, lines)
        return made

    def discard(self, made: Checkpoint) -> None:
        """Remove the segments of a checkpoint that will never be committed."""
        for segment in made.segments:
            self._site.blobs.delete(segment.blob)

    def _store(self, made: Checkpoint, lines: Mapping[tuple[str, str], Sequence[bytes]]) -> None:
        self._number += 1
        for (job_id, kind), pieces in lines.items():
            name = f"{made.chunk_id}-{made.token}-{self._number}.{kind}"
            key = f"{results.segment_folder(job_id)}/{name}"
            data = b"".join(pieces)
            self._site.blobs.put(key, data)
            kind_of = "output" if kind == "output" else "error"
            made.segments.append(Segment(job_id, made.chunk_id, kind_of, key, len(data), len(pieces)))

    def _write_batch(
        self,
        one: Ran,
        made: Checkpoint,
        lines: dict[tuple[str, str], list[bytes]],
        ended: dict[tuple[str, ItemState, str | None], list[int]],
        overtaken: Mapping[int, ItemState],
    ) -> None:
        carbons: Iterable[bytes] = [b"null"] * len(one.items)
        if one.burnt is not None:
            if self._model.learns_weights:
                self._sums[one.burnt.engine_batch_id] = Sums.of(_counts(one.results), one.burnt)
            booked = self._book(one, one.burnt, overtaken)
            made.bookings.append(booked)
            made.burnt.append(one.burnt)
            assert booked.figures is not None
            carbons = answers.carbons(booked.figures, self._why)
        batch_id = one.burnt.engine_batch_id if one.burnt is not None else ids.new("eb")
        endpoint = self._claim.chunk.endpoint
        for position, (item, result, carbon) in enumerate(zip(one.items, one.results, carbons, strict=True)):
            if item.item_id in overtaken:
                continue
            request_id = f"req_{batch_id[3:]}_{position}"
            if result.error_code is None and result.body_json is not None:
                used = answers.with_carbon(answers.usage(result, endpoint), carbon)
                line = answers.output_line(item.custom_id, request_id, result.body_json, used)
                lines.setdefault((item.job_id, "output"), []).append(line)
                ended.setdefault((item.job_id, ItemState.SUCCEEDED, None), []).append(item.item_id)
            else:
                spent = answers.failed_usage(result, endpoint, carbon)
                line = answers.error_line(item.custom_id, request_id, result, spent)
                lines.setdefault((item.job_id, "error"), []).append(line)
                ended.setdefault((item.job_id, ItemState.FAILED, result.error_code), []).append(item.item_id)

    def _book(self, one: Ran, burnt: Burnt, overtaken: Mapping[int, ItemState]) -> Booking:
        chunk, site = self._claim.chunk, self._site
        work: list[WorkItem] = []
        succeeded, failed = ItemState.SUCCEEDED.value, ItemState.FAILED.value
        ended = {item_id: state.value for item_id, state in overtaken.items()}
        for item, result in zip(one.items, one.results, strict=True):
            info = self._infos[item.job_id]
            outcome = succeeded if result.error_code is None else failed
            work.append(
                WorkItem(
                    tenant=info.tenant,
                    api_key_id=info.api_key_id,
                    product_line=info.product_line,
                    workload=info.workload,
                    job_id=item.job_id,
                    custom_id=item.custom_id,
                    item=item.idx,
                    chunk_id=chunk.chunk_id,
                    attempt=self._claim.attempt,
                    work_class=WorkClass.FLEXIBLE,
                    requested_model=info.requested_model,
                    outcome=ended.get(item.item_id, outcome),
                    prompt_tokens=result.prompt_tokens,
                    cached_tokens=result.cached_tokens,
                    completion_tokens=result.completion_tokens,
                    placement_id=chunk.placement_id,
                    baseline_region=chunk.baseline_region,
                    baseline_window_at=chunk.baseline_window_at,
                )
            )
        batch = EngineBatch(
            engine_batch_id=burnt.engine_batch_id,
            worker_id=burnt.worker_id,
            work_class=WorkClass.FLEXIBLE,
            fact=site.fact,
            info=weighing.marked(burnt.info, self._model),
            parts=burnt.parts,
            items=work,
            model=self._model,
            engine=burnt.engine,
            engine_version=burnt.engine_version,
            software_version=burnt.software_version,
            clock=burnt.clock,
            figures=batching.figures(one.results, self._model),
            downgraded=chunk.downgraded,
        )
        return ledger.book(
            batch,
            site.rates(),
            recorded_at=site.machine.now(),
            recorded_by=site.worker_id,
            baseline_facts=site.facts,
        )

    def _waste(self, one: Burnt) -> Booking:
        return burnt_rows.book_wasted(
            one,
            self._site.rates(),
            fact=self._site.fact,
            models=self._site.models,
            chunk_id=self._claim.chunk.chunk_id,
            attempt=self._claim.attempt,
            recorded_at=self._site.machine.now(),
            recorded_by=self._site.worker_id,
        )


def _counts(results: Sequence[EngineResult]) -> tuple[int, int, int]:
    """Return the tokens by what they cost: of the prompts, cached and not, and generated."""
    cached = sum(one.cached_tokens for one in results)
    return sum(one.prompt_tokens for one in results) - cached, cached, sum(one.completion_tokens for one in results)


def apply(tx: Tx, made: Checkpoint, *, lease_s: float, pending: Mapping[str, Any] | None) -> bool:
    """Store a checkpoint behind its fence; True if the chunk ended or went back with it.

    ``pending`` is what stays reported as not booked. Raises LeaseLost, and Overtaken, after which the caller's
    transaction must be rolled back.
    """
    leases.fence(tx, made.chunk_id, made.token, lease_s=lease_s)
    counts: dict[str, jobs.Ended] = {}
    for job_id, state, code, item_ids in made.ended:
        changed = item_rows.end_many(tx, item_ids, state, at=made.at, error_code=code)
        if len(changed) != len(item_ids):
            raise Overtaken(sorted(set(item_ids) - set(changed)))
        before = counts.get(job_id, jobs.Ended())
        counts[job_id] = replace(before, **{state.value: getattr(before, state.value) + len(item_ids)})
    jobs.bump_many(tx, counts)
    results.insert_segments(tx, made.segments)
    ledger_rows.record_bookings(tx, made.bookings)
    if made.learned is not None:
        one = made.learned
        is_whole = made.final is not None and made.final.action == "finish"
        throughputs.learn(tx, one.model, one.hardware, one.tokens, one.seconds, one.uj, is_whole=is_whole)
        weighing.learn(tx, one.model, one.hardware, made.weighed, made.stated)
    progress.tell(tx, list(counts), made.at)
    leases.report(tx, made.chunk_id, made.token, pending)
    return made.final is not None and _end(tx, made, made.final)


def _end(tx: Tx, made: Checkpoint, final: Final) -> bool:
    # An item that still waits is never left behind in a chunk that is done.
    if final.action == "finish" and not leases.has_open_items(tx, made.chunk_id):
        leases.finish(tx, made.chunk_id, made.token, outcome=final.outcome, now=made.at)
    else:
        leases.give_back(
            tx,
            made.chunk_id,
            made.token,
            is_counted=final.is_counted,
            outcome=final.outcome,
            now=made.at,
            backoff_s=final.backoff_s,
            error=final.error,
        )
    return True


def to_record(made: Checkpoint) -> dict[str, Any]:
    """Write a checkpoint for the spool."""
    return {
        "kind": "checkpoint",
        "chunk_id": made.chunk_id,
        "token": made.token,
        "attempt": made.attempt,
        "at": iso(made.at),
        "ended": [[job_id, state.value, code, item_ids] for job_id, state, code, item_ids in made.ended],
        "segments": [asdict(segment) for segment in made.segments],
        "bookings": [booking.dumps(one).decode() for one in made.bookings],
        "burnt": burnt_rows.to_json(made.burnt),
        "tenants": made.tenants,
        "learned": None if made.learned is None else asdict(made.learned),
        "weighed": [made.weighed.basis, made.weighed.values, made.stated],
        "final": None if made.final is None else asdict(made.final),
    }


def from_record(record: Mapping[str, Any]) -> Checkpoint:
    """Read what ``to_record`` wrote. Raises ValueError, KeyError or TypeError when it is not that."""
    final: dict[str, Any] | None = record["final"]
    if final is not None:
        final["outcome"] = AttemptOutcome(final["outcome"])
    basis, values, stated = record.get("weighed", (NO_SUMS.basis, NO_SUMS.values, (0, 0, 0)))
    return Checkpoint(
        chunk_id=record["chunk_id"],
        token=record["token"],
        attempt=record["attempt"],
        at=parse_iso(record["at"]),
        ended=[(job_id, ItemState(state), code, item_ids) for job_id, state, code, item_ids in record["ended"]],
        segments=[Segment(**segment) for segment in record["segments"]],
        bookings=[booking.loads(one.encode()) for one in record["bookings"]],
        burnt=burnt_rows.from_json(record["burnt"]),
        tenants=record["tenants"],
        learned=None if record["learned"] is None else Learned(**record["learned"]),
        weighed=Sums(basis, tuple(values)),
        stated=tuple(stated),
        final=None if final is None else Final(**final),
    )
