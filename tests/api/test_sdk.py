"""The unmodified OpenAI SDK against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from carbonq.errors import Unavailable
from tests.api.harness import CHATTER, EMBEDDER, Harness, answer


@pytest.fixture
def sdk(harness: Harness, url: str) -> Iterator[openai.OpenAI]:
    with (
        httpx.Client(trust_env=False) as http,
        openai.OpenAI(base_url=f"{url}/v1", api_key=harness.acme, max_retries=2, http_client=http) as client,
    ):
        yield client


def test_embeddings_in_the_sdks_default_base64(harness: Harness, sdk: openai.OpenAI) -> None:
    found = sdk.embeddings.create(model=EMBEDDER, input=["one", "two"])
    assert harness.tickets.realtime_calls[0][1]["body"]["encoding_format"] == "base64"
    assert [one.embedding for one in found.data] == [[0.5, -0.5, 0.25, 1.0]] * 2
    assert found.usage.prompt_tokens == 3
    assert found.usage.model_extra is not None
    assert found.usage.model_extra["carbon"]["signal"] == "marginal"


def test_embeddings_as_floats_with_extras(harness: Harness, sdk: openai.OpenAI) -> None:
    raw = sdk.embeddings.with_raw_response.create(
        model=EMBEDDER, input="one", encoding_format="float", extra_body={"carbon": {"regions": ["se"]}}
    )
    assert raw.headers["x-carbonq-region"] == "se"
    assert raw.headers["x-request-id"].startswith("req_")
    assert raw.parse().data[0].embedding == [0.5, -0.5, 0.25, 1.0]


def test_chat_completions(sdk: openai.OpenAI) -> None:
    found = sdk.chat.completions.create(model=CHATTER, messages=[{"role": "user", "content": "hi"}])
    assert found.choices[0].message.content == "short"
    assert found.usage is not None and found.usage.total_tokens == 6
    assert found.usage.model_extra is not None and found.usage.model_extra["carbon"]["region"] == "fr"


def test_models(sdk: openai.OpenAI) -> None:
    assert {model.id for model in sdk.models.list()} == {EMBEDDER, CHATTER}
    assert sdk.models.retrieve(EMBEDDER).owned_by == "carbonq"
    for name in ("gpt-9", "meta-llama/Llama-3.1-8B"):
        with pytest.raises(openai.NotFoundError, match=EMBEDDER) as refused:
            sdk.models.retrieve(name)
        assert refused.value.code == "model_not_found"


def test_error_classes_carry_the_sentence(harness: Harness, url: str, sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="there is no model") as bad:
        sdk.embeddings.create(model="gpt-9", input="x")
    assert (bad.value.code, bad.value.param, bad.value.type) == ("model_not_found", "model", "invalid_request_error")
    assert bad.value.request_id is not None and bad.value.request_id.startswith("req_")
    with pytest.raises(openai.AuthenticationError, match="wrong, expired or revoked"):
        sdk.with_options(api_key="cq-wrong").models.list()
    with pytest.raises(openai.NotFoundError, match="/v1/nothing"):
        sdk.get("/nothing", cast_to=dict)


def test_the_sdk_retries_what_can_pass_and_reports_what_does_not(harness: Harness, sdk: openai.OpenAI) -> None:
    calls: list[str] = []

    def flaky(region: str, payload: dict[str, Any]) -> dict[str, Any]:
        calls.append(region)
        if len(calls) == 1:
            raise Unavailable("no answer", code="realtime_timeout", retry_after_s=1.0)
        return answer(region, payload)

    harness.tickets.answer = flaky
    assert sdk.embeddings.create(model=EMBEDDER, input="x").data
    assert len(calls) == 2
    harness.tickets.is_down = True
    with pytest.raises(openai.InternalServerError, match="broker"):
        sdk.with_options(max_retries=0).embeddings.create(model=EMBEDDER, input="x")
