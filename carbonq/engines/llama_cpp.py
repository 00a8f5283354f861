"""Chat completions by llama.cpp in process (package xllamacpp), from a GGUF file.

Always asked as a stream, so that it can be stopped between tokens and between steps of 64 prompt tokens. Temperature is
0 and the prompt cache is off unless a body says otherwise, so that an answer does not depend on what ran before.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import orjson

from carbonq.engines import chat_fields, shelf
from carbonq.engines.protocol import EngineRequest, EngineResult, ShouldStop, Stopped
from carbonq.errors import ConfigError, EngineError, InvalidRequest
from carbonq.model import Model

#: Tokens of one decoding step: as fast as 512 on a CPU, and a stop takes effect within half a second.
_STEP_TOKENS = 64

#: Sequences decoded together: a flexible item and a realtime request beside it.
_PARALLEL = 2

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})

#: Lowest and highest value of each number that is passed on: OpenAI's ranges, and llama.cpp's 32 bits for the seed.
_RANGES = {
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "seed": (0, 2**32 - 1),
    "temperature": (0, 2),
    "top_p": (0, 1),
}


class LlamaCppEngine:
    """A loaded GGUF. ``run`` may be called from two threads at once; further calls queue inside llama.cpp.

    Args:
        model: ``options["path"]`` is the GGUF (None: a sample model, see ``shelf``), ``options["context_tokens"]`` its
            context length and ``options["default_output_tokens"]`` the answer's length where a body states none.
        threads: CPU threads; with several workers on a host, its cores divided by the workers.
        folder: where pulled models lie.
    """

    def __init__(self, model: Model, *, threads: int, folder: Path | None = None) -> None:
        self._model = model
        self._threads = max(1, threads)
        self._folder = folder
        self._server: Any = None

    @property
    def name(self) -> str:
        """``llama_cpp``."""
        return "llama_cpp"

    @property
    def version(self) -> str:
        """The version of the xllamacpp package, which carries llama.cpp."""
        return metadata.version("xllamacpp")

    def load(self) -> None:
        """Load the GGUF. Raises ConfigError when the package or the file is missing, or llama.cpp refuses the file."""
        path = shelf.find(self._model, self._folder)
        import xllamacpp

        # Its names come from a compiled module without stubs.
        library: Any = xllamacpp
        settings = library.CommonParams()
        settings.model.path = str(path)
        settings.n_parallel = _PARALLEL
        settings.n_ctx = int(self._model.options["context_tokens"]) * _PARALLEL
        settings.fit_params = False
        settings.n_batch = settings.n_ubatch = _STEP_TOKENS
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = self._threads
        settings.cache_ram_mib = 0
        settings.verbosity = -1
        # It always listens on a loopback port; a key nobody knows closes that door.
        settings.api_keys = [secrets.token_urlsafe(32)]
        settings.ui = settings.endpoint_slots = settings.endpoint_props = False
        settings.n_threads_http = 1
        try:
            self._server = library.Server(settings)
        except (RuntimeError, ValueError) as error:
            raise ConfigError(f"llama.cpp cannot load {path}: {error}") from error

    def run(self, requests: Sequence[EngineRequest], should_stop: ShouldStop) -> Sequence[EngineResult]:
        """Answer the requests one after another; a wrong body gets an error result. Raises Stopped, EngineError."""
        results: list[EngineResult] = []
        for request in requests:
            if should_stop():
                raise Stopped
            try:
                results.append(self._answer(request, should_stop))
            except InvalidRequest as error:
                results.append(_refusal(error))
        return results

    def pids(self) -> Sequence[int]:
        """Return none: it runs in the caller's process."""
        return ()

    def close(self) -> None:
        """Free the model; safe to call twice."""
        self._server = None

    def _answer(self, request: EngineRequest, should_stop: ShouldStop) -> EngineResult:
        if self._server is None:
            raise EngineError(f"the model {self._model.name} is not loaded", is_retryable=False)
        stream = _Stream(self._model, should_stop, request.on_text)
        body = self._checked(request.body)
        try:
            self._server.handle_chat_completions(body, stream.take)
        except (TypeError, ValueError) as error:
            # It could not be handed over at all, e.g. half of a surrogate pair.
            raise InvalidRequest(f"llama.cpp cannot take the request: {error}") from error
        except RuntimeError as error:
            raise EngineError(f"llama.cpp failed: {error}", is_retryable=True) from error
        return stream.result()

    def _checked(self, body: Mapping[str, Any]) -> dict[str, Any]:
        chat_fields.check(body, self._model.name)
        if body.get("n") not in (None, 1):
            raise InvalidRequest(f"n is {body['n']!r}; only 1 is offered", param="n")
        checked: dict[str, Any] = {name: body[name] for name in chat_fields.PASSED if body.get(name) is not None}
        for name in checked.keys() & _RANGES.keys():
            _check_number(name, checked[name])
        if "stop" in checked and not _is_stop(checked["stop"]):
            raise InvalidRequest("stop must be a text or a list of up to 4 texts", param="stop")
        if not isinstance(checked.get("response_format", {}), dict):
            raise InvalidRequest("response_format must be an object", param="response_format")
        checked.setdefault("temperature", 0)
        checked["messages"] = _messages(body.get("messages"))
        checked["max_tokens"] = self._output_limit(body)
        checked.update(cache_prompt=False, reasoning_format="none", return_progress=True, stream=True)
        checked["stream_options"] = {"include_usage": True}
        return checked

    def _output_limit(self, body: Mapping[str, Any]) -> int:
        """Return how many tokens the answer may have: what the body says, up to the model's limit."""
        name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
        wanted = body.get(name)
        if wanted is None:
            wanted = self._model.options.get("default_output_tokens", self._model.max_output_tokens)
        if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
            raise InvalidRequest(f"{name} is {wanted!r}; it must be a whole number of at least 1", param=name)
        return min(wanted, self._model.max_output_tokens)


class _Stream:
    """Gathers the pieces of one answer; ``take`` is llama.cpp's callback and returns True to stop it."""

    def __init__(self, model: Model, should_stop: ShouldStop, on_text: Callable[[str], None] | None = None) -> None:
        self._model = model
        self._should_stop = should_stop
        self._on_text = on_text
        self._is_stopped = False
        self._raised: BaseException | None = None
        self._too_long: int | None = None
        self._error: Mapping[str, Any] | None = None
        self._pieces: list[str] = []
        self._finish_reason: str | None = None
        self._identity: dict[str, Any] = {}
        self._usage: Mapping[str, Any] | None = None
        self._began_s = time.monotonic()
        self._first_s: float | None = None
        self._last_s = self._began_s

    def take(self, piece: Mapping[str, Any]) -> bool:
        """Take one piece. The first says how many tokens the prompt has, before any is computed."""
        if "error" in piece:
            self._error = piece["error"]
            return False
        prompt = piece.get("prompt_progress")
        if prompt is not None and prompt["total"] > self._model.max_input_tokens:
            self._too_long = int(prompt["total"])
            return True
        self._identity = {"id": piece["id"], "object": "chat.completion", "created": piece["created"]}
        self._usage = piece.get("usage") or self._usage
        for choice in piece.get("choices", ()):
            text = choice["delta"].get("content") or ""
            if text:
                self._last_s = time.monotonic()
                self._first_s = self._last_s if self._first_s is None else self._first_s
                if self._on_text is not None:
                    self._on_text(text)
            self._pieces.append(text)
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
        try:
            self._is_stopped = self._usage is None and self._should_stop()
        except BaseException as error:
            # llama.cpp's side would swallow it; ``result`` raises it again.
            self._raised = error
        return self._is_stopped or self._raised is not None

    def result(self) -> EngineResult:
        """Return the answer.

        Raises Stopped, InvalidRequest (this item's fault), EngineError, or what ``should_stop`` raised.
        """
        if self._raised is not None:
            raise self._raised
        if self._is_stopped:
            raise Stopped
        if self._too_long is not None:
            raise self._overflow(self._too_long)
        if self._error is not None:
            raise self._failure(self._error)
        if self._usage is None:
            raise EngineError("llama.cpp ended an answer without its usage", is_retryable=True)
        message = {"role": "assistant", "content": "".join(self._pieces)}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish_reason}
        return EngineResult(
            status_code=200,
            body_json=orjson.dumps({**self._identity, "model": self._model.name, "choices": [choice]}),
            prompt_tokens=int(self._usage["prompt_tokens"]),
            cached_tokens=int(self._usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)),
            completion_tokens=int(self._usage["completion_tokens"]),
            ttft_s=None if self._first_s is None else self._first_s - self._began_s,
            decode_s=None if self._first_s is None else self._last_s - self._first_s,
        )

    def _overflow(self, tokens: int) -> InvalidRequest:
        limit = self._model.max_input_tokens
        message = f"messages has {tokens} tokens with the chat template; {self._model.name} takes at most {limit}"
        return InvalidRequest(message, param="messages", code="context_length_exceeded")

    def _failure(self, error: Mapping[str, Any]) -> Exception:
        if error.get("type") == "exceed_context_size_error":
            return self._overflow(int(error["n_prompt_tokens"]))
        if 400 <= int(error.get("code", 500)) < 500:
            return InvalidRequest(str(error.get("message", "the request is wrong")))
        return EngineError(f"llama.cpp failed: {error.get('message')}", is_retryable=True)


def _check_number(name: str, value: object) -> None:
    low, high = _RANGES[name]
    kind = (int,) if name == "seed" else (int, float)
    if not isinstance(value, kind) or isinstance(value, bool) or not low <= value <= high:
        whole = "whole number" if name == "seed" else "number"
        raise InvalidRequest(f"{name} is {value!r}; it must be a {whole} from {low} to {high}", param=name)


def _is_stop(value: object) -> bool:
    texts = cast(list[Any], value) if isinstance(value, list) else [value]
    return 0 < len(texts) <= 4 and all(isinstance(text, str) and text for text in texts)


def _messages(given: object) -> list[Any]:
    """Return the messages, checked. Raises InvalidRequest naming the message."""
    if not isinstance(given, list) or not given:
        raise InvalidRequest("messages must be a list of at least one message", param="messages")
    messages = cast(list[Any], given)
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidRequest(f"messages[{index}] is no object", param="messages")
        fields = cast(dict[str, Any], message)
        if fields.get("role") not in _ROLES:
            known = ", ".join(sorted(_ROLES))
            raise InvalidRequest(f"messages[{index}].role is {fields.get('role')!r}; known: {known}", param="messages")
        if not _is_text(fields.get("content")):
            raise InvalidRequest(f"messages[{index}].content must be text or a list of text parts", param="messages")
    return messages


def _is_text(content: object) -> bool:
    if isinstance(content, str):
        return True
    if not isinstance(content, list) or not content:
        return False
    parts = cast(list[Any], content)
    return all(isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in parts)  # pyright: ignore[reportUnknownMemberType]


def _refusal(error: InvalidRequest) -> EngineResult:
    # Counting a prompt computes none of its tokens, so there are none to report.
    return EngineResult(
        status_code=400,
        body_json=None,
        prompt_tokens=0,
        error_code=error.code,
        error_message=error.message,
        error_param=error.param,
    )
