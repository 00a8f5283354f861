"""`carbonq doctor --region se` on a host of its own names what is missing, against real services."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import make_url, text

from carbonq import config, wiring
from carbonq.embedded import checkup, finding
from carbonq.embedded.checkup import Finding, State
from carbonq.errors import InvalidRequest
from carbonq.store import rights
from carbonq.store.database import Database
from tests.conftest import require
from tests.services.jobs import World
from tests.system.backends import RABBITMQ, answers, redis_server
from tests.unit.test_checkup import findings

REGION: dict[str, Any] = {"regions": {"se": {"zone": "SE"}}, "zones": {"SE": {"marginal": {"source": "uk"}}}}


def checked(tmp_path: Path, region: str | None = "se", **more: Any) -> dict[str, list[Finding]]:
    """Look a host over that runs a worker, as `carbonq doctor --region se` does."""
    sources = config.given(**{"data_dir": tmp_path, **more})
    settings = sources.read(wiring.stored_settings(sources)).settings
    found: dict[str, list[Finding]] = {}
    for one in checkup.run(settings, region=region, sources=sources):
        found.setdefault(one.check, []).append(one)
    return found


def prepared(tmp_path: Path, database: Database) -> dict[str, str]:
    url = database.engine.url.render_as_string(hide_password=False)
    runtime, _ = wiring.prepare(config.load(**REGION, data_dir=tmp_path / "elsewhere", database_url=url))
    runtime.close()
    return {"database_url": url, "blob_url": f"file://{tmp_path / 'blobs'}"}


def test_a_host_of_a_worker_is_ready(tmp_path: Path, database: Database) -> None:
    (tmp_path / "blobs").mkdir()
    with redis_server() as url:
        found = checked(tmp_path, **prepared(tmp_path, database), broker_url=url)
    checks = ["python", "broker", "database", "settings", "clock", "workers", "blobs", "models", "meters", "disk"]
    assert list(found) == checks
    assert found["workers"][0].finding == "none runs"
    assert not [one for group in found.values() for one in group if one.state is not State.OK]
    assert "agree with the installation's" in found["settings"][0].finding
    assert "from the database's" in found["clock"][0].finding
    assert "a probe was written, read and deleted" in found["blobs"][0].finding


def test_a_host_of_a_worker_without_anything_is_told_what_it_needs(tmp_path: Path) -> None:
    found = checked(tmp_path, **REGION)
    for what in ("broker", "database", "blobs"):
        assert found[what][0].state is State.FAIL
        assert f"on a host of its own a worker needs CARBONQ_{what.rstrip('s').upper()}" in found[what][0].finding


def test_a_host_that_knows_of_no_region_hears_what_is_missing_and_not_of_the_demo(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "CARBONQ_DATA_DIR": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "carbonq", "doctor", "--region", "se", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    failed = {one["check"] for one in json.loads(done.stdout) if one["state"] == "fail"}
    assert (done.returncode, failed) == (1, {"broker", "database", "blobs"}), done.stderr


def test_a_worker_cannot_use_a_database_that_nobody_upgraded(tmp_path: Path, postgres_database_url: str) -> None:
    found = checked(tmp_path, **REGION, database_url=postgres_database_url)["database"]
    assert [one.state for one in found] == [State.FAIL]
    assert found[0].finding.endswith("has no tables yet; run `carbonq db upgrade`")


def test_a_database_that_refuses_is_found_with_its_setting(tmp_path: Path, postgres_database_url: str) -> None:
    url = make_url(postgres_database_url).set(database="no_such", password="geheim")
    found = findings(tmp_path, database_url=url.render_as_string(hide_password=False))["database"][0]
    assert found.state is State.FAIL
    assert "no_such" in found.finding and "check CARBONQ_DATABASE_URL" in found.finding
    assert "geheim" not in found.finding


def test_a_folder_of_blobs_that_is_not_mounted_is_found_and_not_made(tmp_path: Path, postgresql: Database) -> None:
    given = prepared(tmp_path, postgresql)
    found = checked(tmp_path, **given)["blobs"][0]
    assert found.state is State.FAIL and f"{tmp_path / 'blobs'} of CARBONQ_BLOB_URL does not exist" in found.finding
    assert not (tmp_path / "blobs").exists()
    World(postgresql, tmp_path / "api").submit(1)
    (tmp_path / "blobs").mkdir()
    found = checked(tmp_path, **given)["blobs"]
    assert [one.state for one in found] == [State.OK, State.FAIL]
    assert "holds the input of none of the newest jobs" in found[1].finding


def test_a_check_that_breaks_hides_no_other() -> None:
    def act() -> Iterator[Finding]:
        raise RuntimeError("broken on purpose\nand more")
        yield

    (found,) = finding.found("clock", act)()
    assert found.state is State.FAIL
    assert found.finding.endswith("a defect of carbonq: RuntimeError: broken on purpose")


def test_a_region_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="unknown region 'no'; known regions: se"):
        checked(tmp_path, "no", **REGION)


def test_a_difference_to_the_installation_fails(tmp_path: Path, database: Database) -> None:
    given = prepared(tmp_path, database)
    found = checked(tmp_path, **given, regions={"se": {"slots": 2}}, chunk_fill=0.7)["settings"]
    assert [(one.state, one.finding.partition(";")[0]) for one in found] == [
        (State.FAIL, "this host says regions.se.slots = 2, the installation says 1"),
        (State.WARN, "this host says chunk_fill = 0.7, the installation says 0.6"),
    ]


def test_a_clock_that_is_off_fails(tmp_path: Path, database: Database) -> None:
    found = checked(tmp_path, **prepared(tmp_path, database), max_clock_offset_s=1e-9)["clock"][0]
    assert found.state is State.FAIL
    assert "max_clock_offset_s allows 1e-09 s" in found.finding


def test_a_model_that_was_named_for_the_region_must_be_there(tmp_path: Path) -> None:
    mine = {"mine": {"engine": "llama_cpp", "path": tmp_path / "no.gguf"}}
    found = checked(tmp_path, **REGION, models=mine)["models"]
    assert [one.state for one in found if "no.gguf" in one.finding] == [State.FAIL]
    elsewhere = {"se": {"zone": "SE", "models": ["wordllama-256"]}}
    found = checked(tmp_path, **{**REGION, "regions": elsewhere}, models=mine)["models"]
    assert [one.finding for one in found] == ["wordllama-256 (wordllama, /v1/embeddings)"]


def test_a_missing_gpu_is_said(tmp_path: Path) -> None:
    regions = {"se": {"zone": "SE", "gpus": ["9"]}}
    found = checked(tmp_path, **{**REGION, "regions": regions})["meters"][0]
    assert found.state is State.FAIL
    assert "regions.se.gpus or --gpus names them" in found.finding


def test_a_wrong_password_of_the_broker_is_found(tmp_path: Path) -> None:
    with redis_server() as url:
        right = urlsplit(url).password
        assert right is not None
        assert findings(tmp_path, broker_url=url)["broker"][0].state is State.OK
        found = findings(tmp_path, broker_url=url.replace(right, "geheim"))["broker"][0]
    assert found.state is State.FAIL and "password" in found.finding
    assert "geheim" not in found.finding


def test_an_unknown_user_of_rabbitmq_is_found(tmp_path: Path) -> None:
    if not answers(RABBITMQ):
        require(f"no RabbitMQ on {RABBITMQ[0]}:{RABBITMQ[1]}")
    url = f"amqp://guest:guest@{RABBITMQ[0]}:{RABBITMQ[1]}//"
    assert findings(tmp_path, broker_url=url)["broker"][0].state is State.OK
    found = findings(tmp_path, broker_url=url.replace("guest:guest", "nobody:geheim"))["broker"][0]
    assert found.state is State.FAIL
    assert "geheim" not in found.finding


def test_a_host_that_swallows_everything_costs_seconds_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "PATIENCE_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and never answers
        port = silent.getsockname()[1]
        began = time.monotonic()
        found = findings(
            tmp_path,
            broker_url=f"redis://:p@127.0.0.1:{port}/0",
            database_url=f"postgresql://u:p@127.0.0.1:{port}/x",
        )
        took_s = time.monotonic() - began
    assert found["broker"][0].state is State.FAIL
    assert found["database"][0].state is State.FAIL
    assert "within" in found["database"][0].finding
    assert took_s < 8


def test_rights_that_the_worker_lacks_are_named(tmp_path: Path, postgres_database_url: str) -> None:
    database = Database(postgres_database_url)
    given = prepared(tmp_path, database)
    role = f"carbonq_{uuid.uuid4().hex[:8]}"
    with database.write() as tx:
        tx.execute(text(f"CREATE ROLE {role} LOGIN"))
        tx.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"))
    try:
        url = database.engine.url.set(username=role, password=None).render_as_string(hide_password=False)
        found = checked(tmp_path, **{**given, "database_url": url})["database"]
        assert [one.state for one in found] == [State.OK, State.FAIL]
        assert "this login lacks INSERT on attempts, UPDATE on attempts, UPDATE on chunks" in found[1].finding
        with database.write() as tx:
            for table, granted in rights.REGION.items():
                tx.execute(text(f"GRANT {', '.join(granted)} ON {table} TO {role}"))
        assert [one.state for one in checked(tmp_path, **{**given, "database_url": url})["database"]] == [State.OK]
    finally:
        with database.write() as tx:
            tx.execute(text(f"DROP OWNED BY {role}"))
            tx.execute(text(f"DROP ROLE {role}"))
        database.dispose()
