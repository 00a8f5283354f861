"""Sources from settings: preferred first, one set a zone, accounts and connections shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from carbonq import config
from carbonq.clock import GridClock
from carbonq.config import SourceSettings
from carbonq.errors import ConfigError
from carbonq.grid.protocol import GridSource
from carbonq.model import Signal
from carbonq.sourcing import make_sources

ACCOUNTS = {
    "watttime": {"username": "me", "password": "secret"},
    "sgip": {"username": "me", "password": "secret"},
    "electricity_maps": {"token": "secret"},
    "entsoe": {"token": "secret"},
}


HTTP = {
    "source": "http",
    "name": "mine",
    "url": "https://x/y",
    "rows": "$",
    "unit": "g/kWh",
    "gas": "co2",
    "step_s": 300,
}


def made(zones: dict[str, Any], **more: Any) -> dict[tuple[str, Signal], list[GridSource]]:
    regions = more.pop("regions", {f"r{number}": {"zone": zone} for number, zone in enumerate(zones)})
    settings = config.load(zones=zones, regions=regions, **{"accounts": ACCOUNTS, **more})
    return {key: list(given) for key, given in make_sources(settings, GridClock.real()).items()}


def test_sources_come_in_the_order_of_the_settings_once_a_zone(tmp_path: Path) -> None:
    csv = {"source": "csv", "path": str(tmp_path / "a.csv")}
    factors = {"source": "annual", "path": str(tmp_path / "f.csv")}
    zones = {
        "CAISO_NORTH": {"marginal": [{"source": "watttime"}, csv], "average": factors},
        "UNUSED": {"marginal": {"source": "recorded"}},
    }
    regions = {name: {"zone": "CAISO_NORTH"} for name in ("a", "b", "c")}
    found = made(zones, regions=regions)
    assert list(found) == [("CAISO_NORTH", Signal.MOER), ("CAISO_NORTH", Signal.AER)]
    assert [one.name for one in found["CAISO_NORTH", Signal.MOER]] == ["watttime-v3", "csv:a.csv"]
    assert [one.name for one in found["CAISO_NORTH", Signal.AER]] == ["annual:f.csv"]
    for given in found.values():
        for source in given:
            source.close()


def test_zones_of_one_provider_share_its_connections_and_account() -> None:
    zones = {zone: {"marginal": {"source": "watttime"}} for zone in ("A", "B")}
    zones["C"] = {"marginal": {"source": "watttime", "base_url": "http://127.0.0.1:1"}}  # type: ignore[dict-item]
    a, b, c = (given[0] for given in made(zones).values())
    account = vars(a)["_account"]
    assert account is vars(b)["_account"] is not vars(c)["_account"]
    assert account.http is vars(b)["_account"].http is not vars(c)["_account"].http
    for source in (a, b, c):
        source.close()


@pytest.mark.parametrize(
    ("zone", "words"),
    [
        (
            {"marginal": {"source": "watttime"}},
            r"zones\.Z\.marginal: WattTime needs an account; set accounts\.watttime\.",
        ),
        ({"marginal": {"source": "sgip"}}, r"SGIP Signal needs an account; set accounts\.sgip\.username"),
        (
            {"average": {"source": "electricity_maps"}},
            r"zones\.Z\.average: Electricity Maps needs an account; set accounts\.electricity_maps\.token",
        ),
        ({"average": {"source": "entsoe", "area": "10Y"}}, r"ENTSO-E needs an account; set accounts\.entsoe\.token"),
        (
            {"marginal": {"source": "electricity_maps"}},
            r"zones\.Z\.marginal: Electricity Maps has average rates only, its marginal endpoints are gone; use",
        ),
        ({"marginal": {"source": "uk"}}, r"zones\.Z\.marginal: the source 'uk' has average rates only"),
        (
            {"marginal": {**HTTP, "unit": "percentile"}},
            r"zones\.Z\.marginal\.unit is in percentile: a relative figure",
        ),
        ({"marginal": {**HTTP, "url": "https://[x"}}, r"zones\.Z\.marginal\.url is no address"),
        ({"average": {"source": "recorded"}}, r"zones\.Z\.average: the source 'recorded' has marginal rates only"),
        (
            {"marginal": [{"source": "csv", "path": "x/a.csv"}, {"source": "csv", "path": "y/a.csv"}]},
            r"zones\.Z\.marginal\[1\]: csv:a\.csv is among the sources before it already",
        ),
    ],
)
def test_what_cannot_be_made_names_its_setting(zone: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made({"Z": zone}, accounts={})


def test_every_kind_of_source_can_be_made(tmp_path: Path) -> None:
    path = str(tmp_path / "x.csv")
    http = {"source": "http", "name": "mine", "url": "https://example.org/{zone}", "rows": "$[*]", "unit": "g/kWh"}
    http |= {"gas": "co2", "step_s": 300, "headers": {"token": "secret"}}  # type: ignore[dict-item]
    marginal = [
        {"source": "watttime"},
        {"source": "sgip"},
        {"source": "recorded"},
        {"source": "csv", "path": path},
        {"source": "annual", "path": path},
        {"source": "carbon_aware_sdk", "base_url": "http://127.0.0.1:1", "location": "eastus", "gas": "co2"},
        http,
    ]
    average = [
        {"source": "electricity_maps"},
        {"source": "uk"},
        {"source": "uk", "region_id": 13},
        {"source": "entsoe", "area": "10Y1001A1001A82H"},
    ]
    found = made({"Z": {"marginal": marginal, "average": average}})
    assert len(found["Z", Signal.MOER]) == len(marginal) and len(found["Z", Signal.AER]) == len(average)
    tried = {one["source"] for one in (*marginal, *average)}
    assert tried == {
        kind.model_fields["source"].annotation.__args__[0] for kind in get_args(get_args(SourceSettings)[0])
    }
    for given in found.values():
        for source in given:
            source.close()
