"""Where a running stack is reached: a private file in its data folder, believed only while the stack holds its lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from carbonq.config import Settings
from carbonq.errors import ConfigError

LOOPBACK = "127.0.0.1"

_ADDRESS_FILE = "stack"
_LOCK_FILE = "lock"


@dataclass(frozen=True, slots=True)
class Address:
    """The URLs of a running stack; the broker's has its password in it."""

    api_url: str
    flower_url: str
    broker_url: str


def api_url(settings: Settings) -> str:
    """Return the URL at which this machine reaches the API of these settings."""
    return _url(settings.host, settings.port)


def flower_url(settings: Settings) -> str:
    """Return the URL at which this machine reaches Flower of these settings."""
    return _url(settings.flower_host, settings.flower_port)


def _url(host: str, port: int) -> str:
    if host in {"0.0.0.0", "::", ""}:
        host = LOOPBACK
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_folder(data_dir: Path) -> None:
    """Make the data folder, for this user alone, unless it is there. Raises ConfigError."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise _unwritable(data_dir, error) from error


def _unwritable(data_dir: Path, error: OSError) -> ConfigError:
    reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror
    return ConfigError(f"the data folder {data_dir} cannot be written: {reason}; set CARBONQ_DATA_DIR to another")


def lock(data_dir: Path) -> int:
    """Take the data folder for this process and return the lock's handle; close it to give the folder back.

    Raises ConfigError when another stack has it or the folder cannot be written.
    """
    make_folder(data_dir)
    try:
        handle = os.open(data_dir / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(data_dir, error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise ConfigError(
            f"another carbonq runs on {data_dir}; stop it, or give this one a folder of its own with CARBONQ_DATA_DIR"
        ) from error
    return handle


def write(data_dir: Path, address: Address) -> None:
    """Say where the stack is reached; the caller holds the lock."""
    text = "\n".join((address.api_url, address.flower_url, address.broker_url)) + "\n"
    write_private(data_dir / _ADDRESS_FILE, text)


def remove(data_dir: Path) -> None:
    """Take the address back."""
    with contextlib.suppress(FileNotFoundError):
        (data_dir / _ADDRESS_FILE).unlink()


def running(data_dir: Path) -> Address | None:
    """Return where the stack of a data folder is reached; None if none runs."""
    try:
        lines = (data_dir / _ADDRESS_FILE).read_text(encoding="utf-8").splitlines()
        handle = os.open(data_dir / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return Address(*lines[:3]) if len(lines) >= 3 else None
    finally:
        os.close(handle)
    return None  # nobody holds the lock: the file is what a killed stack left behind


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, whole or not at all."""
    part = path.with_name(path.name + ".part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    part.replace(path)
