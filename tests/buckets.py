"""A real S3 server in this process, buckets on it, and a wire to it that can be cut."""

from __future__ import annotations

import os
import re
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import httpx

from carbonq.blobs import open_store
from carbonq.blobs.objects import ObjectStore

#: Any will do: the server checks no signature.
ACCESS_KEY = ("AKIACARBONQTESTS", "a-secret-that-is-never-shown")


@cache
def server_url() -> str:
    """Start the server at the first call; it ends with the process."""
    # Larger objects would go to files that it forgets to close.
    os.environ["MOTO_S3_DEFAULT_KEY_BUFFER_SIZE"] = str(1 << 30)
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    return f"http://{host}:{port}"


def new_bucket() -> str:
    """Make an empty bucket of its own."""
    name = f"blobs-{uuid.uuid4().hex}"
    httpx.put(f"{server_url()}/{name}", trust_env=False).raise_for_status()
    return name


def open_bucket(bucket: str, spool: Path, *, endpoint: str | None = None, prefix: str = "some/prefix") -> ObjectStore:
    """Open a bucket as an installation would."""
    url = f"s3://{bucket}/{prefix}?endpoint={endpoint or server_url()}&region=eu-north-1"
    store = open_store(url, spool=spool, access_key=ACCESS_KEY)
    assert isinstance(store, ObjectStore)
    return store


@dataclass
class Wire:
    """Passes bytes between clients and the server; counts requests and breaks answers on demand."""

    url: str = ""
    requests: list[str] = field(default_factory=list[str])
    #: Bytes of a request or an answer to let through before the connection is cut, and how many times to do so.
    cut_at: int = 0
    cuts_left: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pump(self, source: socket.socket, target: socket.socket, *, is_request: bool) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(65536):
                for method in re.findall(rb"(?m)^(GET|HEAD|PUT|POST|DELETE) /", data) if is_request else ():
                    self.requests.append(method.decode())
                passed += len(data)
                if passed > self.cut_at and self._may_cut():
                    target.sendall(data[: len(data) - (passed - self.cut_at)])
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _may_cut(self) -> bool:
        with self._lock:
            self.cuts_left -= 1
            return self.cuts_left >= 0


@contextmanager
def wire() -> Iterator[Wire]:
    """Stand between a client and the server."""
    made = Wire()
    target = httpx.URL(server_url())
    threads: list[threading.Thread] = []
    ends: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection((target.host, target.port or 0))
                ends.extend((client, server))
                for pair, is_request in (((client, server), True), ((server, client), False)):
                    threads.append(threading.Thread(target=made.pump, args=pair, kwargs={"is_request": is_request}))
                    threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        made.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield made
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            accepting.join(5)
            for end in ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(5)
            for end in ends:
                end.close()
