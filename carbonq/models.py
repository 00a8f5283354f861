"""The models that ship, and models described by settings. Words: values only, no loading and no I/O.

``tokens_per_s`` and ``uj_per_token`` are starting values, used until a (model, hardware) pair has been measured. They
were taken on one core of an EPYC 3rd Gen server, at the 1.96 W that ``data/watts_per_core.csv`` gives for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from carbonq.errors import ConfigError
from carbonq.model import Endpoint, Model

#: Longest vector of the static embeddings that ship with wordllama, and the lengths it was trained to be cut to.
WORDLLAMA_DIMENSIONS = (64, 128, 256)

#: First bytes of UTF-8 by script: Latin letters beyond ASCII, Greek, Cyrillic, Hebrew and Arabic, South and South-East
#: Asian, punctuation and symbols, kana and Chinese, Hangul, compatibility forms, and emoji with all else of four bytes.
_SCRIPTS = (0xC2, 0xCC, 0xD0, 0xD4, 0xE0, 0xE2, 0xE3, 0xEA, 0xEE, 0xF0)

#: Tokens of a character, measured with each model's own tokenizer on texts of 20 to 150 characters of each script.
_WORDLLAMA_SCRIPTS = tuple(zip(_SCRIPTS, (1.5, 1.1, 0.4, 1.1, 1.2, 1.4, 1.4, 2.2, 3.0, 4.0), strict=True))
_SMOLLM2_SCRIPTS = tuple(zip(_SCRIPTS, (2.1, 0.9, 0.9, 1.4, 1.6, 1.5, 1.8, 2.7, 3.0, 3.0), strict=True))

WORDLLAMA_256 = Model(
    name="wordllama-256",
    engine="wordllama",
    endpoint=Endpoint.EMBEDDINGS,
    max_input_tokens=8192,
    chars_per_token=4.4,
    tokens_per_s=350_000.0,
    uj_per_token=6,
    batch_tokens=65_536,
    batch_items=512,
    # A static embedding looks each token up once and generates none.
    w_prompt=1,
    w_cached=1,
    w_completion=0,
    precision="f32",
    options=MappingProxyType({"dimensions": 256}),
    script_tokens=_WORDLLAMA_SCRIPTS,
)

SMOLLM2_135M_INSTRUCT = Model(
    name="smollm2-135m-instruct",
    engine="llama_cpp",
    endpoint=Endpoint.CHAT,
    max_input_tokens=3840,
    chars_per_token=4.2,
    tokens_per_s=80.0,
    uj_per_token=25_000,
    batch_tokens=4_096,
    batch_items=1,
    max_output_tokens=256,
    # Measured on one thread: 9.3 ms for a prompt token, 21.9 ms for a generated one; a cached token costs nothing.
    w_prompt=5,
    w_cached=0,
    w_completion=12,
    precision="q4_1",
    options=MappingProxyType({"path": None, "context_tokens": 4096, "default_output_tokens": 128}),
    script_tokens=_SMOLLM2_SCRIPTS,
)

#: Starting values of sentence-transformers models, which the settings describe: those of all-MiniLM-L6-v2 (22 million
#: parameters) on one core.
_SENTENCE_TRANSFORMERS = Model(
    name="sentence-transformers",
    engine="sentence_transformers",
    endpoint=Endpoint.EMBEDDINGS,
    max_input_tokens=512,
    chars_per_token=4.2,
    tokens_per_s=3_000.0,
    uj_per_token=650,
    batch_tokens=16_384,
    batch_items=256,
    # Every prompt token passes the same layers once and none is generated.
    w_prompt=1,
    w_cached=1,
    w_completion=0,
)

#: Starting values of models at a server: those of 8 billion parameters on one H100 (``estimate.token_energy``). A
#: prompt token passes in parallel with others, a generated one alone; a cached one costs next to nothing.
_OPENAI_CHAT = Model(
    name="openai-http",
    engine="openai_http",
    endpoint=Endpoint.CHAT,
    max_input_tokens=8_064,
    chars_per_token=4.2,
    tokens_per_s=500.0,
    uj_per_token=66_000,
    batch_tokens=1_048_576,
    batch_items=64,
    max_output_tokens=128,
    w_prompt=1,
    w_cached=0,
    w_completion=6,
)

_OPENAI_EMBEDDINGS = replace(
    _OPENAI_CHAT,
    endpoint=Endpoint.EMBEDDINGS,
    max_input_tokens=8_192,
    tokens_per_s=5_000.0,
    uj_per_token=1_060,
    batch_items=256,
    max_output_tokens=0,
    w_cached=1,
    w_completion=0,
)

#: Items of an engine batch for each request that is out at once: few places are empty while its last are answered.
_ITEMS_A_PLACE = 4

#: Billions of parameters of a server's model that states none.
_PARAMETERS_B = {Endpoint.CHAT: 8.0, Endpoint.EMBEDDINGS: 0.3}

#: What every installation offers, by name.
BUILTIN: Mapping[str, Model] = MappingProxyType({model.name: model for model in (WORDLLAMA_256, SMOLLM2_135M_INSTRUCT)})


def catalogue(extra: Mapping[str, Mapping[str, Any]]) -> dict[str, Model]:
    """Return the built-in models and those of the settings (``[models.NAME]``, as plain values), by name.

    A described model of a built-in name replaces it. Raises ConfigError naming the setting and its limit.
    """
    models = dict(BUILTIN)
    for name, values in extra.items():
        engine = values.get("engine")
        describe = _DESCRIBE.get(str(engine))
        if describe is None:
            raise ConfigError(f"models.{name}.engine is {engine!r}; known engines: {', '.join(sorted(_DESCRIBE))}")
        models[name] = _bounded(describe(name, values), values)
    return models


def _bounded(model: Model, values: Mapping[str, Any]) -> Model:
    """Add what any engine's model may say: how large its engine batches are, what is recorded, and its smaller one."""
    speculative = values.get("speculative")
    return replace(
        model,
        batch_items=int(values.get("batch_items") or model.batch_items),
        batch_tokens=int(values.get("batch_tokens") or model.batch_tokens),
        precision=values.get("precision") or model.precision,
        smaller=values.get("smaller"),
        same_space=bool(values.get("same_space")),
        options=model.options
        if speculative is None
        else MappingProxyType({**model.options, "speculative": speculative}),
    )


def _weights(name: str, values: Mapping[str, Any], start: Model) -> dict[str, Any]:
    """Return a described model's token weights: those it states, else those its engine starts with; and if it learns.

    Raises ConfigError where nothing would weigh anything, or what a model generates would be free.
    """
    names = ("w_prompt", "w_cached", "w_completion")
    found = {one: int(getattr(start, one) if values.get(one) is None else values[one]) for one in names}
    if start.endpoint is Endpoint.CHAT and not found["w_completion"]:
        raise ConfigError(f"models.{name}.w_completion is 0; generated tokens use most of the energy and must weigh")
    if not any(found.values()):
        raise ConfigError(f"models.{name}.w_prompt and the other weights are all 0; one of them must weigh something")
    return {**found, "learns_weights": values.get("token_weights") == "learned"}


def _wordllama(name: str, values: Mapping[str, Any]) -> Model:
    dimensions = int(values.get("dimensions") or 256)
    if dimensions not in WORDLLAMA_DIMENSIONS:
        raise ConfigError(f"models.{name}.dimensions is {dimensions}; wordllama's vectors can have 64, 128 or 256")
    return replace(
        WORDLLAMA_256,
        name=name,
        tier=int(values.get("tier", 1)),
        tokens_per_s=float(values.get("tokens_per_s") or WORDLLAMA_256.tokens_per_s),
        **_weights(name, values, WORDLLAMA_256),
        options=MappingProxyType({"dimensions": dimensions}),
    )


def _llama_cpp(name: str, values: Mapping[str, Any]) -> Model:
    path = values.get("path")
    if path is None:
        raise ConfigError(f"models.{name}.path is missing; a llama_cpp model needs its GGUF file")
    context = int(values.get("context_tokens") or 2048)
    output = int(values.get("max_output_tokens", 128))
    if output >= context:
        raise ConfigError(f"models.{name}.max_output_tokens is {output}; it must be below context_tokens ({context})")
    return replace(
        SMOLLM2_135M_INSTRUCT,
        name=name,
        max_input_tokens=context - output,
        max_output_tokens=output,
        tier=int(values.get("tier", 1)),
        tokens_per_s=float(values.get("tokens_per_s") or SMOLLM2_135M_INSTRUCT.tokens_per_s),
        **_weights(name, values, SMOLLM2_135M_INSTRUCT),
        precision=None,
        options=MappingProxyType({"path": str(path), "context_tokens": context, "default_output_tokens": output}),
        script_tokens=(),  # another file has another tokenizer
    )


def _sentence_transformers(name: str, values: Mapping[str, Any]) -> Model:
    path = values.get("path")
    if path is None:
        raise ConfigError(f"models.{name}.path is missing; a sentence_transformers model needs its folder")
    if values.get("dimensions") is not None:
        raise ConfigError(
            f"models.{name}.dimensions is for wordllama; a sentence_transformers model has its own length, and "
            f"models.{name}.shorter_dimensions lists those it may be cut to"
        )
    return replace(
        _SENTENCE_TRANSFORMERS,
        name=name,
        max_input_tokens=int(values.get("context_tokens") or _SENTENCE_TRANSFORMERS.max_input_tokens),
        tier=int(values.get("tier", 1)),
        tokens_per_s=float(values.get("tokens_per_s") or _SENTENCE_TRANSFORMERS.tokens_per_s),
        **_weights(name, values, _SENTENCE_TRANSFORMERS),
        options=MappingProxyType(
            {"path": str(path), "shorter_dimensions": tuple(values.get("shorter_dimensions") or ())}
        ),
    )


def _openai_http(name: str, values: Mapping[str, Any]) -> Model:
    if values.get("base_url") is None:
        raise ConfigError(f"models.{name}.base_url is missing; an openai_http model needs its server's address")
    endpoint = Endpoint(values.get("endpoint") or Endpoint.CHAT)
    start = _OPENAI_CHAT if endpoint is Endpoint.CHAT else _OPENAI_EMBEDDINGS
    context = int(values.get("context_tokens") or 8192)
    output = int(values.get("max_output_tokens", 128)) if endpoint is Endpoint.CHAT else 0
    if output >= context:
        raise ConfigError(f"models.{name}.max_output_tokens is {output}; it must be below context_tokens ({context})")
    pid_file = values.get("pid_file")
    concurrency = int(values.get("concurrency") or 8)
    return replace(
        start,
        name=name,
        batch_items=max(start.batch_items, _ITEMS_A_PLACE * concurrency),
        max_input_tokens=context - output,
        max_output_tokens=output,
        tier=int(values.get("tier", 1)),
        tokens_per_s=float(values.get("tokens_per_s") or start.tokens_per_s),
        **_weights(name, values, start),
        options=MappingProxyType(
            {
                "base_url": str(values["base_url"]),
                "served_model": values.get("served_model") or name,
                "api_key": values.get("api_key"),
                "concurrency": concurrency,
                "connect_timeout_s": float(values.get("connect_timeout_s") or 5.0),
                "read_timeout_s": float(values.get("read_timeout_s") or 120.0),
                "retry_budget_s": float(60.0 if values.get("retry_budget_s") is None else values["retry_budget_s"]),
                "is_streamed": bool(values.get("is_streamed")),
                "pid_file": None if pid_file is None else Path(pid_file),
                "context_tokens": context,
                "parameters_b": float(values.get("parameters_b") or _PARAMETERS_B[endpoint]),
            }
        ),
    )


_DESCRIBE: Mapping[str, Callable[[str, Mapping[str, Any]], Model]] = MappingProxyType(
    {
        "llama_cpp": _llama_cpp,
        "openai_http": _openai_http,
        "sentence_transformers": _sentence_transformers,
        "wordllama": _wordllama,
    }
)
