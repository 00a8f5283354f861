import pytest

from carbonq import models
from carbonq.errors import ConfigError
from carbonq.model import Endpoint


def test_the_built_in_models_are_offered_and_the_table_is_not_shared() -> None:
    catalogue = models.catalogue({})
    assert set(catalogue) == {"wordllama-256", "smollm2-135m-instruct"}
    assert catalogue["wordllama-256"].endpoint is Endpoint.EMBEDDINGS
    assert catalogue["smollm2-135m-instruct"].endpoint is Endpoint.CHAT
    catalogue.clear()
    assert len(models.BUILTIN) == 2


def test_weights_of_a_generating_model_are_stated_not_plain() -> None:
    chat = models.SMOLLM2_135M_INSTRUCT
    assert chat.w_completion > chat.w_prompt > chat.w_cached == 0
    assert chat.max_input_tokens + chat.max_output_tokens == chat.options["context_tokens"]


def test_a_described_gguf_keeps_input_and_output_inside_its_context() -> None:
    described = {"engine": "llama_cpp", "path": "m.gguf", "context_tokens": 1000, "max_output_tokens": 100, "tier": 2}
    model = models.catalogue({"mine": described})["mine"]
    assert (model.max_input_tokens, model.max_output_tokens, model.tier) == (900, 100, 2)
    assert model.options["path"] == "m.gguf"
    assert model.precision is None


def test_shorter_vectors_are_a_model_of_their_own() -> None:
    model = models.catalogue({"small": {"engine": "wordllama", "dimensions": 64, "tokens_per_s": 7.0}})["small"]
    assert (model.name, model.options["dimensions"], model.tokens_per_s) == ("small", 64, 7.0)


def test_a_described_sentence_transformer_names_its_folder_and_the_lengths_it_may_be_cut_to() -> None:
    described = {"engine": "sentence_transformers", "path": "m", "context_tokens": 256, "shorter_dimensions": (64,)}
    model = models.catalogue({"mine": described})["mine"]
    assert (model.endpoint, model.max_input_tokens) == (Endpoint.EMBEDDINGS, 256)
    assert dict(model.options) == {"path": "m", "shorter_dimensions": (64,)}
    assert (model.w_prompt, model.w_completion) == (1, 0)


def test_a_server_s_model_is_named_there_and_its_limits_and_what_is_recorded_are_stated() -> None:
    url = {"engine": "openai_http", "base_url": "http://h:8000/v1"}
    plain = models.catalogue({"mine": url})["mine"]
    assert (plain.endpoint, plain.options["served_model"], plain.options.get("speculative")) == (
        Endpoint.CHAT,
        "mine",
        None,
    )
    assert plain.w_completion > plain.w_prompt > plain.w_cached == 0
    # An engine batch fills the places at the server several times over.
    assert [models.catalogue({"m": {**url, "concurrency": n}})["m"].batch_items for n in (1, 64)] == [64, 256]
    stated = {"served_model": "o/m", "batch_items": 7, "batch_tokens": 99, "precision": "fp8", "speculative": "eagle3"}
    made = models.catalogue({"mine": {**url, **stated, "endpoint": "/v1/embeddings"}})["mine"]
    assert (made.batch_items, made.batch_tokens, made.precision) == (7, 99, "fp8")
    assert (made.options["served_model"], made.options["speculative"]) == ("o/m", "eagle3")
    assert (made.endpoint, made.max_output_tokens, made.w_completion) == (Endpoint.EMBEDDINGS, 0, 0)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"engine": "vllm"}, "models.m.engine"),
        ({"engine": "openai_http"}, "models.m.base_url is missing"),
        ({"engine": "openai_http", "base_url": "http://h/v1", "context_tokens": 128}, "max_output_tokens is 128"),
        ({"engine": "wordllama", "dimensions": 100}, "models.m.dimensions"),
        ({"engine": "llama_cpp"}, "models.m.path"),
        ({"engine": "sentence_transformers"}, "models.m.path"),
        ({"engine": "sentence_transformers", "path": "x", "dimensions": 256}, "models.m.dimensions is for wordllama"),
        ({"engine": "llama_cpp", "path": "x", "context_tokens": 64, "max_output_tokens": 64}, "max_output_tokens"),
    ],
)
def test_a_wrong_description_names_its_setting(values: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        models.catalogue({"m": values})


def test_token_weights_are_stated_or_those_measured_of_the_engine_and_never_plain_by_silence() -> None:
    path = {"engine": "llama_cpp", "path": "m.gguf"}
    made = models.catalogue({"a": path, "b": {**path, "w_prompt": 1, "w_cached": 1, "w_completion": 9}})
    builtin = models.BUILTIN["smollm2-135m-instruct"]
    assert [(one.w_prompt, one.w_cached, one.w_completion) for one in (made["a"], made["b"])] == [
        (builtin.w_prompt, builtin.w_cached, builtin.w_completion),
        (1, 1, 9),
    ]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"engine": "llama_cpp", "path": "m.gguf", "w_completion": 0}, "models.x.w_completion is 0"),
        ({"engine": "wordllama", "w_prompt": 0, "w_cached": 0}, "all 0"),
    ],
)
def test_weights_that_would_make_work_free_are_refused(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        models.catalogue({"x": values})
