"""Who gives a command, for the log of admin actions."""

from __future__ import annotations

import getpass
import socket

#: Longest name that is kept, in characters.
_MAX_CHARS = 255


def login() -> str | None:
    """Return the login name; None where there is none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        return None


def actor() -> str:
    """Return ``user@host`` of this process."""
    text = f"{login() or 'unknown'}@{socket.gethostname()}"
    return "".join(one if one.isprintable() else "?" for one in text)[:_MAX_CHARS]
