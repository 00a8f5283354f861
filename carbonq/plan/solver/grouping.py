"""Rows of columns that are alike: numbered, and paired between two tables. Pure."""

from __future__ import annotations

import numpy as np

from carbonq.plan.demand import IntArray


def rows_of(*columns: IntArray) -> tuple[IntArray, IntArray]:
    """Number the distinct rows of some columns; return each row's number and one row of each number."""
    if not len(columns[0]):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        low = int(column.min())
        width = int(column.max()) - low + 1
        if int(key.max()) >= 2**62 // width:
            key = np.unique(key, return_inverse=True)[1].astype(np.int64)
        key = key * width + (column - low)
    _, members, of = np.unique(key, return_index=True, return_inverse=True)
    return of.astype(np.int64), members.astype(np.int64)


def matches(mine: tuple[IntArray, ...], theirs: tuple[IntArray, ...]) -> tuple[IntArray, IntArray]:
    """Pair equal rows of two tables, each row at most once; return the positions in both."""
    size = len(mine[0])
    key, _ = rows_of(*(np.concatenate(pair) for pair in zip(mine, theirs, strict=True)))
    ranked: list[IntArray] = []
    for part in (key[:size], key[size:]):
        order = np.argsort(part, kind="stable")
        rank = np.empty(len(part), dtype=np.int64)
        rank[order] = np.arange(len(part)) - np.searchsorted(part[order], part[order])
        ranked.append(part * (len(key) + 1) + rank)
    _, here, there = np.intersect1d(*ranked, assume_unique=True, return_indices=True)
    return here, there
