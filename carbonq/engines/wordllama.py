"""Static word embeddings by wordllama, in process: 64, 128 or 256 dimensions, from the weights inside its wheel.

Vectors are scaled to unit length, as OpenAI's are, so that a dot product is a cosine; before that they equal
``WordLlama.embed``. Tokenises without padding or offsets and pools text by text, which is about twice as fast.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from carbonq.engines import shelf
from carbonq.engines.embeddings import Reader, UnitVectors, Vectors
from carbonq.engines.protocol import EngineRequest, EngineResult, ShouldStop, Stopped
from carbonq.errors import ConfigError
from carbonq.model import Model

#: Characters between two looks at ``should_stop``: about 50 ms of work on one core.
_CHARS_PER_STEP = 100_000

_LENGTHS = (64, 128, 256)


class WordLlamaEngine:
    """The loaded embeddings. ``run`` is thread-safe: it only reads them.

    Args:
        model: ``options["dimensions"]`` is the longest and the default length of its vectors.
    """

    def __init__(self, model: Model) -> None:
        self._limit = model.max_input_tokens
        longest = int(model.options.get("dimensions", max(_LENGTHS)))
        lengths = [length for length in _LENGTHS if length <= longest]
        self._reader = Reader(model.name, lengths=lengths, max_tokens=self._limit)
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
        inference = _load(shelf.require_package("wordllama"))
        self._table = inference.embedding
        # A copy of our own: wordllama's pads every text to the longest of its batch.
        self._tokenizer = type(inference.tokenizer).from_str(inference.tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def run(self, requests: Sequence[EngineRequest], should_stop: ShouldStop) -> Sequence[EngineResult]:
        """Embed the texts of all requests; an item whose body is wrong gets an error result. Raises Stopped."""
        texts, wanted = self._reader.read(requests)
        vectors = np.empty((len(texts), self._table.shape[1]), dtype=np.float32)
        counts: list[int] = []
        for first, last in _steps(texts):
            if should_stop():
                raise Stopped
            counts.extend(self._embed(texts[first:last], vectors[first:last]))
        unit = UnitVectors(vectors)
        return [self._reader.answer(self._reader.judge(each, counts), unit, counts) for each in wanted]

    def pids(self) -> Sequence[int]:
        """Return none: it runs in the caller's process."""
        return ()

    def close(self) -> None:
        """Free the weights."""
        self._tokenizer = None
        self._table = np.empty((0, 0), dtype=np.float32)

    def _embed(self, texts: list[str], into: Vectors) -> Iterator[int]:
        """Write the mean of each text's token vectors into a row of ``into``; yield the token counts."""
        for row, encoding in enumerate(self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)):
            ids: list[int] = encoding.ids
            if 0 < len(ids) <= self._limit:
                self._table.take(ids, axis=0).sum(axis=0, out=into[row])
                into[row] /= len(ids)
            else:
                into[row] = 0
            yield len(ids)


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
