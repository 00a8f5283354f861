"""``carbonq ledger seal``, ``proof`` and ``verify --db``: the chain of seals over the ledger."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from carbonq.cli import connect
from carbonq.cli.output import AsJson, emit_json, emit_pairs, say

if TYPE_CHECKING:
    from carbonq.store.database import Database


def seal(
    *,
    head: Annotated[bool, typer.Option("--head", help="Seal nothing; print the newest seal's hash alone.")] = False,
    as_json: AsJson = False,
) -> None:
    """Seal what is not sealed yet and print the newest seal; file its hash where no administrator reaches.

    Example: carbonq ledger seal --head >> heads.txt
    """
    from carbonq.services import seal as sealing
    from carbonq.store import seals

    with connect.open_database() as (_, database):
        made = [] if head else sealing.seal(database)
        with database.read() as tx:
            found = seals.newest(tx)
            ages = seals.ages(tx)
    if found is None:
        say("the ledger has no entries to seal yet")
        raise typer.Exit(1 if head else 0)
    newest = found[0]
    if as_json:
        emit_json(asdict(newest) | {"hash": newest.hashed().hex(), "made": len(made)} | ages._asdict())
    elif head:
        sys.stdout.write(newest.hashed().hex() + "\n")
    else:
        entries = sum(one.entries for one in made)
        say(f"{entries:,} entry revisions sealed" if made else "nothing waits for a seal")
        age = f"{ages.newest_s:,.0f} s"
        emit_pairs(
            [("seal", newest.seal), ("sealed_at", newest.sealed_at), ("age", age), ("hash", newest.hashed().hex())]
        )


def proof(
    entry_id: Annotated[str, typer.Argument(help="The entry to prove.")],
    *,
    revision: Annotated[int | None, typer.Option(min=1, help="This revision; else the newest.")] = None,
    head: Annotated[str | None, typer.Option(help="Prove it up to this seal's hash; else up to the newest.")] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="The file to write; - is stdout.")] = "-",
) -> None:
    """Write the proof that an entry stands under a seal; `python -m carbonq.verify --proof FILE` checks it.

    Example: carbonq ledger proof eb_01jd....1.0 -o proof.json && python -m carbonq.verify --proof proof.json
    """
    from carbonq.services.proof import prove

    with connect.open_database() as (_, database):
        document = prove(database, entry_id, revision=revision, head=head)
    if output == "-":
        emit_json(document)
        return
    Path(output).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    say(f"written to {output}")


def verify_database(head: str | None, *, as_json: bool) -> None:
    """Check the database against its seals, and where nothing is wrong recompute every line; exit 1 after naming."""
    from carbonq.services import seal_check

    seal_check.check_head(head)
    seen = seal_check.Seen()
    named: list[dict[str, str]] = []
    with connect.open_database() as (_, database):
        for finding in seal_check.check(database, seen, head=head):
            if as_json:
                named.append(asdict(finding))
            else:
                sys.stdout.write(finding.sentence() + "\n")
        lines = None if seen.findings else _recompute(database, named, as_json=as_json)
    is_right = not seen.findings and not named and (lines is None or lines["is_consistent"])
    if as_json:
        emit_json(asdict(seen) | {"is_consistent": is_right, "problems": named, "recomputed": lines})
    else:
        _say(seen, lines)
    if not is_right:
        raise typer.Exit(1)


def _say(seen: Any, lines: dict[str, Any] | None) -> None:
    say(
        f"{seen.sealed:,} entry revisions under {seen.seals:,} seals, {seen.unsealed:,} wait for one; "
        + ("all as they were sealed" if not seen.findings else f"{seen.findings:,} findings")
    )
    if lines is None:
        say("lines were not recomputed, because the ledger is not what was sealed")
    else:
        say(lines["summary"])
    if seen.filed is not None:
        say(f"the head that was filed is seal {seen.filed} of {seen.seals}")
    elif seen.head is not None:
        say(f"head: {seen.head}")


def _recompute(database: Database, named: list[dict[str, str]], *, as_json: bool) -> dict[str, Any]:
    """Recompute all lines, all revisions, as the checker of exports does."""
    from carbonq import export, verify
    from carbonq.store import exports

    selection = exports.Selection(all_revisions=True)
    report = verify.check_lines(_text(export.write_csv(exports.csv_pages(database, selection))))
    for problem in report.problems:
        if as_json:
            named.append({"table": "entries", "key": problem.entry_id, "what": problem.what})
        else:
            sys.stdout.write(f"entries {problem.entry_id}: {problem.what}\n")
    return {"lines": report.lines, "is_consistent": report.is_consistent, "summary": report.summary()}


def _text(pages: Iterator[bytes]) -> Iterator[str]:
    for page in pages:
        yield from io.StringIO(page.decode(), newline="")
