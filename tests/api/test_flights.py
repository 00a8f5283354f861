"""Many who look at the same thing share what one look finds, and never get what was seen before they asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from carbonq.api.flights import Flights, Sight, is_known
from carbonq.errors import NotFound


class Seen:
    """A thing that changes, and looks at it that last until they are let go."""

    def __init__(self) -> None:
        self.value = 0
        self.looks: list[str] = []
        self.may_end = threading.Semaphore(0)

    def look(self, key: str) -> int:
        found = self.value
        self.looks.append(key)
        assert self.may_end.acquire(timeout=30)
        if key == "gone":
            raise NotFound("there is nothing")
        return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


def test_those_who_come_meanwhile_share_the_next_look() -> None:
    seen = Seen()

    async def poll() -> list[int]:
        flights = Flights(seen.look)
        first = asyncio.create_task(flights.of("a"))
        await until(lambda: seen.looks == ["a"])
        seen.value = 1  # written before the others ask, and after the first look began
        late = [asyncio.create_task(flights.of("a")) for _ in range(5)]
        other = asyncio.create_task(flights.of("b"))
        await until(lambda: sorted(seen.looks) == ["a", "b"])
        late[0].cancel()
        seen.may_end.release(10)
        return [await first, *await asyncio.gather(*late[1:]), await other]

    assert asyncio.run(poll()) == [0, 1, 1, 1, 1, 1]
    assert sorted(seen.looks) == ["a", "a", "b"]


def test_an_error_is_told_to_all_who_share_it() -> None:
    seen = Seen()

    async def poll() -> list[BaseException | int]:
        flights = Flights(seen.look)
        asked = [asyncio.create_task(flights.of("gone")) for _ in range(3)]
        await until(lambda: seen.looks == ["gone"])
        asked[0].cancel()  # that the first one goes away is nothing to the others
        seen.may_end.release(10)
        return await asyncio.gather(*asked[1:], return_exceptions=True)

    assert [type(one) for one in asyncio.run(poll())] == [NotFound, NotFound]
    assert seen.looks == ["gone", "gone"]


@pytest.mark.parametrize(
    ("asked", "status"), [(None, 200), ('"other"', 200), ("MINE", 304), ('"other", W/MINE', 304), ("*", 304)]
)
def test_what_a_client_has_already_is_not_sent_again(asked: str | None, status: int) -> None:
    sight = Sight(b"{}", 3)
    answer = sight.answer({}, None if asked is None else asked.replace("MINE", sight.etag))
    assert (answer.status_code, answer.headers["etag"], answer.headers["retry-after"]) == (status, sight.etag, "3")
    assert answer.body == (b"{}" if status == 200 else b"")
    assert Sight(b"[]").etag != sight.etag
    assert not is_known(sight.etag, None)
