"""A relay before a server that cuts connections off, as bad networks do."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

#: SO_LINGER of zero seconds: closing resets the connection instead of ending it in order.
_RESET = struct.pack("ii", 1, 0)


@contextlib.contextmanager
def cutting(url: str, limits: list[tuple[int | None, int | None]]) -> Iterator[str]:
    """Pass bytes on to ``url``; each connection takes the next of ``limits``, bytes up and down after which it breaks.

    None: it never does, as all connections behind the last limit.
    """
    target = urlsplit(url)
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection((target.hostname or "", target.port or 0))
            up, down = limits.pop(0) if limits else (None, None)
            for source, sink, limit in ((near, far, up), (far, near, down)):
                threading.Thread(target=_pass_on, args=(source, sink, limit), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def _pass_on(source: socket.socket, sink: socket.socket, limit: int | None) -> None:
    passed = 0
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            if limit is not None and passed + len(data) > limit:
                sink.sendall(data[: limit - passed])
                for one in (source, sink):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                break
            sink.sendall(data)
            passed += len(data)
    for one in (source, sink):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
