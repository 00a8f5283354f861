"""Which work may go to the next smaller model, and what is checked of the settings that say so. Pure.

A model of the settings may name its next smaller tier (``Model.smaller``); it is never guessed. One step is all: what
was downgraded once is not downgraded again, so that nobody gets a model two sizes below the one that was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carbonq.errors import ConfigError
from carbonq.estimate import SURELY_OVER, completion_tokens
from carbonq.model import Endpoint, Model, Region, Treatment


@dataclass(frozen=True, slots=True)
class TierPolicy:
    """When work goes to the smaller model whatever budgets say; None: never.

    ``easy_tokens``: items of at most so many estimated tokens; ``above_g_per_kwh``: all work that is about to start at
    a marginal rate above it, in gCO2e/kWh.
    """

    easy_tokens: int | None = None
    above_g_per_kwh: float | None = None


#: No policy: every item runs on the model it asked for.
OFF = TierPolicy()


def check(models: Mapping[str, Model], regions: Sequence[Region]) -> None:
    """Check what the settings say of tiers. Raises ConfigError naming the model, what is wrong and the limit.

    A smaller model must exist and be served by one of ``regions`` (none: not known here), have the same endpoint and a
    lower tier, and give answers as long as the larger one's. Its input may be shorter: items are looked at one by one
    (``fits``).
    """
    for name, model in models.items():
        if model.smaller is None:
            if model.same_space:
                raise ConfigError(
                    f"models.{name}.same_space is said of no smaller model; models.{name}.smaller is unset"
                )
            continue
        _check_path(name, models)
        label, smaller = f"models.{name}.smaller", models[model.smaller]
        if smaller.endpoint is not model.endpoint:
            raise ConfigError(
                f"{label} {smaller.name!r} answers {smaller.endpoint} and {name!r} {model.endpoint}; both must answer "
                "the same"
            )
        if smaller.tier >= model.tier:
            raise ConfigError(
                f"{label} {smaller.name!r} is of tier {smaller.tier} and {name!r} of tier {model.tier}; give {name!r} "
                "the higher one (models.NAME.tier)"
            )
        if smaller.max_output_tokens < model.max_output_tokens:
            raise ConfigError(
                f"{label} {smaller.name!r} gives answers of at most {smaller.max_output_tokens:,} tokens and {name!r} "
                f"of {model.max_output_tokens:,}; answers would be cut off: set max_output_tokens of both alike"
            )
        if model.same_space and model.endpoint is not Endpoint.EMBEDDINGS:
            raise ConfigError(f"models.{name}.same_space is for embeddings; {name!r} answers {model.endpoint}")
        if regions and not any(region.serves(smaller.name) for region in regions):
            raise ConfigError(f"{label} {smaller.name!r} is served by no region; add it to models of one of them")


def _check_path(name: str, models: Mapping[str, Model]) -> None:
    """Raise ConfigError where the way to smaller models leads nowhere or in a circle."""
    path = [name]
    while (following := models[path[-1]].smaller) is not None:
        if following not in models:
            raise ConfigError(
                f"models.{path[-1]}.smaller {following!r} is no model; there are {', '.join(sorted(models))}"
            )
        if following in path:
            raise ConfigError(f"models.{name}.smaller leads in a circle: {' -> '.join([*path, following])}")
        path.append(following)


def smaller_of(
    model: Model | None, models: Mapping[str, Model], *, asked: bool | None, treatment: Treatment = Treatment.PLANNED
) -> Model | None:
    """Return the model that work of ``model`` may be downgraded to; None where it may not.

    ``asked`` is what the job said (None: nothing). Embeddings of another vector space are worth nothing beside the
    others of an index, so that they need the settings' word that the spaces are one, or the job's own. Work that is
    only observed, or held out, runs as without carbonq and is never downgraded.
    """
    if model is None or model.smaller is None or asked is False or treatment is not Treatment.PLANNED:
        return None
    if model.endpoint is Endpoint.EMBEDDINGS and not (model.same_space or asked):
        return None
    return models.get(model.smaller)


def fits(est_tokens: int, model: Model, smaller: Model) -> bool:
    """Say whether an item that ``model`` took is surely not too long for ``smaller``.

    ``est_tokens`` are the item's, its answer's among them: more than its input has. Estimates may be off by
    ``SURELY_OVER`` either way.
    """
    if smaller.max_input_tokens >= model.max_input_tokens:
        return True
    return est_tokens * SURELY_OVER * model.chars_per_token / smaller.chars_per_token <= smaller.max_input_tokens


def is_easy(est_tokens: int, policy: TierPolicy) -> bool:
    """Say whether an item is short enough for the smaller model by the policy."""
    return policy.easy_tokens is not None and est_tokens <= policy.easy_tokens


def body_for(body: Mapping[str, Any], model: Model, requested: Model | None) -> dict[str, Any]:
    """Return what an engine is asked where ``model`` runs instead of ``requested`` (None: it left the settings).

    The answer may be no longer than that of the model that was asked for.
    """
    asked = {**body, "model": model.name}
    if requested is not None and requested.endpoint is Endpoint.CHAT:
        name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
        limit: object = body.get(name)
        if limit is None or (type(limit) is int and limit > requested.max_output_tokens):
            asked[name] = completion_tokens(body, requested)
    return asked
