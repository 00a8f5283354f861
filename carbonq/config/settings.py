"""All settings of an installation, flat ones here, tables in the files beside."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from carbonq.config.grid import AccountsSettings, ZoneSettings
from carbonq.config.models import ModelSettings, TiersSettings
from carbonq.config.origins import nearest
from carbonq.config.regions import RegionSettings
from carbonq.config.strict import NAME, Strict
from carbonq.models import BUILTIN

#: Where embedded mode keeps its database, blobs, logs and keys unless told otherwise.
DEFAULT_DATA_DIR = Path(".carbonq")


#: Longest times that may be set: a hundred years in days, ten in seconds. Dates would overflow with more.
MAX_DAYS = 36_525
MAX_S = 315_576_000

#: How the URLs of database and broker begin.
_URL_SCHEMES = {
    "database_url": ("sqlite:///", "postgresql://", "postgres://", "postgresql+psycopg://"),
    "blob_url": ("file:///", "s3://", "gs://", "az://"),
    "broker_url": ("redis://", "rediss://", "amqp://", "amqps://"),
}


class Settings(Strict):
    """All settings of one installation."""

    data_dir: Path = Field(DEFAULT_DATA_DIR, description="Folder of database, blobs, spool and logs.")
    database_url: SecretStr | None = Field(None, description="sqlite:///FILE or postgresql://...; unset: SQLite.")
    lock_dir: Path | None = Field(
        None,
        description="Folder of the locks by which the workers of a host keep off each other's meters; all of them, in "
        "containers too, must share it. Unset: the system's temporary folder.",
    )
    broker_url: SecretStr | None = Field(
        None, description="redis://... or amqp://...; unset: an embedded Redis server is started by `carbonq up`."
    )
    queue_prefix: str = Field(
        "",
        pattern=r"^([A-Za-z0-9_-]{1,63}\.)?$",
        description="Put before all queue names, with a dot at its end; lets installations share a broker.",
    )
    blob_url: SecretStr | None = Field(
        None,
        description="Where blobs are, the same place for all hosts: file:///FOLDER, s3://BUCKET/PREFIX, gs:// or "
        "az://; unset: the folder blobs in data_dir.",
    )
    blob_access_key_id: SecretStr | None = Field(
        None, description="Access key of an s3:// blob_url; unset: AWS_ACCESS_KEY_ID, else the role of the host."
    )
    blob_secret_access_key: SecretStr | None = Field(
        None, description="Secret of blob_access_key_id; unset: AWS_SECRET_ACCESS_KEY, else the role of the host."
    )
    max_clock_offset_s: float = Field(
        2.0, gt=0, description="Seconds a host's clock may differ from the database's; a process beyond does not start."
    )
    host: str = Field("127.0.0.1", description="Address the API binds; any but loopback needs an API key.")
    port: int = Field(8750, ge=0, le=65535, description="Port of the API; 0: any free one.")
    flower_host: str = Field("127.0.0.1", description="Address Flower binds; it asks for its password on any.")
    flower_port: int = Field(5555, ge=0, le=65535, description="Port of Flower on loopback; 0: any free one.")
    flower_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s]+$",
        description="Where people reach Flower; the dashboard links it. Unset: it does not, but in `carbonq up`.",
    )
    metrics_name_tenants: bool = Field(
        False,
        description="Name tenants, product lines and workloads in /metrics, which is open to all, where a budget or "
        "contract target was set; unset: the worst of each level and book, without a name.",
    )
    metrics_host: str = Field("127.0.0.1", description="Address on which workers serve their own metrics; open to all.")
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of a worker's own metrics (region and control; the API has /metrics); where it is taken, the "
        "next free one of 20 is; 0: any free one; unset: none, but for `carbonq up`, which takes free ones.",
    )
    flower_password: SecretStr | None = Field(None, description="Flower's password (user carbonq); unset: made.")
    allowed_hosts: tuple[str, ...] = Field(
        (),
        description="Names that an API on a loopback address answers to beside 127.0.0.1 and localhost: those of a "
        "proxy on this machine.",
    )
    api_key: SecretStr | None = Field(None, description="The key that CLI and client send; also accepted by the API.")
    api_url: str | None = Field(
        None, description="Where the CLI finds the API; unset: as the stack of data_dir says, else http://host:port."
    )
    tenant: str = Field("default", pattern=NAME, description="Tenant of the local key.")
    home_region: str | None = Field(None, description="Where work would run without carbonq; unset: the first region.")
    zones: dict[str, ZoneSettings] = Field(default_factory=dict, description="Grid zones and their sources.")
    accounts: AccountsSettings = Field(
        default_factory=AccountsSettings, description="Accounts at providers of rates; secrets."
    )
    regions: dict[str, RegionSettings] = Field(default_factory=dict, description="Regions; none: two on the demo grid.")
    models: dict[str, ModelSettings] = Field(default_factory=dict, description="Models beside the two built-in ones.")
    tiers: TiersSettings = Field(
        default_factory=TiersSettings, description="When work goes to a smaller model; off unless set."
    )

    lease_s: float = Field(
        60.0, gt=0, le=MAX_S, description="Machine seconds a worker may be silent before its chunk is taken."
    )
    renew_s: float = Field(
        15.0, gt=0, le=MAX_S, description="Machine seconds between lease renewals; below lease_s / 2."
    )
    redispatch_after_s: float = Field(
        10.0, gt=0, le=MAX_S, description="Machine seconds until an unclaimed ticket is resent."
    )
    max_attempts: int = Field(4, ge=1, description="Counted attempts before a chunk is cut in two or its item fails.")
    max_chunk_items: int = Field(10_000, ge=1, le=50_000, description="Most items in one chunk.")
    chunk_fill: float = Field(0.6, gt=0, le=1, description="Share of a window one chunk may take by estimate.")
    chunk_wait_s: float = Field(
        0.0, ge=0, le=MAX_S, description="Machine seconds small jobs wait to share chunks with others."
    )
    isolate_tenants: bool = Field(False, description="Never put items of two tenants into one chunk.")
    checkpoint_items: int = Field(2_000, ge=1, le=20_000, description="Most items in one checkpoint transaction.")
    checkpoint_s: float = Field(
        15.0, gt=0, le=MAX_S, description="Most machine seconds between checkpoints of a chunk."
    )
    replan_margin: float = Field(0.03, ge=0, lt=1, description="Relative gain below which a placement is not moved.")
    observe_only: bool = Field(
        False,
        description="Run all work at once in its home region, as without carbonq, and only keep plans beside "
        "(`carbonq plan observed`).",
    )
    observe_tenants: tuple[Annotated[str, Field(pattern=NAME)], ...] = Field(
        (), description="Tenants whose work alone is only observed."
    )
    holdout_share: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description="Share of the jobs that runs at once in the home region, to measure what planning saves "
        "(`carbonq plan holdout`).",
    )
    price_weight_g: float = Field(
        0.0, ge=0, le=1e9, description="Grams of CO2e that one unit of price weighs in a plan; 0: carbon alone counts."
    )
    settle_after_s: float = Field(
        0.0, ge=0, le=MAX_S, description="Grid seconds after a window's end before a rate may settle."
    )
    settle_within_days: float | None = Field(
        90.0,
        gt=0,
        le=MAX_DAYS,
        description="Grid days that an entry waits for a final rate; then it is unsettleable. Unset: for ever.",
    )
    keep_results_days: float | None = Field(
        30.0,
        gt=0,
        le=MAX_DAYS,
        description="Grid days that files and items of a finished job are kept; its ledger entries stay.",
    )
    keep_events_days: float | None = Field(90.0, gt=0, le=MAX_DAYS, description="Days that events are kept.")
    keep_plans_days: float | None = Field(30.0, gt=0, le=MAX_DAYS, description="Days that plans are kept.")
    keep_forecasts_days: float | None = Field(
        400.0, gt=0, le=MAX_DAYS, description="Grid days that forecasts are kept as issued."
    )
    thin_forecasts_after_days: float | None = Field(
        60.0, gt=0, le=MAX_DAYS, description="Grid days after which one forecast an hour is kept of each source."
    )
    keep_observations_days: float | None = Field(
        None, gt=0, le=MAX_DAYS, description="Grid days of observed rates; unset: all."
    )
    max_stale_s: float = Field(
        7200.0, gt=0, le=MAX_S, description="Grid seconds after which a zone's signal counts as down."
    )
    worker_alive_s: float = Field(
        15.0, gt=0, le=MAX_S, description="Machine seconds of silence before a worker is gone."
    )
    max_input_bytes: int = Field(200 * 1024 * 1024, ge=1, description="Largest input of one job, in bytes.")
    max_items: int = Field(50_000, ge=1, description="Most items in one job.")
    max_line_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="Longest input line, in bytes.")
    realtime_timeout_s: float = Field(
        30.0, gt=0, le=MAX_S, description="Machine seconds a realtime caller waits at most."
    )
    realtime_slo_s: float = Field(
        10.0,
        gt=0,
        le=MAX_S,
        description="Machine seconds a realtime call may wait for its turn; one that would wait longer gets 429.",
    )
    interactive_slo_ms: float = Field(
        5000.0,
        gt=0,
        description="Latency budget of interactive calls that state none, in machine milliseconds of the whole answer.",
    )
    interactive_gain: float = Field(
        0.08, ge=0, le=1, description="Interactive calls leave their region for a gain above this share of its rate ..."
    )
    interactive_gain_g_per_kwh: float = Field(
        5.0, ge=0, description="... and above this many gCO2e/kWh (MOER x PUE) ..."
    )
    interactive_switches: int = Field(4, ge=0, description="... and so many times in any hour, for each model.")
    realtime_queue_limit: int = Field(64, ge=1, description="Realtime calls in flight per API process before 429.")
    quota_open_jobs: int | None = Field(
        None, ge=0, description="Most open jobs of a tenant that has no limit of its own (`carbonq tenants limit`)."
    )
    quota_items_waiting: int | None = Field(
        None, ge=0, description="Most items of a tenant that have not ended, of all its open jobs."
    )
    quota_bytes_waiting: int | None = Field(None, ge=0, description="Most bytes of inputs of a tenant's open jobs.")
    quota_tokens_per_day: int | None = Field(
        None, ge=0, description="Most tokens of a tenant's jobs and realtime calls in a grid day (UTC)."
    )
    requests_per_minute: int | None = Field(
        None, ge=1, description="Most requests a machine minute with an API key that has no limit of its own."
    )
    tokens_per_minute: int | None = Field(
        None, ge=1, description="Most tokens of realtime calls a machine minute, likewise."
    )
    tenant_requests_per_minute: int | None = Field(
        None, ge=1, description="Most requests a machine minute with all keys of a tenant that has no limit of its own."
    )
    tenant_tokens_per_minute: int | None = Field(
        None, ge=1, description="Most tokens of realtime calls a machine minute, likewise."
    )
    max_event_streams: int = Field(1_000, ge=0, description="Event streams open at once per API process before 429.")
    max_event_streams_per_key: int = Field(100, ge=0, description="Event streams open at once per key of these.")
    budget_warn_burn_rate: float = Field(
        1.2, gt=0, description="Burn rate above which a budget tells budget.warning; 1 uses it up with its period."
    )
    budget_warn_elapsed_share: float = Field(
        0.05, ge=0, le=1, description="Share of a period that must have passed before its burn rate means something."
    )
    budget_warn_used_share: float = Field(
        0.8, gt=0, le=1, description="Share of a cap, spent or reserved, from which on a budget tells budget.warning."
    )
    webhooks_may_be_private: bool = Field(
        False,
        description="Let webhooks go to private and loopback addresses, to loopback by plain http, too. Whoever has a "
        "key can then make carbonq's host send requests within its network.",
    )
    traces: Literal["none", "otlp"] = Field(
        "none",
        description="Send OpenTelemetry traces (extra otel). Unset: otlp where OTEL_TRACES_EXPORTER or an "
        "OTEL_EXPORTER_OTLP_*ENDPOINT asks for them; where they go is read from the OTEL_* variables.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Level of the log files.")

    @field_validator("data_dir")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser()

    @field_validator("blob_url", "broker_url", "database_url")
    @classmethod
    def _check_url(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        schemes = _URL_SCHEMES[info.field_name or ""]
        trouble = None if value is None else _url_trouble(value.get_secret_value(), schemes)
        if trouble is not None:
            raise ValueError(trouble)
        return value

    @model_validator(mode="after")
    def _check(self) -> Settings:
        if self.renew_s * 2 > self.lease_s:
            raise ValueError(f"renew_s ({self.renew_s}) must be at most half of lease_s ({self.lease_s})")
        if self.home_region is not None and self.regions and self.home_region not in self.regions:
            known = nearest(self.home_region, self.regions) or f"; there are {', '.join(self.regions)}"
            raise ValueError(f"home_region {self.home_region!r} is no region{known}")
        for name, region in self.regions.items():
            if re.fullmatch(NAME, name) is None:
                raise ValueError(f"regions.{name}: a region's name has small letters, digits, - and _, at most 63")
            if region.zone not in self.zones:
                hint = nearest(region.zone, self.zones)
                raise ValueError(f"regions.{name}.zone {region.zone!r} is not configured under [zones]{hint}")
            for model in region.models or ():
                if model not in BUILTIN and model not in self.models:
                    hint = nearest(model, [*BUILTIN, *self.models])
                    raise ValueError(f"regions.{name}.models: there is no model {model!r}{hint}")
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


def _url_trouble(value: str, schemes: Sequence[str]) -> str | None:
    """Say what is wrong with a URL, without showing it: it may hold a password."""
    if not value.startswith(tuple(schemes)):
        return f"must be a URL that begins with {' or '.join(schemes)}"
    try:
        # Reading the port checks it. There may be a list of brokers.
        can_be_read = all(urlsplit(one).port != 0 for one in value.split(";"))
    except ValueError:
        can_be_read = False
    if not can_be_read:
        return (
            "cannot be read: after // stand user:password@host:port/name, and / ? # @ : % of a password are written "
            "%2F %3F %23 %40 %3A %25"
        )
    # A SQLite database has a file: memory is not shared.
    if value in {"sqlite:///", "file:///"} or value.startswith("s3:///"):
        return "names no file, folder or bucket"
    return None
