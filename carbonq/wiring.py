"""Put the pieces together: the only module that names concrete adapters. Edges call it and pass plain objects on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carbonq import __version__, config, tiers, tracing
from carbonq import models as catalogue
from carbonq.blobs import BlobStore, open_store
from carbonq.clock import GridClock
from carbonq.config import RegionSettings, Settings
from carbonq.engines.protocol import Engine
from carbonq.errors import ConfigError, NotFound
from carbonq.meters.protocol import Component, Meter
from carbonq.model import Endpoint, Maintenance, Model, Quota, Region
from carbonq.plan.treatment import TreatmentRules
from carbonq.services import installation, setup
from carbonq.services.budget_alarms import Thresholds
from carbonq.services.installation import Shared
from carbonq.store import clocks, schema
from carbonq.store import installation as installations
from carbonq.store.database import Database
from carbonq.tickets import Tickets
from carbonq.tracing import Traces

if TYPE_CHECKING:
    from carbonq.webhooks.sender import Sender

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What every process of an installation shares; ``regions`` are as configured, in the settings' order."""

    settings: Settings
    db: Database
    blobs: BlobStore
    clock: GridClock
    models: Mapping[str, Model]
    regions: Sequence[Region]

    def close(self) -> None:
        """Close the database."""
        self.db.dispose()


def open_database(settings: Settings, *, pool_size: int = 5) -> Database:
    """Return the database of the settings; nothing is opened yet."""
    return Database(settings.resolved_database_url, pool_size=pool_size)


def open_runtime(settings: Settings, *, pool_size: int = 5) -> Runtime:
    """Open a prepared installation.

    Raises ConfigError when it was never prepared or its schema is not this code's, StoreUnavailable.
    """
    db = open_database(settings, pool_size=pool_size)
    schema.check_usable(db)
    with db.read() as tx:
        clock = clocks.get(tx)
    if clock is None:
        raise ConfigError("the database has no clock yet; run `carbonq db upgrade` first")
    return _runtime(settings, db, clock)


def prepare(settings: Settings, *, clock: GridClock | None = None) -> tuple[Runtime, str]:
    """Prepare the installation (schema, regions, clock, local key) and open it; also return the local key.

    ``clock`` counts at the first start only. Raises ConfigError and StoreUnavailable as ``services.setup.prepare``.
    """
    db = open_database(settings)
    made = setup.prepare(
        db,
        configured=make_regions(settings),
        data_dir=settings.data_dir,
        tenant=settings.tenant,
        shared=make_shared(settings),
        clock=clock,
    )
    return _runtime(settings, db, made.clock), made.api_key


def join(sources: config.Sources) -> Settings:
    """Return the settings of a process that joins an installation: its own over those that the database keeps.

    Raises ConfigError where it was told something else than the installation about what decides, where it knows of no
    regions and the database neither, and where its clock is too far off; StoreUnavailable.
    """
    db = open_database(sources.basics())
    try:
        schema.check_usable(db)
        with db.read() as tx:
            kept = installations.load(tx)
        offset_s = installation.clock_offset_s(db)
    finally:
        db.dispose()
    if kept is None and not sources.has_regions:
        raise ConfigError(
            "the database keeps no regions yet and this host has none in its settings; run `carbonq db upgrade` or "
            "`carbonq config push` where the regions are configured"
        )
    settings = sources.read(None if kept is None else kept.settings).settings
    warning = installation.check_clock(offset_s, limit_s=settings.max_clock_offset_s)
    if warning is not None:
        logger.warning("%s", warning)
    if kept is not None:
        _compare(sources.differences(kept.settings))
    return settings


def _compare(differences: Sequence[config.Difference]) -> None:
    decisive = [str(one) for one in differences if one.is_decisive]
    if decisive:
        raise ConfigError(
            f"{'; '.join(decisive)}. Take these settings away here, so that the installation's hold, or make them the "
            "installation's with `carbonq config push` and restart the other processes"
        )
    for one in differences:
        logger.warning("%s; here the former holds", one)


def stored_settings(sources: config.Sources) -> Mapping[str, Any] | None:
    """Return the settings that the installation's database keeps; None where there is none yet. Changes nothing.

    Raises StoreUnavailable, ConfigError.
    """
    db = open_database(sources.basics())
    try:
        if db.is_absent():
            return None
        with db.read() as tx:
            kept = installations.load(tx) if installations.has_table(tx) else None
    finally:
        db.dispose()
    return None if kept is None else kept.settings


def settle(sources: config.Sources) -> Settings:
    """Return the settings of whoever may change the installation's: its own if it has regions, else those kept.

    Without either, the demo regions. Raises ConfigError, StoreUnavailable.
    """
    return sources.read(None if sources.has_regions else stored_settings(sources)).settings


def push(settings: Settings, *, actor: str | None = None) -> list[str]:
    """Make the shared settings the installation's; return what changed. Raises ConfigError, StoreUnavailable.

    ``actor`` is who the log of admin actions names.
    """
    db = open_database(settings)
    try:
        schema.check_usable(db)
        shared = make_shared(settings)
        return setup.install(db, configured=make_regions(settings), shared=shared, actor=actor)[1]
    finally:
        db.dispose()


def make_shared(settings: Settings) -> Shared:
    """Return what the database is to keep of the settings."""
    return Shared(config.shared(settings), config.shared(settings, prefilled=False))


def _runtime(settings: Settings, db: Database, clock: GridClock) -> Runtime:
    return Runtime(
        settings=settings,
        db=db,
        blobs=make_blobs(settings),
        clock=clock,
        models=make_models(settings),
        regions=make_regions(settings),
    )


def make_blobs(settings: Settings) -> BlobStore:
    """Return where blobs are kept; nothing is asked of it yet. Raises ConfigError for a URL that cannot be used."""
    url = settings.data_dir / "blobs" if settings.blob_url is None else settings.blob_url.get_secret_value()
    key_id, secret = settings.blob_access_key_id, settings.blob_secret_access_key
    if (key_id is None) is not (secret is None):
        raise ConfigError("blob_access_key_id and blob_secret_access_key belong together; set both or neither")
    access_key = (key_id.get_secret_value(), secret.get_secret_value()) if key_id and secret else None
    return open_store(str(url), spool=settings.data_dir / "tmp", access_key=access_key)


def make_regions(settings: Settings) -> list[Region]:
    """Return the configured regions, in the settings' order."""
    return [_region(name, region) for name, region in settings.regions.items()]


def _region(name: str, region: RegionSettings) -> Region:
    return Region(
        name=name,
        zone=region.zone,
        slots=region.slots,
        pue=region.pue,
        pue_source=region.pue_source,
        hardware=region.hardware,
        realtime_slots=region.realtime_slots,
        latency_ms=region.latency_ms,
        ownership=region.ownership,
        models=region.models,
        embodied_kg=region.embodied_kg,
        life_h=region.life_h,
        maintenance=tuple(
            Maintenance(one.start.astimezone(UTC), one.end.astimezone(UTC), one.slots) for one in region.maintenance
        ),
        transfer_kwh_per_gb=region.transfer_kwh_per_gb,
        transfer_g_per_kwh=region.transfer_g_per_kwh,
        price_per_kwh=region.price_per_kwh,
    )


def make_treatments(settings: Settings) -> TreatmentRules:
    """Return whose jobs are only observed, and which share of the others is held out."""
    return TreatmentRules(settings.observe_only, frozenset(settings.observe_tenants), settings.holdout_share)


def make_quota(settings: Settings) -> Quota:
    """Return the limits of tenants that have none of their own."""
    return Quota(
        open_jobs=settings.quota_open_jobs,
        items_waiting=settings.quota_items_waiting,
        bytes_waiting=settings.quota_bytes_waiting,
        tokens_per_day=settings.quota_tokens_per_day,
        requests_per_minute=settings.tenant_requests_per_minute,
        tokens_per_minute=settings.tenant_tokens_per_minute,
    )


def make_budget_thresholds(settings: Settings) -> Thresholds:
    """Return when budgets warn."""
    return Thresholds(
        burn_rate=settings.budget_warn_burn_rate,
        elapsed_share=settings.budget_warn_elapsed_share,
        used_share=settings.budget_warn_used_share,
    )


def redis_url(settings: Settings) -> str | None:
    """Return the broker's address where it is a Redis; None for any other, or none."""
    url = "" if settings.broker_url is None else settings.broker_url.get_secret_value()
    return url if url.startswith(("redis://", "rediss://")) and ";" not in url else None


def make_sender(settings: Settings) -> Sender:
    """Return what sends webhooks; nothing is connected yet."""
    from carbonq.webhooks.sender import Sender

    return Sender(may_be_private=settings.webhooks_may_be_private)


def make_models(settings: Settings) -> dict[str, Model]:
    """Return the built-in and the configured models by name, their tiers checked. Raises ConfigError."""
    made = catalogue.catalogue({name: model.model_dump() for name, model in settings.models.items()})
    tiers.check(made, make_regions(settings))
    make_tiers(settings)
    return made


def make_tiers(settings: Settings) -> tiers.TierPolicy:
    """Return when work goes to a smaller model. Raises ConfigError where that is set and no model has a smaller one."""
    policy = tiers.TierPolicy(settings.tiers.easy_tokens, settings.tiers.above_g_per_kwh)
    if policy != tiers.OFF and not any(model.smaller for model in settings.models.values()):
        raise ConfigError("[tiers] is set, and no model names a smaller one; set models.NAME.smaller, too")
    return policy


def broker_url(settings: Settings) -> str:
    """Return the broker's address. Raises ConfigError when none is set: only ``carbonq up`` starts one itself."""
    if settings.broker_url is None:
        raise ConfigError("no broker is set; set CARBONQ_BROKER_URL (redis://... or amqp://...) or use `carbonq up`")
    return settings.broker_url.get_secret_value()


def make_tickets(settings: Settings) -> Tickets:
    """Return the publisher of tickets; nothing is connected yet. Raises ConfigError when no broker is set."""
    return Tickets(broker_url(settings), queue_prefix=settings.queue_prefix)


def make_traces(settings: Settings, service: str, instance: str | None = None) -> Traces:
    """Return what makes this process's spans; nothing of OpenTelemetry is imported where no traces are asked for.

    Raises ConfigError where they are and the extra is missing, or they could never arrive.
    """
    if settings.traces == "none":
        return tracing.OFF
    config.check_exporter()
    return tracing.start(service, version=__version__, instance=instance)


def check_traces(settings: Settings) -> None:
    """Raise ConfigError where traces are asked for and this machine cannot make or send any."""
    if settings.traces != "none":
        config.check_exporter()
        tracing.check_installed()


def models_folder(settings: Settings) -> Path:
    """Return where `carbonq models pull` puts files, and engines look for them."""
    return settings.data_dir / "models"


def find_model(settings: Settings, model: Model) -> Path | str:
    """Return the file or folder a model is loaded from, or its server's address.

    Raises ConfigError saying what is missing and how to get it.
    """
    from carbonq.engines import shelf

    if model.engine == "openai_http":
        return str(model.options["base_url"])
    return shelf.find(model, models_folder(settings))


def pull_model(settings: Settings, name: str, *, report: Callable[[str], None]) -> Path:
    """Bring a sample model into the models folder; does nothing if it is there.

    Raises NotFound for a model that cannot be pulled, else as ``engines.pull.pull``.
    """
    from carbonq.engines import pull, shelf

    sample = shelf.SAMPLES.get(name)
    if sample is None:
        known = ", ".join(shelf.SAMPLES)
        raise NotFound(f"{name!r} cannot be pulled; known: {known}; others are named by models.NAME.path")
    return pull.pull(sample, models_folder(settings), report=report)


def make_engine(model: Model, *, threads: int = 1, folder: Path | None = None) -> Engine:
    """Return the engine of a model, not loaded yet; one that chats also summarises. ``folder`` is the models folder.

    Raises ConfigError for an engine that does not exist.
    """
    engine = _make_engine(model, threads, folder)
    if model.endpoint is not Endpoint.CHAT:
        return engine
    from carbonq.engines.summarizing import SummarizingEngine

    return SummarizingEngine(engine, model)


def _make_engine(model: Model, threads: int, folder: Path | None) -> Engine:
    if model.engine == "wordllama":
        from carbonq.engines.wordllama import WordLlamaEngine

        return WordLlamaEngine(model)
    if model.engine == "llama_cpp":
        from carbonq.engines.llama_cpp import LlamaCppEngine

        return LlamaCppEngine(model, threads=threads, folder=folder)
    if model.engine == "openai_http":
        from carbonq.engines.openai_http import OpenAIHttpEngine

        return OpenAIHttpEngine(model)
    if model.engine == "sentence_transformers":
        from carbonq.engines.sentence_transformers import SentenceTransformersEngine

        return SentenceTransformersEngine(model, threads=threads)
    raise ConfigError(f"model {model.name} names the engine {model.engine!r}, which does not exist")


def make_meters(
    settings: Settings, region: str, *, pids: Callable[[], Sequence[int]], may_use_rapl: bool
) -> list[Meter]:
    """Return the meters of a region's worker on this host."""
    from carbonq.meters.discover import Wanted, discover

    values = settings.regions[region]
    wanted: dict[Component, Wanted] = {}
    for component in Component:
        asked = getattr(values.meters, component.value)
        plain = {name: getattr(asked, name) for name in type(asked).model_fields}
        plain["headers"] = {name: secret.get_secret_value() for name, secret in asked.headers.items()}
        wanted[component] = Wanted(**plain)
    return discover(
        gpus=values.gpus,
        watts_per_core=values.watts_per_core,
        pids=pids,
        may_use_rapl=may_use_rapl,
        wanted=wanted,
    )
