"""``Client``: carries the steps of flows out with ``httpx.Client``, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Unpack, cast

import httpx
from httpx_sse import EventSource

from carbonq.client import calls, flows
from carbonq.client.calls import Call, Terms
from carbonq.client.files import ledger_format, written
from carbonq.client.items import Item
from carbonq.client.patience import RETRIES
from carbonq.client.records import Budget, Chunk, Entry, Event, Job, Json, Quote, Region, Result, Why
from carbonq.client.shared import Connection, LedgerSelection, answer_of, request_options
from carbonq.client.steps import Course, Flow, Give, Open, Read, Send, Sleep, Step, Tell

T = TypeVar("T")


class Client:
    """One server and one key; safe to share between threads. Use it as a context manager or call ``close``.

    Errors are classes of ``carbonq.errors`` with the server's sentence, its ``code`` and the ``request_id``.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = 60.0,
        retries: int = RETRIES,
        awaits_start: bool = True,
        on_retry: Callable[[str], Any] | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Prepare to talk to ``url`` (nothing is sent yet); ``timeout_s`` bounds the silence of the server.

        What is left out comes from the settings: ``CARBONQ_API_URL``, ``CARBONQ_API_KEY`` or ``CARBONQ_API_KEY_FILE``,
        carbonq.toml, and for this machine's own server the key file of its data folder; ``""`` sends no key.
        ``retries``: how often a request is sent again after a broken connection, 429 or 503, with growing pauses and
        no sooner than Retry-After says; ``on_retry`` is told so in a sentence. ``awaits_start`` False: not when nothing
        listens there. Raises ConfigError.
        """
        connection = Connection(
            url, api_key, timeout_s=timeout_s, retries=retries, awaits_start=awaits_start, on_retry=on_retry
        )
        self.url = connection.url
        self._manner = connection.manner
        self._http = httpx.Client(transport=transport, **connection.options)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # --- jobs -----------------------------------------------------------------------------------------------

    def submit(
        self,
        items: Iterable[Item],
        *,
        model: str,
        deadline: str | datetime | timedelta,
        idempotency_key: str | None = None,
        **terms: Unpack[Terms],
    ) -> Job:
        """Stream items as a new job, in constant memory, and return it once it is stored.

        An item is a text, ``{"id", "text"}``, an OpenAI line as a mapping, or as bytes. ``deadline`` is a span (``6h``,
        ``90m``, ``2d``; grid time) or a time, and means *finished by*. A try that is repeated makes no second job: all
        have one Idempotency-Key, yours if you give one. Raises InvalidRequest (with the line), Infeasible,
        NotAuthenticated, QuotaExceeded, Unavailable.
        """
        keep = self._manner.retries > 0
        return self._call(
            calls.submit(items, model=model, deadline=deadline, idempotency_key=idempotency_key, terms=terms, keep=keep)
        )

    def job(self, job_id: str) -> Job:
        """Return a job with its progress, placement and carbon figures. Raises NotFound."""
        return self._call(calls.job(job_id))

    def jobs(self, *, limit: int | None = None, states: Sequence[str] = ()) -> Iterator[Job]:
        """Yield this key's jobs, newest first, page by page; ``states`` selects."""
        return self._iterate(flows.jobs(self._manner, limit=limit, states=states))

    def cancel(self, job_id: str) -> Job:
        """Cancel what has not run yet and return the job; a job that is final comes back unchanged."""
        return self._call(calls.cancel(job_id))

    def chunks(self, job_id: str) -> list[Chunk]:
        """Return the job's chunks with their placements and the reasons for them."""
        return list(self._iterate(flows.chunks(self._manner, job_id)))

    def why(self, job_id: str, *, after: str | None = None, limit: int = 20) -> Why:
        """Return a page of what explains a job's placements, chunks alike in one group; ``after`` is ``last_id``."""
        return self._call(calls.why(job_id, after=after, limit=limit))

    def wait(
        self,
        job_id: str,
        *,
        poll_s: float | None = None,
        timeout_s: float | None = None,
        on_progress: Callable[[Job], Any] | None = None,
    ) -> Job:
        """Return a job once it is final; ``on_progress`` sees it whenever it has changed.

        Without ``poll_s`` the job's events tell when to look, where the API offers them. Else it looks every ``poll_s``
        machine seconds, and more and more seldom, up to every 2 s. An API that restarts meanwhile is waited for.
        Raises Unavailable after ``timeout_s`` machine seconds.
        """
        flow = flows.wait(self._manner, job_id, poll_s=poll_s, timeout_s=timeout_s, on_progress=on_progress)
        return self._run(flow)

    def events(self, job_id: str | None = None, *, after: int | None = None) -> Iterator[Event]:
        """Yield what happens to a job from its beginning until it is final, or to all jobs and batches from now on.

        ``after``, an event's ``number``, goes on behind it. A stream that breaks is opened again and misses nothing.
        """
        return self._iterate(flows.events(self._manner, job_id, after=after))

    def results(self, job_id: str) -> Iterator[Result]:
        """Yield the results of items that succeeded, in the order they were done, in constant memory.

        A connection that breaks is made again and goes on where it was. Raises Conflict before the job is final.
        """
        return self._iterate(flows.lines(self._manner, calls.results(job_id), flows.as_result))

    def failures(self, job_id: str) -> Iterator[Result]:
        """Yield the items that have no result, each with its ``error``. Raises Conflict before the job is final."""
        return self._iterate(flows.lines(self._manner, calls.results(job_id, errors=True), flows.as_result))

    def result_lines(self, job_id: str, *, errors: bool = False) -> Iterator[bytes]:
        """Yield the output (or error) file line by line as it is. Raises Conflict before the job is final."""
        return self._iterate(flows.lines(self._manner, calls.results(job_id, errors=errors), bytes))

    def download(self, job_id: str, path: str | Path, *, errors: bool = False) -> Path:
        """Write the output (or error) file, which appears whole or not at all, and return its path.

        What an earlier call of the same job left unfinished is gone on with. Raises Conflict before the job is final.
        """
        asked, target = calls.results(job_id, errors=errors), Path(path)
        with written(target, f"{job_id}.{'errors' if errors else 'results'}") as (file, start):
            for block in self._iterate(flows.download(self._manner, asked, start=start)):
                file.write(block)
        return target

    def quote(
        self,
        source: Iterable[Item] | None = None,
        *,
        items: int | None = None,
        tokens: int | None = None,
        model: str,
        deadline: str | datetime | timedelta | None = None,
        **terms: Unpack[Terms],
    ) -> Quote:
        """Return what a job would cause, now and over deadlines and regions; nothing is stored.

        Give items as for ``submit``, or a count of ``items`` and the ``tokens`` of all of them together. Raises
        InvalidRequest (with the line), NotAuthenticated, Unavailable.
        """
        if source is None:
            return self._call(calls.quote_count(items, tokens, model=model, deadline=deadline, terms=terms))
        keep = self._manner.retries > 0
        return self._call(calls.quote(source, model=model, deadline=deadline, terms=terms, keep=keep))

    # --- the grid, the plan, the ledger ---------------------------------------------------------------------

    def plan(self, *, hours: float | None = None) -> Json:
        """Return the plan in force, as far as it concerns this key's jobs.

        With ``hours``, also the outlook of that long by region and window, and the placements counted by cell.
        """
        return self._call(calls.plan(hours))

    def regions(self) -> list[Region]:
        """Return the regions with their state, health, slots and present MOER."""
        return self._call(calls.regions())

    def forecasts(
        self, zone: str, *, signal: str | None = None, source: str | None = None, at: str | None = None
    ) -> Json:
        """Return a zone's newest forecast as it was issued, or the one in force ``at`` a time. Raises NotFound.

        ``signal`` is ``moer`` (the default) or ``aer``.
        """
        return self._call(calls.forecasts(zone, signal=signal, source=source, at=at))

    def forecast_issues(
        self,
        zone: str,
        *,
        signal: str | None = None,
        source: str | None = None,
        after: str | None = None,
        limit: int = 20,
    ) -> Json:
        """Return a page of a zone's forecasts as issued, newest first; ``after`` is the last page's ``last_id``."""
        return self._call(calls.forecast_issues(zone, signal=signal, source=source, after=after, limit=limit))

    def outlook(self, zone: str, *, signal: str | None = None, hours: float = 24) -> Json:
        """Return what the planner thinks of a zone's coming windows: values, spread and basis. Raises NotFound."""
        return self._call(calls.outlook(zone, signal=signal, hours=hours))

    def ledger_csv(self, **selection: Unpack[LedgerSelection]) -> Iterator[bytes]:
        """Yield the ledger's CSV in pieces of whole rows; ``revisions`` is ``current`` or ``all``."""
        return self._iterate(flows.ledger_csv(self._manner, **selection))

    def export_ledger(self, path: str | Path, **selection: Unpack[LedgerSelection]) -> Path:
        """Write the ledger to a .csv, .csv.gz or .parquet file, which appears whole or not at all."""
        target = Path(path)
        with written(target) as (file, _):
            for block in self._iterate(flows.ledger_export(self._manner, ledger_format(target), **selection)):
                file.write(block)
        return target

    def audit(self, month: str, *, api_key_id: str | None = None, head: str | None = None) -> Iterator[bytes]:
        """Yield the audit file of this key's tenant, a month like ``2026-11``, in pieces. Raises NotFound."""
        return self._iterate(flows.pieces(self._manner, calls.audit(month, api_key_id=api_key_id, head=head)))

    def entries(self, *, job_id: str | None = None) -> Iterator[Entry]:
        """Yield this key's current ledger entries, page by page. Raises NotFound for an unknown job."""
        return self._iterate(flows.entries(self._manner, job_id=job_id))

    def entry(self, entry_id: str) -> Entry:
        """Return one ledger entry with ``recomputed_emission_g`` and ``consistent``. Raises NotFound."""
        return self._call(calls.entry(entry_id))

    # --- budgets --------------------------------------------------------------------------------------------

    def budgets(self, *, level: str | None = None) -> list[Budget]:
        """Return the budgets of this key's tenant and how they stand; ``level`` selects."""
        return list(self._iterate(flows.budgets(self._manner, level=level)))

    def set_budget(
        self,
        *,
        level: str,
        name: str,
        cap_g: Decimal | float | str,
        book: str | None = None,
        action: str | None = None,
    ) -> Budget:
        """Set the budget of a level and name, or change the one there is; needs a key with the scope ``admin``.

        ``level`` is ``product_line``, ``workload`` or ``item``; ``name`` the product line or workload, ``*`` the items
        of all work. ``book`` (of a new one ``impact``) and ``action`` (``warn``, of items ``reject``) stay where they
        are left out.
        """
        return self._call(calls.set_budget(level=level, name=name, cap_g=cap_g, book=book, action=action))

    def remove_budget(self, budget_id: str) -> None:
        """Remove a budget; what waited for it goes on. Raises NotFound."""
        self._call(calls.remove_budget(budget_id))

    def report(
        self,
        month: str,
        *,
        format: str = "json",
        section: str | None = None,
        as_of: datetime | None = None,
        clock: str | None = None,
        months_back: int | None = None,
    ) -> bytes:
        """Return the report of a month like ``2026-11``, of this key's tenant; ``format`` json, csv, html or pdf.

        ``section``: of a csv this part alone; ``as_of``: the ledger as it was then. Raises InvalidRequest.
        """
        how = {"section": section, "as_of": as_of, "clock": clock, "months_back": months_back}
        return self._run(flows.content(self._manner, calls.report(month, format=format, **how)))

    # --- realtime -------------------------------------------------------------------------------------------

    def embeddings(self, inputs: str | Sequence[str], *, model: str, **options: Any) -> Json:
        """Embed now, in the nearest region; ``options`` go into the body (``dimensions``, ``carbon`` ...)."""
        return self._call(calls.embeddings(inputs, model, options))

    def chat(self, messages: Sequence[Mapping[str, Any]], *, model: str, **options: Any) -> Json:
        """Complete a chat now, in the nearest region; ``options`` go into the body (``max_tokens`` ...)."""
        return self._call(calls.chat(messages, model, options))

    def request(self, method: str, path: str, body: Any = None, **params: object) -> Json:
        """Ask a route that has no method here (webhooks, say) and return its JSON; errors are as elsewhere."""
        return self._call(calls.request(method, path, body, params))

    def models(self) -> list[Json]:
        """Return the models this server offers."""
        return self._call(calls.models())

    def health(self) -> Json:
        """Return the server's readiness, check by check, whether it is ready or not. Raises Unavailable if silent."""
        return self._call(calls.health())

    # --- the driver -----------------------------------------------------------------------------------------

    def _call(self, call: Call[T]) -> T:
        return self._run(flows.call(self._manner, call))

    def _run(self, flow: Flow[T]) -> T:
        course = Course(flow)
        with closing(flow), _Steps(self._http) as steps:
            while (step := course.step()) is not None:
                try:
                    course.outcome = steps.take(step)
                except httpx.HTTPError as error:
                    course.failure = error
        return cast("T", course.result)

    def _iterate(self, flow: Flow[None]) -> Iterator[Any]:
        course = Course(flow)
        with closing(flow), _Steps(self._http) as steps:
            while (step := course.step()) is not None:
                if isinstance(step, Give):
                    yield step.value
                    continue
                try:
                    course.outcome = steps.take(step)
                except httpx.HTTPError as error:
                    course.failure = error


class _Steps:
    """Carries out the steps of one flow; holds at most one open answer."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._open: httpx.Response | None = None
        self._blocks: Iterator[Any] = iter(())

    def __enter__(self) -> _Steps:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def take(self, step: Step) -> Any:
        match step:
            case Send(call):
                response = self._http.send(self._request(call))
                return answer_of(response, response.content)
            case Open(call):
                self._close()
                self._open = self._http.send(self._request(call), stream=True)
                is_stream = call.is_events and self._open.status_code == 200
                self._blocks = EventSource(self._open).iter_sse() if is_stream else self._open.iter_bytes()
                return answer_of(self._open)
            case Read():
                return next(self._blocks, None)
            case Sleep(seconds):
                time.sleep(seconds)
            case Tell(callback, value):
                callback(value)
            case Give():
                raise AssertionError("a value is given to whoever iterates")
        return None

    def _request(self, call: Call[Any]) -> httpx.Request:
        content = None if call.upload is None else call.upload.blocks()
        return self._http.build_request(**request_options(call, content))
