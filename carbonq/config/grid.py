"""Settings of grid zones and of where their rates come from: ``[zones.NAME]`` and ``[accounts]``.

A zone has an ordered list of marginal sources and one of average sources: the first that answers is used, the others
are fallbacks. One class for each kind of source, told apart by ``source``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator

from carbonq.config.strict import Strict


def _plain_address(value: str) -> str:
    """Check the address of an API: scheme and host, no query, no fragment."""
    try:
        parts = urlsplit(value)
        is_good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    else:
        is_good = is_good and not parts.query and not parts.fragment and value.isprintable() and " " not in value
    if not is_good:
        raise ValueError("it must be an address such as https://host:port/path, without ? and #")
    return value


def _no_login(value: str) -> str:
    if "@" in urlsplit(value).netloc:
        raise ValueError("it must hold no login; user names and tokens are set under [accounts]")
    return value


def _sendable(value: SecretStr) -> SecretStr:
    """Check a secret that is sent in a header; the message does not show it."""
    if not re.fullmatch(r"[!-~]([ -~]*[!-~])?", value.get_secret_value()):
        raise ValueError(
            "it is sent in a header: printable ASCII, not empty, without line breaks or spaces at its ends"
        )
    return value


Address = Annotated[str, AfterValidator(_plain_address)]
OpenAddress = Annotated[str, AfterValidator(_plain_address), AfterValidator(_no_login)]
HeaderSecret = Annotated[SecretStr, AfterValidator(_sendable)]


class RecordedSettings(Strict):
    """The demo grid that ships: recorded marginal rates of two Californian areas, repeated for ever."""

    source: Literal["recorded"]


class CsvSettings(Strict):
    """A file; rows ahead of now count as the forecast."""

    source: Literal["csv"]
    path: Path = Field(description="File with columns time_utc (window starts) and g_per_kwh.")


class AnnualSettings(Strict):
    """One factor for a year, from a table; flat in time, so nothing is shifted on it."""

    source: Literal["annual"]
    path: Path = Field(description="CSV with the columns zone, year, value, unit and reference.")
    area: str | None = Field(None, description="Zone as the table calls it; unset: the zone's own name.")


class WattTimeSettings(Strict):
    """WattTime v3 (``accounts.watttime``): marginal rates, forecasts to 72 h."""

    source: Literal["watttime"]
    area: str | None = Field(None, description="WattTime's region, e.g. CAISO_NORTH; unset: the zone's own name.")
    horizon_h: int = Field(72, ge=1, le=72, description="Hours of forecast asked for.")
    model: str | None = Field(None, description="Date of WattTime's model; unset: its newest.")
    base_url: OpenAddress = Field("https://api.watttime.org", description="Address of the API.")


class SgipSettings(Strict):
    """SGIP Signal (``accounts.sgip``): California's marginal rates, free."""

    source: Literal["sgip"]
    area: str | None = Field(None, description="Balancing area, e.g. SGIP_CAISO_PGE; unset: the zone's own name.")
    base_url: OpenAddress = Field("https://sgipsignal.com", description="Address of the API.")


class ElectricityMapsSettings(Strict):
    """Electricity Maps (``accounts.electricity_maps``): average rates, flow-traced."""

    source: Literal["electricity_maps"]
    area: str | None = Field(None, description="Its zone, e.g. DE; unset: the zone's own name.")
    version: Literal["v3", "v4"] = Field("v4", description="Version of the API.")
    factor: Literal["lifecycle", "direct"] = Field("lifecycle", description="Which emission factors it uses.")
    granularity: Literal["hourly", "15_minutes", "5_minutes"] = Field("hourly", description="Step asked for.")
    horizon_h: Literal[6, 24, 48, 72] = Field(72, description="Hours of forecast asked for.")
    base_url: OpenAddress = Field("https://api.electricitymaps.com", description="Address of the API.")


class UkSettings(Strict):
    """GB Carbon Intensity (no key): average rates; regional rows never settle."""

    source: Literal["uk"]
    region_id: int | None = Field(None, ge=1, le=17, description="Region of GB, 1 to 17; unset: the nation.")
    base_url: OpenAddress = Field("https://api.carbonintensity.org.uk", description="Address of the API.")


class CarbonAwareSdkSettings(Strict):
    """A Carbon Aware SDK WebAPI of your own; you state which signal its provider gives."""

    source: Literal["carbon_aware_sdk"]
    base_url: Address = Field(description="Address of your WebAPI.")
    location: str = Field(description="Location as your WebAPI calls it, e.g. eastus.")
    gas: Literal["co2", "co2e"] = Field(description="What its provider counts: WattTime co2, Electricity Maps co2e.")
    may_settle: bool = Field(False, description="Whether its past values are final enough to settle entries.")


class EntsoeSettings(Strict):
    """ENTSO-E Transparency (``accounts.entsoe``): average rates from generation by fuel; imports are ignored."""

    source: Literal["entsoe"]
    area: str = Field(description="EIC code of the area, e.g. 10Y1001A1001A83F.")
    base_url: OpenAddress = Field("https://web-api.tp.entsoe.eu/api", description="Address of the API.")


class HttpSettings(Strict):
    """Any JSON over HTTP. In the URLs {zone}, {start} and {end} (UTC, ISO 8601) are filled in."""

    source: Literal["http"]
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$", description="What entries call it.")
    url: str | None = Field(None, description="Template of the address of observations; unset: it has none.")
    forecast_url: str | None = Field(None, description="Template of the address of the forecast; unset: it has none.")
    params: dict[str, str] = Field(default_factory=dict, description="Query parameters, templates like the URLs.")
    headers: dict[str, HeaderSecret] = Field(default_factory=dict, description="Headers to send; secrets.")
    rows: str = Field(description="JSON path of the rows, e.g. $.data[*].")
    time: str = Field("time", description="JSON path in a row of its window's start.")
    value: str = Field("value", description="JSON path in a row of its value.")
    issued_at: str | None = Field(None, description="JSON path of the time of issue; unset: when it was fetched.")
    unit: str = Field(description="Unit of the values, e.g. g/kWh or lbs_co2_per_mwh.")
    gas: Literal["co2", "co2e"] = Field(description="What is counted.")
    method: str | None = Field(None, description="What entries give as the method, e.g. direct or lifecycle.")
    step_s: int = Field(ge=300, le=86_400, multiple_of=300, description="Seconds that a value covers.")
    span_h: int = Field(336, ge=1, le=8784, description="Hours of observations asked for in one call at most.")
    is_estimated: bool = Field(False, description="Whether all its values are estimates.")
    may_settle: bool = Field(True, description="Whether its observations are final enough to settle entries.")


SourceSettings = Annotated[
    RecordedSettings
    | CsvSettings
    | AnnualSettings
    | WattTimeSettings
    | SgipSettings
    | ElectricityMapsSettings
    | UkSettings
    | CarbonAwareSdkSettings
    | EntsoeSettings
    | HttpSettings,
    Field(discriminator="source"),
]


class ZoneSettings(Strict):
    """The sources of one grid zone: marginal for decisions, average for the inventory book; never mixed."""

    marginal: tuple[SourceSettings, ...] = Field((), description="Marginal sources, the preferred one first.")
    average: tuple[SourceSettings, ...] = Field((), description="Average sources, the preferred one first.")

    @field_validator("marginal", "average", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """A single table is a list of one."""
        return (value,) if isinstance(value, dict) else value


class LoginSettings(Strict):
    """An account with user name and password."""

    username: str
    password: SecretStr


class TokenSettings(Strict):
    """An account with a token."""

    token: HeaderSecret


class AccountsSettings(Strict):
    """Accounts at providers of rates; one is used by all zones."""

    watttime: LoginSettings | None = None
    sgip: LoginSettings | None = None
    electricity_maps: TokenSettings | None = None
    entsoe: TokenSettings | None = None


__all__ = ["AccountsSettings", "LoginSettings", "SourceSettings", "TokenSettings", "ZoneSettings"]
