"""``carbonq audit``: the audit file of a customer's month, which the standalone checker verifies by itself."""

from __future__ import annotations

from typing import Annotated

import typer

from carbonq.cli import connect


@connect.remote
def audit(
    *,
    month: Annotated[str, typer.Option(help="The month, by window, like 2026-11.")],
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Whose; over HTTP it is the tenant of your key.")
    ] = None,
    key_id: Annotated[str | None, typer.Option("--key", help="Only what ran under this API key; its id.")] = None,
    head: Annotated[str | None, typer.Option(help="Prove it up to this seal's hash; else up to the newest.")] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", help="The file to write, .json or .json.gz; - is JSON on stdout.")
    ] = "-",
) -> None:
    """Write a customer's month as one JSON file: entries, sums, seals and proofs.

    `python -m carbonq.verify --audit FILE` checks it without a database or this program: each figure, the sums, and
    that what is sealed leads to the head.

    Example: carbonq audit --tenant acme --month 2026-11 -o nov.json.gz && python -m carbonq.verify --audit nov.json.gz
    """
    from carbonq.cli import results
    from carbonq.services import audit as auditing
    from carbonq.services import export

    if connect.is_elsewhere():
        if tenant is not None:
            raise typer.BadParameter("--tenant goes with a database; over HTTP it is the tenant of your key")
        if output != "-":
            results.check_writable(output)
        with connect.open_client() as client:
            pieces = client.audit(month, api_key_id=key_id, head=head)
            results.write(export.gzipped(pieces) if output.endswith(".gz") else pieces, output)
        return
    if tenant is None:
        raise typer.BadParameter("--tenant is missing; `carbonq tenants list` shows them")
    with connect.open_database() as (_, database):
        pieces = auditing.stream(database, tenant, month, api_key_id=key_id, head=head)
        results.write(export.gzipped(pieces) if output.endswith(".gz") else pieces, output)
