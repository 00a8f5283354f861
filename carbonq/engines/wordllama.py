"""Static word embeddings by wordllama, in process: 64, 128 or 256 dimensions, from the weights inside its wheel.

Vectors are scaled to unit length, as OpenAI's are, so that a dot product is a cosine; before that they equal
``WordLlama.embed``. Tokenises without padding or offsets and pools text by text, which is about twice as fast.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from carbonq.engines.protocol import EngineRequest, EngineResult, ShouldStop, Stopped
from carbonq.errors import ConfigError, InvalidRequest
from carbonq.model import Model

#: Characters between two looks at ``should_stop``: about 50 ms of work on one core.
_CHARS_PER_STEP = 100_000

#: OpenAI's limit on the texts of one request.
MAX_TEXTS = 2048

_LENGTHS = (64, 128, 256)

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One item's checked request; its texts are ``[first, first + count)`` of the engine batch's."""

    first: int
    count: int
    dimensions: int
    is_base64: bool


class WordLlamaEngine:
    """The loaded embeddings. ``run`` is thread-safe: it only reads them.

    Args:
        model: ``options["dimensions"]`` is the longest and the default length of its vectors.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._dimensions = int(model.options.get("dimensions", max(_LENGTHS)))
        self._tail = b'],"model":' + orjson.dumps(model.name) + b"}"
        self._tokenizer: Any = None
        self._table: Vectors = np.empty((0, 0), dtype=np.float32)

    @property
    def name(self) -> str:
        """``wordllama``."""
        return "wordllama"

    @property
    def version(self) -> str:
        """The version of the wordllama package."""
        return metadata.version("wordllama")

    def load(self) -> None:
        """Load the weights. Raises ConfigError when the package or its weights are missing."""
        spec = util.find_spec("wordllama")
        if spec is None or spec.origin is None:
            raise ConfigError("the engine wordllama needs the package wordllama; install it with pip")
        inference = _load(Path(spec.origin).parent)
        self._table = inference.embedding
        # A copy of our own: wordllama's pads every text to the longest of its batch.
        self._tokenizer = type(inference.tokenizer).from_str(inference.tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def run(self, requests: Sequence[EngineRequest], should_stop: ShouldStop) -> Sequence[EngineResult]:
        """Embed the texts of all requests; an item whose body is wrong gets an error result. Raises Stopped."""
        texts: list[str] = []
        wanted: list[_Wanted | InvalidRequest] = []
        for request in requests:
            try:
                own, dimensions, is_base64 = self._check(request)
            except InvalidRequest as error:
                wanted.append(error)
                continue
            wanted.append(_Wanted(len(texts), len(own), dimensions, is_base64))
            texts.extend(own)
        vectors = np.empty((len(texts), self._table.shape[1]), dtype=np.float32)
        counts: list[int] = []
        for first, last in _steps(texts):
            if should_stop():
                raise Stopped
            counts.extend(self._embed(texts[first:last], vectors[first:last]))
        unit = _UnitVectors(vectors)
        return [self._result(each, unit, counts) for each in wanted]

    def pids(self) -> Sequence[int]:
        """Return none: it runs in the caller's process."""
        return ()

    def close(self) -> None:
        """Free the weights."""
        self._tokenizer = None
        self._table = np.empty((0, 0), dtype=np.float32)

    def _embed(self, texts: list[str], into: Vectors) -> Iterator[int]:
        """Write the mean of each text's token vectors into a row of ``into``; yield the token counts."""
        limit = self._model.max_input_tokens
        for row, encoding in enumerate(self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)):
            ids: list[int] = encoding.ids
            if 0 < len(ids) <= limit:
                self._table.take(ids, axis=0).sum(axis=0, out=into[row])
                into[row] /= len(ids)
            else:
                into[row] = 0
            yield len(ids)

    def _result(self, wanted: _Wanted | InvalidRequest, unit: _UnitVectors, counts: list[int]) -> EngineResult:
        if isinstance(wanted, InvalidRequest):
            return _refusal(wanted, 0)
        last = wanted.first + wanted.count
        own = counts[wanted.first : last]
        limit = self._model.max_input_tokens
        if max(own) > limit:
            # Only the counting was done, so no token was computed.
            message = f"a text of input has {max(own)} tokens; {self._model.name} takes at most {limit}"
            return _refusal(InvalidRequest(message, param="input", code="context_length_exceeded"), 0)
        rows = unit.cut(wanted.dimensions)[wanted.first : last]
        return EngineResult(200, self._body(rows, wanted.is_base64), sum(own))

    def _body(self, rows: Vectors, is_base64: bool) -> bytes:
        encoded = (_base64(row) if is_base64 else orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in rows)
        members = (
            b'{"object":"embedding","index":%d,"embedding":%b}' % (index, vector)
            for index, vector in enumerate(encoded)
        )
        return b'{"object":"list","data":[' + b",".join(members) + self._tail

    def _check(self, request: EngineRequest) -> tuple[list[str], int, bool]:
        body = request.body
        encoding = body.get("encoding_format", "float")
        if encoding not in ("float", "base64"):
            raise InvalidRequest(f"encoding_format is {encoding!r}; known: float, base64", param="encoding_format")
        dimensions = body.get("dimensions")
        if dimensions is None:
            dimensions = self._dimensions
        lengths = [length for length in _LENGTHS if length <= self._dimensions]
        # True == 1, and no length is 1, so bool needs no check of its own.
        if dimensions not in lengths:
            known = ", ".join(map(str, lengths))
            message = f"dimensions is {dimensions!r}; {self._model.name} has {known}"
            raise InvalidRequest(message, param="dimensions")
        return _texts(body.get("input")), int(dimensions), encoding == "base64"


class _UnitVectors:
    """The engine batch's vectors at each length that was asked for, scaled to unit length once each."""

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors
        self._by_length: dict[int, Vectors] = {}

    def cut(self, length: int) -> Vectors:
        """Return all vectors cut to ``length`` and scaled; a zero vector stays zero."""
        found = self._by_length.get(length)
        if found is None:
            short = self._vectors[:, :length].copy()
            norms = np.sqrt(np.einsum("ij,ij->i", short, short))
            norms[norms == 0] = 1
            short /= norms[:, np.newaxis]
            found = self._by_length[length] = short
        return found


def _steps(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Cut the texts into runs of about ``_CHARS_PER_STEP`` characters."""
    first = chars = 0
    for index, text in enumerate(texts):
        chars += len(text)
        if chars >= _CHARS_PER_STEP:
            yield first, index + 1
            first, chars = index + 1, 0
    if first < len(texts):
        yield first, len(texts)


def _texts(given: object) -> list[str]:
    """Return the texts of ``input``. Raises InvalidRequest."""
    texts = cast(list[Any], [given] if isinstance(given, str) else given if isinstance(given, list) else [])
    if not texts:
        raise InvalidRequest("input must be a text or a list of at least one text", param="input")
    if len(texts) > MAX_TEXTS:
        raise InvalidRequest(f"input has {len(texts)} texts; at most {MAX_TEXTS} are taken", param="input")
    for index, text in enumerate(texts):
        where = "input" if isinstance(given, str) else f"input[{index}]"
        if not isinstance(text, str):
            raise InvalidRequest(f"{where} is no text; lists of tokens are not taken", param="input")
        if not text:
            raise InvalidRequest(f"{where} is empty", param="input")
        if not text.isascii() and not _is_unicode(text):
            raise InvalidRequest(f"{where} holds half of a surrogate pair, which no text may", param="input")
    return texts


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _base64(row: Vectors) -> bytes:
    return b'"' + base64.b64encode(row.astype("<f4", copy=False).tobytes()) + b'"'


def _refusal(error: InvalidRequest, tokens: int) -> EngineResult:
    return EngineResult(
        status_code=400,
        body_json=None,
        prompt_tokens=tokens,
        error_code=error.code,
        error_message=error.message,
        error_param=error.param,
    )


def _load(package: Path) -> Any:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        from wordllama import WordLlama  # pyright: ignore[reportMissingTypeStubs]

        # Its own search misses the tokenizer inside the wheel and would download one; its package folder as the cache
        # directory holds both files.
        return WordLlama.load(cache_dir=package, disable_download=True)
    except FileNotFoundError as error:
        raise ConfigError(f"wordllama's weights are missing ({error}); reinstall the package wordllama") from error
    finally:
        # Importing it configures the root logger, which belongs to the process and not to a library.
        root.handlers[:] = handlers
        root.setLevel(level)
