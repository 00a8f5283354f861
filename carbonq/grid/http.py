"""The HTTP client that sources of one provider share: connections, patience, limits and errors as sentences.

Make one ``Http`` for each provider (and address) and hand it to all its sources, whatever their zones. It is safe to
share between threads and connects at first use. Each source takes a ``lease()`` and closes that; connections close
with the last one. A source does no HTTP of its own:

    self._lease = http.lease()                        # in __init__; close() does self._lease.close()
    body = self._lease.http.json("/v3/forecast", params={"region": "DE"}, headers={"auth-token": token})

``json`` returns parsed JSON with numbers as ``int`` or ``Decimal`` (NaN as a Decimal, so that ``readings.number`` can
name its row); ``text`` returns the text of an answer, for XML. Both raise

* ``Refused``: the provider answered, with a status other than 2xx; ``status``, ``said`` (its own message, from any of
  the shapes providers use) and ``body`` are there to tell a bad token from a plan that lacks an endpoint;
* ``SignalUnavailable``: no usable answer: unreachable, too slow, too large, cut off, no JSON.

Patience: GET is tried again after 429, 500, 502, 503, 504, timeouts and lost connections, with jitter, and no sooner
than the provider's Retry-After; if that lies beyond the budget, the call fails at once and so do all calls until then.
A call takes ``budget_s`` at most, waiting for its turn and for retries included, plus one silent read of
``Timeouts.read_s``. After a provider could not be reached at all, calls fail at once for ``rest_s``, so that a dead
host costs one call's patience and not one for each zone.

Secrets: values of headers (other than Accept and the like), of Basic credentials (also encoded), of a login in the
address and of parameters named in ``secrets`` appear in no message; log lines of httpx lose their query. Redirects are
refused, not followed: a token must not travel to another host. Proxies of the environment are used, except to this
machine itself.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import ssl
import threading
import time
import zlib
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

import httpx
from httpx_retries import Retry

from carbonq import __version__
from carbonq.errors import SignalUnavailable
from carbonq.grid.replies import Json, parse_json, said, shown
from carbonq.grid.secrets import check_headers, hidden_in

logger = logging.getLogger(__name__)

#: How often and how patiently a call is repeated: 4 tries, up to 1, 2 and 4 s apart, with jitter from half of that.
DEFAULT_RETRY = Retry(
    total=3,
    backoff_factor=0.5,
    backoff_jitter=0.5,
    max_backoff_wait=30.0,
    status_forcelist=(429, 500, 502, 503, 504),
    allowed_methods=("GET",),
)

#: A provider that asks for more than this is asked again after this.
MAX_RETRY_AFTER_S = 3600.0

_LOOPBACK = ("127.", "localhost", "::1")


class Refused(SignalUnavailable):
    """The provider answered, but not with data: ``status``, its own words in ``said``, its parsed ``body``."""

    def __init__(self, message: str, *, status: int, said: str, body: Json, retry_after_s: float = 5.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.status = status
        self.said = said
        self.body = body


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds for one connection and for one silence of the provider."""

    connect_s: float = 5.0
    read_s: float = 15.0


class Http:
    """One provider's client; see the module's text. All times are machine time."""

    def __init__(
        self,
        provider: str,
        base_url: str,
        *,
        concurrency: int = 4,
        budget_s: float = 45.0,
        rest_s: float = 20.0,
        max_bytes: int = 32 * 1024 * 1024,
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
    ) -> None:
        """Prepare to talk to ``base_url`` with at most ``concurrency`` calls at a time; nothing is connected yet.

        ``provider`` begins every message. ``max_bytes`` bounds an answer after decompression.
        """
        self.provider = provider
        self.base_url = base_url.rstrip("/")
        self.budget_s = budget_s
        self._rest_s = rest_s
        self._max_bytes = max_bytes
        self._timeouts = timeouts or Timeouts()
        self._retry = retry or DEFAULT_RETRY
        self._concurrency = concurrency
        self._turns = threading.BoundedSemaphore(concurrency)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._leases = 0
        self._client: httpx.Client | None = None
        self._not_before = 0.0
        self._away_until = 0.0
        self._away_reason = ""

    def lease(self) -> Lease:
        """Return a share in the connections; the last one closed closes them."""
        with self._lock:
            self._leases += 1
            self._closed.clear()
        return Lease(self)

    def json(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        basic: tuple[str, str] | None = None,
        secrets: Collection[str] = (),
    ) -> Json:
        """GET ``base_url + path`` and return its JSON.

        ``path`` may be a whole URL. ``secrets`` names parameters whose values must not be shown.
        Raises Refused, SignalUnavailable.
        """
        reply = self._get(path, params or {}, headers or {}, basic, secrets)
        try:
            return parse_json(reply.body)
        except ValueError as error:
            raise SignalUnavailable(f"{reply.what} answered no JSON ({reply.kind}): {error}") from error

    def text(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        basic: tuple[str, str] | None = None,
        secrets: Collection[str] = (),
    ) -> str:
        """GET ``base_url + path`` and return its text (UTF-8). Raises Refused, SignalUnavailable."""
        reply = self._get(path, params or {}, headers or {}, basic, secrets)
        try:
            return reply.body.decode()
        except UnicodeDecodeError as error:
            raise SignalUnavailable(f"{reply.what} answered no UTF-8 text ({reply.kind})") from error

    def _get(
        self,
        path: str,
        params: Mapping[str, str],
        headers: Mapping[str, str],
        basic: tuple[str, str] | None,
        secrets: Collection[str],
    ) -> _Reply:
        url = path if "://" in path else self.base_url + path
        what = f"{self.provider}: {_address(url)}"
        check_headers(what, headers)
        deadline = time.monotonic() + self.budget_s
        self._hold(what, deadline)
        if not self._turns.acquire(timeout=self.budget_s):
            raise SignalUnavailable(f"{what} got no turn in {self.budget_s:g} s; {self._concurrency} calls run at once")
        try:
            client = self._open()
            address = httpx.URL(url).copy_merge_params(dict(params)) if params else httpx.URL(url)
            call = _Call(client, client.build_request("GET", address, headers=dict(headers)), basic, what, deadline)
            reply = self._patiently(call)
        except httpx.InvalidURL as error:
            raise SignalUnavailable(f"{what} is no address: {error}") from error
        finally:
            self._turns.release()
        if reply.status // 100 == 2:
            return reply
        parameters = [params[name] for name in secrets if name in params]
        raise _refusal(reply, hidden_in(url, headers, basic, parameters))

    def _patiently(self, call: _Call) -> _Reply:
        """Repeat a call as the schedule allows; return the last answer, whatever its status."""
        retry = self._retry
        while True:
            self._hold(call.what, call.deadline)
            retry = retry.increment()
            reply: _Reply | None = None
            lost: httpx.HTTPError | None = None
            try:
                reply = self._once(call)
            except httpx.HTTPError as error:
                lost = error
            if reply is not None:
                if not retry.is_retryable_status_code(reply.status):
                    return reply
                self._heed(reply)
            wait_s = max(reply.retry_after_s if reply else 0.0, retry.backoff_strategy())
            is_over = time.monotonic() + wait_s >= call.deadline
            may_again = lost is None or retry.is_retryable_exception(lost)
            # The wait ends early when the connections are closed.
            if retry.attempts_made > retry.total or is_over or not may_again or self._closed.wait(wait_s):
                if reply is not None:
                    return reply
                assert lost is not None
                raise self._lost(call, lost) from lost
            logger.debug("%s is asked again after %.1f s", call.what, wait_s)

    def _once(self, call: _Call) -> _Reply:
        left_s = max(0.001, call.deadline - time.monotonic())
        connect_s, read_s = min(self._timeouts.connect_s, left_s), min(self._timeouts.read_s, left_s)
        limits = httpx.Timeout(read_s, connect=connect_s)
        call.request.extensions["timeout"] = limits.as_dict()
        auth = None if call.basic is None else httpx.BasicAuth(*call.basic)
        with _quiet_log():
            response = call.client.send(call.request, auth=auth, stream=True)
        try:
            return _Reply(call.what, response, self._body(call, response), self._retry)
        finally:
            response.close()

    def _body(self, call: _Call, response: httpx.Response) -> bytes:
        """Read the body with a look at clock and size at every block that arrives, however small or packed."""
        packing = response.headers.get("Content-Encoding", "identity").lower()
        if packing not in {"identity", "gzip"}:
            raise SignalUnavailable(f"{call.what} answered in the encoding {shown(packing)}, which was not asked for")
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16) if packing == "gzip" else None
        body = bytearray()
        for block in response.iter_raw():
            try:
                body += unpacker.decompress(block, self._max_bytes + 1) if unpacker else block
            except zlib.error as error:
                raise httpx.RemoteProtocolError(f"gzip: {error}") from error
            if len(body) > self._max_bytes:
                raise SignalUnavailable(f"{call.what} answered more than {self._max_bytes:,} bytes")
            if time.monotonic() > call.deadline:
                raise SignalUnavailable(f"{call.what} was still answering after {self.budget_s:g} s")
        if unpacker and body and not unpacker.eof:
            raise httpx.RemoteProtocolError("gzip: the answer ends too early")
        return bytes(body)

    def _hold(self, what: str, deadline: float) -> None:
        """Wait out what the provider asked for; fail at once where that takes too long or the host is away."""
        now = time.monotonic()
        with self._lock:
            away_s, asked_s, why = self._away_until - now, self._not_before - now, self._away_reason
        if away_s > 0:
            raise SignalUnavailable(f"{what} {why}; it is tried again in {away_s:.0f} s", retry_after_s=away_s)
        if asked_s > 0 and (now + asked_s >= deadline or self._closed.wait(asked_s)):
            raise SignalUnavailable(f"{what} asked not to be called for {asked_s:.0f} s more", retry_after_s=asked_s)

    def _heed(self, reply: _Reply) -> None:
        with self._lock:
            self._not_before = max(self._not_before, time.monotonic() + reply.retry_after_s)

    def _lost(self, call: _Call, error: httpx.HTTPError) -> SignalUnavailable:
        text = shown(str(error)) or type(error).__name__
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
            why = f"could not be reached ({text})"
            with self._lock:
                self._away_until, self._away_reason = time.monotonic() + self._rest_s, why
            return SignalUnavailable(f"{call.what} {why}", retry_after_s=self._rest_s)
        if isinstance(error, httpx.TimeoutException):
            return SignalUnavailable(f"{call.what} was silent for {self._timeouts.read_s:g} s or more")
        return SignalUnavailable(f"{call.what} gave no whole answer ({text})")

    def _open(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                self._client = httpx.Client(
                    headers={"User-Agent": f"carbonq/{__version__}", "Accept-Encoding": "gzip"},
                    follow_redirects=False,
                    verify=_certificates(),
                    limits=httpx.Limits(max_connections=None, max_keepalive_connections=self._concurrency),
                    # A proxy of the environment must not see this machine's own traffic.
                    trust_env=not (urlsplit(self.base_url).hostname or "").startswith(_LOOPBACK),
                )
            return self._client

    def _release(self) -> None:
        with self._lock:
            self._leases -= 1
            client, is_last = self._client, self._leases == 0
            if is_last:
                self._client = None
                self._closed.set()
        if is_last and client is not None:
            client.close()


class Lease:
    """A source's share in an ``Http``; closing twice is harmless."""

    def __init__(self, http: Http) -> None:
        """Made by ``Http.lease``."""
        self.http = http
        self._is_open = True

    def close(self) -> None:
        """Give the share back; the last one closes the connections."""
        if self._is_open:
            self._is_open = False
            self.http._release()  # pyright: ignore[reportPrivateUsage]  # one idea in two classes


@dataclass(frozen=True, slots=True)
class _Call:
    client: httpx.Client
    request: httpx.Request
    basic: tuple[str, str] | None
    what: str
    deadline: float


class _Reply:
    def __init__(self, what: str, response: httpx.Response, body: bytes, retry: Retry) -> None:
        self.what = what
        self.status = response.status_code
        self.kind = response.headers.get("Content-Type", "no content type").partition(";")[0]
        self.body = body
        self.leads_to = _address(response.headers.get("Location", ""))
        self.retry_after_s = 0.0
        if "Retry-After" in response.headers:
            with contextlib.suppress(ValueError):  # a date that is none says nothing
                asked_s = retry.parse_retry_after(response.headers["Retry-After"])
                self.retry_after_s = min(asked_s, MAX_RETRY_AFTER_S)


def _refusal(reply: _Reply, hidden: Collection[str]) -> Refused:
    try:
        body = parse_json(reply.body)
    except ValueError:
        body = None
    words = shown(said(body, reply.body.decode(errors="replace")), hidden)
    if reply.status // 100 == 3:
        words = f"a redirect to {reply.leads_to}, which is not followed; set that address if it is right"
    try:
        phrase = f" {HTTPStatus(reply.status).phrase}"
    except ValueError:
        phrase = ""
    message = f"{reply.what} answered {reply.status}{phrase}{': ' if words else ', without a word'}{words}"
    return Refused(message, status=reply.status, said=words, body=body, retry_after_s=max(5.0, reply.retry_after_s))


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Return the trusted certificates, read once: that takes 0.1 s."""
    return httpx.create_ssl_context()


def _address(url: str) -> str:
    """Return a URL without what may be secret: its query and its credentials."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.netloc else parts.path


class _QuietLog(logging.Filter):
    """Take the query, which may hold a token, out of the line that httpx logs for each of our calls."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ours = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(self.is_ours, "value", False) and isinstance(record.args, tuple):
            record.args = tuple(_address(str(one)) if isinstance(one, httpx.URL) else one for one in record.args)
        return True


_log = _QuietLog()
logging.getLogger("httpx").addFilter(_log)


@contextlib.contextmanager
def _quiet_log() -> Generator[None]:
    _log.is_ours.value = True
    try:
        yield
    finally:
        _log.is_ours.value = False
