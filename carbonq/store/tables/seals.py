"""Tables of seals over the ledger; triggers refuse UPDATE and DELETE on ``seals`` and ``seal_parts``."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, Table, Text

from carbonq.store.dialect import BigKey, Json, UtcDateTime
from carbonq.store.tables.metadata import metadata

seals = Table(
    "seals",
    metadata,
    Column("seal", Integer, primary_key=True, autoincrement=False),  # 1, 2, ... without gaps
    Column("sealed_at", UtcDateTime, nullable=False),
    Column("software_version", Text, nullable=False),
    Column("leaves", BigInteger, nullable=False),
    Column("entries", BigInteger, nullable=False),  # entry revisions among the leaves
    Column("root", Text, nullable=False),
    Column("previous", Text, nullable=False),  # hash of the seal before
    Column("history", Text, nullable=False),  # root of the tree over the hashes of all earlier seals
    Column("hash", Text, nullable=False, unique=True),  # of the columns above
    Column("peaks", Json, nullable=False),  # that tree with this seal in it, so that the next one can go on from it
)

seal_parts = Table(  # the leaves of a seal: for each part of an engine batch its own row's, then its entries'
    "seal_parts",
    metadata,
    Column("seal", Integer, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),  # 0, 1, ...: the order of the leaves
    Column("engine_batch_id", Text, nullable=False),
    Column("part", Integer, nullable=False),
    Column("lines", Text, nullable=False),  # which entries, e.g. "1:0-63": revision 1 of positions 0 to 63
    Column("hashes", LargeBinary, nullable=False),  # 32 bytes a leaf
    Index("ix_seal_parts_engine_batch_id", "engine_batch_id", "part"),
)

unsealed = Table(  # entries that wait for a seal; a trigger on entries writes here, rows go when they are sealed
    "unsealed",
    metadata,
    Column("unsealed_id", BigKey, primary_key=True),
    Column("engine_batch_id", Text, nullable=False),
    Column("part", Integer, nullable=False),
    Column("revision", Integer, nullable=False),
    Index("ix_unsealed_engine_batch_id", "engine_batch_id"),
)
