"""The sources' HTTP client against a real server that misbehaves."""

from __future__ import annotations

import base64
import gzip
import logging
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest

from carbonq import __version__
from carbonq.errors import SignalUnavailable
from carbonq.grid.http import Http, Refused, Timeouts
from tests.grid.provider import Answer, Provider, Seen, json_answer, make_http

OK = json_answer({"fine": True})


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_one_connection_serves_many_calls_and_says_who_calls(provider: Provider) -> None:
    provider.on("/rates", OK)
    http = make_http(provider)
    for _ in range(3):
        assert http.json("/rates", params={"zone": "DE"}) == {"fine": True}
    assert len({one.peer for one in provider.requests}) == 1
    assert {one.headers["User-Agent"] for one in provider.requests} == {f"carbonq/{__version__}"}
    assert provider.requests[0].params == {"zone": "DE"}


def test_connections_close_with_the_last_lease(provider: Provider) -> None:
    provider.on("/rates", OK)
    http = Http("gridco", provider.url)
    first, second = http.lease(), http.lease()
    http.json("/rates")
    first.close()
    first.close()
    http.json("/rates")
    second.close()
    third = http.lease()
    http.json("/rates")
    third.close()
    peers = [one.peer for one in provider.requests]
    assert peers[0] == peers[1] != peers[2]


def test_numbers_are_exact_and_parameters_join_those_of_the_path(provider: Provider) -> None:
    provider.on("/rates", Answer(body=b'{"value": 0.1000000000000000000000001, "whole": 3, "odd": NaN}'))
    found = make_http(provider).json("/rates?unit=g", params={"zone": "DE"})
    assert found["value"] == Decimal("0.1000000000000000000000001")
    assert isinstance(found["whole"], int)
    assert found["odd"].is_nan()
    assert provider.requests[0].params == {"unit": "g", "zone": "DE"}


def test_too_many_requests_waits_as_long_as_it_was_asked_to(provider: Provider) -> None:
    provider.on("/rates", json_answer({"error": "slow down"}, 429, Retry_After="1"), OK)
    started = time.monotonic()
    assert make_http(provider).json("/rates") == {"fine": True}
    assert 0.9 < time.monotonic() - started < 4
    assert len(provider.requests) == 2


def test_a_wait_beyond_the_budget_is_not_waited_and_nobody_asks_meanwhile(provider: Provider) -> None:
    provider.on("/rates", json_answer({"error": "slow down"}, 429, Retry_After="600"))
    http = make_http(provider)
    started = time.monotonic()
    with pytest.raises(Refused, match=r"gridco: .*/rates answered 429 Too Many Requests: slow down") as first:
        http.json("/rates")
    with pytest.raises(SignalUnavailable, match=r"asked not to be called for (599|600) s more") as second:
        http.json("/rates")
    assert time.monotonic() - started < 2
    assert len(provider.requests) == 1
    assert first.value.retry_after_s == 600
    assert 590 < second.value.retry_after_s <= 600


def test_an_absurd_wait_is_cut_to_an_hour(provider: Provider) -> None:
    provider.on("/rates", json_answer({}, 503, Retry_After="999999999"))
    with pytest.raises(Refused) as caught:
        make_http(provider).json("/rates")
    assert caught.value.retry_after_s == 3600


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_failures_of_the_server_are_tried_again(provider: Provider, status: int) -> None:
    provider.on("/rates", Answer(status), Answer(status), OK)
    assert make_http(provider).json("/rates") == {"fine": True}
    assert len(provider.requests) == 3


def test_tries_come_to_an_end(provider: Provider) -> None:
    provider.on("/rates", Answer(500))
    with pytest.raises(Refused, match="answered 500 Internal Server Error, without a word"):
        make_http(provider).json("/rates")
    assert len(provider.requests) == 4


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_asking_again_cannot_mend_is_asked_once(provider: Provider, status: int) -> None:
    provider.on("/rates", json_answer({"error": "no"}, status))
    with pytest.raises(Refused) as caught:
        make_http(provider).json("/rates")
    assert (caught.value.status, caught.value.said, caught.value.body) == (status, "no", {"error": "no"})
    assert len(provider.requests) == 1


def test_a_connection_cut_amid_the_body_is_tried_again(provider: Provider) -> None:
    cut = Answer(body=b'{"value": 123456}', cut_after=12)
    provider.on("/rates", cut, cut, OK)
    assert make_http(provider).json("/rates") == {"fine": True}
    provider.on("/rates", cut)
    with pytest.raises(SignalUnavailable, match=r"gridco: .*/rates gave no whole answer"):
        make_http(provider).json("/rates")


def test_an_answer_packed_wrongly_is_no_answer(provider: Provider) -> None:
    packed = gzip.compress(b'{"fine": true}' * 50)
    provider.on("/half", Answer(body=packed[:-12], headers={"Content-Encoding": "gzip"}))
    provider.on("/none", Answer(body=b"{}", headers={"Content-Encoding": "gzip"}))
    provider.on("/odd", Answer(body=b"{}", headers={"Content-Encoding": "zstd"}))
    http = make_http(provider)
    for path, words in (("/half", "ends too early"), ("/none", "gzip: "), ("/odd", "encoding zstd, which was not")):
        with pytest.raises(SignalUnavailable, match=words):
            http.json(path)


def test_a_silent_provider_is_left_after_a_bound(provider: Provider) -> None:
    provider.on("/rates", Answer(until=threading.Event()))
    started = time.monotonic()
    with pytest.raises(SignalUnavailable, match="was silent"):
        make_http(provider, timeouts=Timeouts(1.0, 0.15), budget_s=0.4).json("/rates")
    assert time.monotonic() - started < 1.5


@pytest.mark.parametrize("packed", [False, True])
def test_a_dripping_answer_is_left_after_a_bound(provider: Provider, packed: bool) -> None:
    body = gzip.compress(random.randbytes(1000)) if packed else b"1" * 1000
    provider.on("/rates", Answer(body=body, drip_s=0.05, headers={"Content-Encoding": "gzip"} if packed else {}))
    started = time.monotonic()
    with pytest.raises(SignalUnavailable, match=r"was still answering after 0\.4 s"):
        make_http(provider, budget_s=0.4).json("/rates")
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("packed", [False, True])
def test_a_huge_answer_is_not_read_to_its_end(provider: Provider, packed: bool) -> None:
    body = b"[" + b"1," * 500_000 + b"1]"
    answer = Answer(body=gzip.compress(body), headers={"Content-Encoding": "gzip"}) if packed else Answer(body=body)
    provider.on("/rates", answer)
    with pytest.raises(SignalUnavailable, match="answered more than 100,000 bytes"):
        make_http(provider, max_bytes=100_000).json("/rates")
    assert len(make_http(provider).json("/rates")) == 500_001


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": "Invalid auth-token"}, "Invalid auth-token"),
        ({"error": "forbidden", "message": "Invalid scope: v3/forecast"}, "forbidden; Invalid scope: v3/forecast"),
        ({"msg": "start is required"}, "start is required"),
        ({"error": {"code": "400 Bad Request", "message": "from is no time"}}, "from is no time; 400 Bad Request"),
        (
            {"detail": [{"loc": ["query", "region"], "msg": "field required", "type": "missing"}]},
            "query.region: field required",
        ),
        (
            {
                "title": "ArgumentException",
                "status": 400,
                "detail": "bad",
                "errors": {"location": ["must not be empty"]},
            },
            "ArgumentException; bad; location: must not be empty",
        ),
        (["first", "second"], "first; second"),
        ("plain words", "plain words"),
    ],
)
def test_the_providers_own_words_are_found(provider: Provider, body: object, words: str) -> None:
    provider.on("/rates", json_answer(body, 400))
    with pytest.raises(Refused) as caught:
        make_http(provider).json("/rates")
    assert caught.value.said == words
    assert caught.value.message.endswith(f"answered 400 Bad Request: {words}")


def test_pages_and_long_texts_are_one_short_line(provider: Provider) -> None:
    page = b"<!DOCTYPE html>\n<html><head><title>502\n Bad Gateway</title></head><body>nginx</body></html>"
    provider.on("/page", Answer(400, page, kind="text/html"))
    provider.on("/long", Answer(400, b"wo\x00rd\n" * 500, kind="text/plain"))
    provider.on("/fine", Answer(200, page, kind="text/html; charset=utf-8"))
    http = make_http(provider)
    with pytest.raises(Refused, match=r"an HTML page, '502 Bad Gateway'$"):
        http.json("/page")
    with pytest.raises(Refused) as caught:
        http.json("/long")
    assert len(caught.value.said) == 300
    assert caught.value.said.isprintable()
    with pytest.raises(SignalUnavailable, match=r"answered no JSON \(text/html\): Expecting value at line 1"):
        http.json("/fine")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the answer is empty"),
        (b'{"a": 1', "at line 1, column 8"),
        (b"[" * 200_000, "nested too deeply"),
        (b'"\xff"', "not UTF-8"),
    ],
)
def test_what_is_no_json_is_said_so(provider: Provider, body: bytes, words: str) -> None:
    provider.on("/rates", Answer(body=body))
    with pytest.raises(SignalUnavailable, match=f"answered no JSON .*{words}"):
        make_http(provider).json("/rates")


def test_secrets_are_in_no_message_and_no_log(provider: Provider, caplog: pytest.LogCaptureFixture) -> None:
    def echo(seen: Seen) -> Answer:
        kind, _, value = seen.headers.get("Authorization", "").partition(" ")
        value = base64.b64decode(value).decode() if kind == "Basic" else value
        return json_answer({"error": f"no such token: {value} {seen.headers.get('x-api')} {dict(seen.params)}"}, 401)

    provider.on("/rates", echo)
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="httpx")  # which our own processes quieten
    http = make_http(provider)
    secrets = ("tok-abcdef", "pass-phrase", "user-name", "key-123456", "custom-99")
    with pytest.raises(Refused) as bearer:
        http.json("/rates", headers={"Authorization": f"Bearer {secrets[0]}", "x-api": secrets[4]})
    with pytest.raises(Refused) as basic:
        http.json("/rates", basic=(secrets[2], secrets[1]))
    with pytest.raises(Refused) as query:
        http.json("/rates", params={"securityToken": secrets[3]}, secrets=("securityToken",))
    said = "\n".join([str(one.value) + one.value.said for one in (bearer, basic, query)])
    assert [one.value.said for one in (bearer, basic, query)] == [
        "no such token: *** *** {}",
        "no such token: ***:*** None {}",
        "no such token: None {'securityToken': '***'}",
    ]
    logged = "\n".join(f"{record.getMessage()} {record.args}" for record in caplog.records if record.name != "tests")
    assert "HTTP Request: GET" in logged
    for secret in secrets:
        assert secret not in said
        assert secret not in logged


def test_secrets_that_come_back_encoded_are_hidden_too(provider: Provider) -> None:
    provider.on("/rates", lambda seen: json_answer({"error": f"{seen.headers.get('Authorization')} {seen.path}"}, 401))
    login = base64.b64encode(b"ada:pass phrase").decode()
    with pytest.raises(Refused) as caught:
        make_http(provider).json("/rates", basic=("ada", "pass phrase"))
    assert login not in caught.value.said and "***" in caught.value.said
    address = provider.url.replace("http://", "http://ada:pass%20phrase@")
    lease = Http("gridco", address).lease()
    with pytest.raises(Refused) as caught:
        lease.http.json("/rates")
    lease.close()
    assert login not in caught.value.said and "***" in caught.value.said
    provider.on("/rates", json_answer({"error": "?token=key%2F12%2034 and key%2F12+34"}, 401))
    with pytest.raises(Refused) as caught:
        make_http(provider).json("/rates", params={"token": "key/12 34"}, secrets=("token",))
    assert caught.value.said == "?token=*** and ***"


@pytest.mark.parametrize("value", ["geheim\n", " geheim", "geheim\r\nX: y", "geheim-ü"])
def test_what_no_header_may_hold_is_not_sent_and_not_shown(provider: Provider, value: str) -> None:
    with pytest.raises(SignalUnavailable, match="the header X-Key holds a line break") as caught:
        make_http(provider).json("/rates", headers={"X-Key": value})
    assert "geheim" not in caught.value.message
    assert not provider.requests


def test_a_secret_that_holds_another_is_hidden_whole(provider: Provider) -> None:
    provider.on("/rates", json_answer({"error": "ada-lovelace-99 is wrong for ada-lovelace"}, 401))
    with pytest.raises(Refused) as caught:
        make_http(provider).json("/rates", basic=("ada-lovelace", "ada-lovelace-99"))
    assert caught.value.said == "*** is wrong for ***"


def test_a_redirect_is_refused_and_not_followed(provider: Provider) -> None:
    provider.on("/rates", Answer(302, headers={"Location": "https://elsewhere.test/rates?token=abc"}))
    with pytest.raises(Refused, match=r"answered 302 Found: a redirect to https://elsewhere\.test/rates, which is not"):
        make_http(provider).json("/rates", headers={"auth-token": "abcdefgh"})
    assert len(provider.requests) == 1


def test_a_dead_host_costs_one_calls_patience() -> None:
    http = make_http(f"http://127.0.0.1:{unused_port()}", rest_s=0.3)
    with pytest.raises(SignalUnavailable, match=r"could not be reached \(.*refused"):
        http.json("/rates")
    with pytest.raises(SignalUnavailable, match=r"could not be reached .*it is tried again in 0 s"):
        http.json("/rates")
    deadline = time.monotonic() + 5
    while True:  # after the rest it is really tried again
        with pytest.raises(SignalUnavailable) as caught:
            http.json("/rates")
        if "tried again" not in caught.value.message:
            break
        assert time.monotonic() < deadline


def test_no_more_calls_run_at_once_than_allowed(provider: Provider) -> None:
    gate = threading.Event()
    provider.on("/rates", Answer(200, b"{}", until=gate))
    http = make_http(provider, concurrency=2)
    with ThreadPoolExecutor(6) as threads:
        calls = [threads.submit(http.json, "/rates") for _ in range(6)]
        deadline = time.monotonic() + 5
        while provider.running < 2:
            assert time.monotonic() < deadline
        assert not any(call.done() for call in calls)
        gate.set()
        assert [call.result() for call in calls] == [{}] * 6
    assert provider.most_running == 2


def test_a_call_that_gets_no_turn_says_so(provider: Provider) -> None:
    http = make_http(provider, concurrency=1, budget_s=0.2)
    http._turns.acquire()  # what a call holds that never ends
    with pytest.raises(SignalUnavailable, match=r"got no turn in 0\.2 s; 1 calls run at once"):
        http.json("/rates")
    assert not provider.requests


def test_proxies_of_the_environment_are_used_but_not_for_this_machine(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.on("/rates", OK)
    monkeypatch.setenv("http_proxy", provider.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert make_http("http://grid.test").json("/rates") == {"fine": True}
    assert provider.requests[0].target == "http://grid.test/rates"
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{unused_port()}")
    assert make_http(provider).json("/rates") == {"fine": True}
    assert provider.requests[1].target == "/rates"


def test_text_is_read_as_it_is(provider: Provider) -> None:
    provider.on("/xml", Answer(body="<a>é</a>".encode(), kind="text/xml"))
    provider.on("/bad", Answer(body=b"\xff\xfe", kind="text/xml"))
    assert make_http(provider).text("/xml") == "<a>é</a>"
    with pytest.raises(SignalUnavailable, match="no UTF-8 text"):
        make_http(provider).text("/bad")
