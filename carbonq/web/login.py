"""Log in with an API key or a one-time link, and log out."""

from __future__ import annotations

import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi.responses import Response

from carbonq.api.context import Api, ApiDep
from carbonq.errors import NotAuthenticated
from carbonq.store import keys, sessions
from carbonq.web.pages import PageRoute, go_to, page
from carbonq.web.session import (
    COOKIE,
    FORM_COOKIE,
    FormDep,
    ViewerDep,
    check_form,
    csrf_of,
    new_form_token,
    safe_target,
    set_cookie,
)

router = APIRouter(route_class=PageRoute, include_in_schema=False)

#: Logins that one address may try in a machine minute.
ATTEMPTS = 10

#: How long a login form is good, in seconds.
_FORM_S = 3600.0


@router.get("/login")
async def login_page(request: Request, next: str = "/", link: str | None = None) -> Response:
    """Show the form for a key; with ``link`` a button that uses it, so that a mere look does not."""
    return _form(request, safe_target(next), link=link)


@router.post("/login")
async def log_in(request: Request, api: ApiDep, form: FormDep) -> Response:
    """Begin a session for the key that was pasted, or for the one-time link's."""
    token = request.cookies.get(FORM_COOKIE)
    target = safe_target(form.get("next"))
    check_form(request, form, None if token is None else csrf_of(token))
    await api.rate_limits.attempt("logins", request.client.host if request.client else "unknown", ATTEMPTS)
    link = form.get("link")
    try:
        began = await anyio.to_thread.run_sync(_by_link, api, link) if link else await _by_key(api, form.get("key", ""))
    except NotAuthenticated as refused:
        return _form(request, target, refused=refused.message, status=401)
    answer = go_to(target)
    answer.delete_cookie(FORM_COOKIE)
    set_cookie(request, answer, COOKIE, began, max_age_s=sessions.SESSION_S)
    return answer


@router.post("/logout")
async def log_out(request: Request, api: ApiDep, viewer: ViewerDep, form: FormDep) -> Response:
    """End the session."""
    check_form(request, form, viewer.csrf)

    def end() -> None:
        with api.db.write() as tx:
            sessions.end(tx, viewer.token)

    await anyio.to_thread.run_sync(end)
    answer = go_to("/login")
    answer.delete_cookie(COOKIE)
    return answer


def _form(
    request: Request, target: str, *, link: str | None = None, refused: str | None = None, status: int = 200
) -> Response:
    token = request.cookies.get(FORM_COOKIE) or new_form_token()
    made = page(
        "login.html", status=status, title="Log in", target=target, link=link, refused=refused, csrf=csrf_of(token)
    )
    set_cookie(request, made, FORM_COOKIE, token, max_age_s=_FORM_S)
    return made


async def _by_key(api: Api, pasted: str) -> str:
    sha = keys.hash_key(pasted.strip())
    if not pasted.strip() or not (api.keyring.known(sha) or await anyio.to_thread.run_sync(api.keyring.find, sha)):
        raise NotAuthenticated("this API key is wrong, expired or revoked")

    def begin() -> str:
        with api.db.write() as tx:
            return sessions.begin(tx, sha)

    return await anyio.to_thread.run_sync(begin)


def _by_link(api: Api, link: str) -> str:
    with api.db.write() as tx:
        key_hash = sessions.take_link(tx, link)
        if key_hash is None:
            raise NotAuthenticated("this link was used before or is too old; paste an API key instead")
        return sessions.begin(tx, key_hash)
