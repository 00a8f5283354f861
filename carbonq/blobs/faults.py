"""What went wrong with a bucket, in one sentence that holds no credential.

The library's own texts quote the request and the server's answer, which may name access keys and signatures: only the
server's error code and message are taken from them.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

from obstore import exceptions

from carbonq.errors import NotFound, StoreUnavailable

CODE = "blob_store_unavailable"

_SERVER_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,80})</Code>")
_SERVER_MESSAGE = re.compile(r"<Message>([^<]{1,200})</Message>")
_STATUS = re.compile(r"status code: ([0-9]{3} [A-Za-z ]{2,40})")

#: Where a host asks for the credentials of its role: an error there means that there are none.
_ROLE_MARKS = ("169.254.169.254", "/latest/api/token", "169.254.170.2", "metadata.google.internal")

#: What the library's text says of a request without an answer, most telling first.
_BROKEN = {
    "kind: Timeout": "it gave no answer in time",
    "kind: Connect": "there is no connection to it; check the endpoint and the network",
    "HTTP error": "the connection broke",
}


def unavailable(name: str, reason: str) -> StoreUnavailable:
    """Return the error that names the store and the reason."""
    return StoreUnavailable(f"cannot use the blob store {name}: {reason}", code=CODE)


@contextmanager
def translated(name: str, key: str | None = None) -> Generator[None]:
    """Turn the library's errors into NotFound (of ``key``) or StoreUnavailable (of the store ``name``)."""
    try:
        yield
    except FileNotFoundError as error:
        if key is None or _server_code(str(error)) == "NoSuchBucket":
            raise unavailable(name, reason_of(error)) from None
        raise NotFound(f"there is no stored file {key!r}") from None
    except exceptions.PreconditionError:
        raise unavailable(name, f"{key} was replaced while it was read; read it again") from None
    except exceptions.BaseError as error:
        raise unavailable(name, reason_of(error)) from None


def reason_of(error: Exception) -> str:
    """Say why a request failed."""
    text = str(error)
    if any(mark in text for mark in _ROLE_MARKS):
        return (
            "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (for gs:// and az:// their "
            "own), or run where the host has a role"
        )
    code = _server_code(text)
    if code is not None:
        said = _SERVER_MESSAGE.search(text)
        return f"the server says {code}" + (f" ({said.group(1).rstrip('.')})" if said else "")
    if status := _STATUS.search(text):
        return f"the server says {status.group(1).strip()}"
    return next((said for mark, said in _BROKEN.items() if mark in text), f"it failed ({type(error).__name__})")


def _server_code(text: str) -> str | None:
    found = _SERVER_CODE.search(text)
    return found.group(1) if found else None
