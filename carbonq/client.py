"""A small client of carbonq's HTTP API, for the CLI, the demo and programs; everything streams in constant memory.

Errors come back as the classes of ``carbonq.errors``, with the server's sentence as their message.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx
import orjson

from carbonq.errors import (
    CarbonqError,
    ConfigError,
    Conflict,
    Infeasible,
    InvalidRequest,
    NotAuthenticated,
    NotFound,
    QuotaExceeded,
    Unavailable,
)

#: Where ``carbonq up`` listens unless told otherwise.
DEFAULT_URL = "http://127.0.0.1:8750"

#: Job states that never change again (``carbonq.model.FINAL_JOB_STATES``, as the API writes them).
FINAL_STATES = frozenset({"completed", "expired", "cancelled", "failed"})

#: Uploads are sent in pieces of about this many bytes.
_BLOCK_BYTES = 256 * 1024

#: Part of the time waited so far that may pass until the next look: a long wait is told at most this much later.
_LATER = 0.02

#: Longest time between two looks at a job that was asked for more often, in seconds: for who watches its progress.
_MAX_POLL_S = 2.0

Json = dict[str, Any]


class Client:
    """One server and one key; safe to share between threads. Use it as a context manager or call ``close``."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        api_key: str | None = None,
        *,
        timeout_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Prepare to talk to ``url`` (nothing is sent yet); ``timeout_s`` bounds the silence of the server.

        Raises ConfigError for a URL or key that can be none.
        """
        self.url = _checked_url(url)
        headers = {"User-Agent": "carbonq-client"}
        if api_key is not None:
            if not (api_key.isascii() and api_key.isprintable()):
                raise ConfigError("the API key holds characters that no key has; check CARBONQ_API_KEY")
            headers["Authorization"] = f"Bearer {api_key}"
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=5.0),
            transport=transport,
            # A proxy of the environment must not see a loopback server's traffic.
            trust_env=not self.url.startswith(("http://127.", "http://localhost", "http://[::1]")),
        )

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
        lines: Iterable[bytes],
        *,
        endpoint: str,
        model: str,
        deadline: str,
        regions: Sequence[str] = (),
        max_carbon_g: Decimal | float | str | None = None,
        product_line: str | None = None,
        workload: str | None = None,
        late_policy: str | None = None,
        idempotency_key: str | None = None,
    ) -> Json:
        """Stream OpenAI lines as a new job and return it once it is stored.

        ``deadline`` is a span (``6h``, ``90m``, ``2d``; grid time) or an ISO 8601 time and means *finished by*.
        Raises InvalidRequest (with the line), Infeasible, NotAuthenticated, Unavailable.
        """
        query: list[tuple[str, str]] = [("endpoint", endpoint), ("model", model), ("deadline", deadline)]
        query += [("region", region) for region in regions]
        optional = {
            "max_carbon_g": max_carbon_g,
            "product_line": product_line,
            "workload": workload,
            "late_policy": late_policy,
        }
        query += [(name, str(value)) for name, value in optional.items() if value is not None]
        headers = {"Content-Type": "application/x-ndjson"}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        # Validation of a long input happens after its last byte, so the answer may take longer than usual.
        timeout = httpx.Timeout(600.0, connect=5.0)
        return self._json("POST", "/v1/jobs", params=query, headers=headers, content=_blocks(lines), timeout=timeout)

    def job(self, job_id: str) -> Json:
        """Return a job with its progress, placement and carbon figures. Raises NotFound."""
        return self._json("GET", _job_path(job_id))

    def jobs(self, *, limit: int | None = None) -> Iterator[Json]:
        """Yield this key's jobs, newest first, page by page."""
        left, after = limit, None
        while left is None or left > 0:
            size = 100 if left is None else min(100, left)
            page = self._json("GET", "/v1/jobs", params=_given(limit=size, after=after))
            yield from page["data"]
            if not page["has_more"]:
                return
            after = page["last_id"]
            left = None if left is None else left - len(page["data"])

    def cancel(self, job_id: str) -> Json:
        """Cancel what has not run yet and return the job; a job that is final comes back unchanged."""
        return self._json("POST", f"{_job_path(job_id)}/cancel")

    def chunks(self, job_id: str) -> list[Json]:
        """Return the job's chunks with their placements and the reasons for them."""
        return self._json("GET", f"{_job_path(job_id)}/chunks")["data"]

    def why(self, job_id: str, *, after: str | None = None, limit: int = 20) -> Json:
        """Return a page of what explains a job's placements, chunks alike in one group; ``after`` is ``last_id``."""
        return self._json("GET", f"{_job_path(job_id)}/why", params=_given(after=after, limit=limit))

    def results(self, job_id: str) -> Iterator[bytes]:
        """Yield the output file line by line, each with its line feed. Raises Conflict before the job is final."""
        return _lines(self._stream(f"{_job_path(job_id)}/results"))

    def errors(self, job_id: str) -> Iterator[bytes]:
        """Yield the error file line by line, each with its line feed. Raises Conflict before the job is final."""
        return _lines(self._stream(f"{_job_path(job_id)}/errors"))

    def wait(
        self,
        job_id: str,
        *,
        poll_s: float = 0.5,
        timeout_s: float | None = None,
        on_progress: Callable[[Json], None] | None = None,
    ) -> Json:
        """Poll until the job is final and return it; ``on_progress`` sees every answer.

        Looks every ``poll_s`` machine seconds at first and then more and more seldom, up to every 2 s. An API that
        restarts meanwhile is waited for. Raises Unavailable after ``timeout_s`` machine seconds.
        """
        began = started = time.monotonic()
        while True:
            job: Json | None = None
            try:
                job = self.job(job_id)
            except Unavailable:
                if timeout_s is None and time.monotonic() - started > 60:
                    raise
            if job is not None:
                started = started if timeout_s is not None else time.monotonic()
                if on_progress is not None:
                    on_progress(job)
                if job["state"] in FINAL_STATES:
                    return job
            if timeout_s is not None and time.monotonic() - started > timeout_s:
                raise Unavailable(f"job {job_id} did not end within {timeout_s:g} s; it goes on without this client")
            time.sleep(max(poll_s, min(_MAX_POLL_S, _LATER * (time.monotonic() - began))))

    def quote(
        self,
        lines: Iterable[bytes] | None = None,
        *,
        items: int | None = None,
        tokens: int | None = None,
        endpoint: str,
        model: str,
        deadline: str | None = None,
        regions: Sequence[str] = (),
        max_carbon_g: Decimal | float | str | None = None,
    ) -> Json:
        """Return what a job would cause, now and over deadlines and regions; nothing is stored.

        Give OpenAI ``lines`` as for ``submit``, or a count of ``items`` and the ``tokens`` of all of them together.
        Raises InvalidRequest (with the line), NotAuthenticated, Unavailable.
        """
        fields = _given(endpoint=endpoint, model=model, deadline=deadline)
        if max_carbon_g is not None:
            fields["max_carbon_g"] = str(max_carbon_g)
        timeout = httpx.Timeout(600.0, connect=5.0)
        if lines is None:
            body = fields | {"items": items, "tokens": tokens} | ({"regions": list(regions)} if regions else {})
            return self._json("POST", "/v1/quotes", json=body, timeout=timeout)
        query = [*fields.items(), *(("region", region) for region in regions)]
        headers = {"Content-Type": "application/x-ndjson"}
        return self._json("POST", "/v1/quotes", params=query, headers=headers, content=_blocks(lines), timeout=timeout)

    # --- the grid, the plan, the ledger ---------------------------------------------------------------------

    def plan(self, *, hours: float | None = None) -> Json:
        """Return the plan in force, as far as it concerns this key's jobs.

        With ``hours``, also the outlook of that long by region and window, and the placements counted by cell.
        """
        return self._json("GET", "/v1/plan", params=_given(hours=hours))

    def regions(self) -> list[Json]:
        """Return the regions with their state, health, slots and present MOER."""
        return self._json("GET", "/v1/regions")["data"]

    def forecasts(
        self, zone: str, *, signal: str | None = None, source: str | None = None, at: str | None = None
    ) -> Json:
        """Return a zone's newest forecast as it was issued, or the one in force ``at`` a time. Raises NotFound.

        ``signal`` is ``moer`` (the default) or ``aer``.
        """
        return self._json("GET", "/v1/forecasts", params=_given(zone=zone, signal=signal, source=source, at=at))

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
        params = _given(zone=zone, signal=signal, source=source, after=after, limit=limit)
        return self._json("GET", "/v1/forecasts/issues", params=params)

    def outlook(self, zone: str, *, signal: str | None = None, hours: float = 24) -> Json:
        """Return what the planner thinks of a zone's coming windows: values, spread and basis. Raises NotFound."""
        return self._json("GET", "/v1/forecasts/outlook", params=_given(zone=zone, signal=signal, hours=hours))

    def ledger_csv(self, *, job_id: str | None = None, revisions: str = "current") -> Iterator[bytes]:
        """Yield the ledger's CSV in blocks; ``revisions`` is ``current`` or ``all``."""
        return self._stream("/v1/ledger.csv", params=_given(job_id=job_id, revisions=revisions))

    def entries(self, *, job_id: str | None = None) -> Iterator[Json]:
        """Yield this key's current ledger entries, page by page. Raises NotFound for an unknown job."""
        after = None
        while True:
            page = self._json("GET", "/v1/ledger", params=_given(job_id=job_id, after=after, limit=1000))
            yield from page["data"]
            if not page["has_more"]:
                return
            after = page["last_id"]

    def entry(self, entry_id: str) -> Json:
        """Return one ledger entry with ``recomputed_emission_g`` and ``consistent``. Raises NotFound."""
        return self._json("GET", f"/v1/ledger/{quote(entry_id, safe='')}")

    # --- realtime -------------------------------------------------------------------------------------------

    def embeddings(self, inputs: str | Sequence[str], *, model: str, **options: Any) -> Json:
        """Embed now, in the nearest region; ``options`` go into the body (``dimensions``, ``carbon`` ...)."""
        body = {"model": model, "input": inputs if isinstance(inputs, str) else list(inputs), **options}
        return self._json("POST", "/v1/embeddings", json=body)

    def chat(self, messages: Sequence[Mapping[str, Any]], *, model: str, **options: Any) -> Json:
        """Complete a chat now, in the nearest region; ``options`` go into the body (``max_tokens`` ...)."""
        return self._json("POST", "/v1/chat/completions", json={"model": model, "messages": list(messages), **options})

    def models(self) -> list[Json]:
        """Return the models this server offers."""
        return self._json("GET", "/v1/models")["data"]

    def health(self) -> Json:
        """Return the server's readiness, check by check, whether it is ready or not. Raises Unavailable if silent."""
        try:
            response = self._http.get("/readyz")
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        return _parsed(response)

    # --- transport ------------------------------------------------------------------------------------------

    def _json(self, method: str, path: str, **options: Any) -> Json:
        try:
            response = self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if response.is_error:
            raise _error(response)
        return _parsed(response)

    def _stream(self, path: str, **options: Any) -> Iterator[bytes]:
        try:
            with self._http.stream("GET", path, **options) as response:
                if response.is_error:
                    response.read()
                    raise _error(response)
                yield from response.iter_bytes()  # as they come: pieces of one size take another copy of all
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.HTTPError) -> Unavailable:
        if isinstance(error, httpx.ConnectError):
            return Unavailable(f"no carbonq answers at {self.url}; start it with `carbonq up`", code="unreachable")
        reason = str(error) or type(error).__name__
        return Unavailable(f"the connection to {self.url} broke: {reason}", code="unreachable")


def _checked_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = None
    if parsed is None or parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ConfigError(f"{url!r} is no address of an API, such as {DEFAULT_URL}; check CARBONQ_API_URL")
    return url.rstrip("/")


def _job_path(job_id: str) -> str:
    # An id with a slash in it would be another route, whose answer says nothing of jobs.
    if re.fullmatch(r"[A-Za-z0-9_-]+", job_id) is None:
        raise NotFound(f"there is no job {job_id!r}; `carbonq jobs list` shows yours")
    return f"/v1/jobs/{job_id}"


def _given(**values: Any) -> Json:
    return {name: value for name, value in values.items() if value is not None}


def _blocks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Join lines into larger pieces: one HTTP chunk a line would cost more than the line."""
    block = bytearray()
    for line in lines:
        block += line
        if not line.endswith(b"\n"):
            block += b"\n"
        if len(block) >= _BLOCK_BYTES:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)


def _lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest: list[bytes] = []
    for block in blocks:
        *whole, last = block.split(b"\n")
        if whole:
            yield b"".join((*rest, whole[0], b"\n"))
            for line in whole[1:]:
                yield line + b"\n"
            rest.clear()
        rest.append(last)
    if any(rest):
        yield b"".join(rest)


def _parsed(response: httpx.Response) -> Json:
    try:
        return orjson.loads(response.content)
    except orjson.JSONDecodeError as error:
        raise Unavailable(
            f"{response.url} answered {response.status_code} with something that is not JSON; is it carbonq?"
        ) from error


def _error(response: httpx.Response) -> CarbonqError:
    try:
        body = orjson.loads(response.content)
        detail: Json = body["error"]
        message, code = str(detail["message"]), str(detail.get("code") or "carbonq_error")
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return Unavailable(f"{response.url} answered {response.status_code} without saying why; is it carbonq?")
    status, param, line = response.status_code, detail.get("param"), detail.get("line")
    retry_after = response.headers.get("retry-after")
    retry_after_s = float(retry_after) if retry_after and retry_after.isdigit() else None
    if status == 429:
        return QuotaExceeded(message, retry_after_s=retry_after_s)
    if status >= 500:
        return Unavailable(message, code=code, retry_after_s=retry_after_s or 5.0)
    if "best" in detail:
        return Infeasible(message, best=str(detail["best"]), param=param)
    known: dict[int, type[CarbonqError]] = {401: NotAuthenticated, 403: NotAuthenticated, 404: NotFound, 409: Conflict}
    if status in known:
        return known[status](message, code=code)
    return InvalidRequest(message, param=param, line=line, code=code)
