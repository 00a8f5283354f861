"""Hand out the ledger as CSV, gzipped CSV or Parquet, a page at a time; as it is now, or as it was at a time."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from datetime import timedelta
from enum import StrEnum

from carbonq import export
from carbonq.errors import InvalidRequest, NotFound
from carbonq.services import parquet
from carbonq.store import exports, regions
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from carbonq.store.exports import Selection
from carbonq.units import iso

#: A transaction that began before a time may still commit for so long after it, machine time: waits for locks and idle
#: transactions end sooner (``store/dialect.py``).
COMMIT_WITHIN = timedelta(minutes=2)


class Format(StrEnum):
    """How an export is written."""

    CSV = "csv"
    CSV_GZ = "csv.gz"
    PARQUET = "parquet"

    @classmethod
    def of(cls, name: str) -> Format:
        """Return what a file's name asks for; CSV where it does not say."""
        found = (one for one in (cls.CSV_GZ, cls.PARQUET) if name.lower().endswith(f".{one.value}"))
        return next(found, cls.CSV)

    @property
    def media_type(self) -> str:
        """Return the media type of the content."""
        return {
            Format.CSV: "text/csv; charset=utf-8; header=present",
            Format.CSV_GZ: "application/gzip",
            Format.PARQUET: "application/vnd.apache.parquet",
        }[self]


def check(db: Database, selection: Selection) -> None:
    """Raise InvalidRequest for a selection that can hold nothing: an empty file would look like no emissions.

    That is a time that the ledger cannot be told as of yet, an end before its start, an ``after`` that is no entry's
    id; a region that never was raises NotFound. Raises StoreUnavailable.
    """
    if selection.after is not None:
        try:
            exports.check_place(selection.after)
        except ValueError as error:
            raise InvalidRequest(f"after: {error}", param="after") from error
    if selection.start_at is not None and selection.end_at is not None and selection.start_at >= selection.end_at:
        raise InvalidRequest(f"to is {iso(selection.end_at)}, not after from, {iso(selection.start_at)}", param="to")
    with db.read() as tx:
        if selection.region is not None and regions.find(tx, selection.region) is None:
            raise NotFound(f"there is no region {selection.region!r}")
        latest = machine_now(tx) - COMMIT_WITHIN
    if selection.as_of is not None and selection.as_of > latest:
        raise InvalidRequest(
            f"the ledger as of {iso(selection.as_of)} may still change: give a time of at least "
            f"{COMMIT_WITHIN.seconds} s ago, so not after {iso(latest)}",
            param="as_of",
        )


def stream(
    db: Database, selection: Selection, format_: Format = Format.CSV, *, has_header: bool = True
) -> Iterator[bytes]:
    """Return the pieces of an export; the same selection of the same ledger gives the same bytes.

    Checks before the first piece: raises what ``check`` raises, InvalidRequest for a Parquet file without a header,
    and ConfigError where Parquet's library is missing.
    """
    check(db, selection)
    pages = exports.csv_pages(db, selection)
    if format_ is Format.PARQUET:
        if not has_header:
            raise InvalidRequest("a Parquet file always has its schema", param="header")
        return parquet.write(pages)
    written = export.write_csv(pages, has_header=has_header)
    return gzipped(written) if format_ is Format.CSV_GZ else written


def gzipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Return the pieces compressed; equal ones give equal bytes."""
    # The container without a name or time, so that equal ledgers give equal files.
    packer = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    for piece in pieces:
        if packed := packer.compress(piece):
            yield packed
    yield packer.flush()
