"""The audit file of a tenant's month: the standalone checker finds it whole, and nobody else's figures are in it."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from carbonq import verify
from carbonq.errors import InvalidRequest, NotFound
from carbonq.meters.protocol import MeteredPart
from carbonq.services import audit
from carbonq.services.seal import seal
from carbonq.services.summary import summarize
from carbonq.store import audits, figures, seals
from carbonq.store.database import Database
from tests.services.audited import MONTH, fill
from tests.services.booked import configure, store
from tests.unit.bookings import batch, book, item


def text(database: Database, tenant: str = "acme", **how: Any) -> str:
    return b"".join(audit.stream(database, tenant, MONTH, **how)).decode()


def check(given: str, **how: Any) -> verify.Audit:
    return verify.check_audit(io.StringIO(given), **how)


def test_the_checker_finds_it_whole(database: Database) -> None:
    fill(database)
    given = text(database)
    found = check(given)
    assert found.problems == []
    # Four items in two parts, three, one wasted and two that wait for their seal; the first part was settled.
    assert (found.entries, found.revisions, found.sealed) == (14, 18, 16)
    assert (found.seals, found.head_seal, found.partial_batches) == (3, 4, 2)
    with database.read() as tx:
        newest = seals.newest(tx)
    assert newest is not None
    assert found.head == newest[0].hashed().hex()
    assert check(given, head=found.head).problems == []


def test_nothing_of_another_tenant_is_in_it(database: Database) -> None:
    fill(database)
    for tenant, stranger in (("acme", "globex"), ("globex", "acme")):
        given = text(database, tenant)
        assert check(given).problems == []
        assert stranger not in given
        assert f"{tenant}-0" in given or f"{tenant}-1" in given


def test_sums_are_those_of_the_ledger(database: Database) -> None:
    fill(database)
    sums = json.loads(text(database))["sums"]
    with database.read() as tx:
        expected = figures.groups(tx, figures.Scope(tenant="acme"))
    names = ("clock", "kind", "quality", "method", "moer_status", "aer_status", "has_saving")
    own = {tuple(group[name] for name in names): group for group in sums["customer"]}
    assert len(own) == len(expected)
    for group in expected:
        mine = own[tuple(getattr(group, name) for name in names)]
        for name in ("entries", "items", "unmetered", "unrated", "unrated_aer", "no_embodied", "prompt_tokens"):
            assert mine[name] == getattr(group, name), name
        assert mine["energy_uj"] == group.energy_uj
        for name in ("emission_g", "inventory_g", "embodied_g", "baseline_g", "saved_g"):
            value = getattr(group, name)
            assert mine[name] == (None if value is None else format(value, "f")), name
    assert [one["api_key_id"] for one in sums["keys"]] == ["key_acme_0", "key_acme_1", None]
    document = summarize(database, figures.Scope(tenant="acme"))
    assert sum(group["energy_uj"] for group in sums["customer"] if group["kind"] == "item") == document["energy_uj"]


def test_of_one_key_only_its_entries_are_in_it(database: Database) -> None:
    fill(database)
    given = text(database, api_key_id="key_acme_1")
    found = check(given)
    assert found.problems == []
    assert (found.api_key_id, found.entries) == ("key_acme_1", 4)
    assert "key_acme_0" not in given


def test_up_to_a_head_that_was_filed_later_lines_are_not_proved(database: Database) -> None:
    fill(database)
    with database.read() as tx:
        filed = seals.get(tx, seal=1)
    assert filed is not None
    head = filed.hashed().hex()
    given = text(database, head=head)
    found = check(given, head=head)
    assert found.problems == []
    assert (found.head, found.seals, found.sealed, found.revisions) == (head, 1, 8, 18)
    newest = text(database)
    assert check(newest, head=head).problems == []  # seal 1 is in the file, and the newest head vouches for it
    (problem,) = check(newest, head="0" * 64).problems
    assert "no seal in it has the hash" in problem.what
    with pytest.raises(NotFound, match="no seal with the hash"):
        text(database, head="0" * 64)


def test_before_the_first_seal_it_is_recomputed_and_said_not_to_be_proved(database: Database) -> None:
    configure(database)
    store(database, book(batch([item(n) for n in range(3)])))
    found = check(text(database))
    assert found.problems == []
    assert (found.head, found.sealed, found.revisions) == (None, 0, 3)
    assert "3 not sealed" in found.summary()


def test_a_month_or_tenant_without_entries_is_not_found(database: Database) -> None:
    fill(database)
    with pytest.raises(NotFound, match="tenant 'nobody' has no ledger entries in 2026-03"):
        audit.stream(database, "nobody", MONTH)
    with pytest.raises(NotFound, match="in 2026-04"):
        audit.stream(database, "acme", "2026-04")
    with pytest.raises(NotFound, match="with key 'key_globex_1'"):
        audit.stream(database, "acme", MONTH, api_key_id="key_globex_1")
    with pytest.raises(InvalidRequest):
        audit.stream(database, "acme", "March")


def test_an_engine_batch_over_the_end_of_a_month_is_in_both(database: Database) -> None:
    configure(database)
    windows = [datetime(2026, 3, 31, 23, 55, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC)]
    parts = [MeteredPart(at, at, at + timedelta(seconds=60), 0.5, None, 1_000_003, None) for at in windows]
    store(database, book(batch([item(n) for n in range(3)], parts)))
    seal(database)
    for month in ("2026-03", "2026-04"):
        found = check(b"".join(audit.stream(database, "acme", month)).decode())
        assert found.problems == []
        assert found.entries == 3


def test_pages_are_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(database)
    whole = json.loads(text(database))
    monkeypatch.setattr(audits, "_ENTRIES", 1)
    given = text(database)
    small = json.loads(given)
    assert check(given).problems == []
    assert len(small["pages"]) > len(whole["pages"])
    assert small["sums"] == whole["sums"]


def test_an_engine_batch_over_the_end_of_an_hour_is_in_it_once(database: Database) -> None:
    configure(database)
    windows = [datetime(2026, 3, 2, 8, 55, tzinfo=UTC), datetime(2026, 3, 2, 9, tzinfo=UTC)]
    parts = [MeteredPart(at, at, at + timedelta(seconds=60), 0.5, None, 1_000_003, None) for at in windows]
    store(database, book(batch([item(n) for n in range(3)], parts)))
    seal(database)
    found = check(text(database))
    assert (found.problems, found.entries) == ([], 6)
