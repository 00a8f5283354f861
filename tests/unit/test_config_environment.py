from __future__ import annotations

from pathlib import Path

import pytest

from carbonq import config


def test_settings_survive_the_way_through_a_childs_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    region = {"zone": "Z", "pue": "1.25", "slots": 3, "models": ["a", "b"]}
    given = config.load(
        data_dir=tmp_path,
        port=1234,
        broker_url="redis://:secret@127.0.0.1:1/0",
        zones={"Z": {"marginal": {"source": "csv", "path": "rates.csv"}}},
        regions={"fr": region},
    )
    for name, value in config.environment(given).items():
        monkeypatch.setenv(name, value)
    assert config.load() == given


def test_origins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("lease_s = 40.0\n")
    monkeypatch.setenv("CARBONQ_CONFIG", str(path))
    monkeypatch.setenv("CARBONQ_PORT", "1")
    monkeypatch.setenv("CARBONQ_REGIONS__FR__SLOTS", "2")
    assert config.origin("port") == "CARBONQ_PORT"
    assert config.origin("lease_s") == str(path)
    assert config.origin("regions") == "CARBONQ_REGIONS__FR__SLOTS"
    assert config.origin("host") == "default"


def test_isolated_settings_come_from_one_file_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("port = 7\n")
    monkeypatch.setenv("CARBONQ_CONFIG", "elsewhere.toml")
    monkeypatch.setenv("CARBONQ_PORT", "1")
    config.isolate(path)
    assert config.load().port == 7
