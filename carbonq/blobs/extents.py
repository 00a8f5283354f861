"""Merge many small ranges into few long ones, so that reading them over a network takes few requests. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def merge(spans: Sequence[tuple[int, int]], *, gap: int) -> list[tuple[int, int]]:
    """Return the (start, stop) extents that cover all (offset, length) spans, in order.

    Spans at most ``gap`` bytes apart share an extent: those bytes cost less than one more request.
    """
    merged: list[tuple[int, int]] = []
    for offset, length in sorted(spans):
        stop = offset + length
        if merged and offset <= merged[-1][1] + gap:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((offset, stop))
    return merged


def cut(extents: Sequence[tuple[int, int]], *, most: int) -> Iterator[tuple[int, int]]:
    """Yield the same bytes in extents of at most ``most`` bytes: one request each."""
    for start, stop in extents:
        for at in range(start, stop, most):
            yield at, min(at + most, stop)
