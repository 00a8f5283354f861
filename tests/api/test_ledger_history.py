"""The history of entries over HTTP: the caller's own, all revisions, and later changes."""

from __future__ import annotations

from datetime import timedelta

import httpx

from carbonq.services.settle import settle
from carbonq.units import iso, parse_iso
from tests.api.harness import Harness
from tests.api.test_ledger import book
from tests.services.booked import observe


def test_an_entry_tells_its_revisions_to_its_tenant_alone(harness: Harness, http: httpx.Client) -> None:
    (entry_id, *_) = book(harness, "eb_1", tenant="acme")
    (theirs, *_) = book(harness, "eb_2", tenant="other")
    window_at = parse_iso(http.get(f"/v1/ledger/{entry_id}").json()["window"])
    observe(harness.api.db, "ZONE_FR", window_at, "77")
    assert settle(harness.api.db, window_at + timedelta(days=1), settle_after_s=0) >= 6
    found = http.get(f"/v1/ledger/{entry_id}/history").json()
    assert [one["revision"] for one in found["revisions"]] == [1, 2]
    assert found["revisions"][1]["changed"]["moer_g_per_kwh"] == ["400.5", "77"]
    assert found["current"]["revision"] == "2"
    for path in (f"/v1/ledger/{theirs}/history", "/v1/ledger/eb_none.1.0/history"):
        assert http.get(path).status_code == 404
    query = {"since": iso(window_at), "month": iso(window_at)[:7]}
    changes = http.get("/v1/ledger_changes", params=query).json()["data"]
    assert {one["reason"] for one in changes} >= {"settled"}
    assert all(one["revisions"] == 3 for one in changes), "the other tenant's three are not told"
    for wrong in ({"since": "x"}, {"since": query["since"], "month": "May"}, {}):
        assert http.get("/v1/ledger_changes", params=wrong).status_code == 400
