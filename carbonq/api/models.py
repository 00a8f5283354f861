"""GET /v1/models and /v1/models/{name}: what may be asked for, in OpenAI's shape with carbonq's additions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from carbonq.api import views
from carbonq.api.auth import needs
from carbonq.api.context import Api, ApiDep, CallerDep
from carbonq.api.openapi import gives, operation
from carbonq.api.shapes.planning import ModelPage, ModelView
from carbonq.errors import NotFound
from carbonq.model import Model, Scope

router = APIRouter(prefix="/v1/models", dependencies=[needs(Scope.READ, Scope.SUBMIT, Scope.EXPORT)])

#: OpenAI's objects have a creation time in Unix seconds; ours are configured, not created.
_CREATED = 1_764_547_200


@router.get("", **operation("list_models", "openai", answers={200: gives(ModelPage)}))
async def list_models(api: ApiDep, _caller: CallerDep) -> dict[str, Any]:
    """List the models."""
    return views.page_view([_view(api, model) for model in api.models.values()], has_more=False)


@router.get(
    "/{name:path}",  # others' names have slashes, and whoever asks for one is told which there are
    **operation("get_model", "openai", answers={200: gives(ModelView)}, errors=(("model_not_found", 404),)),
)
async def get_model(name: str, api: ApiDep, _caller: CallerDep) -> dict[str, Any]:
    """Return one model."""
    model = api.models.get(name)
    if model is None:
        raise NotFound(f"there is no model {name!r}; known: {', '.join(api.models)}", code="model_not_found")
    return _view(api, model)


def _view(api: Api, model: Model) -> dict[str, Any]:
    regions = [region.name for region in api.directory.snapshot.regions.values() if region.serves(model.name)]
    return {
        "id": model.name,
        "object": "model",
        "created": _CREATED,
        "owned_by": "carbonq",
        "endpoint": model.endpoint.value,
        "engine": model.engine,
        "max_input_tokens": model.max_input_tokens,
        "max_output_tokens": model.max_output_tokens,
        "regions": regions,
        "tier": model.tier,
    }
