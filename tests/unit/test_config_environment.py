from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from carbonq import config
from carbonq.errors import ConfigError


def test_settings_survive_the_way_through_a_childs_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    region = {
        "zone": "Z",
        "pue": "1.25",
        "slots": 3,
        "models": ["wordllama-256", "mine"],
        "meters": {"cpu": {"factor": "1.07", "factor_on": date(2026, 5, 1)}},
        "maintenance": [{"start": datetime(2026, 5, 1, 8, tzinfo=UTC), "end": "2026-05-01T09:00:00Z"}],
    }
    given = config.load(
        data_dir=tmp_path,
        port=1234,
        broker_url="redis://:secret@127.0.0.1:1/0",
        zones={"Z": {"marginal": {"source": "csv", "path": "rates.csv"}}},
        regions={"fr": region},
        models={"mine": {"engine": "llama_cpp", "path": "m.gguf", "tier": 2}},
    )
    for name, value in config.environment(given).items():
        monkeypatch.setenv(name, value)
    assert config.load() == given


def test_isolated_settings_come_from_one_file_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("port = 7\n")
    monkeypatch.setenv("CARBONQ_CONFIG", "elsewhere.toml")
    monkeypatch.setenv("CARBONQ_PORT", "1")
    config.isolate(path)
    assert config.load().port == 7


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("port = 99999", "setting port: Input should be less than or equal to 65535 (it is 99999); set by "),
        ('[regions.fr]\nzome = "Z"', "setting regions.fr.zome: there is no such setting; did you mean 'zone'?"),
        (
            '[zones.Z.marginal]\nsource = "csv"\npaht = "x"',
            "zones.Z.marginal.0.paht: there is no such setting; did you mean 'path'",
        ),
        ('[zones.Z.marginal]\nsource = "csv"', "setting zones.Z.marginal.0.path: Field required; set by "),
        ('[regions.fr]\nzone = "Z"', "regions.fr.zone 'Z' is not configured under [zones]"),
        ('[regions."E ast"]\nzone = "Z"', "regions.E ast: a region's name has small letters"),
        ("lease_s = 10.0", "renew_s (15.0) must be at most half of lease_s (10.0)"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("carbonq.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        config.load()
    assert sentence in error.value.message
    assert "Value error" not in error.value.message


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("database_url", "nonsense:secret", "must be a URL that begins with sqlite:///"),
        ("database_url", "mysql://secret@x/y", "must be a URL that begins with sqlite:///"),
        ("database_url", "sqlite://", "must be a URL that begins with sqlite:///"),
        ("database_url", "sqlite:///", "names no file, folder or bucket"),
        ("blob_url", "file:///", "names no file, folder or bucket"),
        ("blob_url", "s3:///secret", "names no file, folder or bucket"),
        ("database_url", "postgresql://u:secret@h:port/y", "cannot be read: after // stand user:password@host"),
        ("broker_url", "secret", "must be a URL that begins with redis://"),
        ("broker_url", "memory://secret", "must be a URL that begins with redis://"),
        ("broker_url", "redis://:secret@x:99999/0", "cannot be read: after // stand user:password@host"),
        ("broker_url", "redis://:sec/secret#x@h:6379/0", "cannot be read: .* of a password are written %2F"),
    ],
)
def test_a_url_of_something_else_is_refused_without_being_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv(f"CARBONQ_{name.upper()}", value)
    with pytest.raises(ConfigError, match=f"setting {name}: {why}") as error:
        config.load()
    assert "secret" not in error.value.message


def test_the_urls_people_write_are_taken() -> None:
    for url in (
        "sqlite:///x.db",
        "sqlite:////var/x.db",
        "postgresql://u:p@h/db",
        "postgresql:///db?host=/run/postgresql",
    ):
        assert config.load(database_url=url).resolved_database_url == url
    for url in (
        "redis://h",
        "rediss://:p@h:6380/1",
        "amqp://u:p@h:5672//",
        "redis:///0",
        "amqp://a:5672;amqp://b:5672",
    ):
        assert config.load(broker_url=url).broker_url is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keep_events_days", "1e9"),  # a date would overflow
        ("keep_results_days", "1e9"),
        ("lease_s", "inf"),
        ("worker_alive_s", "1e12"),
        ("max_clock_offset_s", "inf"),
    ],
)
def test_a_time_without_end_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"CARBONQ_{name.upper()}", value)
    with pytest.raises(ConfigError, match=f"setting {name}: Input should be "):
        config.load()


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        (b"", "is empty; it must hold one line"),
        (b" \n", "is empty; it must hold one line"),
        (b"one\ntwo\n", "has several lines; it must hold one line"),
        (b"\xff\xfe", "it is no text"),
    ],
)
def test_a_file_that_holds_no_secret_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bytes, sentence: str
) -> None:
    path = tmp_path / "key"
    path.write_bytes(held)
    monkeypatch.setenv("CARBONQ_API_KEY_FILE", str(path))
    with pytest.raises(ConfigError, match=f"CARBONQ_API_KEY_FILE: .*key.*{sentence}") as error:
        config.load()
    assert "two" not in error.value.message


@pytest.mark.parametrize("held", [b"one\n", b"one\r\n", b"\xef\xbb\xbfone"])
def test_a_secret_is_read_as_editors_leave_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bytes) -> None:
    (tmp_path / "key").write_bytes(held)
    monkeypatch.setenv("CARBONQ_API_KEY_FILE", str(tmp_path / "key"))
    key = config.load().api_key
    assert key is not None
    assert key.get_secret_value() == "one"


def test_a_misspelt_variable_is_refused_and_a_foreign_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARBONQ_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("CARBONQ_SERVICE_PORT", "8750")
    config.load()
    for wrong, right in (("PROT", "PORT"), ("REGION__FR__SLOTS", "REGIONS"), ("API_KEY_FIEL", "API_KEY_FILE")):
        monkeypatch.setenv(f"CARBONQ_{wrong}", "1")
        with pytest.raises(ConfigError, match=f"CARBONQ_{wrong} is no setting; did you mean CARBONQ_{right}"):
            config.load()
        monkeypatch.delenv(f"CARBONQ_{wrong}")


def test_the_home_folder_may_be_written_as_a_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config.load(data_dir="~/data").data_dir == tmp_path / "data"
