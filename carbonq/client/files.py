"""Files that appear whole or not at all, and whose unfinished part can be gone on with."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from carbonq.errors import InvalidRequest


@contextmanager
def written(path: Path, part_of: str | None = None) -> Generator[tuple[BinaryIO, int]]:
    """Open a file to write that is renamed to ``path`` when all went well; yields it and how much it has already.

    With ``part_of``, the name of what it is a copy of, an unfinished part stays and is gone on with the next time;
    without, it goes away. Raises InvalidRequest when the machine does not let it be written.
    """
    part = path.with_name(f"{path.name}.{part_of}.part" if part_of else f"{path.name}.part")
    try:
        with part.open("ab" if part_of else "wb") as file:
            yield file, file.tell()
        part.replace(path)
    except OSError as error:
        raise InvalidRequest(f"cannot write {path}: {error.strerror}") from error
    finally:
        if part_of is None or _is_empty(part):
            part.unlink(missing_ok=True)


def _is_empty(part: Path) -> bool:
    """Say whether there is nothing to go on with."""
    return part.exists() and part.stat().st_size == 0


def ledger_format(path: Path) -> str:
    """Return the format of a ledger export that a file's ending names; CSV where it does not say."""
    name = path.name.lower()
    return next((kind for kind in ("csv.gz", "parquet") if name.endswith(f".{kind}")), "csv")
