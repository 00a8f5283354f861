"""A collector of OpenTelemetry traces: a real HTTP server that decodes what a real exporter sends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


@dataclass(frozen=True, slots=True)
class Seen:
    """One span as it came; ids are hex, times ns. ``links`` are (trace id, span id)."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    links: list[tuple[str, str]]
    attributes: dict[str, Any]
    is_error: bool
    message: str
    events: int
    began_ns: int
    ended_ns: int
    service: str

    @property
    def at(self) -> tuple[str, str]:
        return self.trace_id, self.span_id


@dataclass(slots=True)
class Collector:
    """What came so far; ``status`` is what it answers."""

    url: str = ""
    bodies: list[bytes] = field(default_factory=list[bytes])
    status: int = 200
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def spans(self) -> list[Seen]:
        with self.changed:
            bodies = list(self.bodies)
        return [span for body in bodies for span in _decoded(body)]

    def named(self, name: str) -> list[Seen]:
        return [span for span in self.spans if span.name == name]

    def wait(self, condition: Callable[[list[Seen]], Any], what: str, timeout_s: float = 60.0) -> Any:
        """Wait until what came fulfils a condition; return what that returned."""
        with self.changed:
            found = self.changed.wait_for(
                lambda: condition([span for body in self.bodies for span in _decoded(body)]), timeout_s
            )
        assert found, f"no {what} within {timeout_s} s; there are {sorted({span.name for span in self.spans})}"
        return found


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return None if kind is None else getattr(value, kind)


def _decoded(body: bytes) -> Iterator[Seen]:
    request = ExportTraceServiceRequest.FromString(body)
    for group in request.resource_spans:
        resource = {one.key: _value(one.value) for one in group.resource.attributes}
        for scope in group.scope_spans:
            for span in scope.spans:
                yield Seen(
                    name=span.name,
                    kind=span.kind,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                    attributes={one.key: _value(one.value) for one in span.attributes},
                    is_error=span.status.code == 2,
                    message=span.status.message,
                    events=len(span.events),
                    began_ns=span.start_time_unix_nano,
                    ended_ns=span.end_time_unix_nano,
                    service=resource["service.name"],
                )


@contextmanager
def collector() -> Generator[Collector]:
    """Serve on a free port while the body runs."""
    made = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with made.changed:
                if made.status == 200:
                    assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
                    made.bodies.append(body)
                made.changed.notify_all()
            self.send_response(made.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()
