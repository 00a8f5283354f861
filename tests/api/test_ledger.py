"""The ledger over HTTP: CSV, pages, one entry recomputed."""

from __future__ import annotations

import csv
import io
from datetime import timedelta
from decimal import Decimal

import httpx
import pytest

from carbonq import export, ledger, verify
from carbonq.api.ledger import is_consistent, recompute_emission
from carbonq.booking import EngineBatch, Fact, WorkItem
from carbonq.clock import ClockKind
from carbonq.meters.protocol import MeteredPart, MeterInfo, MeterKind
from carbonq.model import EntryKind, Quality, RateKind, Signal, WorkClass
from carbonq.models import WORDLLAMA_256
from carbonq.ratebook import RateBook, make_rate
from carbonq.services.seal import seal
from carbonq.store import ledger as ledger_rows
from carbonq.units import WINDOW_S
from tests.api.harness import REGIONS, Harness
from tests.api.test_jobs import finish, submit

ZONES = {region.name: region.zone for region in REGIONS}


def book(harness: Harness, batch_id: str, *, tenant: str, job_id: str | None = None, items: int = 3) -> list[str]:
    """Book an engine batch of one tenant's items in region fr; return the entry ids."""
    now = harness.clock.now()
    rate = make_rate(
        signal=Signal.MOER,
        zone="ZONE_FR",
        source="fake",
        model=None,
        gas="co2",
        method=None,
        window_at=now,
        step_s=WINDOW_S,
        issued_at=now,
        retrieved_at=now,
        g_per_kwh=Decimal("400.5"),
        raw=Decimal("400.5"),
        raw_unit="g/kWh",
        is_estimated=False,
        kind=RateKind.FORECAST,
        may_settle=True,
    )
    batch = EngineBatch(
        engine_batch_id=batch_id,
        worker_id="worker-fr",
        work_class=WorkClass.FLEXIBLE,
        fact=Fact.of(REGIONS[0]),
        info=MeterInfo(MeterKind.NONE, MeterKind.CPU_TIME, MeterKind.NONE, Quality.ESTIMATED, None, ("cpu",)),
        parts=(MeteredPart(now, now, now + timedelta(seconds=1), 1.0, None, 1_000_003, None),),
        items=[
            WorkItem(
                tenant=tenant,
                api_key_id=None,
                product_line="=search",
                workload=None,
                job_id=job_id,
                custom_id=f"a-{number}",
                item=number,
                chunk_id=None,
                attempt=None,
                work_class=WorkClass.FLEXIBLE,
                requested_model=WORDLLAMA_256.name,
                outcome="succeeded",
                prompt_tokens=7,
                cached_tokens=0,
                completion_tokens=0,
            )
            for number in range(items)
        ],
        model=WORDLLAMA_256,
        engine="fake",
        engine_version="1",
        software_version="1",
        clock=ClockKind.SIMULATED,
    )
    rates = RateBook.of(ZONES, [rate], now=now, settle_after_s=0.0)
    booking = ledger.book(batch, rates, recorded_at=now, recorded_by="worker-fr", baseline_facts={})
    with harness.db.write() as tx:
        ledger_rows.insert_booking(tx, booking)
        if tenant == "acme":
            idle = ledger.book_overhead(
                EngineBatch(**{**_fields(batch), "engine_batch_id": f"{batch_id}i", "items": ()}),
                rates,
                EntryKind.IDLE,
                outcome=None,
                recorded_at=now,
                recorded_by="worker-fr",
            )
            ledger_rows.insert_booking(tx, idle)
    return [entry_id for figures in booking.figures or () for entry_id in figures.entry_ids]


def _fields(batch: EngineBatch) -> dict[str, object]:
    return {name: getattr(batch, name) for name in EngineBatch.__dataclass_fields__}


def test_revisions_that_no_entry_has(harness: Harness, http: httpx.Client) -> None:
    entry_id = book(harness, "eb_1", tenant="acme")[0]
    for revision, status in (("1", 200), ("2", 404), (str(2**31 - 1), 404), (str(2**31), 400), ("9" * 40, 400)):
        for path in ("", "/proof"):
            found = http.get(f"/v1/ledger/{entry_id}{path}", params={"revision": revision})
            assert found.status_code == status or (path and found.status_code == 404), found.text


def test_the_csv_has_the_callers_entries_only(harness: Harness, http: httpx.Client) -> None:
    mine = book(harness, "eb_1", tenant="acme")
    book(harness, "eb_2", tenant="rival")
    response = http.get("/v1/ledger.csv")
    assert response.headers["content-type"].startswith("text/csv; charset=utf-8")
    assert 'filename="ledger.csv"' in response.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(response.text, newline="")))
    assert tuple(rows[0]) == export.COLUMNS
    assert [row["entry_id"] for row in rows] == mine
    assert {row["tenant"] for row in rows} == {"acme"}
    assert rows[0]["product_line"] == "'=search"  # no formula in a spreadsheet


def test_the_csv_of_one_job(harness: Harness, http: httpx.Client) -> None:
    job_id = submit(http)["id"]
    mine = book(harness, "eb_1", tenant="acme", job_id=job_id)
    book(harness, "eb_2", tenant="acme")
    rows = list(csv.DictReader(io.StringIO(http.get("/v1/ledger.csv", params={"job_id": job_id}).text, newline="")))
    assert [row["entry_id"] for row in rows] == mine
    assert http.get("/v1/ledger.csv", params={"revisions": "some"}).status_code == 400
    assert http.get("/v1/ledger", params={"job_id": ""}).status_code == 400


def test_entries_are_paged(harness: Harness, http: httpx.Client) -> None:
    mine = book(harness, "eb_1", tenant="acme", items=5)
    first = http.get("/v1/ledger", params={"limit": 3}).json()
    assert [entry["id"] for entry in first["data"]] == mine[:3] and first["has_more"]
    second = http.get("/v1/ledger", params={"limit": 3, "after": first["last_id"]}).json()
    assert [entry["id"] for entry in second["data"]] == mine[3:] and not second["has_more"]
    assert second["data"][0]["gpu_uj"] is None  # unknown, not 0 and not ""
    assert second["data"][0]["product_line"] == "=search"


def test_an_entry_is_recomputed_from_its_own_fields(harness: Harness, http: httpx.Client) -> None:
    (entry_id, *_) = book(harness, "eb_1", tenant="acme")
    entry = http.get(f"/v1/ledger/{entry_id}").json()
    assert entry["consistent"] is True
    assert entry["recomputed_emission_g"] == entry["emission_g"]
    by_hand = Decimal(entry["energy_uj"]) / Decimal("3.6e12") * Decimal("1.2") * Decimal("400.5")
    assert Decimal(entry["emission_g"]) == by_hand.quantize(Decimal("1e-15"))
    assert http.get(f"/v1/ledger/{entry_id}", params={"revision": 1}).json()["revision"] == "1"
    missing = http.get(f"/v1/ledger/{entry_id}", params={"revision": 2})
    assert missing.status_code == 404 and "revision 2" in missing.json()["detail"]
    assert http.get("/v1/ledger/eb_none.1.1").status_code == 404


def test_an_entry_is_proved_to_its_tenant_alone(harness: Harness, http: httpx.Client) -> None:
    (entry_id, *_) = book(harness, "eb_1", tenant="acme")
    (theirs, *_) = book(harness, "eb_2", tenant="rival")
    waiting = http.get(f"/v1/ledger/{entry_id}/proof")
    assert waiting.status_code == 404 and "not sealed yet" in waiting.json()["detail"]
    (made,) = seal(harness.api.db)
    proof = verify.check_proof(http.get(f"/v1/ledger/{entry_id}/proof").json(), made.hashed().hex())
    assert (proof.problems, proof.entry_id) == ([], entry_id)
    assert http.get(f"/v1/ledger/{theirs}/proof").status_code == 404
    assert http.get(f"/v1/ledger/{entry_id}/proof", params={"head": "x"}).status_code == 400
    assert http.get(f"/v1/ledger/{entry_id}/proof", params={"haed": made.hashed().hex()}).status_code == 400


def test_anothers_entry_and_the_installations_idle_are_not_found(harness: Harness, http: httpx.Client) -> None:
    (theirs, *_) = book(harness, "eb_2", tenant="rival")
    book(harness, "eb_1", tenant="acme")
    assert http.get(f"/v1/ledger/{theirs}").status_code == 404
    for position in (0, 1):
        assert http.get(f"/v1/ledger/eb_1i.1.{position}").status_code == 404


def test_a_job_shows_its_sums(harness: Harness, http: httpx.Client) -> None:
    job_id = submit(http)["id"]
    assert http.get(f"/v1/jobs/{job_id}").json()["carbon"] is None
    book(harness, "eb_1", tenant="acme", job_id=job_id)
    book(harness, "eb_2", tenant="acme")
    finish(harness, job_id, b"")
    carbon = http.get(f"/v1/jobs/{job_id}").json()["carbon"]
    assert carbon["energy_uj"] == 1_000_003 and carbon["entries"] == 3
    assert (carbon["status"], carbon["quality"]) == ("provisional", "estimated")
    assert Decimal(carbon["emission_g"]) > 0 and carbon["saved_g"] is None


@pytest.mark.parametrize(
    ("change", "recomputed", "consistent"),
    [
        ({}, True, True),
        ({"emission_g": "0.000000000000001"}, True, False),
        ({"emission_g": ""}, True, False),
        ({"moer_g_per_kwh": ""}, False, False),
        ({"moer_g_per_kwh": "", "emission_g": ""}, False, True),
    ],
)
def test_consistency(change: dict[str, str], recomputed: bool, consistent: bool) -> None:
    cells = {"energy_uj": "3600000000000", "pue": "1.2", "moer_g_per_kwh": "100", "emission_g": "120", **change}
    found = recompute_emission(cells)
    assert (found is not None) == recomputed
    assert is_consistent(cells, found) == consistent


@pytest.mark.parametrize(
    ("query", "param"),
    [("job=job_1", "job"), ("bogus=1", "bogus"), ("after=xx", "after"), ("after=%00", "after"), ("from=x", "from")],
)
@pytest.mark.parametrize("path", ["/v1/ledger", "/v1/ledger.csv"])
def test_a_filter_that_is_none_is_refused_and_never_left_out(
    http: httpx.Client, path: str, query: str, param: str
) -> None:
    answer = http.get(f"{path}?{query}")
    assert answer.status_code == 400
    assert param in answer.text
