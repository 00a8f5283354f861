"""What all embedding engines share: reading OpenAI request bodies, unit vectors, and writing answers."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from carbonq.engines.protocol import EngineRequest, EngineResult
from carbonq.errors import InvalidRequest

#: OpenAI's limit on the texts of one request.
MAX_TEXTS = 2048

#: Fields of a request; ``user`` has no effect.
_TAKEN = frozenset({"dimensions", "encoding_format", "input", "model", "user"})
_TAKES = ", ".join(sorted(_TAKEN))

_TOKENS = (
    "lists of tokens are not taken, since they count in another model's vocabulary: send texts "
    "(LangChain: check_embedding_ctx_length=False)"
)

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Wanted:
    """One item's checked request; its texts are ``[first, first + count)`` of the engine batch's."""

    first: int
    count: int
    dimensions: int
    is_base64: bool


class Reader:
    """Checks the bodies of a model's requests.

    Args:
        name: the model's name.
        lengths: the lengths its vectors may have, and the longest is the default.
        max_tokens: the limit on one text.
    """

    def __init__(self, name: str, *, lengths: Sequence[int], max_tokens: int) -> None:
        self._name = name
        self._lengths = sorted(lengths)
        self._max_tokens = max_tokens
        self._tail = b'],"model":' + orjson.dumps(name) + b"}"

    def read(self, requests: Sequence[EngineRequest]) -> tuple[list[str], list[Wanted | InvalidRequest]]:
        """Return the texts of all requests together, and each request checked or why it is refused."""
        texts: list[str] = []
        wanted: list[Wanted | InvalidRequest] = []
        for request in requests:
            try:
                own, dimensions, is_base64 = self._check(request)
            except InvalidRequest as error:
                wanted.append(error)
                continue
            wanted.append(Wanted(len(texts), len(own), dimensions, is_base64))
            texts.extend(own)
        return texts, wanted

    def judge(self, wanted: Wanted | InvalidRequest, counts: Sequence[int]) -> Wanted | InvalidRequest:
        """Refuse an item of which a text has too many tokens; ``counts`` are those of all texts."""
        if isinstance(wanted, InvalidRequest):
            return wanted
        longest = max(counts[wanted.first : wanted.first + wanted.count])
        if longest <= self._max_tokens:
            return wanted
        message = f"a text of input has {longest} tokens; {self._name} takes at most {self._max_tokens}"
        return InvalidRequest(message, param="input", code="context_length_exceeded")

    def answer(self, wanted: Wanted | InvalidRequest, unit: UnitVectors, counts: Sequence[int]) -> EngineResult:
        """Write one item's answer, or its refusal: only counting was done for that, so no token was computed."""
        if isinstance(wanted, InvalidRequest):
            return _refusal(wanted)
        last = wanted.first + wanted.count
        rows = unit.cut(wanted.dimensions)[wanted.first : last]
        return EngineResult(200, self._body(rows, wanted.is_base64), sum(counts[wanted.first : last]))

    def _body(self, rows: Vectors, is_base64: bool) -> bytes:
        encoded = (_base64(row) if is_base64 else orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in rows)
        members = (
            b'{"object":"embedding","index":%d,"embedding":%b}' % (index, vector)
            for index, vector in enumerate(encoded)
        )
        return b'{"object":"list","data":[' + b",".join(members) + self._tail

    def _check(self, request: EngineRequest) -> tuple[list[str], int, bool]:
        body = request.body
        for name in body.keys() - _TAKEN:
            raise InvalidRequest(f"{name} is not known to {self._name}, which takes {_TAKES}", param=name)
        encoding = body.get("encoding_format") or "float"
        if encoding not in ("float", "base64"):
            raise InvalidRequest(f"encoding_format is {encoding!r}; known: float, base64", param="encoding_format")
        dimensions = body.get("dimensions")
        if dimensions is None:
            dimensions = self._lengths[-1]
        # True == 1, so a bool would be taken for a length of 1.
        if isinstance(dimensions, bool) or dimensions not in self._lengths:
            known = ", ".join(map(str, self._lengths))
            raise InvalidRequest(f"dimensions is {dimensions!r}; {self._name} has {known}", param="dimensions")
        return _texts(body.get("input")), int(dimensions), encoding == "base64"


class UnitVectors:
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
            raise InvalidRequest(f"{where} is no text; {_TOKENS}", param="input")
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


def _refusal(error: InvalidRequest) -> EngineResult:
    return EngineResult(
        status_code=400,
        body_json=None,
        prompt_tokens=0,
        error_code=error.code,
        error_message=error.message,
        error_param=error.param,
    )
