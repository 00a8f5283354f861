"""Every request of the API in one place: method, path, fields, and how its answer is read. Pure: nothing is sent."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import quote as quoted

from carbonq.client import items as given
from carbonq.client.records import Budget, Entry, Job, Json, Quote, Region, Why
from carbonq.client.upload import Upload
from carbonq.errors import InvalidRequest, NotFound

T = TypeVar("T")

#: Seconds for the answer to an upload: a long input is checked after its last byte.
_UPLOAD_TIMEOUT_S = 600.0

#: Seconds for a report: one of a long month is made for a while, and others may wait before it.
REPORT_TIMEOUT_S = 600.0

#: How long a stream of events may be silent, in seconds; the API says every 15 that it lives.
EVENT_SILENCE_S = 20.0

_LINES = {"Content-Type": "application/x-ndjson"}


class Terms(TypedDict, total=False):
    """What a job may be told beside its items, model and deadline; what is left out restricts nothing."""

    endpoint: str
    """``/v1/embeddings`` or ``/v1/chat/completions``; or ``kind`` instead."""
    kind: str
    """``embeddings``, ``summarize`` or ``chat``; or ``endpoint`` instead."""
    regions: Sequence[str] | None
    """Only these regions; an empty list is refused, None restricts nothing."""
    max_carbon_g: Decimal | float | str | None
    """The most the job may emit, in gCO2e."""
    product_line: str | None
    """For budgets and reports."""
    workload: str | None
    """For budgets and reports."""
    late_policy: str | None
    """``finish_late`` (the default) or ``expire``: what becomes of items that are not done by the deadline."""
    downgrade: bool | None
    """Whether a smaller model may run it; None leaves it to the installation."""
    metadata: Mapping[str, str] | None
    """Up to 16 texts of your own, shown with the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One request; ``is_repeatable``: a second one does no harm. ``read`` makes a value of the answer's JSON."""

    method: str
    path: str
    read: Callable[[Any], T]
    params: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    upload: Upload | None = None
    timeout_s: float | None = None
    is_repeatable: bool = True
    is_patient: bool = True
    """Whether it is sent again at all."""
    is_checked: bool = True
    """Whether a status of 400 or more is an error and not the answer."""
    is_events: bool = False
    """Whether ``Read`` gets events instead of bytes."""


def _as_is(value: Any) -> Json:
    return value


def _streamed(value: Any) -> bytes:
    raise AssertionError("what is streamed is read piece by piece")


def _data(value: Any) -> list[Json]:
    return value["data"]


def _each(read: Callable[[Json], T]) -> Callable[[Any], list[T]]:
    return lambda page: [read(one) for one in _data(page)]


def _params(**values: object) -> list[tuple[str, str]]:
    return [(name, _text(value)) for name, value in values.items() if value is not None]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return given.deadline_text(value) if isinstance(value, datetime) else str(value)


def job_path(job_id: str) -> str:
    """Return where a job is. Raises NotFound for an id that would be another route: its answer says nothing of jobs."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", job_id) is None:
        raise NotFound(f"there is no job {job_id!r}; `carbonq jobs list` shows yours")
    return f"/v1/jobs/{job_id}"


def _terms(terms: Terms) -> tuple[given.Endpoint, list[tuple[str, str]]]:
    """Return the endpoint and the other terms as a query. Raises InvalidRequest for a name that is none of them."""
    unknown = sorted(set(terms) - set(Terms.__annotations__))
    if unknown:
        raise InvalidRequest(
            f"{unknown[0]!r} is no term of a job; known: {', '.join(sorted(Terms.__annotations__))}", param=unknown[0]
        )
    rest = {name: value for name, value in terms.items() if name not in {"endpoint", "kind", "regions", "metadata"}}
    more = [("region", region) for region in _regions(terms.get("regions"))]
    more += [(f"metadata.{name}", value) for name, value in (terms.get("metadata") or {}).items()]
    return given.endpoint_of(terms.get("endpoint"), terms.get("kind")), [*more, *_params(**rest)]


def _regions(wanted: Sequence[str] | None) -> Sequence[str]:
    """Return what to send. Raises InvalidRequest for an empty list: whoever restricts to nothing must not get all."""
    if wanted is None:
        return ()
    if not wanted:
        raise InvalidRequest("regions names nothing; give at least one, or leave it out for all", param="regions")
    return [wanted] if isinstance(wanted, str) else wanted


def submit(
    source: Iterable[Any] | AsyncIterable[Any],
    *,
    model: str,
    deadline: str | datetime | timedelta,
    idempotency_key: str | None,
    terms: Terms,
    keep: bool,
) -> Call[Job]:
    """Store a job; all tries of this call have one idempotency key, so that they make one job."""
    endpoint, more = _terms(terms)
    params = [*_params(endpoint=endpoint.value, model=model, deadline=given.deadline_text(deadline)), *more]
    return Call(
        method="POST",
        path="/v1/jobs",
        read=Job.of,
        params=params,
        headers={**_LINES, "Idempotency-Key": idempotency_key or f"client-{uuid.uuid4()}"},
        upload=Upload(source, given.line_maker(endpoint, model), keep=keep),
        timeout_s=_UPLOAD_TIMEOUT_S,
    )


def quote(
    source: Iterable[Any] | AsyncIterable[Any],
    *,
    model: str,
    deadline: str | datetime | timedelta | None,
    terms: Terms,
    keep: bool,
) -> Call[Quote]:
    """Ask what a job of these items would cause."""
    endpoint, more = _terms(terms)
    when = None if deadline is None else given.deadline_text(deadline)
    return Call(
        method="POST",
        path="/v1/quotes",
        read=Quote.of,
        params=[*_params(endpoint=endpoint.value, model=model, deadline=when), *more],
        headers=_LINES,
        upload=Upload(source, given.line_maker(endpoint, model), keep=keep),
        timeout_s=_UPLOAD_TIMEOUT_S,
    )


def quote_count(
    items: int | None, tokens: int | None, *, model: str, deadline: str | datetime | timedelta | None, terms: Terms
) -> Call[Quote]:
    """Ask what a job of so many items with so many tokens in all would cause."""
    endpoint, more = _terms(terms)
    body: Json = {"endpoint": endpoint.value, "model": model, "items": items, "tokens": tokens}
    if deadline is not None:
        body["deadline"] = given.deadline_text(deadline)
    body |= {name: value for name, value in more if name != "region" and not name.startswith("metadata.")}
    if regions := [value for name, value in more if name == "region"]:
        body["regions"] = regions
    return Call(method="POST", path="/v1/quotes", read=Quote.of, json=body, timeout_s=_UPLOAD_TIMEOUT_S)


def job(job_id: str) -> Call[Job]:
    """Look at a job."""
    return Call(method="GET", path=job_path(job_id), read=Job.of)


def jobs(*, after: str | None, limit: int, states: Sequence[str]) -> Call[Json]:
    """List a page of jobs, newest first."""
    params = [*_params(limit=limit, after=after), *(("state", state) for state in states)]
    return Call(method="GET", path="/v1/jobs", read=_as_is, params=params)


def events(job_id: str | None, *, after: int | None = None, is_parsed: bool = True) -> Call[bytes]:
    """Follow a job's events, or all of this key's, behind the one of a number; they are streamed."""
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    if after is not None:
        headers["Last-Event-ID"] = str(after)
    return Call(
        method="GET",
        path="/v1/events" if job_id is None else f"{job_path(job_id)}/events",
        read=_streamed,
        headers=headers,
        timeout_s=EVENT_SILENCE_S,
        is_events=is_parsed,
    )


def results(job_id: str, *, errors: bool = False) -> Call[bytes]:
    """Read a job's output or error file; it is streamed."""
    return Call(method="GET", path=f"{job_path(job_id)}/{'errors' if errors else 'results'}", read=_streamed)


def cancel(job_id: str) -> Call[Job]:
    """Cancel what has not run yet; repeating it is harmless."""
    return Call(method="POST", path=f"{job_path(job_id)}/cancel", read=Job.of)


def chunks(job_id: str, *, after: str | None, limit: int) -> Call[Json]:
    """List a page of a job's chunks."""
    return Call(method="GET", path=f"{job_path(job_id)}/chunks", read=_as_is, params=_params(limit=limit, after=after))


def why(job_id: str, *, after: str | None, limit: int) -> Call[Why]:
    """Ask why chunks are where they are."""
    return Call(method="GET", path=f"{job_path(job_id)}/why", read=Why.of, params=_params(after=after, limit=limit))


def plan(hours: float | None) -> Call[Json]:
    """Look at the plan in force."""
    return Call(method="GET", path="/v1/plan", read=_as_is, params=_params(hours=hours))


def regions() -> Call[list[Region]]:
    """List the regions."""
    return Call(method="GET", path="/v1/regions", read=_each(Region.of))


def budgets(*, after: str | None, limit: int, level: str | None) -> Call[Json]:
    """List a page of budgets, by level and name."""
    return Call(method="GET", path="/v1/budgets", read=_as_is, params=_params(level=level, after=after, limit=limit))


def set_budget(
    *, level: str, name: str, cap_g: Decimal | float | str, book: str | None, action: str | None
) -> Call[Budget]:
    """Set the budget of a level and name; repeating it does nothing more."""
    body: Json = {"level": level, "name": name, "cap_g": str(cap_g)}
    body |= {name: value for name, value in (("book", book), ("action", action)) if value is not None}
    return Call(method="PUT", path="/v1/budgets", read=Budget.of, json=body)


def remove_budget(budget_id: str) -> Call[Json]:
    """Remove a budget."""
    return Call(method="DELETE", path=f"/v1/budgets/{quoted(budget_id, safe='')}", read=_as_is)


def forecasts(zone: str, **more: object) -> Call[Json]:
    """Look at a zone's newest forecast as it was issued."""
    return Call(method="GET", path="/v1/forecasts", read=_as_is, params=_params(zone=zone, **more))


def forecast_issues(zone: str, **more: object) -> Call[Json]:
    """List a page of a zone's forecasts as issued."""
    return Call(method="GET", path="/v1/forecasts/issues", read=_as_is, params=_params(zone=zone, **more))


def outlook(zone: str, **more: object) -> Call[Json]:
    """Look at what the planner thinks of a zone."""
    return Call(method="GET", path="/v1/forecasts/outlook", read=_as_is, params=_params(zone=zone, **more))


def entries(*, job_id: str | None, after: str | None, limit: int) -> Call[Json]:
    """List a page of the current ledger entries."""
    params = _params(job_id=job_id, after=after, limit=limit)
    return Call(method="GET", path="/v1/ledger", read=_as_is, params=params)


def entry(entry_id: str) -> Call[Entry]:
    """Look at one ledger entry, recomputed."""
    return Call(method="GET", path=f"/v1/ledger/{quoted(entry_id, safe='')}", read=Entry.of)


def ledger_csv(**selection: object) -> Call[bytes]:
    """Read the ledger's lines; they are streamed."""
    names = {"start_at": "from", "end_at": "to"}
    wanted = {names.get(name, name): value for name, value in selection.items()}
    return Call(method="GET", path="/v1/ledger.csv", read=_streamed, params=_params(**wanted))


def audit(month: str, *, api_key_id: str | None, head: str | None) -> Call[bytes]:
    """Read the audit file of a month; it is streamed."""
    params = _params(api_key_id=api_key_id, head=head)
    return Call(method="GET", path=f"/v1/audit/{quoted(month, safe='')}", read=_streamed, params=params)


def report(month: str, **how: object) -> Call[bytes]:
    """Ask for a month's report; it takes a pass over the month's entries."""
    path = f"/v1/reports/{quoted(month, safe='')}"
    return Call(method="GET", path=path, read=_streamed, params=_params(**how), timeout_s=REPORT_TIMEOUT_S)


def request(method: str, path: str, body: Any, params: Mapping[str, object]) -> Call[Json]:
    """Ask a route that has no call of its own; only GET and DELETE are sent again."""
    is_repeatable = method in {"DELETE", "GET"}
    return Call(method=method, path=path, read=_as_is, json=body, params=_params(**params), is_repeatable=is_repeatable)


def models() -> Call[list[Json]]:
    """List the models."""
    return Call(method="GET", path="/v1/models", read=_data)


def health() -> Call[Json]:
    """Ask whether the server is ready; one that is not says what is wrong, and that is the answer."""
    return Call(method="GET", path="/readyz", read=_as_is, is_checked=False, is_patient=False)


def embeddings(inputs: str | Sequence[str], model: str, options: Mapping[str, Any]) -> Call[Json]:
    """Embed now."""
    body = {"model": model, "input": inputs if isinstance(inputs, str) else list(inputs), **options}
    return _realtime("/v1/embeddings", body)


def chat(messages: Sequence[Mapping[str, Any]], model: str, options: Mapping[str, Any]) -> Call[Json]:
    """Complete a chat now."""
    return _realtime("/v1/chat/completions", {"model": model, "messages": list(messages), **options})


def _realtime(path: str, body: Json) -> Call[Json]:
    # It is sent again only where the API says that nothing was done: twice run is twice burnt.
    return Call(method="POST", path=path, read=_as_is, json=body, is_repeatable=False)
