"""Where a job's input lies: in a blob of its own, or with its neighbours in the blob of their group.

A shared blob's key holds the first and the last job of the group. Identifiers sort by time, so that the jobs that may
name it are a short range of the primary key (``retention.free_inputs``).
"""

from __future__ import annotations

#: Folder of shared blobs.
_SHARED = "inputs"

#: Characters of a job's identifier that name the folder: one for some nine hours.
_FOLDER_CHARS = len("job_") + 5


def key_for(job_ids: list[str]) -> str:
    """Return the key of the input of some jobs, given in order."""
    first, last = job_ids[0], job_ids[-1]
    if len(job_ids) == 1:
        return f"jobs/{first}/input.jsonl"
    return f"{_SHARED}/{first[:_FOLDER_CHARS]}/{first}.{last}.jsonl"


def sharers(key: str) -> tuple[str, str] | None:
    """Return the first and the last job that may name a shared blob; None for a job's own."""
    folder, _, name = key.rpartition("/")
    first, _, rest = name.partition(".")
    return (first, rest.removesuffix(".jsonl")) if folder.startswith(f"{_SHARED}/") else None
