"""Make the grid sources that the settings ask for: the part of ``wiring`` that names concrete sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from carbonq.clock import Clock
from carbonq.config import Settings, SourceSettings
from carbonq.config.grid import (
    AnnualSettings,
    CarbonAwareSdkSettings,
    CsvSettings,
    ElectricityMapsSettings,
    EntsoeSettings,
    HttpSettings,
    RecordedSettings,
    SgipSettings,
    UkSettings,
    WattTimeSettings,
)
from carbonq.errors import ConfigError
from carbonq.grid.protocol import GridSource
from carbonq.model import Signal

if TYPE_CHECKING:
    from carbonq.grid.account import Account
    from carbonq.grid.electricity_maps_account import ElectricityMapsAccount
    from carbonq.grid.entsoe import EntsoeAccount
    from carbonq.grid.http import Http


def make_sources(settings: Settings, clock: Clock) -> dict[tuple[str, Signal], Sequence[GridSource]]:
    """Return the grid sources of each (zone, book) that a region uses, preferred first; nothing is asked yet.

    However many regions use a zone, its sources are made once; those of one provider share connections and account.
    Raises ConfigError naming the setting: an account that is missing, a source of the other book, two alike.
    """
    maker = _SourceMaker(settings, clock)
    sources: dict[tuple[str, Signal], Sequence[GridSource]] = {}
    for zone in dict.fromkeys(region.zone for region in settings.regions.values()):
        values = settings.zones[zone]
        for signal, word, given in (
            (Signal.MOER, "marginal", values.marginal),
            (Signal.AER, "average", values.average),
        ):
            made: list[GridSource] = []
            for position, source in enumerate(given):
                where = f"zones.{zone}.{word}" + (f"[{position}]" if len(given) > 1 else "")
                made.append(maker.make(zone, signal, source, where))
                if made[-1].signal is not signal:
                    other = "average" if signal is Signal.MOER else "marginal"
                    raise ConfigError(f"{where}: the source {source.source!r} has {other} rates only")
                if made[-1].name in {one.name for one in made[:-1]}:
                    raise ConfigError(f"{where}: {made[-1].name} is among the sources before it already")
            if made:
                sources[(zone, signal)] = tuple(made)
    return sources


class _SourceMaker:
    """Makes sources; keeps what those of one provider share."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._accounts = settings.accounts
        self._clock = clock
        self._https: dict[tuple[str, str], Http] = {}
        self._logins: dict[tuple[str, str], Account] = {}
        self._maps: dict[str, ElectricityMapsAccount] = {}
        self._entsoes: dict[str, EntsoeAccount] = {}

    def make(self, zone: str, signal: Signal, values: SourceSettings, where: str) -> GridSource:  # noqa: PLR0911 - one for each kind
        """Make one source; ``where`` is its setting."""
        match values:
            case RecordedSettings():
                from carbonq.grid.recorded import RecordedSource, shift_for

                return RecordedSource(shift_for(self._clock))
            case CsvSettings():
                from carbonq.grid.csv_file import CsvSource

                return CsvSource(values.path, zone, signal)
            case AnnualSettings():
                from carbonq.grid.annual import AnnualSource

                return AnnualSource(values.path, zone, signal, area=values.area)
            case WattTimeSettings():
                from carbonq.grid.watttime import WattTimeSource

                login = self._login("watttime", "WattTime", values.base_url, where)
                return WattTimeSource(
                    login, zone=zone, area=values.area, horizon_h=values.horizon_h, model=values.model
                )
            case SgipSettings():
                from carbonq.grid.sgip import SgipSource

                return SgipSource(
                    self._login("sgip", "SGIP Signal", values.base_url, where), zone=zone, area=values.area
                )
            case ElectricityMapsSettings():
                from carbonq.grid.electricity_maps import ElectricityMapsSource

                if signal is Signal.MOER:
                    raise ConfigError(
                        f"{where}: Electricity Maps has average rates only, its marginal endpoints are gone; use it "
                        f"under zones.{zone}.average"
                    )
                return ElectricityMapsSource(
                    self._electricity_maps(values.base_url, where),
                    zone=zone,
                    area=values.area,
                    version=values.version,
                    factor=values.factor,
                    granularity=values.granularity,
                    horizon_h=values.horizon_h,
                )
            case UkSettings():
                from carbonq.grid.uk import UkSource

                return UkSource(
                    self._http("GB Carbon Intensity", values.base_url), zone=zone, region_id=values.region_id
                )
            case CarbonAwareSdkSettings():
                from carbonq.grid.carbon_aware_sdk import CarbonAwareSdkSource

                return CarbonAwareSdkSource(
                    self._http("Carbon Aware SDK", values.base_url),
                    zone=zone,
                    location=values.location,
                    signal=signal,
                    gas=values.gas,
                    may_settle=values.may_settle,
                )
            case EntsoeSettings():
                from carbonq.grid.entsoe import EntsoeSource

                return EntsoeSource(self._entsoe(values.base_url, where), zone=zone, area=values.area)
            case HttpSettings():
                from carbonq.grid.generic_http import HttpSource

                return HttpSource(
                    self._http(values.name, _host(values.url or values.forecast_url or "")),
                    zone=zone,
                    signal=signal,
                    name=values.name,
                    url=values.url,
                    forecast_url=values.forecast_url,
                    rows=values.rows,
                    unit=values.unit,
                    gas=values.gas,
                    step_s=values.step_s,
                    time=values.time,
                    value=values.value,
                    issued_at=values.issued_at,
                    method=values.method,
                    params=values.params,
                    headers={name: secret.get_secret_value() for name, secret in values.headers.items()},
                    span_h=values.span_h,
                    is_estimated=values.is_estimated,
                    may_settle=values.may_settle,
                    setting=where,
                )

    def _http(self, provider: str, base_url: str) -> Http:
        from carbonq.grid.http import Http

        key = (provider, base_url.rstrip("/"))
        if key not in self._https:
            self._https[key] = Http(provider, base_url)
        return self._https[key]

    def _login(self, name: Literal["watttime", "sgip"], provider: str, base_url: str, where: str) -> Account:
        from carbonq.grid.account import Account

        given = self._accounts.watttime if name == "watttime" else self._accounts.sgip
        if given is None:
            raise ConfigError(f"{where}: {provider} needs an account; set accounts.{name}.username and .password")
        http = self._http(provider, base_url)
        key = (name, http.base_url)
        if key not in self._logins:
            self._logins[key] = Account(
                http,
                username=given.username,
                password=given.password.get_secret_value(),
                setting=f"accounts.{name}",
            )
        return self._logins[key]

    def _electricity_maps(self, base_url: str, where: str) -> ElectricityMapsAccount:
        from carbonq.grid.electricity_maps_account import ElectricityMapsAccount

        token = self._token("electricity_maps", "Electricity Maps", where)
        http = self._http("Electricity Maps", base_url)
        if http.base_url not in self._maps:
            self._maps[http.base_url] = ElectricityMapsAccount(http, token=token)
        return self._maps[http.base_url]

    def _entsoe(self, base_url: str, where: str) -> EntsoeAccount:
        from carbonq.grid.entsoe import RETRY, EntsoeAccount
        from carbonq.grid.http import Http

        token = self._token("entsoe", "ENTSO-E", where)
        if base_url not in self._entsoes:
            self._entsoes[base_url] = EntsoeAccount(Http("ENTSO-E", base_url, retry=RETRY), token=token)
        return self._entsoes[base_url]

    def _token(self, name: Literal["electricity_maps", "entsoe"], provider: str, where: str) -> str:
        given = self._accounts.electricity_maps if name == "electricity_maps" else self._accounts.entsoe
        if given is None:
            raise ConfigError(f"{where}: {provider} needs an account; set accounts.{name}.token")
        return given.token.get_secret_value()


def _host(url: str) -> str:
    """Return scheme and host of a template: sources of one name and host share connections."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""  # the source says what is wrong with it
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
