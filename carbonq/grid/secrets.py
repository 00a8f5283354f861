"""What must not be shown of a call to a provider, and what cannot be sent in its headers. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, quote_plus, unquote, urlsplit

from carbonq.errors import SignalUnavailable
from carbonq.grid.replies import shown

_OPEN_HEADERS = frozenset({"accept", "accept-encoding", "accept-language", "content-type", "user-agent"})

#: What may stand in a header: printable ASCII, no space at either end.
_HEADER_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?|")


def hidden_in(
    url: str, headers: Mapping[str, str], basic: tuple[str, str] | None, parameters: Iterable[str]
) -> set[str]:
    """Return the secrets of a call in every form in which a provider may send them back.

    Those are the values of headers, the login (``basic`` or in ``url``) and ``parameters``, the values of secret ones:
    as they are, as in an address, and as the header that a login makes.
    """
    login = urlsplit(url).netloc.rpartition("@")[0]
    hidden = {value for name, value in headers.items() if name.lower() not in _OPEN_HEADERS} | set(basic or ())
    hidden |= {word for value in list(hidden) for word in value.split()}
    hidden |= {*parameters, login, *login.split(":")}
    hidden |= {quote(one, safe="") for one in hidden} | {quote_plus(one) for one in hidden}
    logins = [":".join(basic)] if basic else []
    logins += [unquote(login)] if login else []
    return hidden | {base64.b64encode(one.encode()).decode() for one in logins}


def check_headers(what: str, headers: Mapping[str, str]) -> None:
    """Refuse what no header may hold before it is sent: the client's own message would show the value.

    ``what`` begins the message. Raises SignalUnavailable.
    """
    for name, value in headers.items():
        if not _HEADER_VALUE.fullmatch(value):
            raise SignalUnavailable(
                f"{what} is not asked: the header {shown(name)} holds a line break, a space at an end, or a character "
                "outside ASCII; is its secret copied whole and without its line end?"
            )
