"""The reference of the settings is that of the code, and what is shown of settings has origins and no secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from carbonq import config
from carbonq.cli.main import app
from carbonq.config import describe, tree
from carbonq.config.scope import Scope, scope_at

DOCS = Path(__file__).parents[2] / "docs" / "settings.md"

TOML = """\
database_url = "sqlite:///{folder}/no.db"
broker_url = "redis://:geheim-0@h/0"

[accounts.watttime]
username = "me"
password = "geheim-1"

[regions.se]
zone = "SE"
slots = 2

[[zones.SE.marginal]]
source = "csv"
path = "rates.csv"

[[zones.SE.average]]
source = "http"
name = "h"
url = "https://me:geheim-2@x.test/{{zone}}?api_key=geheim-3&start=1"
rows = "$"
unit = "g/kWh"
gas = "co2"
step_s = 300
headers = {{ X-Key = "geheim-4" }}
params = {{ token = "geheim-5", zone = "SE" }}
"""


def test_the_reference_is_up_to_date() -> None:
    assert DOCS.read_text(encoding="utf-8") == describe.document(), "run `carbonq config docs > docs/settings.md`"


def test_every_setting_is_described() -> None:
    text = describe.document()
    for place, model in describe.tables():
        for name, field in model.model_fields.items():
            assert f"`{name}`" in text or f".{name}`" in text or name in text, (place, name)
            if not tree.fields((*place, name)) and name != "source" and not model.__doc__:
                assert field.description, (place, name)
    assert "`CARBONQ_ACCOUNTS__WATTTIME__PASSWORD_FILE`" in text


def show(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> str:
    path = folder / "c.toml"
    path.write_text(TOML.format(folder=folder), encoding="utf-8")
    monkeypatch.setenv("CARBONQ_CONFIG", str(path))
    monkeypatch.setenv("CARBONQ_REGIONS__SE__PUE", "1.3")
    (folder / "key").write_text("geheim-6\n")
    monkeypatch.setenv("CARBONQ_API_KEY_FILE", str(folder / "key"))
    result = CliRunner().invoke(app, ["config", "show", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_leaf_is_shown_with_its_origin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = {row["setting"]: row for row in json.loads(show(monkeypatch, tmp_path, "--json"))}
    path = tmp_path / "c.toml"
    assert {name: (shown[name]["value"], shown[name]["origin"]) for name in ORIGINS} == {
        name: (value, origin.replace("FILE line", f"{path} line")) for name, (value, origin) in ORIGINS.items()
    }


ORIGINS = {
    "regions.se.slots": (2, "FILE line 10"),
    "regions.se.pue": ("1.3", "CARBONQ_REGIONS__SE__PUE"),
    "regions.se.latency_ms": (0.0, "default"),
    "zones.SE.marginal.0.path": ("rates.csv", "FILE line 14"),
    "zones.SE.average.0.headers.X-Key": ("********", "FILE line 24"),
    "zones.SE.average.0.params.token": ("********", "FILE line 25"),
    "zones.SE.average.0.params.zone": ("********", "FILE line 25"),
    "zones.SE.average.0.url": ("https://********@x.test/{zone}?api_key=********&start=********", "FILE line 19"),
    "accounts.watttime.password": ("********", "FILE line 6"),
    "api_key": ("********", "CARBONQ_API_KEY_FILE"),
    "broker_url": ("********", "FILE line 2"),
    "port": (8750, "default"),
}


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    shown = show(monkeypatch, tmp_path, *arguments)
    assert "geheim" not in shown
    assert "accounts.watttime.password" in shown


@pytest.mark.parametrize(
    ("place", "scope"),
    [
        (("regions", "se", "slots"), Scope.SHARED),
        (("regions", "se", "gpus"), Scope.PREFILLED),
        (("zones", "SE", "marginal", 0, "source"), Scope.SHARED),
        (("zones", "SE", "marginal", 0, "path"), Scope.PREFILLED),
        (("zones", "SE", "marginal", 0, "headers", "X"), Scope.HOST),
        (("models", "m", "path"), Scope.PREFILLED),
        (("accounts", "watttime", "username"), Scope.HOST),
        (("database_url",), Scope.HOST),
        (("lease_s",), Scope.SHARED),
    ],
)
def test_whose_a_setting_is(place: tree.Place, scope: Scope) -> None:
    assert scope_at(place) is scope


def test_nothing_secret_is_shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(TOML.format(folder=tmp_path), encoding="utf-8")
    monkeypatch.setenv("CARBONQ_CONFIG", str(tmp_path / "c.toml"))
    shared = config.shared(config.load())
    assert "geheim" not in json.dumps(shared)
    assert shared["zones"]["SE"]["marginal"] == [{"source": "csv", "path": str(Path("rates.csv").absolute())}]
    assert "path" not in json.dumps(config.shared(config.load(), prefilled=False))
