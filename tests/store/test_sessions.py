"""Sessions and one-time links on both databases."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from carbonq.store import sessions
from carbonq.store.database import Database
from carbonq.store.tables import sessions as table


def test_a_session_is_found_until_it_ends(database: Database) -> None:
    with database.write() as tx:
        first, second = sessions.begin(tx, "k1"), sessions.begin(tx, "k2")
    with database.write() as tx:
        assert (sessions.key_of(tx, first), sessions.key_of(tx, second)) == ("k1", "k2")
        assert sessions.key_of(tx, first + "x") is None
        assert first not in tx.execute(select(table.c.token_hash)).scalars().all()
        sessions.end(tx, first)
        assert (sessions.key_of(tx, first), sessions.key_of(tx, second)) == (None, "k2")


def test_a_link_is_good_once_and_is_no_session(database: Database) -> None:
    with database.write() as tx:
        link, session = sessions.make_link(tx, "k"), sessions.begin(tx, "k")
        assert sessions.key_of(tx, link) is None
        assert sessions.take_link(tx, session) is None
        assert sessions.take_link(tx, link) == "k"
        assert sessions.take_link(tx, link) is None


@pytest.mark.parametrize("is_link", [False, True])
def test_what_is_over_opens_nothing_and_goes_away(database: Database, is_link: bool) -> None:
    with database.write() as tx:
        token = sessions.make_link(tx, "k") if is_link else sessions.begin(tx, "k")
        ends_at = tx.execute(select(table.c.expires_at)).scalar_one()
        tx.execute(update(table).values(expires_at=ends_at - timedelta(days=1)))
        assert (sessions.take_link if is_link else sessions.key_of)(tx, token) is None
        sessions.begin(tx, "other")
        assert tx.execute(select(table.c.key_hash)).scalars().all() == ["other"]
