"""Wait for a job and hand its results over: what ``submit --wait`` and ``jobs watch|results`` share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from carbonq.cli.output import bar, say
from carbonq.errors import InvalidRequest
from carbonq.readable import energy, grams

if TYPE_CHECKING:
    from carbonq.client import Client

Json = dict[str, Any]


def wait(client: Client, job: Json) -> Json:
    """Wait until a job is final, with a bar if a person looks on; Ctrl-C leaves it running and says how to go on."""
    try:
        with bar(job["id"], total=job["progress"]["total"]) as advance:
            return client.wait(job["id"], on_progress=lambda seen: advance(seen.progress.ended)).raw
    except KeyboardInterrupt:
        say(f"{job['id']} goes on without this command; carbonq jobs watch {job['id']}")
        raise


def deliver(client: Client, job: Json, output: str | None) -> None:
    """Write the results of a final job, tell how it went, and exit with 1 if any item has none.

    ``output`` None writes nothing, ``-`` writes to stdout; a file appears whole or not at all. Failed items go to
    ``OUTPUT.errors.jsonl``.
    """
    if output is not None:
        # Files that were removed since are asked for too: the answer says so, where an empty file would not.
        is_there = job["has_results"] or job.get("files_removed_at") is not None
        if is_there:
            fetch(client, job["id"], output)
        else:
            write((), output)
        if job["has_errors"] and output != "-":
            fetch(client, job["id"], output + ".errors.jsonl", errors=True)
    for line in summary(job):
        say(line)
    progress = job["progress"]
    if progress["succeeded"] < progress["total"]:
        raise typer.Exit(1)


def fetch(client: Client, job_id: str, output: str, *, errors: bool = False) -> None:
    """Write a final job's output or error file; what of a file is there already is not fetched again."""
    if output == "-":
        write(client.result_lines(job_id, errors=errors), output)
        return
    check_writable(output)
    client.download(job_id, output, errors=errors)
    say(f"wrote {output}")


def write(lines: Iterable[bytes], output: str) -> None:
    """Stream lines into a file that appears whole or not at all, or to stdout for ``-``. Raises InvalidRequest."""
    if output == "-":
        for line in lines:
            sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        return
    path = Path(output)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.writelines(lines)
        part.replace(path)
    except OSError as error:
        raise InvalidRequest(f"cannot write {output}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    say(f"wrote {output}")


def check_writable(output: str) -> None:
    """Raise InvalidRequest when ``write`` could not make this file; nothing is made."""
    path = Path(output)
    if path.is_dir():
        raise InvalidRequest(f"cannot write {output}: it is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise InvalidRequest(f"cannot write {output}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InvalidRequest(f"cannot write {output}: the folder {path.parent} may not be written to")


def summary(job: Json) -> list[str]:
    """Say in a few lines how a job stands: items, time, energy and carbon."""
    progress = job["progress"]
    counts = ", ".join(
        f"{progress[name]:,} {name}"
        for name in ("succeeded", "failed", "expired", "cancelled")
        if progress[name] or name == "succeeded"
    )
    lines = [f"{job['id']}: {job['state']}, {counts} of {progress['total']:,} items"]
    if job["finished_at"]:
        how = "LATE, after" if job["is_late"] else "by"
        lines.append(f"finished {job['finished_at']}, {how} its deadline {job['deadline_at']}")
    if job["error"]:
        lines.append(f"error: {job['error']}")
    carbon = job.get("carbon") or {}
    if carbon.get("energy_uj"):
        lines.append(carbon_line(carbon))
    return lines


def carbon_line(carbon: Json) -> str:
    """Say a job's energy, emission and saving, and its inventory where there is one: the two books stay apart."""
    line = (
        f"energy {energy(carbon['energy_uj'])}, emission {grams(carbon.get('emission_g'))}, "
        f"saved {grams(carbon.get('saved_g'))} against running at once at home "
        f"({grams(carbon.get('baseline_g'))} at the same energy)"
    )
    inventory = carbon.get("inventory_g")
    return line if inventory is None else f"{line}; inventory {grams(inventory)} by average rates"
