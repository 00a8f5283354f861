"""Loopback ports: check that one is free before a process is started on it, or take any free one."""

from __future__ import annotations

import errno
import socket

from carbonq.errors import ConfigError


def choose(host: str, port: int, *, what: str, setting: str) -> int:
    """Return ``port`` if it can be bound on ``host``, or a free one for 0.

    Raises ConfigError naming the port, what wanted it and the setting that moves it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: a port in TIME_WAIT is free, one that is listened on is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(_sentence(error, host, port, what, setting)) from error
        return int(probe.getsockname()[1])


def _sentence(error: OSError, host: str, port: int, what: str, setting: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is already in use, so {what} cannot start; stop what uses it or set {setting} "
            "to another port (0 takes any free one)"
        )
    if error.errno in {errno.EACCES, errno.EPERM}:
        return f"port {port} on {host} may not be opened by this user ({what}); set {setting} to one above 1023"
    return f"{what} cannot listen on {host} port {port}: {error.strerror or error}; check {setting} and CARBONQ_HOST"
