"""One account for all zones: tokens bought once, renewed in time, and no hammering with a wrong password."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from carbonq.errors import SignalUnavailable
from carbonq.grid.account import Account
from carbonq.grid.http import Refused
from tests.grid.provider import Answer, Provider, Seen, json_answer, make_http


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def account(provider: Provider, time: Time, password: str = "s3cret-w0rd") -> Account:
    http = make_http(provider, named="gridco")
    return Account(http, username="ada", password=password, setting="accounts.gridco", monotonic=time)


@pytest.fixture
def rates(provider: Provider) -> Provider:
    provider.needs_token()
    provider.on("/rates", json_answer({"fine": True}))
    return provider


def test_a_token_is_bought_once_and_renewed_before_it_ends(rates: Provider, time: Time) -> None:
    mine = account(rates, time)
    for passed_s, logins in ((0, 1), (26 * 60, 1), (119, 1), (1, 2), (27 * 60, 2), (60, 3)):
        time.now += passed_s
        assert mine.json("/rates") == {"fine": True}
        assert rates.logins == logins, passed_s


def test_an_expired_token_is_replaced_once(rates: Provider, time: Time) -> None:
    mine = account(rates, time)
    mine.json("/rates")
    time.now += 61
    rates.expire_tokens()
    assert mine.json("/rates") == {"fine": True}
    assert rates.logins == 2
    assert [one.path for one in rates.requests] == ["/login", "/rates", "/rates", "/login", "/rates"]


def test_a_fresh_token_that_is_refused_is_not_bought_again(rates: Provider, time: Time) -> None:
    mine = account(rates, time)
    rates.on("/rates", json_answer({"error": "no access to this endpoint"}, 401))
    for _ in range(3):
        with pytest.raises(Refused, match="401 Unauthorized: no access to this endpoint"):
            mine.json("/rates")
    assert rates.logins == 1
    time.now += 61
    with pytest.raises(Refused, match="no access"):
        mine.json("/rates")
    assert rates.logins == 2


def test_threads_that_need_a_token_wait_for_one_login(rates: Provider, time: Time) -> None:
    mine = account(rates, time)
    gate = threading.Event()

    def slow_login(seen: Seen) -> Answer:
        gate.wait(5)
        return rates._login(seen)

    rates.on("/login", slow_login)
    with ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(mine.json, "/rates") for _ in range(8)]
        gate.set()
        assert [call.result(10) for call in calls] == [{"fine": True}] * 8
        assert rates.logins == 1
        rates.expire_tokens()
        time.now += 61
        calls = [threads.submit(mine.json, "/rates") for _ in range(8)]
        assert [call.result(10) for call in calls] == [{"fine": True}] * 8
    assert rates.logins == 2


def test_a_late_refusal_of_an_old_token_buys_no_new_one(rates: Provider, time: Time) -> None:
    mine = account(rates, time)

    def late(seen: Seen) -> Answer:
        """Refuse a token only after another call has bought the next one, long ago."""
        if rates.logins == 1:
            rates.expire_tokens()
            time.now += 61
            mine.json("/rates")
            time.now += 61
            return json_answer({"error": "expired"}, 401)
        return json_answer({"fine": True})

    rates.on("/late", late)
    assert mine.json("/late") == {"fine": True}
    assert rates.logins == 2


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_password_is_tried_less_and_less_often(provider: Provider, time: Time, status: int) -> None:
    provider.on("/login", json_answer({"error": "no such user or password wr0ng-w0rd"}, status))
    mine = account(provider, time, password="wr0ng-w0rd")
    for asked, minutes in enumerate((15, 30, 60, 120, 240, 240), start=1):
        with pytest.raises(Refused) as caught:
            mine.json("/rates")
        assert caught.value.message == (
            f"gridco refused the user name or password with {status} (no such user or password ***); set "
            f"accounts.gridco.username and .password. Asked again in {minutes} min"
        )
        for _ in range(3):
            time.now += minutes * 60 / 4
            with pytest.raises(Refused, match="Asked again in"):
                mine.json("/rates")
        assert len(provider.requests) == asked
        time.now += minutes * 60 / 4
    provider.on("/login", json_answer({"token": "now-it-works"}))
    provider.on("/rates", json_answer(1))
    assert mine.json("/rates") == 1


def test_a_login_that_fails_otherwise_is_tried_again(provider: Provider, time: Time) -> None:
    provider.on("/login", *[Answer(503)] * 4, json_answer({"token": "abc"}))
    provider.on("/rates", json_answer(1))
    mine = account(provider, time)
    with pytest.raises(SignalUnavailable, match="/login answered 503"):
        mine.json("/rates")
    assert mine.json("/rates") == 1


@pytest.mark.parametrize("body", [{}, {"token": ""}, {"token": 5}, {"token": "a\nb"}, [], {"token": "né"}])
def test_a_login_without_a_token_is_none(provider: Provider, time: Time, body: object) -> None:
    provider.on("/login", json_answer(body))
    with pytest.raises(SignalUnavailable, match="gridco: /login answered without a token"):
        account(provider, time).json("/rates")
