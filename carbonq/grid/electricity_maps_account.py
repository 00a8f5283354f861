"""An account at Electricity Maps: its token, what its plan may read, and what a 401 means. One for all its zones.

It answers 401 both for a token that it does not know and for a plan without the endpoint; the body tells which. A token
that is refused does not get better by asking again: then nothing is asked for 15 minutes.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import cast

from carbonq.errors import SignalUnavailable
from carbonq.grid.http import Http, Refused
from carbonq.grid.readings import object_of
from carbonq.grid.replies import Json

logger = logging.getLogger(__name__)

#: Machine seconds: how long a refused token is not tried, what the plan may read is kept, a failed look at it rests.
REST_S = 15 * 60.0
ACCESS_S = 6 * 3600.0
ACCESS_AGAIN_S = 10 * 60.0

_PLAN = re.compile(r"do(es)? not have access|unauthori[sz]ed for zone|requestType=|your plan|subscription", re.I)
_TOKEN = re.compile(r"auth-?token|invalid|expired|missing|access denied|not authenticated", re.I)


class NotInPlan(SignalUnavailable):
    """The account's plan does not include this."""


class ElectricityMapsAccount:
    """Calls with one token; safe to share between threads. Raises as ``Http`` does, and NotInPlan."""

    def __init__(self, http: Http, *, token: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Prepare; nothing is sent."""
        self.http = http
        self._token = token
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._refusal: Refused | None = None
        self._rest_until = 0.0
        self._access: dict[str, tuple[float, Mapping[str, Collection[str] | None] | None]] = {}

    def json(self, path: str, *, params: Mapping[str, str] | None = None) -> Json:
        """GET with the token and return the JSON."""
        refusal, left_s = self._refusal, self._rest_until - self._monotonic()
        if refusal is not None and left_s > 0:
            raise self._bad_token(refusal, left_s)
        try:
            return self.http.json(path, params=params, headers={"auth-token": self._token})
        except Refused as error:
            if error.status not in {401, 403}:
                raise
            if _PLAN.search(error.said):
                raise NotInPlan(
                    f"Electricity Maps: the plan of this token does not include {path} ({error.said})",
                    retry_after_s=error.retry_after_s,
                ) from error
            if not _TOKEN.search(error.said):
                raise
            self._refusal, self._rest_until = error, self._monotonic() + REST_S
            raise self._bad_token(error, REST_S) from error

    def access(self, version: str) -> Mapping[str, Collection[str] | None] | None:
        """Return what the plan may read by zone (None for a zone: not said); None when that cannot be had now.

        Raises Refused for a token that is not accepted.
        """
        with self._lock:
            until, found = self._access.get(version, (0.0, None))
            if self._monotonic() < until:
                return found
            try:
                found, lasts_s = _access_of(self.json(f"/{version}/zones")), ACCESS_S
            except Refused as error:
                if error.status in {401, 403}:
                    raise
                logger.info("what the plan may read is not known: %s", error.message)
                lasts_s = ACCESS_AGAIN_S
            except SignalUnavailable as error:
                logger.info("what the plan may read is not known: %s", error.message)
                lasts_s = ACCESS_AGAIN_S
            self._access[version] = (self._monotonic() + lasts_s, found)
            return found

    def _bad_token(self, error: Refused, left_s: float) -> Refused:
        return Refused(
            f"Electricity Maps refused the token with {error.status} ({error.said}); set "
            f"accounts.electricity_maps.token. Asked again in {left_s / 60:.0f} min",
            status=error.status,
            said=error.said,
            body=error.body,
            retry_after_s=left_s,
        )


def _access_of(body: Json) -> Mapping[str, Collection[str] | None]:
    zones = object_of(body, "Electricity Maps zones")
    found: dict[str, Collection[str] | None] = {}
    for zone, one in zones.items():
        access = object_of(one, f"Electricity Maps zones: {zone}").get("access")
        found[zone] = frozenset(map(str, cast("list[Json]", access))) if isinstance(access, list) else None
    return found


def permits(access: Collection[str] | None, what: str) -> bool:
    """Say whether a zone's list of permissions holds ``what``, e.g. ``carbon-intensity/forecast``; None: try it."""
    if access is None:
        return True
    plain = {re.sub(r"^/?(v\d+/)?", "", one) for one in access}
    return bool(plain & {what, "*", f"{what.partition('/')[0]}/*"})
