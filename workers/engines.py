"""The models that a region worker serves, loaded once at its start and shared by all its threads."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from carbonq import wiring
from carbonq.config import Settings
from carbonq.engines.protocol import Engine, EngineRequest, EngineResult, ShouldStop
from carbonq.errors import ConfigError, EngineAway
from carbonq.model import Model, Region

logger = logging.getLogger(__name__)


class MissingEngine:
    """Stands for a model that cannot be loaded here: no item is at fault, so its work waits or is tried elsewhere."""

    version = "none"

    def __init__(self, name: str, reason: str) -> None:
        """Take the engine's name and why it is missing."""
        self.name = name
        self._reason = reason

    def load(self) -> None:
        """Load nothing."""

    def run(self, requests: Sequence[EngineRequest], should_stop: ShouldStop) -> Sequence[EngineResult]:
        """Raise EngineAway with the reason."""
        raise EngineAway(self._reason, code="model_unavailable")

    def pids(self) -> Sequence[int]:
        """Return no processes."""
        return ()

    def close(self) -> None:
        """Free nothing."""


class Engines:
    """Loaded engines by model name."""

    def __init__(self, settings: Settings, models: Sequence[Model], region: Region) -> None:
        """Load every model that the region serves.

        Raises ConfigError when one that the settings name for this region cannot be loaded; one that merely ships with
        carbonq is left out with a warning.
        """
        threads = settings.regions[region.name].threads or max(1, (os.cpu_count() or 1) // len(settings.regions))
        self._engines: dict[str, Engine] = {}
        for model in models:
            if not region.serves(model.name):
                continue
            is_named = model.name in settings.models or region.models is not None
            self._engines[model.name] = self._load(model, threads, wiring.models_folder(settings), is_named=is_named)

    @staticmethod
    def _load(model: Model, threads: int, folder: Path, *, is_named: bool) -> Engine:
        try:
            engine = wiring.make_engine(model, threads=threads, folder=folder)
            engine.load()
        except ConfigError as error:
            if is_named:
                raise
            logger.warning("model %s is not served: %s", model.name, error)
            return MissingEngine(model.engine, error.message)
        logger.info("model %s loaded (%s %s)", model.name, engine.name, engine.version)
        return engine

    def of(self, model: str) -> Engine:
        """Return a model's engine; one that raises EngineAway for a model that is not served here."""
        return self._engines.get(model) or MissingEngine("none", f"model {model} is not served in this region")

    def pids(self) -> list[int]:
        """Return the processes that burn energy for the engines."""
        return [pid for engine in self._engines.values() for pid in engine.pids()]

    def close(self) -> None:
        """Free all models."""
        for engine in self._engines.values():
            engine.close()
