from __future__ import annotations

import socket
from pathlib import Path

import pytest

from carbonq import config
from carbonq.embedded import broker, checkup, host_check
from carbonq.embedded.checkup import Finding, State
from carbonq.embedded.stack import Stack
from carbonq.errors import ConfigError


def findings(tmp_path: Path, **more: object) -> dict[str, list[Finding]]:
    values: dict[str, object] = {"data_dir": tmp_path, "port": 0, "flower_port": 0, **more}
    found: dict[str, list[Finding]] = {}
    for one in checkup.run(config.load(**values)):
        found.setdefault(one.check, []).append(one)
    return found


def test_a_ready_machine_has_one_finding_a_check(tmp_path: Path) -> None:
    found = findings(tmp_path)
    assert list(found) == ["python", "broker", "ports", "database", "blobs", "models", "meters", "grid", "disk"]
    assert not [one for group in found.values() for one in group if one.state is State.FAIL]
    assert "made at the first `carbonq up`" in found["database"][0].finding
    assert "recorded-demo-shifted" in found["grid"][0].finding
    assert "estimated, never settles" in found["grid"][0].finding
    assert "cpu: " in found["meters"][0].finding
    assert not list(tmp_path.iterdir()), "looking must change nothing"


def test_a_used_port_is_found(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = findings(tmp_path, port=server.getsockname()[1])
    assert found["ports"][0].state is State.FAIL
    assert "CARBONQ_PORT" in found["ports"][0].finding


def test_a_broker_that_does_not_answer_is_found_without_its_password(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = findings(tmp_path, broker_url=f"redis://:secret@127.0.0.1:{port}/0")["broker"][0]
    assert found.state is State.FAIL
    assert f"127.0.0.1:{port}" in found.finding
    assert "secret" not in found.finding


def test_an_old_schema_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "carbonq.db").touch()
    found = findings(tmp_path)["database"][0]
    assert found.state is State.WARN
    assert "carbonq db upgrade" in found.finding


def test_a_missing_model_file_is_named(tmp_path: Path) -> None:
    found = findings(tmp_path, models={"mine": {"engine": "llama_cpp", "path": tmp_path / "no.gguf"}})["models"]
    assert any("no.gguf, which is no file" in one.finding for one in found)


def test_little_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1_000_000

    monkeypatch.setattr(host_check.shutil, "disk_usage", lambda _: Usage)
    assert findings(tmp_path)["disk"][0].state is State.FAIL


def test_a_data_folder_that_cannot_be_one_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = findings(tmp_path / "file" / "x")["disk"][0]
    assert found.state is State.FAIL
    assert "is no folder" in found.finding


def test_a_database_in_a_folder_that_is_missing_is_found(tmp_path: Path) -> None:
    found = findings(tmp_path, database_url=f"sqlite:///{tmp_path}/no/x.db")["database"][0]
    assert found.state is State.FAIL
    assert f"{tmp_path}/no of CARBONQ_DATABASE_URL does not exist" in found.finding


def test_a_start_needs_the_broker_of_the_settings(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    settings = config.load(data_dir=tmp_path, port=0, flower_port=0, broker_url=f"redis://127.0.0.1:{port}/0")
    with pytest.raises(ConfigError, match=rf"redis at 127.0.0.1:{port}: .*check CARBONQ_BROKER_URL"):
        Stack(settings, report=lambda _: None).__enter__()
    assert not (tmp_path / "carbonq.db").exists()


def test_a_start_without_any_broker_program_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise ConfigError("no Redis-compatible server was found")

    monkeypatch.setattr(broker, "find_program", none)
    with pytest.raises(ConfigError, match="no Redis-compatible server was found"):
        Stack(config.load(data_dir=tmp_path, port=0, flower_port=0), report=lambda _: None).__enter__()
    assert not (tmp_path / "carbonq.db").exists()
