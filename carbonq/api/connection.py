"""One connection of a client, on top of uvicorn's: bounded in time, and what is no HTTP gets our shape of error.

Without it a client that sends its headers a byte a minute, or never reads its answer, would be kept for ever.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from carbonq.api import problems

#: How long a request's line and headers may take, in machine seconds.
HEAD_S = 20.0

#: How long a client may leave an answer unread that does not fit into the buffers, in machine seconds.
STALLED_S = 60.0

#: Most bytes of a request's line and headers.
MAX_HEAD_BYTES = 16 * 1024


class _Parser(h11.Connection):
    """Remembers which status fits the last violation; uvicorn hands on its own sentence only."""

    status_hint = 400

    def next_event(self) -> Any:
        try:
            return super().next_event()
        except h11.RemoteProtocolError as error:
            self.status_hint = error.error_status_hint
            raise


class Connection(H11Protocol):
    """The protocol that uvicorn makes for each connection."""

    head_s = HEAD_S
    stalled_s = STALLED_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take uvicorn's arguments."""
        super().__init__(*args, **kwargs)
        self.conn = self._parser = _Parser(h11.SERVER, MAX_HEAD_BYTES)
        self._head: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a request."""
        super().connection_made(transport)
        self._head = self.loop.call_later(self.head_s, self._too_slow)

    def data_received(self, data: bytes) -> None:
        """Take bytes; a head that has begun must be complete in time, and so must a body that was answered already."""
        super().data_received(data)
        is_begun = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        is_answered = self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY
        if not is_begun and not is_answered:
            self._head = _stop(self._head)
        elif self._head is None and not self.transport.is_closing():
            self._head = self.loop.call_later(self.head_s, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave nothing behind."""
        self._head, self._stalled = _stop(self._head), _stop(self._stalled)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Give a client that does not read some time."""
        super().pause_writing()
        self._stalled = _stop(self._stalled) or self.loop.call_later(self.stalled_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client reads."""
        self._stalled = _stop(self._stalled)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        if self._parser.status_hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            message = f"the request's line and headers have more than {MAX_HEAD_BYTES:,} bytes"
            self._refuse(431, message, code="headers_too_large")
        else:
            self._refuse(400, "this is no valid HTTP request", code="invalid_http")

    def _too_slow(self) -> None:
        self._head = None
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            message = f"the request's headers did not come within {self.head_s:g} s"
            self._refuse(408, message, code="request_timeout")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str, *, code: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = problems.problem(status, message, code=code, headers={"Connection": "close"})
            head = h11.Response(status_code=status, headers=response.raw_headers, reason=HTTPStatus(status).phrase)
            for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
