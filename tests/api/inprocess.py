"""Requests to an app without a socket: byte by byte as the test wants them, and much cheaper than a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.types import ASGIApp, Message

from carbonq.model import Scope
from carbonq.store import keys
from tests.api.harness import Harness

Value = TypeVar("Value")


@dataclass(frozen=True)
class Answer:
    """What came back; header names in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return self.json()["error"]["code"]


class InProcess:
    """A client of an app; ``headers`` are sent with every request."""

    def __init__(self, app: ASGIApp, headers: Mapping[str, str], runner: asyncio.Runner) -> None:
        self._app, self._headers, self._runner = app, headers, runner

    def ask(self, method: str, target: str, **how: Any) -> Answer:
        """Send a request; one that is never answered raises TimeoutError after a minute."""
        return self._runner.run(asyncio.wait_for(self.send(method, target, **how), 60))

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        return self._runner.run(work)

    async def send(
        self,
        method: str,
        target: str,
        *,
        body: bytes | Sequence[bytes] = b"",
        headers: Mapping[str, str] | None = None,
        is_cut: bool = False,
        is_slow: bool = False,
        gone: asyncio.Event | None = None,
    ) -> Answer:
        """Send a request; ``is_cut``: the client goes away in the middle, else when ``gone`` is set.

        ``is_slow``: it says that more comes, and nothing does.
        """
        pieces = [body] if isinstance(body, bytes) else list(body)
        messages: list[Message] = [
            {"type": "http.request", "body": piece, "more_body": is_cut or is_slow or number < len(pieces)}
            for number, piece in enumerate(pieces, 1)
        ]
        status, found, parts = 0, dict[str, str](), list[bytes]()

        async def receive() -> Message:
            if messages:
                return messages.pop(0)
            if not is_cut:
                await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                found.update({name.decode().lower(): value.decode() for name, value in message["headers"]})
            else:
                parts.append(message.get("body", b""))

        path, _, query = target.partition("?")
        sent = {**self._headers, **(headers or {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in sent.items() if value],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8750),
        }
        await self._app(scope, receive, send)
        return Answer(status, found, b"".join(parts))


def mighty(harness: Harness) -> dict[str, str]:
    """Return the headers of a key of acme's that may do everything."""
    with harness.db.write() as tx:
        _, key = keys.create(tx, "acme", "all", False, scopes=frozenset(Scope))
    harness.api.keyring.refresh()
    return {"Authorization": f"Bearer {key}"}


@contextmanager
def in_process(app: ASGIApp, headers: Mapping[str, str]) -> Iterator[InProcess]:
    """A client on an event loop of its own."""
    with asyncio.Runner() as runner:
        yield InProcess(app, headers, runner)
