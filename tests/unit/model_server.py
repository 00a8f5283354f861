"""An OpenAI-compatible server on a real socket whose faults are scripted, and a real llama.cpp server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from carbonq.engines.openai_calls import Patience
from carbonq.engines.openai_http import OpenAIHttpEngine
from carbonq.models import catalogue

#: As patient as the real one, a hundred times as fast.
QUICK = Patience(connect_s=2.0, read_s=2.0, budget_s=1.0, tries=4, base_s=0.005, cap_s=0.02)


@dataclass(frozen=True)
class Reply:
    """What to send; ``cut`` ends the connection without an answer, ``until`` holds the answer back."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    until: threading.Event | None = None


#: What the server makes of (path, body of the request, number of the request).
Script = Callable[[str, dict[str, Any], int], Reply]


def chat_reply(text: str = "Hi.", **body: Any) -> Reply:
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return Reply(200, {"id": "c-1", "created": 1, "model": "there", "choices": [choice], "usage": usage, **body})


class ModelServer:
    """The server; ``script`` answers its POSTs, ``pages`` its GETs."""

    def __init__(self) -> None:
        self.script: Script = lambda path, body, number: chat_reply()
        self.pages: dict[str, Any] = {}
        self.posts: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.out = 0
        self.most_out = 0
        self.gone = threading.Event()  # a client went away before its answer
        self._changed = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                page = outer.pages.get(self.path)
                outer._send(self, Reply(404, {"error": "not found"}) if page is None else Reply(200, page))

            def do_POST(self) -> None:
                outer._serve(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def wait_for(self, out: int) -> None:
        """Wait until so many requests are out."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.out >= out, 10)

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self._changed:
            self.posts.append((handler.path, body, dict(handler.headers.items())))
            number = len(self.posts)
            self.out += 1
            self.most_out = max(self.most_out, self.out)
            self._changed.notify_all()
        try:
            reply = self.script(handler.path, body, number)
            if reply.until is not None:
                self._hold(handler, reply.until)
        finally:
            with self._changed:
                self.out -= 1
        if reply.cut:
            handler.close_connection = True
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{")
            return
        self._send(handler, reply)

    def _hold(self, handler: BaseHTTPRequestHandler, until: threading.Event) -> None:
        handler.connection.settimeout(0.02)
        while not until.is_set():
            try:
                if handler.connection.recv(1) == b"":
                    self.gone.set()
                    return
            except TimeoutError:
                continue
            except OSError:
                self.gone.set()
                return

    @staticmethod
    def _send(handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        handler.send_response(reply.status)
        handler.send_header("Content-Length", str(len(data)))
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)


def make_engine(url: str, *, patience: Patience = QUICK, **values: Any) -> OpenAIHttpEngine:
    """A loaded engine of a server's model ``mine``."""
    described = {"engine": "openai_http", "base_url": f"{url}/v1", **values}
    engine = OpenAIHttpEngine(catalogue({"mine": described})["mine"], patience=patience)
    engine.load()
    return engine
