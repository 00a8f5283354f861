"""Try models: load each or reach its server, run one tiny request under a region's meters, and say what it took."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from carbonq import wiring
from carbonq.clock import GridClock
from carbonq.config import Settings
from carbonq.engines.protocol import Engine, EngineRequest, EngineResult
from carbonq.errors import ConfigError, EngineError, NotFound
from carbonq.meters.hub import Hub
from carbonq.model import Endpoint, Model, Quality

#: What each kind of model is asked, once to warm up and once measured.
_EMBEDDING = {"input": "The quick brown fox jumps over the lazy dog. " * 4}
_CHAT = {"messages": [{"role": "user", "content": "Say hello in one sentence."}], "max_tokens": 16}


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one model; ``error`` says why it cannot be used, ``is_asked_for`` whether that is a failure.

    ``seconds`` and ``energy_uj`` are of one request; None is unknown, as is the energy where no meter covers anything.
    """

    model: Model
    is_asked_for: bool
    engine_version: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float | None = None
    ttft_s: float | None = None
    energy_uj: int | None = None
    quality: Quality | None = None
    error: str | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of prompt and answer for each second of the request."""
        if self.prompt_tokens is None or self.completion_tokens is None or not self.seconds:
            return None
        return (self.prompt_tokens + self.completion_tokens) / self.seconds

    @property
    def is_failed(self) -> bool:
        """Say whether a model that should work does not."""
        return self.error is not None and self.is_asked_for


def chosen(settings: Settings, names: Sequence[str]) -> list[tuple[Model, bool]]:
    """Return the models to try, and whether each was asked for: named here, or in the settings.

    Raises NotFound for a name that no model has, ConfigError.
    """
    models = wiring.make_models(settings)
    for name in names:
        if name not in models:
            raise NotFound(f"there is no model {name!r}; known: {', '.join(models)}")
    return [
        (model, name in names or name in settings.models)
        for name, model in models.items()
        if not names or name in names
    ]


def try_models(settings: Settings, models: Sequence[tuple[Model, bool]], *, region: str | None) -> Iterator[Tried]:
    """Try models one after the other under the meters of a region (None: unmetered). Raises ConfigError for meters."""
    for model, is_asked_for in models:
        engine: Engine | None = None
        try:
            engine = wiring.make_engine(model, folder=wiring.models_folder(settings))
            engine.load()
            yield _tried(settings, model, engine, region, is_asked_for=is_asked_for)
        except (ConfigError, EngineError) as error:
            yield Tried(model, is_asked_for, error=error.message)
        finally:
            if engine is not None:
                engine.close()


def _tried(settings: Settings, model: Model, engine: Engine, region: str | None, *, is_asked_for: bool) -> Tried:
    request = EngineRequest("check", _EMBEDDING if model.endpoint is Endpoint.EMBEDDINGS else _CHAT)
    _answer(engine, request)
    alone = len(settings.regions) == 1
    meters = [] if region is None else wiring.make_meters(settings, region, pids=engine.pids, may_use_rapl=alone)
    hub = Hub(meters, GridClock.real())
    try:
        handle = hub.start()
        began = time.perf_counter()
        result = _answer(engine, request)
        seconds = time.perf_counter() - began
        parts, info = hub.end(handle)
    finally:
        hub.close()
    known = [one for part in parts for one in (part.gpu_uj, part.cpu_uj, part.dram_uj) if one is not None]
    return Tried(
        model,
        is_asked_for,
        engine_version=engine.version,
        prompt_tokens=result.prompt_tokens,
        completion_tokens=result.completion_tokens,
        seconds=seconds,
        ttft_s=result.ttft_s,
        energy_uj=sum(known) if known else None,
        quality=info.quality if known else None,
    )


def _answer(engine: Engine, request: EngineRequest) -> EngineResult:
    [result] = engine.run([request], lambda: False)
    if result.error_code is not None:
        raise EngineError(f"it refused a plain request: {result.error_message}", is_retryable=False)
    if result.odd_usage is not None:
        words = f"its usage cannot be: {result.odd_usage}; energy would be shared by such counts"
        raise EngineError(words, is_retryable=False)
    return result
