"""The month's report over HTTP: its formats, whose figures it has, and that one is made at a time."""

from __future__ import annotations

import asyncio
import csv
import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from carbonq.api import reports
from carbonq.api.app import create_app
from carbonq.api.reports import Desk, negotiated
from carbonq.client import AsyncClient, Client
from carbonq.errors import InvalidRequest, NotFound, QuotaExceeded
from carbonq.render.formats import Format
from carbonq.report import sections
from tests.api.harness import Harness
from tests.api.inprocess import InProcess, in_process
from tests.api.test_contract import strays
from tests.api.test_ledger import book

#: The month of the harness's clock.
PATH = "/v1/reports/2026-01"


@pytest.fixture
def near(harness: Harness) -> Iterator[InProcess]:
    with in_process(create_app(harness.api, background=[]), harness.headers()) as client:
        yield client


@pytest.mark.parametrize("fmt", list(Format))
def test_every_format_has_the_months_figures(harness: Harness, near: InProcess, fmt: Format) -> None:
    book(harness, "eb_1", tenant="acme")
    answer = near.ask("GET", f"{PATH}?format={fmt}")
    assert answer.status == 200, answer.body[:500]
    assert answer.headers["content-type"].startswith(fmt.media_type)
    assert answer.headers["vary"] == "Accept"
    assert f'filename="carbonq-report-2026-01.{fmt}"' in answer.headers["content-disposition"]
    by_accept = near.ask("GET", PATH, headers={"accept": fmt.media_type.partition(";")[0]})
    assert by_accept.headers["content-type"] == answer.headers["content-type"]
    if fmt is Format.PDF:
        assert answer.body.startswith(b"%PDF-")
    else:
        assert b"search" in answer.body


def test_json_is_what_is_given_where_nothing_is_asked_for(harness: Harness, near: InProcess) -> None:
    book(harness, "eb_1", tenant="acme")
    made = near.ask("GET", PATH).json()
    assert (made["object"], made["head"]["month"], made["head"]["tenant"]) == ("report", "2026-01", "acme")
    assert made["totals"]["entries"] == 3 and made["totals"]["item_energy_uj"] == 1_000_003
    assert near.ask("GET", "/v1/reports/running").json()["head"]["month"] == "2026-01"
    csv_text = near.ask("GET", f"{PATH}?format=csv").body.decode()
    rows = list(csv.reader(io.StringIO(csv_text, newline="")))
    assert csv_text.count("\r\n") == len(rows) and rows[0] == ["section", "row", "figure", "value"]
    assert ["totals", "item_energy_uj", "1000003"] in [[row[0], *row[2:]] for row in rows]


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, Format.JSON),
        ("*/*", Format.JSON),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Format.HTML),
        ("text/*", Format.CSV),
        ("application/json;q=0.2, application/pdf;q=0.9", Format.PDF),
        ("application/*;q=0.5, application/json;q=0", Format.PDF),
        ("TEXT/HTML ; Q=0.4, text/csv;q=nonsense", Format.HTML),
    ],
)
def test_what_accept_asks_for(accept: str | None, expected: Format) -> None:
    assert negotiated(accept) is expected


def test_what_cannot_be_given_is_refused(harness: Harness, near: InProcess) -> None:
    refused = near.ask("GET", PATH, headers={"accept": "image/png, text/html;q=0"})
    assert (refused.status, refused.code) == (406, "not_acceptable")
    with pytest.raises(InvalidRequest):
        negotiated("application/json;q=0, */*;q=0")
    for path, param in (
        ("/v1/reports/2026-13", "month"),
        ("/v1/reports/november", "month"),
        ("/v1/reports/2026-02", "month"),  # it has not begun
        (f"{PATH}?format=xlsx", "format_"),
        (f"{PATH}?section=days", "section"),
        (f"{PATH}?format=csv&section=nothing", "section"),
        (f"{PATH}?as_of=2026-01-01", "as_of"),
        (f"{PATH}?as_of=2999-01-01T00:00:00Z", "as_of"),
        (f"{PATH}?months_back=99", "months_back"),
        (f"{PATH}?tenant=rival", "tenant"),
    ):
        answer = near.ask("GET", path)
        assert (answer.status, answer.json()["error"]["param"]) in {(400, param), (400, param.strip("_"))}, path


def test_no_pass_over_the_ledger_is_taken_for_what_cannot_be_written(
    near: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports.reports, "make", None)
    for query in ("format=csv&section=nothing", "format=html&section=days", "format=xlsx", "months_back=99"):
        assert near.ask("GET", f"{PATH}?{query}").status == 400, query


def test_a_month_without_entries_is_a_report_that_says_so(near: InProcess) -> None:
    answer = near.ask("GET", f"{PATH}?format=html")
    assert answer.status == 200 and "The ledger has no entry of tenant acme in 2026-01" in answer.body.decode()
    assert near.ask("GET", PATH).json()["totals"]["impact"]["known_g"] is None


def test_a_key_gets_its_own_tenants_figures(harness: Harness, near: InProcess) -> None:
    """Invariant 8: another tenant's work is in no figure, and nothing of it is named in any format."""
    book(harness, "eb_1", tenant="acme")
    before = own_figures(near)
    book(harness, "eb_9", tenant="rival", items=5)
    assert own_figures(near) == before
    for fmt in ("json", "csv", "html"):
        assert b"rival" not in near.ask("GET", f"{PATH}?format={fmt}").body, fmt
    with in_process(create_app(harness.api, background=[]), harness.headers("rival")) as theirs:
        made = theirs.ask("GET", PATH).json()
        assert (made["head"]["tenant"], made["totals"]["entries"]) == ("rival", 5)


def own_figures(client: InProcess) -> dict[str, Any]:
    """Return a report but for when it was made, and for the overhead, which falls to all by their energy."""
    made = client.ask("GET", PATH).json()
    assert made["head"]["tenant"] == "acme"
    made["sci"]["rows"] = [row for row in made["sci"]["rows"] if row["counted"] == "direct"]
    del made["recompute"]  # it names the time
    for name in ("as_of", "generated_at"):
        del made["head"][name]
    return made


def test_a_section_is_a_table_of_its_own(harness: Harness, near: InProcess) -> None:
    book(harness, "eb_1", tenant="acme")
    for section in sections():
        answer = near.ask("GET", f"{PATH}?format=csv&section={section}")
        assert answer.status == 200, (section, answer.body[:200])
        assert f"carbonq-report-2026-01-{section}.csv" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(near.ask("GET", f"{PATH}?format=csv&section=product_lines").body.decode())))
    assert rows[0]["name"] == "'=search"  # a spreadsheet must not take it for a formula


def test_the_months_since_the_first_entry_are_listed(harness: Harness, near: InProcess) -> None:
    def listed() -> list[tuple[str, bool]]:
        return [(one["id"], one["is_over"]) for one in near.ask("GET", "/v1/reports").json()["data"]]

    assert listed() == [("2026-01", False)]
    book(harness, "eb_1", tenant="acme")
    harness.clock.advance(65 * 86_400)
    assert listed() == [("2026-03", False), ("2026-02", True), ("2026-01", True)]
    with in_process(create_app(harness.api, background=[]), harness.headers("rival")) as theirs:
        assert [one["id"] for one in theirs.ask("GET", "/v1/reports").json()["data"]] == ["2026-03"]


def test_real_answers_are_as_described(harness: Harness, near: InProcess) -> None:
    document = create_app(harness.api, background=[]).openapi()
    book(harness, "eb_1", tenant="acme")
    for path, template in (
        ("/v1/reports", "/v1/reports"),
        *((f"{PATH}?format={fmt}", "/v1/reports/{month}") for fmt in Format),
        ("/v1/reports/2999-01", "/v1/reports/{month}"),
    ):
        assert strays(document, "GET", template, near.ask("GET", path)) == [], path


def test_both_clients_have_it(harness: Harness, url: str) -> None:
    book(harness, "eb_1", tenant="acme")

    async def awaited() -> bytes:
        async with AsyncClient(url, harness.acme) as client:
            return await client.report("2026-01", format="csv", section="kinds")

    with Client(url, harness.acme) as client:
        assert client.report("2026-01", format="csv", section="kinds") == asyncio.run(awaited())
        assert client.report("running").startswith(b"{")
        with pytest.raises(NotFound):
            client.report("../jobs")
        with pytest.raises(InvalidRequest) as refused:
            client.report("2026-01", format="csv", section="nothing")
        assert refused.value.param == "section"


def test_a_report_runs_nothing_and_loads_nothing(harness: Harness, near: InProcess) -> None:
    book(harness, "eb_1", tenant="acme")
    answer = near.ask("GET", f"{PATH}?format=html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_one_report_is_made_at_a_time_and_few_wait() -> None:
    going, done = threading.Semaphore(0), threading.Semaphore(0)
    running: list[int] = []
    most: list[int] = []

    def work() -> int:
        running.append(1)
        most.append(len(running))
        going.release()
        done.acquire()
        running.pop()
        return 7

    async def many() -> None:
        desk = Desk(most_waiting=2)
        tasks = [asyncio.create_task(desk.make(work)) for _ in range(3)]
        try:
            await asyncio.to_thread(going.acquire)
            async with asyncio.timeout(30):
                while desk._limiter.statistics().tasks_waiting < 2:
                    await asyncio.sleep(0)  # until they have come to wait
                with pytest.raises(QuotaExceeded) as refused:
                    await desk.make(lambda: 0)
            assert refused.value.code == "reports_busy" and (refused.value.retry_after_s or 0) >= 5
        finally:
            done.release(4)
            made = await asyncio.gather(*tasks)
        assert made == [7, 7, 7]
        assert await desk.make(work) == 7  # there is room again

    asyncio.run(many())
    assert most == [1, 1, 1, 1]


def test_the_event_loop_goes_on_while_a_report_is_made(
    harness: Harness, near: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    book(harness, "eb_1", tenant="acme")
    begun, may_end = threading.Event(), threading.Event()
    make: Callable[..., Any] = reports.reports.make

    def slow(*args: Any, **kwargs: Any) -> Any:
        begun.set()
        assert may_end.wait(30)
        return make(*args, **kwargs)

    monkeypatch.setattr(reports.reports, "make", slow)

    async def both() -> tuple[Any, Any]:
        report = asyncio.create_task(near.send("GET", PATH))
        await asyncio.to_thread(begun.wait, 30)
        health = await near.send("GET", "/healthz")
        may_end.set()
        return health, await report

    health, report = near.run(both())
    assert (health.status, report.status) == (200, 200)


def test_busy_is_told_with_a_time(harness: Harness) -> None:
    app = create_app(harness.api, background=[])
    app.state.reports = Desk(most_waiting=-1)
    with in_process(app, harness.headers()) as client:
        answer = client.ask("GET", PATH)
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "reports_busy", "5")


def test_a_report_as_of_a_time_stays_as_it_was(harness: Harness, near: InProcess) -> None:
    book(harness, "eb_1", tenant="acme")
    before = near.ask("GET", PATH).json()["head"]["as_of"]
    assert near.ask("GET", f"{PATH}?as_of={before}").status == 400  # it may still change
    harness.clock.advance(40 * 86_400)
    assert near.ask("GET", PATH).json()["head"]["is_over"] is True
