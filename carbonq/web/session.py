"""Who looks at a page: a session's cookie, its key's caller, and the token that each of its forms must carry."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import parse_qs, quote

import anyio.to_thread
from fastapi import Depends, Request
from fastapi.responses import Response

from carbonq.api.auth import Caller
from carbonq.api.body import read_bytes
from carbonq.api.context import Api
from carbonq.errors import Forbidden
from carbonq.model import Scope
from carbonq.store import sessions
from carbonq.store.keys import USUAL_SCOPES

#: The cookie of a session, and of a login form.
COOKIE = "carbonq_session"
FORM_COOKIE = "carbonq_login"

#: A form is short.
_MAX_FORM_BYTES = 16_384

#: The field that carries a form's token.
CSRF_FIELD = "csrf"


class LoginNeeded(Exception):
    """Nobody is logged in; ``target`` is where to go on afterwards."""

    def __init__(self, target: str) -> None:
        """Remember where it was."""
        super().__init__(target)
        self.target = target


@dataclass(frozen=True, slots=True)
class Viewer:
    """A person at a page: what the key may do, the session's token, and the one of its forms."""

    caller: Caller
    token: str
    csrf: str

    def may(self, scope: Scope) -> bool:
        """Say whether the key has a scope."""
        return scope in self.caller.scopes

    def check(self, scope: Scope) -> None:
        """Raise Forbidden unless the key has a scope."""
        if not self.may(scope):
            raise Forbidden(f"this page needs a key with the scope {scope}", scopes=(scope,))


async def viewer_of(request: Request) -> Viewer:
    """Return who looks at a page (a dependency of every page). Raises LoginNeeded, QuotaExceeded, StoreUnavailable."""
    token = request.cookies.get(COOKIE)
    caller = None if not token else await _caller_of(request.app.state.api, token)
    if not token or caller is None:
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        raise LoginNeeded(target if request.method == "GET" and request.url.path != "/events" else "/")
    api: Api = request.app.state.api
    api.keyring.note_use(caller)
    await api.rate_limits.take(request, caller)
    return Viewer(caller, token, csrf_of(token))


async def _caller_of(api: Api, token: str) -> Caller | None:
    def look() -> str | None:
        with api.db.read() as tx:
            return sessions.key_of(tx, token)

    key_hash = await anyio.to_thread.run_sync(look)
    if key_hash is None:
        return None
    return api.keyring.known(key_hash) or await anyio.to_thread.run_sync(api.keyring.find, key_hash)


ViewerDep = Annotated[Viewer, Depends(viewer_of)]


def reader_of(viewer: ViewerDep) -> Viewer:
    """Return who looks at a page that shows jobs and plans. Raises Forbidden."""
    viewer.check(Scope.READ)
    return viewer


ReaderDep = Annotated[Viewer, Depends(reader_of)]


def csrf_of(token: str) -> str:
    """Return the token of a session's forms: only who has the cookie can make it, and it does not tell the cookie."""
    return hashlib.sha256(b"carbonq form " + token.encode()).hexdigest()


async def form_of(request: Request) -> Mapping[str, str]:
    """Return the fields of a form. Raises InvalidRequest for one that is too large."""
    data = await read_bytes(request, _MAX_FORM_BYTES, way_out="send the form as the page has it")
    fields = parse_qs(data.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=50)
    return {name: values[-1] for name, values in fields.items()}


FormDep = Annotated[Mapping[str, str], Depends(form_of)]


def check_form(request: Request, form: Mapping[str, str], expected: str | None) -> None:
    """Raise Forbidden unless a form comes from a page of ours: by its token, and by what the browser says of it."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    given = form.get(CSRF_FIELD, "")
    if (
        site not in {"same-origin", "none"}
        or not expected
        or not hmac.compare_digest(given.encode(), expected.encode())
    ):
        raise Forbidden("this form is too old or came from elsewhere; load the page again", scopes=tuple(USUAL_SCOPES))


def new_form_token() -> str:
    """Return a fresh token for a login form, which has no session yet."""
    return secrets.token_urlsafe(24)


def set_cookie(request: Request, response: Response, name: str, value: str, *, max_age_s: float) -> None:
    """Set a cookie that no script reads and no other site sends; over https alone where the page came by it."""
    response.set_cookie(
        name,
        value,
        max_age=int(max_age_s),
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def login_path(target: str) -> str:
    """Return the login page's path that goes on to ``target``."""
    return "/login" if target == "/" else f"/login?next={quote(target, safe='')}"


def safe_target(given: str | None) -> str:
    """Return a path on this server and nothing else."""
    if not given or not given.startswith("/") or given.startswith(("//", "/\\")) or "\\" in given:
        return "/"
    return given if given.isprintable() and given.isascii() else "/"
