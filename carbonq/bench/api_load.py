"""Send requests over many connections at once, cheaply: the load of ``carbonq bench api``, a process of its own.

Reads what to do as JSON from standard input (``Load``) and writes what came of it as JSON. Knows as much of HTTP as
these answers need: ``Content-Length``, connections that stay open. Seconds are machine seconds, latencies milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)

#: Answers that end with their head.
_BODILESS = frozenset({204, 304})

#: How long answers that are on their way at the end may still take.
_LAST_S = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """``connections`` clients that send ``requests`` in turn for ``seconds``, each ``pause_s`` after its last answer.

    A request is a whole HTTP/1.1 message, as text.
    """

    host: str
    port: int
    requests: Sequence[str]
    connections: int
    seconds: float
    pause_s: float = 0.0


class _Run:
    """What all connections of a run share."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.requests = [text.encode() for text in load.requests]
        self.sent = 0
        self.ends_at = 0.0
        self.last_at = 0.0
        self.latencies_s: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.broken = 0
        self.open = load.connections
        self.is_over = asyncio.Event()

    def next(self) -> bytes | None:
        """Return the next request; None when time is up."""
        if time.perf_counter() >= self.ends_at:
            return None
        self.sent += 1
        return self.requests[self.sent % len(self.requests)]

    def note(self, status: int, latency_s: float) -> None:
        """Count an answer."""
        self.statuses[status] += 1
        self.latencies_s.append(latency_s)
        self.last_at = time.perf_counter()

    def closed(self) -> None:
        """Count a connection that ended."""
        self.open -= 1
        if not self.open:
            self.is_over.set()


class _Client(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._buffer = bytearray()
        self._whole: int | None = None
        self._status = 0
        self._began = 0.0
        self._waits = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; the run says when to begin."""
        self._transport = cast("asyncio.Transport", transport)

    def send(self) -> None:
        """Send the next request, or end."""
        assert self._transport is not None
        request = self._run.next()
        if request is None:
            self._transport.close()
            return
        self._waits = True
        self._began = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Take a part of an answer."""
        self._buffer += data
        if self._whole is None:
            head = self._buffer.find(b"\r\n\r\n")
            if head < 0:
                return
            self._status = int(self._buffer[9:12])
            length = _LENGTH.search(self._buffer, 0, head)
            self._whole = head + 4 + (0 if length is None or self._status in _BODILESS else int(length[1]))
        if len(self._buffer) < self._whole:
            return
        self._run.note(self._status, time.perf_counter() - self._began)
        self._buffer.clear()
        self._whole, self._waits = None, False
        if self._run.load.pause_s:
            asyncio.get_running_loop().call_later(self._run.load.pause_s, self.send)
        else:
            self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        """Say so to the run; one that breaks with an answer due counts."""
        del exc
        self._run.broken += self._waits
        self._run.closed()


async def drive(load: Load) -> dict[str, Any]:
    """Put the load on and return its figures."""
    run = _Run(load)
    loop = asyncio.get_running_loop()
    clients: list[_Client] = []
    for _ in range(load.connections):
        _, client = await loop.create_connection(lambda: _Client(run), load.host, load.port)
        clients.append(client)
    began = run.last_at = time.perf_counter()
    run.ends_at = began + load.seconds
    for number, client in enumerate(clients):
        # Pollers do not come in step.
        loop.call_later(load.pause_s * number / load.connections, client.send)
    async with asyncio.timeout(load.seconds + load.pause_s + _LAST_S):
        await run.is_over.wait()
    return figures(run.latencies_s, run.last_at - began, run.statuses, run.broken)


def figures(latencies_s: Sequence[float], seconds: float, statuses: Counter[int], broken: int) -> dict[str, Any]:
    """Return rate, quantiles in milliseconds, and answers by status as JSON values; None where there were none."""
    in_order = sorted(latencies_s)

    def at(share: float) -> float | None:
        return in_order[min(len(in_order) - 1, int(share * len(in_order)))] * 1000 if in_order else None

    return {
        "answers": len(in_order),
        "seconds": seconds,
        "per_s": len(in_order) / seconds if seconds else None,
        "p50_ms": at(0.5),
        "p99_ms": at(0.99),
        "max_ms": in_order[-1] * 1000 if in_order else None,
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "broken": broken,
        "cpu_s": time.process_time(),
    }


def text_of(load: Load) -> str:
    """Write a load as the process reads it."""
    return json.dumps(asdict(load))


def request_text(method: str, path: str, *, key: str, body: str = "", media_type: str = "application/json") -> str:
    """Write one HTTP/1.1 request with about the headers that client libraries send."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {key}",
        "Accept: application/json",
        "Accept-Encoding: identity",
        "User-Agent: carbonq-bench",
    ]
    if body:
        lines += [f"Content-Type: {media_type}", f"Content-Length: {len(body.encode())}"]
    return "\r\n".join([*lines, "", body])


if __name__ == "__main__":
    json.dump(asyncio.run(drive(Load(**json.load(sys.stdin)))), sys.stdout)
