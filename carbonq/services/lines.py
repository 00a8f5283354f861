"""The input lines of a chunk's items, read from the blobs of their jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from carbonq.blobs import BlobStore, Ranges
from carbonq.engines.protocol import EngineRequest
from carbonq.model import Item
from carbonq.store.results import JobInfo

#: Inputs held open at once: a chunk may hold thousands of jobs of one item, and a process has some 1,000 files.
MAX_INPUTS = 128


class Lines:
    """The input lines of a chunk's items, made ready a blob at a time, few at once; small jobs share one."""

    def __init__(
        self,
        blobs: BlobStore,
        items: Sequence[Item],
        infos: Mapping[str, JobInfo],
        *,
        body_of: Callable[[dict[str, Any]], dict[str, Any]] = lambda body: body,
    ) -> None:
        """Prepare for the items of the jobs that ``infos`` has by id; nothing is opened yet.

        ``body_of`` makes of a line's body what the engine is asked.
        """
        self._blobs = blobs
        self._infos = infos
        self._body_of = body_of
        self._ranges: dict[str, Ranges] = {}
        self._spans: dict[str, list[tuple[int, int]]] = {}
        for item in items:
            blob = self._infos[item.job_id].input_blob
            self._spans.setdefault(blob, []).append((item.line_offset, item.line_bytes))

    def requests(self, batch: Sequence[Item]) -> list[EngineRequest]:
        """Parse the bodies of items; each was checked when it was submitted."""
        return [EngineRequest(item.custom_id, self._body_of(self._line(item)["body"])) for item in batch]

    def _line(self, item: Item) -> dict[str, Any]:
        return orjson.loads(self._input(item.job_id).read(item.line_offset, item.line_bytes))

    def _input(self, job_id: str) -> Ranges:
        blob = self._infos[job_id].input_blob
        found = self._ranges.get(blob)
        if found is None:
            if len(self._ranges) >= MAX_INPUTS:
                self._ranges.pop(next(iter(self._ranges))).close()
            found = self._ranges[blob] = self._blobs.ranges(blob, self._spans[blob])
        return found

    def close(self) -> None:
        """Let the files go."""
        for found in self._ranges.values():
            found.close()
