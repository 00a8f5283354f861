"""Fetch a text that holds a meter's reading, from an address or a file. Raises Unanswered with the reason."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from carbonq.meters.polled import Unanswered

#: Longest wait for an answer, in seconds, and the longest answer that is taken, in bytes.
TIMEOUT_S = 5.0
MAX_BYTES = 16_000_000


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(  # noqa: PLR0917 - as it is called
        self, req: object, fp: object, code: object, msg: object, headers: object, newurl: object
    ) -> None:
        """Follow none: headers may hold a key that is not for others."""


#: Meters are near: no proxy.
_OPENER = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))


def text(address: str, headers: Mapping[str, str]) -> str:
    """Return what an http(s) address answers, or what a file holds."""
    shown = shown_address(address)
    if not address.startswith(("http://", "https://")):
        try:
            return Path(address).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise Unanswered(f"{shown} cannot be read: {error}") from error
    try:
        request = urllib.request.Request(address, headers=dict(headers))
        with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
            body = answer.read(MAX_BYTES + 1)
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise Unanswered(f"{shown} does not answer: {error}") from error
    if len(body) > MAX_BYTES:
        raise Unanswered(f"{shown} answers with more than {MAX_BYTES} bytes")
    try:
        return str(body.decode())
    except UnicodeDecodeError as error:
        raise Unanswered(f"{shown} answers with what is no UTF-8") from error


def shown_address(address: str) -> str:
    """Return an address as it may be shown: without user, password and parameters."""
    if "://" not in address:
        return address
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
