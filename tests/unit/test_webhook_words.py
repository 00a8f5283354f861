"""What is said of an attempt that failed is true, and says what to do where that is known."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import httpx
import pytest

from carbonq.webhooks.schedule import Outcome
from carbonq.webhooks.sender import Sender


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (Outcome(307), "it answered 307, and redirects are not followed: give the address it leads to"),
        (Outcome(410), "it answered 410"),
        (Outcome(500), "it answered 500"),
        (Outcome(None, "not sent: no route"), "not sent: no route"),
    ],
)
def test_why(outcome: Outcome, why: str) -> None:
    assert outcome.why == why


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpx.RemoteProtocolError("illegal status line"), "its answer is no HTTP: illegal status line"),
        (httpx.ConnectError("refused"), "not sent: refused"),
        (httpx.ReadTimeout("late"), "no whole answer within"),
    ],
)
def test_what_was_sent_is_not_said_to_be_not(error: Exception, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = Sender(may_be_private=True)

    def broken(_request: httpx.Request) -> httpx.Response:
        raise error

    monkeypatch.setattr(sender._transport, "handle_request", broken)  # pyright: ignore[reportPrivateUsage]
    secret = "whsec_" + base64.b64encode(b"k" * 32).decode()
    outcome = sender.send("http://127.0.0.1:9/x", "evt_1", b"{}", [secret], datetime.now(UTC))
    assert outcome.status is None
    assert (outcome.error or "").startswith(words)
    sender.close()
