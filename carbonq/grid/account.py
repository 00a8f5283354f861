"""An account whose password buys a token for half an hour (WattTime, SGIP Signal); one object for all its zones.

The token is bought by the first call that needs one, renewed two minutes before it ends, and once when the provider no
longer takes it (401). Threads that need a new one at the same time wait for one login. A wrong user name or password
does not get better by asking again: after a refusal the account is not tried for 15 minutes, then twice as long each
time, to 4 hours; until then calls fail at once with the sentence that says what to set.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import cast

from carbonq.errors import SignalUnavailable
from carbonq.grid.http import Http, Refused
from carbonq.grid.replies import Json

#: Both providers issue tokens for 30 minutes.
TOKEN_LIFE_S = 30 * 60.0
RENEW_BEFORE_S = 120.0
#: A token this young that is refused is not stale; logging in again would not help and logins are rationed.
YOUNG_S = 60.0
FIRST_REST_S = 15 * 60.0
LONGEST_REST_S = 4 * 3600.0
_REFUSED = frozenset({401, 403})


class Account:
    """Calls in the name of one user; safe to share between threads. Raises as ``Http`` does."""

    def __init__(
        self,
        http: Http,
        *,
        username: str,
        password: str,
        setting: str,
        login_path: str = "/login",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is sent. ``setting`` is the table to name when the login is refused."""
        self.http = http
        self._credentials = (username, password)
        self._setting = setting
        self._login_path = login_path
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._token: str | None = None
        self._bought_at = 0.0
        self._refusal: Refused | None = None
        self._rest_until = 0.0
        self._rest_s = FIRST_REST_S

    def json(self, path: str, *, params: Mapping[str, str] | None = None) -> Json:
        """GET with the account's token and return the JSON. Raises Refused, SignalUnavailable."""
        token = self._valid_token(stale=None)
        try:
            return self._get(path, params, token)
        except Refused as error:
            if error.status != 401:
                raise
            newer = self._valid_token(stale=token)
            if newer == token:
                raise
            return self._get(path, params, newer)

    def _get(self, path: str, params: Mapping[str, str] | None, token: str) -> Json:
        return self.http.json(path, params=params, headers={"Authorization": f"Bearer {token}"})

    def _valid_token(self, *, stale: str | None) -> str:
        """Return a token that should work: not ``stale``, unless that was bought a moment ago."""
        # Whoever waits here finds the token that the one before bought.
        if not self._lock.acquire(timeout=self.http.budget_s):
            raise SignalUnavailable(f"{self.http.provider}: another login did not end in {self.http.budget_s:g} s")
        try:
            age_s = self._monotonic() - self._bought_at
            is_known_stale = stale is not None and stale == self._token and age_s >= YOUNG_S
            if self._token is None or age_s >= TOKEN_LIFE_S - RENEW_BEFORE_S or is_known_stale:
                self._token = self._login()
                self._bought_at = self._monotonic()
            return self._token
        finally:
            self._lock.release()

    def _login(self) -> str:
        left_s = self._rest_until - self._monotonic()
        if self._refusal is not None and left_s > 0:
            raise self._refused(self._refusal, left_s) from self._refusal
        try:
            body = self.http.json(self._login_path, basic=self._credentials)
        except Refused as error:
            if error.status not in _REFUSED:
                raise
            self._token = None
            self._refusal = error
            rest_s, self._rest_s = self._rest_s, min(2 * self._rest_s, LONGEST_REST_S)
            self._rest_until = self._monotonic() + rest_s
            raise self._refused(error, rest_s) from error
        token = cast("dict[str, Json]", body).get("token") if isinstance(body, dict) else None
        if not isinstance(token, str) or not (token and token.isascii() and token.isprintable()):
            raise SignalUnavailable(f"{self.http.provider}: {self._login_path} answered without a token")
        self._refusal, self._rest_s = None, FIRST_REST_S
        return token

    def _refused(self, error: Refused, left_s: float) -> Refused:
        said = f" ({error.said})" if error.said else ""
        return Refused(
            f"{self.http.provider} refused the user name or password with {error.status}{said}; set "
            f"{self._setting}.username and .password. Asked again in {left_s / 60:.0f} min",
            status=error.status,
            said=error.said,
            body=error.body,
            retry_after_s=left_s,
        )
