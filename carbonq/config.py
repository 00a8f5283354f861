"""Settings: the only module that reads the environment and ``carbonq.toml``. Library code gets plain values.

Order: arguments > ``CARBONQ_*`` (``__`` nests) > ``CARBONQ_*_FILE`` (secrets) > ``carbonq.toml`` > defaults. Every
field states its default, unit and interactions in its description; ``carbonq config show`` prints them with origins.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from carbonq.errors import ConfigError

#: Where embedded mode keeps its database, blobs, logs and keys unless told otherwise.
DEFAULT_DATA_DIR = Path(".carbonq")

#: What tenants and regions may be called.
NAME = r"^[a-z0-9][a-z0-9_-]{0,62}$"


#: How the URLs of database and broker begin.
_URL_SCHEMES = {
    "database_url": ("sqlite:///", "postgresql://", "postgres://", "postgresql+psycopg://"),
    "broker_url": ("redis://", "rediss://", "amqp://", "amqps://"),
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RegionSettings(_Strict):
    """One place that can run work (``[regions.NAME]``)."""

    zone: str = Field(description="Grid zone, as its source names it; must be configured under [zones].")
    slots: int = Field(1, ge=1, le=1024, description="Chunks that run at the same time (engine lanes).")
    realtime_slots: int = Field(1, ge=1, le=256, description="Worker threads kept free for realtime requests.")
    pue: Decimal = Field(Decimal("1.0"), ge=1, le=5, description="Power usage effectiveness of the site.")
    pue_source: str = Field("not stated, 1.0 assumed", description="Where the PUE comes from, for the auditor.")
    hardware: str = Field("cpu", description="Name of the hardware; throughput is learned for (model, hardware).")
    latency_ms: float = Field(0.0, ge=0, description="Network latency from the API in ms until it was measured.")
    ownership: Literal["owned", "colocated", "rented"] = Field("owned", description="For the GHG scope of its energy.")
    models: tuple[str, ...] | None = Field(None, description="Models it serves; unset: all configured models.")
    embodied_kg: Decimal | None = Field(None, ge=0, description="kgCO2e embodied in one slot's hardware.")
    life_h: Decimal | None = Field(None, gt=0, description="Hours over which embodied carbon is spread.")
    watts_per_core: float | None = Field(None, gt=0, description="W per busy core for the CPU-time estimate.")
    gpus: tuple[str, ...] = Field((), description="GPU indices or UUIDs its worker uses; empty: all it sees.")
    threads: int | None = Field(None, ge=1, description="CPU threads of an engine; unset: the host's cores / regions.")


class SourceSettings(_Strict):
    """Where the rates of a zone come from (``[zones.NAME.marginal]`` or ``[zones.NAME.average]``)."""

    source: Literal["recorded", "csv"] = Field(description="recorded: the demo grid that ships; csv: a file.")
    path: Path | None = Field(None, description="csv: file with columns time_utc,g_per_kwh (UTC window starts).")

    @model_validator(mode="after")
    def _check(self) -> SourceSettings:
        if self.source == "csv" and self.path is None:
            raise ValueError('source = "csv" needs a path')
        return self


class ZoneSettings(_Strict):
    """The sources of one grid zone: marginal for decisions, average for the inventory book; never mixed."""

    marginal: SourceSettings | None = None
    average: SourceSettings | None = None


class ModelSettings(_Strict):
    """A model clients may ask for (``[models.NAME]``)."""

    engine: Literal["wordllama", "llama_cpp"] = Field(description="Which engine runs it.")
    path: Path | None = Field(None, description="llama_cpp: the GGUF file.")
    context_tokens: int = Field(2048, ge=16, description="llama_cpp: context length in tokens.")
    max_output_tokens: int = Field(128, ge=1, description="llama_cpp: default and upper limit of max_tokens.")
    dimensions: int = Field(256, ge=1, description="wordllama: length of the vectors.")
    tokens_per_s: float | None = Field(None, gt=0, description="Starting throughput of one slot.")
    tier: int = Field(1, ge=1, description="Size class; a downgrade goes to the next smaller tier.")


class Settings(BaseSettings):
    """All settings of one installation."""

    model_config = SettingsConfigDict(
        env_prefix="CARBONQ_", env_nested_delimiter="__", extra="forbid", frozen=True, env_ignore_empty=True
    )

    data_dir: Path = Field(DEFAULT_DATA_DIR, description="Folder of database, blobs, spool and logs.")
    database_url: SecretStr | None = Field(None, description="sqlite:///FILE or postgresql://...; unset: SQLite.")
    broker_url: SecretStr | None = Field(
        None, description="redis://... or amqp://...; unset: an embedded Redis server is started by `carbonq up`."
    )
    host: str = Field("127.0.0.1", description="Address the API binds; any but loopback needs an API key.")
    port: int = Field(8750, ge=0, le=65535, description="Port of the API; 0: any free one.")
    flower_port: int = Field(5555, ge=0, le=65535, description="Port of Flower on loopback; 0: any free one.")
    flower_password: SecretStr | None = Field(None, description="Flower's password (user carbonq); unset: made.")
    api_key: SecretStr | None = Field(None, description="The key that CLI and client send; also accepted by the API.")
    api_url: str | None = Field(
        None, description="Where the CLI finds the API; unset: as the stack of data_dir says, else http://host:port."
    )
    tenant: str = Field("default", pattern=NAME, description="Tenant of the local key.")
    home_region: str | None = Field(None, description="Where work would run without carbonq; unset: the first region.")
    zones: dict[str, ZoneSettings] = Field(default_factory=dict, description="Grid zones and their sources.")
    regions: dict[str, RegionSettings] = Field(default_factory=dict, description="Regions; none: two on the demo grid.")
    models: dict[str, ModelSettings] = Field(default_factory=dict, description="Models beside the two built-in ones.")

    lease_s: float = Field(60.0, gt=0, description="Machine seconds a worker may be silent before its chunk is taken.")
    renew_s: float = Field(15.0, gt=0, description="Machine seconds between lease renewals; below lease_s / 2.")
    redispatch_after_s: float = Field(10.0, gt=0, description="Machine seconds until an unclaimed ticket is resent.")
    max_attempts: int = Field(4, ge=1, description="Counted attempts before a chunk is cut in two or its item fails.")
    max_chunk_items: int = Field(10_000, ge=1, le=50_000, description="Most items in one chunk.")
    chunk_fill: float = Field(0.6, gt=0, le=1, description="Share of a window one chunk may take by estimate.")
    chunk_wait_s: float = Field(0.0, ge=0, description="Machine seconds small jobs wait to share chunks with others.")
    isolate_tenants: bool = Field(False, description="Never put items of two tenants into one chunk.")
    checkpoint_items: int = Field(2_000, ge=1, le=20_000, description="Most items in one checkpoint transaction.")
    checkpoint_s: float = Field(15.0, gt=0, description="Most machine seconds between checkpoints of a chunk.")
    replan_margin: float = Field(0.03, ge=0, lt=1, description="Relative gain below which a placement is not moved.")
    settle_after_s: float = Field(0.0, ge=0, description="Grid seconds after a window's end before a rate may settle.")
    max_stale_s: float = Field(7200.0, gt=0, description="Grid seconds after which a zone's signal counts as down.")
    worker_alive_s: float = Field(15.0, gt=0, description="Machine seconds of silence before a worker is gone.")
    max_input_bytes: int = Field(200 * 1024 * 1024, ge=1, description="Largest input of one job, in bytes.")
    max_items: int = Field(50_000, ge=1, description="Most items in one job.")
    max_line_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="Longest input line, in bytes.")
    realtime_timeout_s: float = Field(30.0, gt=0, description="Machine seconds a realtime caller waits at most.")
    realtime_queue_limit: int = Field(64, ge=1, description="Realtime calls in flight per API process before 429.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Level of the log files.")

    @field_validator("data_dir")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser()

    @field_validator("database_url", "broker_url")
    @classmethod
    def _check_url(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        schemes = _URL_SCHEMES[info.field_name or ""]
        if value is not None and not _is_url(value.get_secret_value(), schemes):
            # The value is not shown: it may hold a password.
            raise ValueError(f"must be a URL that begins with {' or '.join(schemes)}")
        return value

    @model_validator(mode="after")
    def _check(self) -> Settings:
        if self.renew_s * 2 > self.lease_s:
            raise ValueError(f"renew_s ({self.renew_s}) must be at most half of lease_s ({self.lease_s})")
        if self.home_region is not None and self.regions and self.home_region not in self.regions:
            raise ValueError(f"home_region {self.home_region!r} is not among the regions {sorted(self.regions)}")
        for name, region in self.regions.items():
            if re.fullmatch(NAME, name) is None:
                raise ValueError(f"regions.{name}: a region's name has small letters, digits, - and _, at most 63")
            if region.zone not in self.zones:
                raise ValueError(f"regions.{name}.zone {region.zone!r} is not configured under [zones]")
        return self

    @property
    def resolved_database_url(self) -> str:
        """The database URL in force."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{self.data_dir.resolve() / 'carbonq.db'}"

    @property
    def first_region(self) -> str:
        """The home region in force."""
        return self.home_region or next(iter(self.regions))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put ``*_FILE`` secrets and the TOML file after the environment; no dotenv."""
        return (init_settings, env_settings, _SecretFiles(settings_cls), _TomlFile(settings_cls))


class _SecretFiles(PydanticBaseSettingsSource):
    """``CARBONQ_X_FILE`` names a file that holds the value of a secret ``x``."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        raise LookupError(field_name)

    def __call__(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, info in self.settings_cls.model_fields.items():
            path = os.environ.get(f"CARBONQ_{name.upper()}_FILE")
            if path and "SecretStr" in str(info.annotation):
                try:
                    values[name] = Path(path).read_text(encoding="utf-8").strip()
                except OSError as error:
                    raise ConfigError(f"CARBONQ_{name.upper()}_FILE: cannot read {path}: {error.strerror}") from error
        return values


class _TomlFile(PydanticBaseSettingsSource):
    """``CARBONQ_CONFIG``, else ``carbonq.toml`` in the working folder."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        raise LookupError(field_name)

    def __call__(self) -> dict[str, Any]:
        return read_toml(config_path())


def _is_url(value: str, schemes: Sequence[str]) -> bool:
    if not value.startswith(tuple(schemes)):
        return False
    try:
        # Reading the port checks it; a list of brokers is split first. A SQLite file has a name: memory is not shared.
        return all(urlsplit(one).port != 0 for one in value.split(";")) and value != "sqlite:///"
    except ValueError:
        return False


def _check_variables() -> None:
    """Raise ConfigError for a ``CARBONQ_`` variable that is a misspelt setting.

    Others are left alone: schedulers make variables such as CARBONQ_SERVICE_HOST by themselves.
    """
    known = {f"CARBONQ_{name.upper()}" for name in Settings.model_fields}
    known |= {"CARBONQ_CONFIG", *(f"{name}_FILE" for name in known)}
    for variable in sorted(os.environ):
        name = variable.partition("__")[0]
        if not variable.startswith("CARBONQ_") or name in known:
            continue
        match = difflib.get_close_matches(
            name.removeprefix("CARBONQ_"), [one.removeprefix("CARBONQ_") for one in known], n=1, cutoff=0.75
        )
        if match:
            raise ConfigError(f"{variable} is no setting; did you mean CARBONQ_{match[0]}?")


def environment(settings: Settings) -> dict[str, str]:
    """Return the settings that were given, as the environment of a child process; holds secrets in the clear."""
    values: dict[str, str] = {}
    for name in settings.model_fields_set:
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            values[f"CARBONQ_{name.upper()}"] = value.get_secret_value()
        elif value is not None:
            plain = settings.model_dump(mode="json", include={name}, exclude_unset=True)[name]
            values[f"CARBONQ_{name.upper()}"] = plain if isinstance(plain, str) else json.dumps(plain)
    return values


def origin(name: str) -> str:
    """Say where the value of a setting comes from: the variable, the file, or ``default``."""
    variable = f"CARBONQ_{name.upper()}"
    set_by = [key for key in sorted(os.environ) if key == variable or key.startswith(f"{variable}__")]
    path = config_path()
    if name in read_toml(path):
        set_by.append(str(path))
    if os.environ.get(f"{variable}_FILE"):
        set_by.insert(0, f"{variable}_FILE")
    return ", ".join(set_by) or "default"


def isolate(path: Path) -> None:
    """Make ``path`` the only settings of this process and its children: the user's own play no part."""
    for name in [name for name in os.environ if name.startswith("CARBONQ_")]:
        del os.environ[name]
    os.environ["CARBONQ_CONFIG"] = str(path)


def config_path() -> Path | None:
    """Return the settings file in force, if any. Raises ConfigError when CARBONQ_CONFIG names none."""
    named = os.environ.get("CARBONQ_CONFIG")
    if named:
        if not Path(named).is_file():
            raise ConfigError(f"CARBONQ_CONFIG names {named}, which is no file")
        return Path(named)
    return Path("carbonq.toml") if Path("carbonq.toml").is_file() else None


def read_toml(path: Path | None) -> dict[str, Any]:
    """Read a settings file; unknown top-level names fail with the nearest known one. Raises ConfigError."""
    if path is None:
        return {}
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    for name in values:
        if name not in Settings.model_fields:
            raise ConfigError(f"{path}: unknown setting {name!r}{_nearest(name, Settings.model_fields)}")
    return values


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    match = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {match[0]!r}?" if match else ""


#: The two regions of the demo grid (recorded MOER of two Californian areas, see carbonq/data).
_DEMO_REGIONS: dict[str, dict[str, Any]] = {
    "norcal": {"zone": "SGIP_CAISO_PGE", "pue": "1.20", "pue_source": "assumed for the demo"},
    "socal": {"zone": "SGIP_CAISO_SCE", "pue": "1.20", "pue_source": "assumed for the demo"},
}


def load(**overrides: Any) -> Settings:
    """Read the settings. Raises ConfigError naming the setting, the value and the limit.

    Without any region the two demo regions are taken, on the recorded demo grid.
    """
    _check_variables()
    try:
        settings = Settings(**overrides)
        if not settings.regions:
            # dict() of the parsed values, so that the demo regions pass the same validation.
            zones = {region["zone"]: {"marginal": {"source": "recorded"}} for region in _DEMO_REGIONS.values()}
            given = settings.model_dump(exclude_unset=True)
            given["zones"] = {**zones, **given.get("zones", {})}
            given["regions"] = _DEMO_REGIONS
            settings = Settings(**given)
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from None  # its text would show the values, secrets too
    return settings


def _sentence(error: ValidationError) -> str:
    """Say what is wrong with one setting: a misspelt name first, because it often makes another one be missing."""
    problems = error.errors()
    first = next((one for one in problems if one["type"] == "extra_forbidden"), problems[0])
    what = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return what
    name = str(first["loc"][0])
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known: Mapping[str, Any] = Settings.model_fields
        if len(first["loc"]) > 1:
            models: dict[str, type[BaseModel]] = {
                "regions": RegionSettings,
                "zones": ZoneSettings,
                "models": ModelSettings,
            }
            known = (
                SourceSettings.model_fields if name == "zones" and len(first["loc"]) > 3 else models[name].model_fields
            )
        return f"setting {where}: there is no such setting{_nearest(where.rpartition('.')[2], known)}"
    is_secret = "SecretStr" in str(Settings.model_fields[name].annotation) if name in Settings.model_fields else False
    value = first.get("input")
    given = f" (it is {value!r})" if isinstance(value, str | int | float) and not is_secret else ""
    source = origin(name) if name in Settings.model_fields else "default"
    return f"setting {where}: {what}{given}" + ("" if source == "default" else f"; set by {source}")
