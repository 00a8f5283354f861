"""A page elsewhere that points a name at this machine gets nothing from a loopback address."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

from carbonq.api.hosts import host_of
from tests.api.harness import Harness, serving


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("127.0.0.1:8750", "127.0.0.1"),
        ("localhost", "localhost"),
        ("LOCALHOST.:80", "localhost"),
        ("[::1]:8750", "[::1]"),
        ("[::1]", "[::1]"),
        ("evil.example:8750", "evil.example"),
        ("127.0.0.1.evil.example", "127.0.0.1.evil.example"),
        ("", ""),
    ],
)
def test_the_name_in_a_host_header(header: str, name: str) -> None:
    assert host_of(header) == name


def test_a_loopback_address_answers_to_its_own_names_only(harness: Harness) -> None:
    with serving(replace(harness.api, allowed_hosts=("carbon.internal",))) as url:
        port = url.rpartition(":")[2]
        for name in (f"127.0.0.1:{port}", "localhost", f"[::1]:{port}", "carbon.internal", "127.9.9.9"):
            assert httpx.get(f"{url}/healthz", headers={"Host": name}).status_code == 200, name
        for name in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "0.0.0.0", "10.0.0.1", ""):
            for path in ("/healthz", "/v1/jobs", "/metrics"):
                refused = httpx.get(url + path, headers=harness.headers() | {"Host": name})
                assert refused.status_code == 421, name
                assert refused.json()["error"]["code"] == "host_not_allowed"
                assert refused.headers["x-request-id"].startswith("req_")


def test_an_open_address_answers_to_any_name(url: str) -> None:
    assert httpx.get(f"{url}/healthz", headers={"Host": "queue.example"}).status_code == 200
