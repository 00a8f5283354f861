"""A misspelt name fails at any depth, in the file and in variables, with the nearest known one and where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from carbonq import config
from carbonq.errors import ConfigError

BASE = """
[regions.se]
zone = "SE"
[zones.SE]
marginal = [{ source = "csv", path = "a.csv" }, { source = "watttime" }]
"""


def load(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> config.Settings:
    path = folder / "c.toml"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("CARBONQ_CONFIG", str(path))
    return config.load()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("\nprot = 1", "c.toml line 2: unknown setting 'prot'; did you mean 'port'?"),
        ("[region.se]", "c.toml line 1: unknown setting 'region'; did you mean 'regions'?"),
        (
            "[regions.se]\nslotz = 2",
            "setting regions.se.slotz: there is no such setting; did you mean 'slots'?",
        ),
        ("[models.m]\nengin = 'wordllama'", "setting models.m.engin: there is no such setting; did you mean 'engine'?"),
        (
            "[accounts.wattime]\nusername = 'x'",
            "setting accounts.wattime: there is no such setting; did you mean",
        ),
        (
            "[accounts.watttime]\nusername = 'x'\npasword = 'geheim'",
            "setting accounts.watttime.pasword: there is no such setting; did you mean 'password'?",
        ),
        (
            "[accounts.entsoe]\ntokn = 'geheim'",
            "setting accounts.entsoe.tokn: there is no such setting; did",
        ),
        (
            "[zones.SE]\nmarginall = []",
            "zones.SE.marginall: there is no such setting; did you mean 'marginal'?",
        ),
        (
            "[[zones.SE.marginal]]\nsource = 'csv'\npath = 'a'\n[[zones.SE.marginal]]\nsource = 'annual'\npaht = 'b'",
            "setting zones.SE.marginal.1.paht: there is no such setting; did you mean 'path'?; set by",
        ),
        (
            "[zones.SE.average]\nsource = 'entso'\narea = 'x'",
            "average.0.source: there is no source 'entso'; did",
        ),
        ("[zones.SE.average]\nsource = 'x'", "there is no source 'x'; there are recorded, csv, annual"),
        (
            "[zones.SE.average]\nsorce = 'csv'",
            "average.0.sorce: there is no such setting; did you mean 'source'",
        ),
        ("[zones.SE.average]\npath = 'csv'", "setting zones.SE.average.0: it must say which source it is"),
        ("log_level = 'WARN'", "(it is 'WARN'); did you mean 'WARNING'?"),
        ("[regions]\nse = 3", "setting regions.se: must be a table; set by"),  # a region may hold secrets
        (
            BASE + "[regions.no]\nzone = 'SEE'",
            "regions.no.zone 'SEE' is not configured under [zones]; did you mean",
        ),
        ("home_region = 'sse'\n" + BASE, "home_region 'sse' is no region; did you mean 'se'?"),
        (
            BASE + "[regions.no]\nzone = 'SE'\nmodels = ['wordlama-256']",
            "regions.no.models: there is no model 'wordlama-256'; did you mean 'wordllama-256'?",
        ),
    ],
)
def test_in_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(monkeypatch, tmp_path, text)
    assert sentence in error.value.message
    assert "geheim" not in error.value.message


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[accounts.entsoe]\ntoken = 'geheim-1\u00fc'", "accounts.entsoe.token: it is sent in a header"),
        ('[accounts.entsoe]\ntoken = "geheim-1\\n"', "accounts.entsoe.token: it is sent in a header"),
        ("[accounts.entsoe]\ntoken = ''", "accounts.entsoe.token: it is sent in a header"),
        *(
            (f"[zones.Z.average]\nsource = 'uk'\nbase_url = '{address}'", f"zones.Z.average.0.base_url: {words}")
            for address, words in (
                ("grid.example/v1", "it must be an address such as https://"),
                ("ftp://grid.example", "it must be an address such as https://"),
                ("https://grid.example:99999", "it must be an address such as https://"),
                ("https://grid.example/v1?key=geheim-1", "it must be an address such as https://"),
                ("https://me:geheim-1@grid.example", "it must hold no login"),
            )
        ),
    ],
)
def test_what_cannot_be_sent_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load(monkeypatch, tmp_path, text)
    assert sentence in error.value.message
    assert "geheim" not in error.value.message


def test_the_line_of_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "lease_s = 60\n\n[regions.se]\nzone = 'SE'  # a note\nslots = 0\n[zones.SE]\n"
    with pytest.raises(ConfigError, match=r"setting regions.se.slots: .* \(it is 0\); set by .*c.toml line 5$"):
        load(monkeypatch, tmp_path, text)


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("PROT", "1", "CARBONQ_PROT is no setting; did you mean CARBONQ_PORT?"),
        (
            "REGIONS__SE__SLOTZ",
            "1",
            "SE__SLOTZ is no setting; did you mean CARBONQ_REGIONS__SE__SLOTS?",
        ),
        (
            "REGIONS__SE__SLOTS__X",
            "1",
            "SE__SLOTS__X is no setting: regions.se.slots has nothing below",
        ),
        ("ZONES__SE__MARGINL__SOURCE", "csv", "did you mean CARBONQ_ZONES__SE__MARGINAL__SOURCE?"),
        ("ZONES__SE__MARGINAL__1__PAHT", "x", "did you mean CARBONQ_ZONES__SE__MARGINAL__1__PATH?"),
        ("ZONES__SE__MARGINAL__PAHT", "x", "did you mean CARBONQ_ZONES__SE__MARGINAL__PATH?"),
        ("ACCOUNTS__WATTTIME__PASWORD", "x", "did you mean CARBONQ_ACCOUNTS__WATTTIME__PASSWORD?"),
        ("ACCOUNTS__WATTTIME__PASSWORD_FIEL", "x", "did you mean CARBONQ_ACCOUNTS__WATTTIME__PASSWORD_FILE?"),
        ("ACCOUNTS__ENTSEO__TOKEN", "x", "did you mean CARBONQ_ACCOUNTS__ENTSOE__TOKEN?"),
        ("MODELS__M__ENGIN", "x", "did you mean CARBONQ_MODELS__M__ENGINE?"),
        ("API_KEY_FIEL", "x", "did you mean CARBONQ_API_KEY_FILE?"),
        ("PORT_FILE", "x", "CARBONQ_PORT_FILE: port is no secret, so it is not read from a file; set CARBONQ_PORT"),
        ("REGIONS", "nonsense", "CARBONQ_REGIONS must be an object in JSON"),
        ("ZONES__SE__MARGINAL", "csv", "CARBONQ_ZONES__SE__MARGINAL must be a list in JSON"),
        ("ZONES__SE__MARGINAL__3__PATH", "x", "zones.SE.marginal has no item 2, but one after it"),
        (
            "ACCOUNTS__SGIP__PASSWORD_FILE",
            "/no/file",
            "PASSWORD_FILE: cannot read /no/file: No",
        ),
        ("REGIONS__SE__SLOTS", "many", "setting regions.se.slots: Input should be a valid integer, unable"),
    ],
)
def test_in_a_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(f"CARBONQ_{variable}", value)
    with pytest.raises(ConfigError) as error:
        load(monkeypatch, tmp_path, BASE)
    assert sentence in error.value.message


def test_a_wrong_value_names_its_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CARBONQ_REGIONS__SE__SLOTS", "0")
    with pytest.raises(ConfigError, match=r"; set by CARBONQ_REGIONS__SE__SLOTS$"):
        load(monkeypatch, tmp_path, BASE)


def test_a_variable_reaches_every_depth(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("geheim\n")
    for name, value in {
        "REGIONS__SE__SLOTS": "3",
        "REGIONS__SE__GPUS": "0,1",
        "REGIONS__NO__ZONE": "NO",
        "ZONES__SE__MARGINAL__0__PATH": "b.csv",
        "ZONES__NO__MARGINAL__SOURCE": "uk",
        "ZONES__NO__AVERAGE": '[{"source": "http", "name": "h", "rows": "$", "unit": "g/kWh", "gas": "co2"}]',
        "ZONES__NO__AVERAGE__STEP_S": "300",
        "ZONES__NO__AVERAGE__0__HEADERS__X-Key_FILE": str(secret),
        "ACCOUNTS__WATTTIME__USERNAME": "me",
        "ACCOUNTS__WATTTIME__PASSWORD_FILE": str(secret),
        "LEASE_S": "",  # an empty variable says nothing
    }.items():
        monkeypatch.setenv(f"CARBONQ_{name}", value)
    settings = load(monkeypatch, tmp_path, BASE)
    assert (settings.regions["se"].slots, settings.regions["se"].gpus) == (3, ("0", "1"))
    assert settings.regions["no"].zone == "NO"
    first, second = settings.zones["SE"].marginal
    assert (first.source, str(getattr(first, "path", ""))) == ("csv", "b.csv")
    assert second.source == "watttime"
    assert settings.zones["NO"].marginal[0].source == "uk"
    headers = getattr(settings.zones["NO"].average[0], "headers", {})
    assert headers["X-Key"].get_secret_value() == "geheim"
    assert settings.accounts.watttime is not None
    assert settings.accounts.watttime.password.get_secret_value() == "geheim"


def test_names_are_matched_whatever_their_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = BASE.replace('"SE"', '"Sweden-1"').replace("zones.SE", "zones.Sweden-1")
    monkeypatch.setenv("CARBONQ_ZONES__SWEDEN_1__MARGINAL__0__PATH", "b.csv")
    settings = load(monkeypatch, tmp_path, text)
    assert list(settings.zones) == ["Sweden-1"]
    assert str(getattr(settings.zones["Sweden-1"].marginal[0], "path", "")) == "b.csv"


def test_the_first_that_says_something_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from the file of a variable")
    (tmp_path / "c.toml").write_text("api_key = 'toml'\nmax_items = 5\n")
    monkeypatch.setenv("CARBONQ_CONFIG", str(tmp_path / "c.toml"))
    shared = {"max_items": 7, "chunk_fill": 0.5}

    def read(**overrides: object) -> config.Settings:
        return config.given(**overrides).read(shared).settings

    def key(settings: config.Settings) -> str:
        assert settings.api_key is not None
        return settings.api_key.get_secret_value()

    assert (key(read()), read().max_items, read().chunk_fill) == ("toml", 5, 0.5)
    monkeypatch.setenv("CARBONQ_API_KEY_FILE", str(secret))
    assert key(read()) == "from the file of a variable"
    monkeypatch.setenv("CARBONQ_API_KEY", "variable")
    assert key(read()) == "variable"
    assert key(read(api_key="argument")) == "argument"


def test_a_list_given_whole_replaces_the_one_below(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CARBONQ_ZONES__SE__MARGINAL", '[{"source": "uk"}]')
    settings = load(monkeypatch, tmp_path, BASE)
    assert [one.source for one in settings.zones["SE"].marginal] == ["uk"]


def test_nested_secrets_survive_the_way_through_a_childs_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = (
        BASE
        + """
[accounts.watttime]
username = "me"
password = "geheim-1"
[accounts.entsoe]
token = "geheim-2"
[[zones.SE.average]]
source = "http"
name = "h"
url = "https://me:geheim-3@x.test/{zone}"
rows = "$"
unit = "g/kWh"
gas = "co2"
step_s = 300
headers = { X-Key = "geheim-4" }
params = { "api.key" = "geheim-5" }
"""
    )
    given = load(monkeypatch, tmp_path, text)
    environment = config.environment(given)
    monkeypatch.delenv("CARBONQ_CONFIG")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert config.load() == given
