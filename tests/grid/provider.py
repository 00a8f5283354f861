"""A provider of rates on a real socket, played from a script: what each path answers, in order; the last one repeats.

    provider.on("/v3/forecast", Answer(429, headers={"Retry-After": "1"}), json_answer(trace("watttime_forecast")))
    http = make_http(provider)
    assert [one.path for one in provider.requests] == [...]

Every test waits for real answers of a real server, with a retry schedule of milliseconds.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from carbonq.grid.http import DEFAULT_RETRY, Http, Timeouts

TRACES = Path(__file__).parent / "traces"
#: As patient as the real schedule, a thousand times as fast.
QUICK = DEFAULT_RETRY.copy_with(backoff_factor=0.0005)
#: The clients made here; ``conftest`` closes them after each test, whatever shares are still out.
OPEN: list[Http] = []


def trace(name: str) -> Any:
    """A recorded answer (invented values in the true shape) by its file's name."""
    return json.loads((TRACES / f"{name}.json").read_text(encoding="utf-8"))


def xml_answer(name: str, status: int = 200) -> Answer:
    """An answer of a recorded XML document (invented values in the true shape)."""
    return Answer(status, (TRACES / f"{name}.xml").read_bytes(), kind="text/xml")


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it arrived."""

    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    peer: int  # the client's port: the same one means the same connection
    target: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What to send; ``until`` holds it back, ``cut_after`` ends the connection amid the body, ``drip`` sends byte by
    byte, each when the event's wait of that many seconds is over."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = "application/json"
    until: threading.Event | None = None
    cut_after: int | None = None
    drip_s: float | None = None


Script = Answer | Callable[[Seen], Answer]


def json_answer(value: Any, status: int = 200, **headers: str) -> Answer:
    """An answer of JSON."""
    return Answer(status, json.dumps(value).encode(), headers)


class Provider:
    """The server; use ``conftest``'s fixture, which stops it."""

    def __init__(self) -> None:
        self.requests: list[Seen] = []
        self.running = 0
        self.most_running = 0
        self.logins = 0
        self.tokens: set[str] = set()
        self.stopping = threading.Event()
        self._scripts: dict[str, list[Script]] = {}
        self._account: tuple[str, str] | None = None
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:  # the name is the library's
                outer.serve(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that gave up is part of many tests

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def on(self, path: str, *answers: Script) -> None:
        """Say what a path answers from now on."""
        with self._lock:
            self._scripts[path] = list(answers)

    def needs_token(self, username: str = "ada", password: str = "s3cret-w0rd") -> None:
        """Ask for a Bearer token on all paths but /login, which sells one for Basic credentials."""
        self._account = (username, password)

    def expire_tokens(self) -> None:
        """Let every token sold so far be refused."""
        self.tokens.clear()

    def asked(self, path: str) -> list[Seen]:
        """The requests of one path, in order."""
        return [one for one in self.requests if one.path == path]

    def close(self) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        params = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        seen = Seen(parts.path, params, dict(handler.headers.items()), handler.client_address[1], handler.path)
        with self._lock:
            self.requests.append(seen)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            self._send(handler, self._answer(seen))
        finally:
            with self._lock:
                self.running -= 1

    def _answer(self, seen: Seen) -> Answer:
        if self._account is not None and seen.path not in self._scripts and seen.path == "/login":
            return self._login(seen)
        if self._account is not None and seen.path != "/login":
            token = seen.headers.get("Authorization", "").removeprefix("Bearer ")
            if token not in self.tokens:
                return json_answer({"error": "Invalid or expired token"}, 401)
        with self._lock:
            script = self._scripts.get(seen.path)
            if not script:
                return json_answer({"error": "not found", "message": f"nothing at {seen.path}"}, 404)
            step = script.pop(0) if len(script) > 1 else script[0]
        return step if isinstance(step, Answer) else step(seen)

    def _login(self, seen: Seen) -> Answer:
        assert self._account is not None
        expected = base64.b64encode(":".join(self._account).encode()).decode()
        if seen.headers.get("Authorization") != f"Basic {expected}":
            return json_answer({"error": "Unauthorized", "message": "bad user name or password"}, 401)
        with self._lock:
            self.logins += 1
            token = f"token-{self.logins}-of-{id(self)}"
            self.tokens.add(token)
        return json_answer({"token": token})

    def _send(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        if answer.until is not None:
            while not answer.until.wait(0.05) and not self.stopping.is_set():
                pass
        handler.send_response(answer.status)
        handler.send_header("Content-Type", answer.kind)
        handler.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        if answer.drip_s is not None:
            for i in range(len(answer.body)):
                handler.wfile.write(answer.body[i : i + 1])
                if self.stopping.wait(answer.drip_s):
                    return
        elif answer.cut_after is not None:
            handler.wfile.write(answer.body[: answer.cut_after])
            handler.wfile.flush()
            handler.close_connection = True
        else:
            handler.wfile.write(answer.body)


def make_http(server: Provider | str, *, named: str = "gridco", **values: Any) -> Http:
    """A client of the server (or address) with a quick schedule; ``values`` as ``Http`` takes them."""
    url = server if isinstance(server, str) else server.url
    settled: dict[str, Any] = {"budget_s": 5.0, "timeouts": Timeouts(2.0, 2.0), "retry": QUICK, **values}
    http = Http(named, url, **settled)
    OPEN.append(http)
    return http
