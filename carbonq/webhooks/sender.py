"""Send one webhook: signed as Standard Webhooks has it, to a checked address, without following or keeping anything."""

from __future__ import annotations

import email.utils
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version

import httpcore
import httpx
from standardwebhooks import Webhook

from carbonq.webhooks.guard import Guard, Refused, resolve
from carbonq.webhooks.schedule import Outcome

#: What a receiver may take for everything, from the name's look-up to the last byte that is read, in machine seconds.
TIMEOUT_S = 15.0

#: What is read of an answer's body, in bytes: enough to use the connection again after a short one.
MAX_BODY_BYTES = 4096


class Sender:
    """A pool of connections to receivers; may be used from many threads. Never goes through a proxy."""

    def __init__(
        self,
        *,
        may_be_private: bool,
        timeout_s: float = TIMEOUT_S,
        resolver: Callable[[str, int], Sequence[str]] = resolve,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Prepare; nothing is connected yet. ``may_be_private`` as for ``guard.trouble``."""
        self._timeout_s = timeout_s
        self._guard = Guard(may_be_private=may_be_private, resolver=resolver)
        self._transport = _Transport(ssl_context or httpx.create_ssl_context(), self._guard)
        self._headers = {"User-Agent": f"carbonq/{version('carbonq')}", "Content-Type": "application/json"}

    def send(self, url: str, message_id: str, body: bytes, secrets: Sequence[str], at: datetime) -> Outcome:
        """POST a body with its signatures, one for each secret; return what came of it. Never raises for the receiver.

        ``at`` is real time: receivers refuse what is minutes old.
        """
        headers = self._headers | {
            "webhook-id": message_id,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": " ".join(Webhook(one).sign(message_id, at, body.decode()) for one in secrets),
        }
        self._guard.begin(self._timeout_s, is_loopback_only=url.startswith("http://"))
        try:
            # By the transport itself: a client would keep the cookies of all receivers.
            response = self._transport.handle_request(httpx.Request("POST", url, content=body, headers=headers))
            try:
                _read_some(response)
            finally:
                response.close()
            return Outcome(response.status_code, retry_after_s=_retry_after_s(response, at))
        except Refused as refused:
            return Outcome(None, f"not sent: {refused}")
        except httpx.TimeoutException:
            return Outcome(None, f"no whole answer within {self._timeout_s:g} s")
        except httpx.ProtocolError as error:  # it may have the message all the same
            return Outcome(None, f"its answer is no HTTP: {str(error) or type(error).__name__}")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return Outcome(None, f"not sent: {str(error) or type(error).__name__}")

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()


def _read_some(response: httpx.Response) -> None:
    left = MAX_BODY_BYTES
    for piece in response.iter_raw():
        left -= len(piece)
        if left <= 0:
            return


class _Transport(httpx.HTTPTransport):
    """httpx's own, with a pool whose connections the guard opens."""

    def __init__(self, context: ssl.SSLContext, guard: Guard) -> None:
        super().__init__(verify=context, trust_env=False)
        self._pool.close()
        self._pool = httpcore.ConnectionPool(
            ssl_context=context,
            max_connections=64,
            max_keepalive_connections=16,
            keepalive_expiry=30.0,
            network_backend=guard,
        )


def _retry_after_s(response: httpx.Response, now: datetime) -> float | None:
    """Read ``Retry-After``: seconds or a date; None where it is neither."""
    given = response.headers.get("retry-after", "").strip()
    if given.isascii() and given.isdigit() and len(given) < 9:
        return float(given)
    try:
        at = email.utils.parsedate_to_datetime(given)
    except (TypeError, ValueError):
        return None
    return max(0.0, ((at if at.tzinfo else at.replace(tzinfo=UTC)) - now).total_seconds())
