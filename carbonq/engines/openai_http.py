"""Chat completions and embeddings by any OpenAI-compatible server over HTTP: vLLM, TEI, llama-server, Ollama, SGLang.

Each item is a request of its own; the server forms its batches. A loop in a thread of its own sends them, so that a
stop takes effect within 50 ms and closes the connections of what is out (servers end such requests). What a server's
energy is counted by is said in docs/engines.md: it is not this process's.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import httpx
import orjson
import psutil

from carbonq import __version__, estimate
from carbonq.engines import openai_answers
from carbonq.engines.openai_answers import Answer, ChatStream
from carbonq.engines.openai_calls import Caller, FailedError, Patience, RefusedError
from carbonq.engines.protocol import ENGINE_FAILED, EngineRequest, EngineResult, ShouldStop, Stopped
from carbonq.errors import ConfigError, EngineAway, EngineError, InvalidRequest
from carbonq.model import Endpoint, Model

logger = logging.getLogger(__name__)

#: Seconds between two looks at ``should_stop``.
_LOOK_S = 0.05

#: Machine seconds after which the server is asked again what it is: it may have been replaced.
_VERSION_AGE_S = 300.0

#: Where servers say their version, the member that holds it, and whose it is.
_VERSIONS = (("/version", "version", ""), ("/props", "build_info", "llama.cpp "), ("/info", "version", "tei "))
_OLLAMA = ("/api/version", "version", "ollama ")

#: Bodies with these members are asked whole: their pieces would have to be put together member by member.
_UNSTREAMED = ("tools", "functions", "logprobs", "top_logprobs", "audio")

#: So many times a model's context is more tokens than a server can have counted: the settings may state too little.
_FAR = 10

_T = TypeVar("_T")

_PATHS = {Endpoint.CHAT: "chat/completions", Endpoint.EMBEDDINGS: "embeddings"}


@dataclass(frozen=True, slots=True)
class _Failed:
    """An item that got no answer."""

    message: str
    is_away: bool


class _Begin:
    """Begins to gather a streamed answer; a second time only if nothing of the first has been handed on."""

    def __init__(self, model: str, on_text: Callable[[str], None] | None) -> None:
        self._model = model
        self._on_text = on_text
        self._is_told = False

    def __call__(self, at_s: float) -> ChatStream:
        if self._is_told:
            raise FailedError("the server's answer broke off after it had begun", is_away=False)
        return ChatStream(self._model, at_s, None if self._on_text is None else self._tell)

    def _tell(self, text: str) -> None:
        assert self._on_text is not None
        self._is_told = True
        self._on_text(text)


class OpenAIHttpEngine:
    """A model of a server. ``run`` may be called from several threads, each with ``concurrency`` requests out.

    Args:
        model: ``options`` as ``models.catalogue`` makes them: ``base_url`` (with ``/v1``), ``served_model``,
            ``api_key`` (a pydantic secret or None), ``concurrency``, ``is_streamed``, ``pid_file`` and the timeouts.
        patience: how long a request is tried; None: as the model's options say.
    """

    def __init__(self, model: Model, *, patience: Patience | None = None) -> None:
        options = model.options
        self._model = model
        self._served = str(options.get("served_model") or model.name)
        self._is_streamed = bool(options.get("is_streamed"))
        self._pid_file: Path | None = options.get("pid_file")
        self._patience = patience or Patience(
            connect_s=float(options["connect_timeout_s"]),
            read_s=float(options["read_timeout_s"]),
            budget_s=float(options["retry_budget_s"]),
        )
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: httpx.AsyncClient | None = None
        self._caller: Caller | None = None
        self._concurrency = 1
        self._version: str | None = None
        self._version_at = float("-inf")
        self._has_odd_usage = False

    @property
    def name(self) -> str:
        """``openai_http``."""
        return "openai_http"

    @property
    def version(self) -> str:
        """What the server says it is, with the model's name there; ``unknown`` until it said something."""
        return f"{self._version or 'unknown'} {self._served}"

    def load(self) -> None:
        """Start to talk to the server; one that is away is asked again with the first items.

        Raises ConfigError for a key that cannot be sent.
        """
        base_url = str(self._model.options["base_url"]).rstrip("/") + "/"
        headers = {"User-Agent": f"carbonq/{__version__}", "Content-Type": "application/json"}
        key: Any = self._model.options.get("api_key")
        if key is not None:
            headers["Authorization"] = f"Bearer {key.get_secret_value()}"
        # A proxy of the environment must not see this machine's own traffic.
        is_local = (urlsplit(base_url).hostname or "") in {"localhost", "127.0.0.1", "::1"}
        concurrency = int(self._model.options["concurrency"])
        try:
            self._client = httpx.AsyncClient(
                base_url=base_url,
                headers=headers,
                follow_redirects=False,
                verify=base_url.startswith("https:"),  # reading the certificates takes 0.1 s
                trust_env=not is_local,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=concurrency),
            )
        except (UnicodeError, ValueError, httpx.InvalidURL) as error:
            raise ConfigError(f"models.{self._model.name}: its base_url or api_key cannot be used") from error
        self._caller = Caller(self._client, self._patience)
        self._concurrency = concurrency
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name=f"http-{self._model.name}", daemon=True)
        self._thread.start()
        self._submit(self._ask_version()).result()
        if self._version is None:
            logger.warning("the server of %s at %s does not say what it is, or is away", self._model.name, base_url)

    def run(self, requests: Sequence[EngineRequest], should_stop: ShouldStop) -> Sequence[EngineResult]:
        """Ask all requests, at most ``concurrency`` at once. Raises Stopped, EngineAway, EngineError.

        An item that got no answer though others did fails alone and may be tried again (``is_retryable``).
        """
        if self._loop is None:
            raise EngineError(f"the model {self._model.name} is not loaded", is_retryable=False)
        if not requests:
            return []
        running = self._submit(self._run(requests))
        try:
            while True:
                if should_stop():
                    raise Stopped
                futures.wait([running], timeout=_LOOK_S)
                if running.cancelled():
                    raise EngineError(f"the model {self._model.name} was closed", is_retryable=True)
                if running.done():
                    return self._results(requests, running.result())
        finally:
            # Cancelled when should_stop said so or raised; waited for, so that nothing of it is out any more.
            if not running.done():
                running.cancel()
                futures.wait([running], timeout=5)

    def pids(self) -> Sequence[int]:
        """Return the server's processes where ``pid_file`` names the first of them, else none."""
        if self._pid_file is None:
            return ()
        try:
            server = psutil.Process(int(self._pid_file.read_text().split()[0]))
            return [server.pid, *(child.pid for child in server.children(recursive=True))]
        except (OSError, ValueError, IndexError, psutil.Error):
            return ()  # it has ended or not begun

    def close(self) -> None:
        """Close all connections, also of what is out; safe to call twice."""
        with self._lock:
            loop, client, thread = self._loop, self._client, self._thread
            self._loop = self._client = self._caller = self._thread = None
        if loop is None or client is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_end(client), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()

    # --- in the loop --------------------------------------------------------------------------------------------

    def _submit(self, work: Coroutine[Any, Any, _T]) -> futures.Future[_T]:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _run(self, requests: Sequence[EngineRequest]) -> list[EngineResult | _Failed]:
        """Return what became of each request; the first that finds the server away ends those that wait."""
        if time.monotonic() - self._version_at > _VERSION_AGE_S or self._version is None:
            await self._ask_version()
        turns = asyncio.Semaphore(self._concurrency)
        tasks = [asyncio.ensure_future(self._one(request, turns)) for request in requests]
        try:
            for task in asyncio.as_completed(tasks):
                found = await task
                if isinstance(found, _Failed) and found.is_away:
                    break
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        results: list[EngineResult | _Failed] = []
        for one in ended:
            if isinstance(one, asyncio.CancelledError):
                results.append(_Failed("the server was away for another item", is_away=True))
            elif isinstance(one, BaseException):
                raise one
            else:
                results.append(one)
        return results

    async def _one(self, request: EngineRequest, turns: asyncio.Semaphore) -> EngineResult | _Failed:
        assert self._caller is not None
        path = _PATHS[self._model.endpoint]
        try:
            if self._model.endpoint is Endpoint.EMBEDDINGS:
                body, count, is_base64 = self._embedding(request.body)
                answer = await self._caller.post(
                    path,
                    body,
                    lambda data: openai_answers.embeddings(data, self._model.name, count=count, is_base64=is_base64),
                    turns,
                )
            elif self._may_stream(request.body) or request.on_text is not None:
                extra = {"stream": True, "stream_options": {"include_usage": True}}
                body = self._chat(request.body, extra)
                answer = await self._caller.stream(path, body, _Begin(self._model.name, request.on_text), turns)
            else:
                body = self._chat(request.body, {})
                answer = await self._caller.post(
                    path, body, lambda data: openai_answers.chat(data, self._model.name), turns
                )
        except InvalidRequest as error:
            return _refused(400, error.code, error.message, error.param)
        except RefusedError as error:
            code = error.said.code or f"http_{error.status}"
            return _refused(error.status, code, error.said.message, error.said.param)
        except FailedError as error:
            return _Failed(error.message, error.is_away)
        return self._result(request, answer)

    async def _ask_version(self) -> None:
        """Ask the server what it is; what it said before holds while it does not answer."""
        assert self._caller is not None
        parts = urlsplit(str(self._model.options["base_url"]))
        root = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
        self._version_at = time.monotonic()
        for path, member, whose in (*_VERSIONS, _OLLAMA):
            data = await self._caller.get(root + path)
            try:
                found = None if data is None else openai_answers.parse(data).get(member)
            except openai_answers.MalformedError:
                continue
            if isinstance(found, str) and found:
                self._version = (whose + found)[:100]
                return

    # --- requests and answers -----------------------------------------------------------------------------------

    def _may_stream(self, body: Mapping[str, Any]) -> bool:
        return self._is_streamed and body.get("n") in (None, 1) and not any(body.get(name) for name in _UNSTREAMED)

    def _chat(self, body: Mapping[str, Any], extra: Mapping[str, Any]) -> bytes:
        if body.get("stream"):
            raise InvalidRequest(f"stream is not offered by {self._model.name}", param="stream")
        messages: object = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise InvalidRequest("messages must be a list of at least one message", param="messages")
        wanted = {**body, **extra, "model": self._served}
        name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
        limit = self._model.max_output_tokens
        asked: object = body.get(name)
        is_count = isinstance(asked, int) and not isinstance(asked, bool)
        wanted[name] = limit if asked is None else min(asked, limit) if is_count else asked  # pyright: ignore[reportOperatorIssue, reportArgumentType]
        return _dump(wanted)

    def _embedding(self, body: Mapping[str, Any]) -> tuple[bytes, int, bool]:
        given: object = body.get("input")
        if not isinstance(given, str | list) or not given:
            raise InvalidRequest("input must be a text or a list of at least one text", param="input")
        encoding = body.get("encoding_format", "float")
        if encoding not in ("float", "base64"):
            raise InvalidRequest(f"encoding_format is {encoding!r}; known: float, base64", param="encoding_format")
        is_one = isinstance(given, str) or isinstance(given[0], int)  # a list of numbers is one text in tokens
        return _dump({**body, "model": self._served}), 1 if is_one else len(given), encoding == "base64"  # pyright: ignore[reportUnknownArgumentType]

    def _result(self, request: EngineRequest, answer: Answer) -> EngineResult:
        if answer.fingerprint and self._version is None:
            self._version = answer.fingerprint[:100]
        guess, usage = None, answer.usage.within(*self._most_tokens(request.body))
        if usage.odd and not self._has_odd_usage:
            self._has_odd_usage = True  # said once: every answer of such a server has it
            logger.warning("the server of %s counts tokens that cannot be: %s", self._model.name, usage.odd)
        completion = 0 if self._model.endpoint is Endpoint.EMBEDDINGS else usage.completion
        if usage.prompt is None or completion is None:
            guess = estimate.body_tokens(request.body, self._model)
            if completion is None:
                completion = min(guess.completion, max(1, len(answer.body_json) // 4))
        return EngineResult(
            200,
            answer.body_json,
            guess.prompt if usage.prompt is None and guess is not None else usage.prompt or 0,
            usage.cached or 0,
            completion,
            is_estimated=guess is not None,
            ttft_s=answer.timings.ttft_s,
            decode_s=answer.timings.decode_s,
            odd_usage=usage.odd,
        )

    def _most_tokens(self, body: Mapping[str, Any]) -> tuple[int, int]:
        """Return the most tokens of prompt and answer that are believed: far beyond what can be, whatever is set."""
        given: object = body.get("input")
        inputs = len(cast("list[object]", given)) if isinstance(given, list) else 1
        answers: object = body.get("n")
        context = self._model.max_input_tokens + self._model.max_output_tokens
        return _FAR * context * max(1, inputs), _FAR * context * (answers if isinstance(answers, int) else 1)

    def _results(
        self, requests: Sequence[EngineRequest], found: Sequence[EngineResult | _Failed]
    ) -> list[EngineResult]:
        """Return the results. Raises EngineAway or EngineError where no item got any."""
        failed = [one for one in found if isinstance(one, _Failed)]
        if len(failed) == len(requests):
            away = next((one for one in failed if one.is_away), None)
            if away is not None:
                raise EngineAway(f"{self._model.name}: {away.message}")
            raise EngineError(f"{self._model.name}: {failed[0].message}", is_retryable=True)
        if failed:
            logger.warning("%s gave no answer to %d of %d items: %s", self._model.name, *_counts(failed, found))
        return [
            EngineResult(
                ENGINE_FAILED, None, 0, error_code="engine_error", error_message=one.message, is_retryable=True
            )
            if isinstance(one, _Failed)
            else one
            for one in found
        ]


async def _end(client: httpx.AsyncClient) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await client.aclose()


def _counts(failed: Sequence[_Failed], found: Sequence[object]) -> tuple[int, int, str]:
    return len(failed), len(found), failed[0].message


def _dump(body: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except (TypeError, orjson.JSONEncodeError) as error:  # half of a surrogate pair
        raise InvalidRequest(f"the request cannot be written as JSON: {error}") from error


def _refused(status: int, code: str, message: str, param: str | None) -> EngineResult:
    # Whether a server computed anything before it refused is not known; nothing is claimed.
    return EngineResult(status, None, 0, error_code=code, error_message=message, error_param=param)
