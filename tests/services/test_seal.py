"""Sealing: everything once and in order, late transactions too, whatever is cut off or runs twice; and its proofs."""

from __future__ import annotations

import copy
import json
import re
import threading
from typing import Any

import pytest
from sqlalchemy import func, select

from carbonq import verify
from carbonq.errors import NotFound
from carbonq.services import seal as sealing
from carbonq.services.proof import prove
from carbonq.services.seal import seal
from carbonq.services.seal_check import Seen, check
from carbonq.store import leaves, ledger, seals
from carbonq.store.database import Database
from carbonq.store.tables import entries, unsealed
from tests.services.booked import configure, store
from tests.services.sealed import bookings, fill, findings, place
from tests.unit.bookings import batch, book, item


def count(database: Database, table: Any) -> int:
    with database.read() as tx:
        return tx.execute(select(func.count()).select_from(table)).scalar_one()


def seen(database: Database) -> Seen:
    found = Seen()
    assert list(check(database, found)) == []
    return found


def test_every_entry_is_sealed_once_and_a_second_run_does_nothing(database: Database) -> None:
    fill(database)
    assert (seen(database).sealed, count(database, unsealed)) == (count(database, entries), 0)
    assert seal(database) == []
    assert seen(database).seals == 3
    store(database, *bookings()[1:])
    assert (seen(database).unsealed, seen(database).seals) == (2, 3)
    store(database, book())
    (made,) = seal(database)
    assert (made.seal, made.entries, made.leaves) == (4, 7, 10)
    assert seen(database).head == made.hashed().hex()


def test_large_work_is_cut_into_seals_of_whole_engine_batches(database: Database) -> None:
    store(database, *(book(batch([item(n) for n in range(4)])) for _ in range(5)))
    made = seal(database, entries_at_once=9)
    assert [one.entries for one in made] == [8, 8, 4]
    assert [one.seal for one in made] == [1, 2, 3]
    assert seen(database).sealed == 20


def test_an_entry_whose_transaction_ends_late_is_sealed_when_it_is_there(postgresql: Database) -> None:
    """Its part waits already, so a work list by part alone would lose it when the first revisions are sealed."""
    booked = book()
    store(postgresql, booked)
    late = booked.entries[0] | {"revision": 2, "supersedes": f"{booked.entries[0]['entry_id']}#1", "reason": "settled"}
    also_late = book()
    other = Database(postgresql.url)
    with other.write() as tx:
        ledger.append_revisions(tx, [], [late])
        ledger.insert_booking(tx, also_late)
        assert [one.entries for one in seal(postgresql)] == [5]
    assert (seen(postgresql).sealed, seen(postgresql).unsealed) == (5, 6)
    assert [one.entries for one in seal(postgresql)] == [6]
    assert seen(postgresql).sealed == 11
    other.dispose()


def test_a_seal_that_is_cut_off_leaves_nothing_and_is_made_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(database, book(), book())

    def die(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(seals, "forget_waiting", die)  # the last thing that is done
        with pytest.raises(KeyboardInterrupt):
            seal(database)
    assert (seen(database).seals, seen(database).unsealed) == (0, 10)
    assert [one.entries for one in seal(database)] == [10]
    assert seen(database).sealed == 10


def test_two_that_seal_at_once_seal_everything_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both read the same before either writes; the one that comes second finds its draft outdated."""
    store(database, *(book() for _ in range(6)))
    both = threading.Barrier(2)
    first = threading.local()
    draft = sealing._draft

    def draft_together(*arguments: Any) -> Any:
        made = draft(*arguments)
        if not hasattr(first, "is_done"):
            first.is_done = True
            both.wait(timeout=30)
        return made

    monkeypatch.setattr(sealing, "_draft", draft_together)
    made: list[Any] = []
    threads = [threading.Thread(target=lambda: made.extend(seal(database, entries_at_once=10))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(one.seal for one in made) == [1, 2, 3]
    assert sum(one.entries for one in made) == 30
    assert seen(database).sealed == 30


def test_a_replayed_booking_waits_for_no_second_seal(database: Database) -> None:
    booked = book()
    for _ in range(2):
        store(database, booked)
        seal(database)
    assert (seen(database).seals, count(database, unsealed)) == (1, 0)


def test_revisions_of_a_part_that_come_one_by_one_are_sealed_once_each(database: Database) -> None:
    booked = book()
    store(database, booked)
    seal(database)
    for number in range(3):
        entry_id = booked.entries[number]["entry_id"]
        later = {"revision": 2, "supersedes": f"{entry_id}#1", "reason": "settled"}
        with database.write() as tx:
            ledger.append_revisions(tx, [], [booked.entries[number] | later])
        assert [one.entries for one in seal(database)] == [1]
    assert (seen(database).sealed, seen(database).seals) == (8, 4)


def test_both_databases_hash_the_same(sqlite_database: Database, postgresql: Database) -> None:
    """But for the time at which the database itself says that it recorded them."""
    booked, found = bookings(), []
    for database in (sqlite_database, postgresql):
        place(database)
        store(database, *booked)
        ids = sorted({row["engine_batch_id"] for one in booked for row in one.entries})
        with database.read() as tx:
            stored = leaves.stored(tx, ids, has_content=True)
        contents = [entry.content or "" for part in stored.values() for entry in part.entries]
        contents += [part.content or "" for part in stored.values()]
        found.append({re.sub(r'"recorded_at":"[0-9T:.Z-]{27}"', "", content) for content in contents})
    assert found[0] == found[1]
    assert len(found[0]) == sum(len(one.entries) + len(one.engine_batches) for one in booked)


def test_each_entry_is_proved_up_to_each_later_head(database: Database) -> None:
    fill(database)
    with database.read() as tx:
        keys = [(row.entry_id, row.revision) for row in tx.execute(select(entries))]
        heads = [one.hex() for one in seals.hashes(tx, below=99)]
    for entry_id, revision in keys:
        document = json.loads(json.dumps(prove(database, entry_id, revision=revision)))
        proof = verify.check_proof(document, heads[-1])
        assert (proof.problems, proof.entry_id, proof.revision) == ([], entry_id, revision)
        for head in heads[proof.seal - 1 :]:
            assert verify.check_proof(prove(database, entry_id, revision=revision, head=head), head).problems == []
        for head in heads[: proof.seal - 1]:
            with pytest.raises(NotFound, match="sealed later"):
                prove(database, entry_id, revision=revision, head=head)
    newest = prove(database, keys[0][0])
    assert verify.check_proof(newest).revision == max(revision for one, revision in keys if one == keys[0][0])


def test_a_proof_of_anything_else_is_refused(database: Database) -> None:
    fill(database)
    with database.read() as tx:
        placed = (entries.c.placement_id.is_not(None), entries.c.revision == 1)
        row = tx.execute(select(entries).where(*placed).order_by(entries.c.entry_id).limit(1)).one()
    good = prove(database, row.entry_id, revision=1)
    assert verify.check_proof(good).problems == []
    for change in (
        lambda one: one["entry"].update(content=one["entry"]["content"].replace('"tenant":"acme"', '"tenant":"acne"')),
        lambda one: one["engine_batch"].update(content=one["engine_batch"]["content"].replace("worker_1", "worker_2")),
        lambda one: one["entry"].update(index=one["entry"]["index"] + 1),
        lambda one: one["entry"]["path"].reverse(),
        lambda one: one["rates"][row.moer_rate_id].update(g_per_kwh="1"),
        lambda one: one["rates"][row.moer_rate_id].update(source="another"),  # no figure depends on it
        lambda one: one["rates"].pop(row.moer_rate_id),
        lambda one: one["facts"][row.baseline_fact_id].update(pue="1.0"),
        lambda one: one.update(placement=one["placement"].replace("plan_1", "plan_2")),
        lambda one: one.update(seal=one["seal"].replace('"entries":', '"entries":1')),
        lambda one: one.update(history=None),
        lambda one: one["history"].update(index=1),
        lambda one: one.update(head=one["head"].replace('"seal":3', '"seal":4')),
    ):
        document = copy.deepcopy(good)
        change(document)
        assert document != good
        assert verify.check_proof(document, good["head_hash"]).problems != []
    assert verify.check_proof(good, "0" * 64).problems != []
    for nonsense in ({}, [], good | {"carbonq_proof": 2}, good | {"entry": good["engine_batch"]}, good | {"head": "x"}):
        with pytest.raises(verify.NotAProof):
            verify.check_proof(nonsense)


def test_what_is_not_sealed_or_another_tenants_has_no_proof(database: Database) -> None:
    booked = book()
    store(database, booked)
    entry_id = booked.entries[0]["entry_id"]
    for arguments, why in (
        ({}, "not sealed yet"),
        ({"tenant": "other"}, "there is no ledger entry"),
        ({"revision": 7}, "with revision 7"),
    ):
        with pytest.raises(NotFound, match=why):
            prove(database, entry_id, **arguments)
    seal(database)
    with pytest.raises(NotFound, match="there is no seal"):
        prove(database, entry_id, head="0" * 64)
    assert verify.check_proof(prove(database, entry_id, tenant="acme")).problems == []
    assert findings(database) == []


def test_the_age_of_what_waits_and_of_the_newest_seal(database: Database) -> None:
    configure(database)

    def ages() -> seals.Ages:
        with database.read() as tx:
            return seals.ages(tx)

    assert ages() == (None, 0)
    store(database, book())
    assert ages().newest_s is None
    assert ages().waiting_s > 0
    seal(database)
    assert ages().waiting_s == 0
    assert 0 <= (ages().newest_s or 0) < 600
