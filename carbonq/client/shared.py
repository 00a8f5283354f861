"""What both clients are made of: where they talk to, with which key, and how a call becomes a request of httpx."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any, Literal, TypedDict

import httpx

from carbonq import __version__, tracing
from carbonq.client.answers import Answer
from carbonq.client.calls import Call
from carbonq.client.steps import Manner
from carbonq.errors import ConfigError

#: Where ``carbonq up`` listens unless told otherwise.
DEFAULT_URL = "http://127.0.0.1:8750"

_CONNECT_S = 5.0


class LedgerSelection(TypedDict, total=False):
    """Which ledger entries; what is left out restricts nothing. Times are ISO 8601 with a zone, or aware datetimes."""

    job_id: str | None
    region: str | None
    kind: str | None
    status: str | None
    start_at: Any
    end_at: Any
    as_of: Any
    revisions: Literal["current", "all"]
    after: str | None
    """Go on behind this line: ``ENTRY_ID``, with all revisions ``ENTRY_ID#REVISION``."""
    header: Literal["present", "absent"]


class Connection:
    """One server and one key, as checked values; nothing is sent yet."""

    def __init__(
        self,
        url: str | None,
        api_key: str | None,
        *,
        timeout_s: float,
        retries: int,
        awaits_start: bool,
        on_retry: Callable[[str], Any] | None,
    ) -> None:
        if url is None or api_key is None:
            url, api_key = _from_settings(url, api_key)
        self.url = checked_url(url)
        self.manner = Manner(self.url, max(0, retries), awaits_start, on_retry)
        headers = {"User-Agent": f"carbonq-client/{__version__}"}
        if api_key:
            if not (api_key.isascii() and api_key.isprintable()):
                raise ConfigError("the API key holds characters that no key has; check CARBONQ_API_KEY")
            headers["Authorization"] = f"Bearer {api_key}"
        self.options: dict[str, Any] = {
            "base_url": self.url,
            "headers": headers,
            "timeout": httpx.Timeout(timeout_s, connect=_CONNECT_S),
            # A proxy of the environment must not see a loopback server's traffic.
            "trust_env": not is_loopback(self.url),
            # Without TLS nothing is verified, and reading the machine's certificates takes longer than most calls.
            "verify": not is_loopback(self.url),
        }


def checked_url(url: str) -> str:
    """Return a URL without a slash at its end. Raises ConfigError for what is no address of an API."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = None
    if parsed is None or parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ConfigError(f"{url!r} is no address of an API, such as {DEFAULT_URL}; check CARBONQ_API_URL")
    return url.rstrip("/")


def is_loopback(url: str) -> bool:
    """Say whether a URL is one of this machine, without TLS; ``localhost.example`` is none."""
    try:
        parsed = httpx.URL(url)
        return parsed.scheme == "http" and (parsed.host == "localhost" or ipaddress.ip_address(parsed.host).is_loopback)
    except (httpx.InvalidURL, ValueError):
        return False


def _from_settings(url: str | None, api_key: str | None) -> tuple[str, str | None]:
    """Fill in what was left out: ``CARBONQ_API_URL``, ``CARBONQ_API_KEY`` or ``_FILE``, carbonq.toml, the key file.

    The data folder's key is this machine's own and goes to no other.
    """
    from carbonq import config

    settings = config.given().basics()
    if url is None:
        host = "127.0.0.1" if settings.host in {"0.0.0.0", "::", ""} else settings.host
        url = settings.api_url or f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"
    if api_key is None:
        if settings.api_key is not None:
            api_key = settings.api_key.get_secret_value()
        elif is_loopback(url):
            api_key = local_key(settings.data_dir)
    return url, api_key


def local_key(data_dir: Any) -> str | None:
    """Return the key that ``carbonq up`` made in a data folder; None where there is none to read."""
    try:
        return (data_dir / "api-key").read_text(encoding="utf-8").strip()
    except OSError:
        return None


def request_options(call: Call[Any], content: Any) -> dict[str, Any]:
    """Return a call as the arguments of ``build_request``; ``content`` is its upload in pieces, None without one."""
    headers = tracing.caller_context() | dict(call.headers)
    options: dict[str, Any] = {"method": call.method, "url": call.path, "headers": headers}
    if call.params:
        options["params"] = list(call.params)
    if content is not None:
        options["content"] = content
    elif call.json is not None:
        options["json"] = call.json
    if call.timeout_s is not None:
        options["timeout"] = httpx.Timeout(call.timeout_s, connect=_CONNECT_S)
    return options


def answer_of(response: httpx.Response, content: bytes = b"") -> Answer:
    """Return a response as a value."""
    return Answer(str(response.url), response.status_code, response.headers, content)
