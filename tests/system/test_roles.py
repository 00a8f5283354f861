"""Each process works with the rights of its database role, and can do nothing beyond them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from sqlalchemy import func, make_url, select, text, update
from sqlalchemy.exc import DBAPIError

from carbonq import config, ids, rooms, wiring
from carbonq.bench.level_grid import level_settings
from carbonq.booking import Fact
from carbonq.budget import Action, Book, Level
from carbonq.cli.roles import roles_sql
from carbonq.clock import ClockKind
from carbonq.errors import StoreUnavailable
from carbonq.meters.hub import Hub
from carbonq.model import Signal
from carbonq.services import (
    budget_alarms,
    budgets_admin,
    heartbeat,
    run,
    setup,
    targets,
    targets_admin,
    webhooks,
)
from carbonq.services.budget_alarms import Thresholds
from carbonq.services.budget_tick import Keeper
from carbonq.services.deliver import Deliverer
from carbonq.services.rates import RateCache
from carbonq.services.seal_check import Seen, check
from carbonq.services.site import Limits, Site
from carbonq.spool import Spool
from carbonq.store import exports, keys, leases, ledger, rights, schema, shadows
from carbonq.store.database import Database
from carbonq.store.placements import Placed
from carbonq.store.tables import APPEND_ONLY, attempts, chunks, entries, files, metadata
from carbonq.store.tables import jobs as job_rows
from carbonq.testing import FakeClock, FakeEngine, FakeMeter, MemoryTickets
from carbonq.webhooks.schedule import Outcome
from tests.api.harness import build_api, serving
from tests.databases import connected, postgres_database
from tests.services.running import MODEL
from tests.unit.bookings import W0
from tests.unit.bookings import book as booked

#: Tables whose rows the API takes away.
_REMOVED_BY_THE_API = {
    *("sessions", "webhooks", "webhook_deliveries", "targets", "target_alarms"),
    *("budgets", "budget_cells", "budget_totals", "budget_counts", "budget_alarms"),
}

ROLES = ("owner", "api", "control", "worker", "auditor")

#: Kept by Alembic and not by our tables.
ALEMBIC = "alembic_version"


@dataclass
class Roles:
    """A database of its own with roles of its own; ``url`` is the superuser's."""

    url: str
    prefix: str
    opened: dict[str, Database]

    def apply(self) -> None:
        with connected(self.url) as connection:
            driver: Any = connection.connection.driver_connection
            driver.execute(roles_sql(self.prefix))

    def as_(self, role: str) -> Database:
        """Open the database with the rights of a role."""
        if role not in self.opened:
            url = make_url(self.url).update_query_dict({"options": f"-c role={self.prefix}{role}"})
            self.opened[role] = Database(url.render_as_string(hide_password=False))
        return self.opened[role]

    def admin(self, statement: Any) -> Any:
        with connected(self.url) as connection:
            return connection.execute(text(statement) if isinstance(statement, str) else statement)

    def refuses(self, role: str, *statements: str) -> None:
        """Every statement is refused for want of rights."""
        database = self.as_(role)
        for statement in statements:
            with (
                pytest.raises(StoreUnavailable, match=r"refuses this login: (permission denied|must be owner)"),
                database.write() as tx,
            ):
                tx.execute(text(statement))


@pytest.fixture(scope="module")
def roles(postgres_url: str) -> Iterator[Roles]:
    prefix = f"cq{uuid.uuid4().hex[:8]}_"
    try:
        with postgres_database(postgres_url) as url:
            made = Roles(url, prefix, {})
            database = Database(url)
            schema.upgrade(database)
            database.dispose()
            made.apply()
            yield made
            for opened in made.opened.values():
                opened.dispose()
    finally:
        with connected(postgres_url) as connection:
            for role in ROLES:
                connection.execute(text(f"DROP ROLE IF EXISTS {prefix}{role}"))


class Fleet:
    """The real services, each on a database opened as its role."""

    def __init__(self, roles: Roles, folder: Path) -> None:
        self.roles = roles
        self.clock = FakeClock(datetime.now(UTC))
        keep = dict.fromkeys(
            ("keep_results_days", "keep_events_days", "keep_plans_days", "keep_forecasts_days"), 0.5
        ) | {"keep_observations_days": 0.5, "thin_forecasts_after_days": 0.1}
        self.settings = config.load(**level_settings(folder), database_url=roles.url, settle_after_s=0, **keep)
        owner = roles.as_("owner")
        setup.install(owner, configured=wiring.make_regions(self.settings), shared=wiring.make_shared(self.settings))
        with owner.write() as tx:
            _, self.key = keys.create(tx, "acme", "ci", False)
        self.api_db, self.control_db, self.worker_db = (roles.as_(role) for role in ("api", "control", "worker"))
        self.tickets = MemoryTickets()
        self.models = {MODEL.name: MODEL}
        self.blobs = wiring.make_blobs(self.settings)
        ticks: ModuleType = rooms.load("workers", "ticks")
        runtime: Any = wiring.Runtime(
            settings=self.settings,
            db=self.control_db,
            blobs=self.blobs,
            clock=self.clock,  # type: ignore[arg-type]
            models=self.models,
            regions=wiring.make_regions(self.settings),
        )
        self.ticks = ticks.make(ticks.Context(runtime, self.tickets, "ctl"))
        self.rates = RateCache(runtime.regions, settle_after_s=0, max_stale_s=7200)
        self.sites = {region.name: self._site(region, folder, runtime) for region in runtime.regions}

    def _site(self, region: Any, folder: Path, runtime: Any) -> Site:
        meter = FakeMeter()
        engine = FakeEngine(on_item=lambda _: meter.burn(1000))
        site = Site(
            db=self.worker_db,
            blobs=self.blobs,
            spool=Spool(folder / "spool" / region.name),
            tickets=self.tickets,
            clock=self.clock,
            hub=Hub([meter], self.clock, self.clock.machine),
            rates=self.rates.book,
            region=region,
            facts={one.name: Fact.of(one) for one in runtime.regions},
            models=self.models,
            engine_of=lambda _: engine,
            worker_id=ids.new("wrk"),
            software_version="test",
            limits=Limits(backoff_base_s=0.001, backoff_cap_s=0.002),
        )
        heartbeat.beat(site, host="here", pid=1)
        heartbeat.beat(site, host="here", pid=1)
        return site

    def dispatched(self) -> list[tuple[str, str]]:
        """Chunk, plan and dispatch; return the tickets as (region, chunk)."""
        self.tickets.sent.clear()
        for tick in ("refresh", "plan", "dispatch"):
            self.ticks[tick]()
        self.rates.refresh(self.worker_db, self.clock.now())
        return list(self.tickets.sent)

    def run(self, *, stop: bool = False) -> list[run.Result]:
        ends = threading.Event()
        if stop:
            ends.set()
        return [run.run_chunk(self.sites[region], chunk_id, ends) for region, chunk_id in self.dispatched()]

    def api(self, folder: Path) -> Any:
        api = build_api(
            self.api_db, folder, clock=self.clock, tickets=self.tickets, models=self.models, blobs=self.blobs
        )
        return replace(api, regions=wiring.make_regions(self.settings), home_region="north")


def submit(http: httpx.Client, count: int, **query: str) -> str:
    body = b"".join(
        json.dumps({"custom_id": f"c-{index}", "body": {"input": f"text {index}"}}).encode() + b"\n"
        for index in range(count)
    )
    sent = http.post(
        "/v1/jobs",
        params={"endpoint": "/v1/embeddings", "model": MODEL.name, "deadline": "6h", **query},
        content=body,
        headers={"Content-Type": "application/x-ndjson"},
    )
    assert sent.status_code == 202, sent.text
    return sent.json()["id"]


def run_batch(fleet: Fleet, http: httpx.Client) -> dict[str, Any]:
    """Take a batch from its upload to its files, and another one to its cancellation; delete the input."""
    lines = "".join(
        json.dumps(
            {"custom_id": f"b-{n}", "url": "/v1/embeddings", "body": {"model": MODEL.name, "input": "some text"}}
        )
        + "\n"
        for n in range(4)
    )
    uploaded = http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", lines)})
    assert uploaded.status_code == 200, uploaded.text
    body = {"input_file_id": uploaded.json()["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
    made = [http.post("/v1/batches", json=body, headers={"Idempotency-Key": key}) for key in ("a", "b", "b")]
    assert [one.status_code for one in made] == [200] * 3, made[0].text
    first, second = made[0].json(), made[1].json()
    capped = http.post("/v1/batches", json=body | {"carbon": {"max_gco2e": "0.000000001"}}).json()
    fleet.ticks["validate"]()
    capped = http.get(f"/v1/batches/{capped['id']}").json()
    assert (capped["status"], capped["errors"]["data"][0]["code"]) == ("failed", "carbon_budget_infeasible"), capped
    assert http.post(f"/v1/batches/{second['id']}/cancel").json()["status"] == "cancelling"
    assert http.delete(f"/v1/files/{uploaded.json()['id']}").json()["deleted"]
    for tick in ("expire", "retire"):
        fleet.ticks[tick]()
    fleet.run()
    fleet.clock.advance(300)
    fleet.run()
    fleet.ticks["finish"]()
    assert http.get(f"/v1/batches/{second['id']}").json()["status"] == "cancelled"
    done = http.get(f"/v1/batches/{first['id']}").json()
    assert (done["status"], done["request_counts"]) == ("completed", {"total": 4, "completed": 4, "failed": 0}), done
    assert done["usage"]["total_tokens"] > 0
    assert done["carbon"]["actual_gco2e"] > 0
    answers = [json.loads(one) for one in http.get(f"/v1/files/{done['output_file_id']}/content").iter_lines()]
    assert {one["response"]["status_code"] for one in answers} == {200}
    assert all("carbon" in one["response"]["body"]["usage"] for one in answers)
    return done


def test_every_process_can_do_its_work(roles: Roles, tmp_path: Path) -> None:
    fleet = Fleet(roles, tmp_path)
    with (
        serving(fleet.api(tmp_path)) as url,
        httpx.Client(base_url=url, headers={"Authorization": f"Bearer {fleet.key}"}, trust_env=False) as http,
    ):
        done = submit(http, 30)
        assert set(fleet.run(stop=True)) == {run.Result.GIVEN_BACK}
        fleet.clock.advance(300)
        assert set(fleet.run()) == {run.Result.DONE}
        fleet.ticks["finish"]()
        assert len(http.get(f"/v1/jobs/{done}/results").content.splitlines()) == 30

        batch = run_batch(fleet, http)

        placed = submit(http, 5)
        fleet.ticks["plan"]()
        assert http.post(f"/v1/jobs/{placed}/cancel").json()["progress"]["cancelled"] == 5
        fleet.ticks["finish"]()
        assert http.get(f"/v1/jobs/{placed}").json()["state"] == "cancelled"

        lost = submit(http, 3)
        (ticket,) = fleet.dispatched()
        with fleet.worker_db.write() as tx:
            site = fleet.sites[ticket[0]]
            taken = leases.claim(
                tx, ticket[1], worker_id=site.worker_id, region=ticket[0], lease_s=60, now=fleet.clock.now()
            )
        assert taken is not None
        roles.admin(
            update(chunks).where(chunks.c.state == "running").values(lease_until=datetime(2020, 1, 1, tzinfo=UTC))
        )
        fleet.ticks["reap"]()
        assert roles.admin(select(attempts.c.outcome).where(attempts.c.chunk_id == ticket[1])).scalars().all() == [
            "lost"
        ]

        late = submit(http, 2, late_policy="expire", deadline="2h")
        before = roles.admin(select(func.count()).select_from(entries)).scalar_one()
        fleet.clock.advance(3 * 3600)
        for tick in ("expire", "refresh", "settle", "finish"):
            fleet.ticks[tick]()
        settled = roles.admin(select(func.count()).select_from(entries)).scalar_one() - before
        assert settled >= 30, "the windows are over, their rates known"
        assert http.get(f"/v1/jobs/{late}").json()["state"] == "expired"

        for path in (
            "/v1/jobs",
            f"/v1/jobs/{done}",
            f"/v1/jobs/{lost}",
            f"/v1/jobs/{done}/chunks",
            f"/v1/jobs/{done}/why",
            "/v1/batches",
            f"/v1/batches/{batch['id']}",
            f"/v1/files?limit=2&after={batch['output_file_id']}",
            f"/v1/jobs/{late}/errors",
            "/v1/models",
            "/v1/regions",
            "/v1/plan?hours=3",
            "/v1/forecasts?zone=LEVEL",
            "/v1/ledger",
            "/v1/ledger.csv",
            "/healthz",
            "/readyz",
            "/metrics",
        ):
            answer = http.get(path)
            assert answer.status_code == 200, (path, answer.text)
        counted = {"kind": "embeddings", "model": "fake-model", "items": 9, "tokens": 90, "deadline": "6h"}
        answer = http.post("/v1/quotes", json=counted)
        assert answer.status_code == 200, answer.text

    fleet.clock.advance(2 * 86400)
    roles.admin("UPDATE events SET recorded_at = recorded_at - interval '2 days'")
    roles.admin("UPDATE plans SET recorded_at = recorded_at - interval '2 days'")
    fleet.ticks["retire"]()
    assert roles.admin(select(job_rows.c.purged_at).where(job_rows.c.job_id == done)).scalar_one() is not None
    assert roles.admin(select(files.c.file_id)).scalars().all() == []
    for site in fleet.sites.values():
        heartbeat.stop(site)
    fleet.ticks["seal"]()
    auditor = roles.as_("auditor")
    seen = Seen()
    assert list(check(auditor, seen)) == []
    assert (seen.seals, seen.unsealed) == (1, 0)
    assert sum(len(list(page)) for page in exports.pages(auditor, exports.Selection(all_revisions=True))) >= 60


@pytest.mark.parametrize(
    "command",
    [["ledger", "summary"], ["ledger", "export", "-o", "ledger.csv"], ["ledger", "verify", "--db"]],
    ids=lambda command: command[1],
)
def test_the_auditor_needs_an_address_and_nothing_else(roles: Roles, tmp_path: Path, command: list[str]) -> None:
    url = make_url(roles.url).update_query_dict({"options": f"-c role={roles.prefix}auditor"})
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    environment["CARBONQ_DATABASE_URL"] = url.render_as_string(hide_password=False)
    done = subprocess.run(
        [sys.executable, "-m", "carbonq", *command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_script_may_run_again_and_takes_back_what_it_no_longer_grants(roles: Roles) -> None:
    roles.admin(f"GRANT UPDATE ON jobs TO {roles.prefix}worker")
    roles.admin("GRANT SELECT ON api_keys TO PUBLIC")
    roles.apply()
    roles.refuses("worker", "UPDATE jobs SET tenant = 'me'", "SELECT * FROM api_keys")


def test_each_role_is_refused_what_is_not_its_own(roles: Roles) -> None:
    reads = [
        f"SELECT * FROM {table}" for table in ("api_keys", "jobs", "items", "chunks", "events", "workers", "plans")
    ]
    writes = [f"DELETE FROM {table.name}" for table in metadata.sorted_tables]
    roles.refuses(
        "worker",
        "SELECT key_hash FROM api_keys",
        "INSERT INTO jobs (job_id) VALUES ('x')",
        "UPDATE jobs SET tenant = 'me'",
        "UPDATE jobs SET deadline_at = now()",
        "UPDATE jobs SET input_blob = 'another'",
        "UPDATE jobs SET output_blob = 'another'",
        "UPDATE jobs SET is_cancel_requested = true",
        "UPDATE items SET job_id = 'another'",
        "UPDATE items SET line_offset = 0",
        "UPDATE chunks SET deadline_at = now()",
        "UPDATE regions SET slots = 99",
        "UPDATE clocks SET factor = 9",
        "UPDATE installation SET settings_digest = ''",
        "INSERT INTO forecasts DEFAULT VALUES",
        "INSERT INTO plans DEFAULT VALUES",
        "SELECT chunk_id FROM shadows",
        "INSERT INTO shadows DEFAULT VALUES",
        "SELECT data FROM events",
        *writes,
    )
    roles.refuses(
        "api",
        "INSERT INTO api_keys DEFAULT VALUES",
        "UPDATE api_keys SET revoked_at = NULL",
        "UPDATE jobs SET output_blob = 'another'",
        "UPDATE jobs SET tenant = 'me'",
        "UPDATE regions SET slots = 99",
        "INSERT INTO entries DEFAULT VALUES",
        "INSERT INTO rates DEFAULT VALUES",
        "INSERT INTO shadows DEFAULT VALUES",
        "UPDATE shadows SET region = 'another'",
        "UPDATE api_keys SET scopes = '[]'",
        "UPDATE quotas SET limits = '{}'",
        *(write for write in writes if write.rpartition(" ")[2] not in _REMOVED_BY_THE_API),
    )
    roles.refuses(
        "control",
        "SELECT key_hash FROM api_keys",
        "INSERT INTO admin_log DEFAULT VALUES",
        "UPDATE jobs SET tenant = 'me'",
        "UPDATE jobs SET deadline_at = now()",
        "UPDATE regions SET slots = 99",
        "DELETE FROM jobs",
        "DELETE FROM workers",
    )
    roles.refuses("auditor", *reads, *writes, "INSERT INTO entries DEFAULT VALUES", "CREATE TABLE mine (a int)")
    for role in ("api", "control", "worker", "auditor"):
        roles.refuses(role, "CREATE TABLE mine (a int)", "DROP TABLE items", "UPDATE schema_floor SET revision = '9'")


def test_control_keeps_shadows_and_the_api_reads_them(roles: Roles) -> None:
    now = datetime(2026, 3, 2, tzinfo=UTC)
    for region in ("a", "b"):  # put there, then moved
        placed = Placed(["chk_s"], [region], [now + timedelta(hours=1)], [None], [None], ["carbon"])
        with roles.as_("control").write() as tx:
            shadows.put(tx, "pln_s", placed, [60.0], created_at=now, signal=Signal.MOER)
    with roles.as_("api").read() as tx:
        assert shadows.known(tx, ["chk_s"]) == {"chk_s"}
        assert [one.region for one in shadows.running(tx, now + timedelta(hours=1))] == ["b"]
    with roles.as_("control").write() as tx:
        assert shadows.remove(tx, now + timedelta(days=1)) == 1


def test_nobody_changes_the_ledger(roles: Roles) -> None:
    for table in APPEND_ONLY:
        name, column = table.name, next(iter(table.columns)).name
        change, delete = f"UPDATE {name} SET {column} = {column}", f"DELETE FROM {name}"
        triggers = [f"ALTER TABLE {name} {act}" for act in ("DISABLE TRIGGER ALL", "DISABLE TRIGGER USER")]
        triggers += [f"DROP TRIGGER {name}_refuse ON {name}", f"DROP FUNCTION {name}_is_append_only()"]
        for role in ("api", "control", "worker", "auditor"):
            roles.refuses(role, change, delete, f"TRUNCATE {name}", *triggers)
            roles.refuses(role, "SET session_replication_role = replica")
        # The owner has the right, and the triggers stand.
        owner = roles.as_("owner")
        for statement in (change, delete, f"TRUNCATE {name} CASCADE"):
            with pytest.raises(DBAPIError, match="is append-only"), owner.write() as tx:
                tx.execute(text(statement))


def test_the_owner_upgrades(roles: Roles) -> None:
    roles.apply()  # what is taken back from the others stays with the owner
    owner = roles.as_("owner")
    assert schema.upgrade(owner) == schema.head()
    with owner.write() as tx:
        tx.execute(text("CREATE TABLE of_a_later_version (a int)"))
        tx.execute(text("ALTER TABLE jobs ADD COLUMN of_a_later_version int"))
        tx.execute(text("DROP TABLE of_a_later_version"))
        tx.execute(text("ALTER TABLE jobs DROP COLUMN of_a_later_version"))


def test_every_table_has_a_decision(roles: Roles) -> None:
    """A new table without a line in roles.sql would be found by the first process that needs it, in production."""
    script = roles_sql()
    granted = " ".join(re.findall(r"GRANT [^;]*? ON ([^;]*?)\s+TO", re.sub(r"--.*", "", script)))
    for table in metadata.tables:
        assert re.search(rf"\b{table}\b", granted), f"ops/postgres/roles.sql says nothing of table {table}"
    known = {*metadata.tables, ALEMBIC}
    named = {name for name in re.findall(r"[a-z_]+", granted) if name not in {"sequence", "schema"}}
    assert {name for name in named if not name.endswith("_seq")} <= known | {"s"}, "a table that is no more"


def test_doctor_asks_for_no_more_than_the_script_gives(roles: Roles) -> None:
    assert rights.missing(roles.as_("worker"), rights.REGION) == []
    assert rights.missing(roles.as_("auditor"), {"entries": ("SELECT", "INSERT")}) == ["INSERT on entries"]


def test_the_api_makes_webhooks_and_control_sends_to_them(roles: Roles) -> None:
    api, control = roles.as_("api"), roles.as_("control")
    given: dict[str, Any] = {"name": None, "event_types": None, "secret": None, "may_be_private": False, "actor": "ci"}
    made = webhooks.create(api, "acme", url="https://example.com/", **given)
    webhooks.change(api, "acme", made.webhook_id, name="ours", may_be_private=False, actor="ci")
    webhooks.rotate(api, "acme", made.webhook_id, secret=None, keep_old=True, actor="ci")
    webhooks.send_test(api, FakeClock(), "acme", made.webhook_id)

    class Gone:
        def send(self, *_: object) -> Outcome:
            return Outcome(410)

    deliverer = Deliverer(control, Gone(), FakeClock())
    for _ in range(100):  # other tests that write on the same server can hold it up
        deliverer.run()
        assert deliverer.wait_idle(20)
        if roles.admin("SELECT state FROM webhooks").scalar_one() == "disabled":
            break
        threading.Event().wait(0.05)
    assert roles.admin("SELECT state FROM webhook_deliveries").scalar_one() == "failed"
    webhooks.delete(api, "acme", made.webhook_id, actor="ci")


def test_the_api_sets_budgets_and_control_tells_of_them(roles: Roles) -> None:
    api, control, clock = roles.as_("api"), roles.as_("control"), FakeClock()
    given: dict[str, Any] = {"level": Level.WORKLOAD, "name": "nightly", "actor": "ci"}
    made = budgets_admin.set_budget(api, clock, "acme", cap_g="5", **given)
    again = budgets_admin.set_budget(api, clock, "acme", cap_g="4", action=Action.QUEUE, book=Book.INVENTORY, **given)
    assert (again.budget_id, again.cap_g) == (made.budget_id, 4)
    keeper = Keeper(control, clock, models={}, max_stale_s=7200.0, worker_alive_s=60.0)
    (standing,) = keeper.tick()
    assert budget_alarms.tell(control, clock.now(), [replace(standing, spent_g=again.cap_g)], Thresholds()) == 1
    assert budgets_admin.status(api, clock.now(), "acme", made.budget_id).left_g == 4
    budgets_admin.remove(api, "acme", made.budget_id, actor="ci")
    assert keeper.tick() == []


def test_the_api_sets_targets_workers_mark_hours_and_control_sums_them_up(roles: Roles) -> None:
    api, control, worker = roles.as_("api"), roles.as_("control"), roles.as_("worker")
    clock = FakeClock(W0 + timedelta(minutes=30), kind=ClockKind.REAL)
    made = targets_admin.set_target(api, clock, "acme", g_per_1k_tokens="0.5", actor="me")
    with worker.write() as tx:
        ledger.record_bookings(tx, [booked()])
    targets.tick(control, clock)
    (found,) = targets.statuses(api, clock.now())
    assert found.ran.tokens == 15 and found.target == made
    targets_admin.set_target(api, clock, "acme", g_per_1k_tokens="0.0000001", actor="me")
    assert targets.tick(control, clock) == 1
    targets_admin.remove(api, "acme", made.target_id, actor="me")
    assert targets.tick(control, clock) == 0
    assert targets.statuses(api, clock.now()) == []
