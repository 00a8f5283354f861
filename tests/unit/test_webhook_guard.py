"""Where webhooks may go: to public addresses, to the one that was checked, and nowhere else by any name for it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest

from carbonq.webhooks import schedule, sender
from carbonq.webhooks.guard import trouble
from carbonq.webhooks.schedule import DELAYS_S, Outcome
from carbonq.webhooks.sender import Sender

SECRET = "whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0"
NOW = datetime(2026, 11, 30, 6, tzinfo=UTC)

PUBLIC = ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1")
PRIVATE = (
    *("10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "127.0.0.1", "127.255.255.254", "::1", "fd00::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::127.0.0.1", "192.0.2.1"),
    *("fd00:ec2::254", "2001:db8::1", "64:ff9b:1::10.0.0.1"),
)
NEVER = (
    *("0.0.0.0", "169.254.169.254", "224.0.0.1", "255.255.255.255", "240.0.0.1", "::", "fe80::1", "fec0::1"),
    *("ff02::1", "::ffff:169.254.169.254", "64:ff9b::169.254.169.254", "2002:a9fe:a9fe::1"),
)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_pass(address: str) -> None:
    assert trouble(ip_address(address), may_be_private=False) is None


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_pass_where_that_is_set(address: str) -> None:
    assert trouble(ip_address(address), may_be_private=False) is not None
    assert trouble(ip_address(address), may_be_private=True) is None


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_never_pass(address: str) -> None:
    for may_be_private in (False, True):
        assert trouble(ip_address(address), may_be_private=may_be_private) is not None


@contextmanager
def receiver(*pieces: bytes, pause_s: float = 0.0) -> Iterator[tuple[int, list[bytes]]]:
    """Answers each connection's request with the pieces and ``pause_s`` between them; yields port and requests."""
    got: list[bytes] = []
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    request = b""
                    while not request.endswith(b"}"):
                        request += connection.recv(65_536)
                    got.append(request)
                    for piece in pieces:
                        try:
                            connection.sendall(piece)
                        except OSError:
                            break
                        is_over.wait(pause_s)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], got
        is_over.set()
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


def send(url: str, *, may_be_private: bool = True, timeout_s: float = 5.0, addresses: Sequence[str] = ()) -> Outcome:
    made = Sender(
        may_be_private=may_be_private,
        timeout_s=timeout_s,
        **({"resolver": lambda _host, _port: list(addresses)} if addresses else {}),  # type: ignore[arg-type]
    )
    try:
        return made.send(url, "evt_1", b'{"a":1}', [SECRET], NOW)
    finally:
        made.close()


def test_a_message_goes_to_the_address_that_was_checked() -> None:
    with receiver(OK) as (port, got):
        assert send(f"http://hooks.example:{port}/x?y=1", addresses=["127.0.0.1"]) == Outcome(200)
    head, _, body = got[0].partition(b"\r\n\r\n")
    lines = head.decode().lower().splitlines()
    assert lines[0] == "post /x?y=1 http/1.1"
    assert f"host: hooks.example:{port}" in lines
    assert {"webhook-id: evt_1", f"webhook-timestamp: {int(NOW.timestamp())}"} <= set(lines)
    assert body == b'{"a":1}'


@pytest.mark.parametrize(
    ("addresses", "may_be_private"),
    [(["127.0.0.1"], False), (["169.254.169.254"], True), (["10.0.0.1"], True)],
)
def test_a_name_is_refused_for_any_address_it_has(addresses: list[str], may_be_private: bool) -> None:
    with receiver(OK) as (port, got):
        outcome = send(f"http://hooks.example:{port}/", may_be_private=may_be_private, addresses=addresses)
    assert (outcome.status, got) == (None, [])
    assert "not sent: hooks.example is" in (outcome.error or "")


def test_one_private_address_among_public_ones_is_enough_to_refuse() -> None:
    outcome = send("https://hooks.example/", may_be_private=False, timeout_s=0.5, addresses=["8.8.8.8", "10.0.0.1"])
    assert outcome == Outcome(None, "not sent: hooks.example is 10.0.0.1: it is no public address")


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f000001", "017700000001", "localhost"])
def test_other_ways_to_write_loopback_are_loopback(host: str) -> None:
    with receiver(OK) as (port, got):
        assert send(f"http://{host}:{port}/", may_be_private=False).status is None
    assert got == []


def test_a_redirect_is_not_followed() -> None:
    with receiver(OK) as (other, got):
        answer = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{other}/\r\nContent-Length: 0\r\n\r\n"
        with receiver(answer.encode()) as (port, _):
            assert send(f"http://127.0.0.1:{port}/") == Outcome(302)
    assert got == []


def test_a_receiver_that_dribbles_is_given_up_in_time() -> None:
    began = time.monotonic()
    with receiver(b"HTTP/1.1 200 OK\r\n", *[b"X-A: b\r\n"] * 50, pause_s=0.1) as (port, _):
        outcome = send(f"http://127.0.0.1:{port}/", timeout_s=0.4)
    assert outcome == Outcome(None, "no whole answer within 0.4 s")
    assert time.monotonic() - began < 4


def test_a_long_answer_is_not_read_to_its_end() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n"
    with receiver(head + b"x" * 2 * sender.MAX_BODY_BYTES, pause_s=2.0) as (port, _):
        assert send(f"http://127.0.0.1:{port}/", timeout_s=1.5) == Outcome(200)


def test_nobody_there_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert "refused" in (send(f"http://127.0.0.1:{port}/").error or "")


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("7", 7.0), ("Mon, 30 Nov 2026 06:01:00 GMT", 60.0), ("soon", None), ("", None), ("-1", None), ("9" * 30, None)],
)
def test_retry_after_is_read(given: str, seconds: float | None) -> None:
    answer = f"HTTP/1.1 503 Busy\r\nRetry-After: {given}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with receiver(answer.encode()) as (port, _):
        assert send(f"http://127.0.0.1:{port}/") == Outcome(503, retry_after_s=seconds)


def test_retries_come_later_and_later_and_end() -> None:
    failed = Outcome(500)
    waits = [schedule.step(attempt, failed, jitter=0.5).again_s for attempt in range(1, len(DELAYS_S) + 1)]
    assert waits == [*DELAYS_S[1:], None]
    assert schedule.step(2, failed, jitter=0.0).again_s == 0.9 * 300
    assert 1.09 * 300 < (schedule.step(2, failed, jitter=0.999).again_s or 0) < 1.1 * 300


def test_who_is_busy_is_left_alone_as_long_as_it_says() -> None:
    assert schedule.step(1, Outcome(429, retry_after_s=100), jitter=0.5) == schedule.Step(100, 100)
    assert schedule.step(3, Outcome(502), jitter=0.5) == schedule.Step(1800, 30)
    assert schedule.step(1, Outcome(504, retry_after_s=10**8), jitter=0.5).pause_s == 86_400
    assert schedule.step(1, Outcome(None, "silent"), jitter=0.5) == schedule.Step(5, 5)
    assert not schedule.is_hopeless(NOW, NOW + timedelta(days=3, seconds=-1))
    assert schedule.is_hopeless(NOW, NOW + timedelta(days=3))
    assert not schedule.is_hopeless(None, NOW)
