"""What every submit asks of the database is asked now and then; room is granted for many small jobs at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from carbonq.model import Region
from carbonq.plan import room
from carbonq.services.accepted import GRANTED, Asked, Fleet, Picture
from carbonq.services.standing import STALE_S, Standing
from carbonq.store.database import Database
from tests.services.jobs import MODELS, REGIONS, World, lines
from tests.store.rows import T0

#: One slot that does 1,000 tokens a second.
ONE_SLOT: Sequence[Region] = REGIONS[1:]


@pytest.fixture
def world(sqlite_database: Database, tmp_path: Path) -> World:
    return World(sqlite_database, tmp_path, regions=ONE_SLOT)


def asked(tokens: int, hours: float = 1.0) -> Asked:
    return Asked(MODELS["words"], None, tokens, min(tokens / 1000, 100.0), T0 + timedelta(hours=hours))


def picture(world: World, **options: int) -> Picture:
    with world.db.read() as tx:
        return Picture(tx, Fleet(ONE_SLOT, MODELS, {}, now=T0, factor=1.0), **options)


@pytest.mark.parametrize("tokens", [10_000, 40_000, 900_000])
def test_grants_say_what_asking_for_each_would_say(world: World, tokens: int) -> None:
    by_grants, one_by_one = picture(world), picture(world, granted=1)
    count = 4_000_000 // tokens + 3  # an hour is room for 3,600,000 tokens, less what is kept free
    said = [by_grants.shortage(asked(tokens)) for _ in range(count)]
    assert said == [one_by_one.shortage(asked(tokens)) for _ in range(count)]
    assert said[0] is None and "cannot be in time" in (said[-1] or "")


def test_many_small_jobs_ask_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    flows: list[int] = []
    solve = room.in_time_s
    monkeypatch.setattr(room, "in_time_s", lambda *given: flows.append(1) or solve(*given))
    one = picture(world)
    assert [one.shortage(asked(10)) for _ in range(GRANTED)] == [None] * GRANTED
    assert len(flows) == 2


def test_another_process_is_seen_within_the_stated_time(world: World) -> None:
    now_s = 0.0
    standing = Standing(world.db, world.clock, MODELS, lambda: now_s)

    def fits() -> bool:
        return standing.shortage(ONE_SLOT, asked(300_000, hours=0.25), T0) is None

    assert fits()
    for _ in range(2):
        world.submit(lines(3_000, "x" * 400), deadline_at=T0 + timedelta(minutes=15))  # 100 tokens each
    assert fits()  # the picture is older than the other process's job
    now_s = STALE_S
    assert not fits()


def test_what_this_process_accepts_is_seen_at_once(world: World) -> None:
    standing = Standing(world.db, world.clock, MODELS, lambda: 0.0)
    assert standing.shortage(ONE_SLOT, asked(3_000_000), T0) is None
    assert standing.shortage(ONE_SLOT, asked(3_000_000), T0) is not None
