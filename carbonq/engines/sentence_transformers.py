"""Embeddings by sentence-transformers, from a folder on this machine; nothing is ever downloaded.

It runs on the first visible CUDA device, else on the CPU. Vectors are scaled to unit length, as OpenAI's are. Texts go
through the model sorted by length, a bounded number of padded tokens at a time, so that it can be stopped in between.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module, metadata
from typing import Any

import numpy as np

from carbonq.engines import shelf
from carbonq.engines.embeddings import Reader, UnitVectors, Vectors, Wanted
from carbonq.engines.protocol import EngineRequest, EngineResult, ShouldStop, Stopped
from carbonq.errors import ConfigError, EngineError
from carbonq.model import Model

logger = logging.getLogger(__name__)

#: Tokens, padding included, of one pass through the model: about a second on a core, some milliseconds on a GPU.
STEP_TOKENS = {"cpu": 4_096, "cuda": 65_536}


class SentenceTransformersEngine:
    """A loaded model. ``run`` is thread-safe: only turning texts into tokens is done by one thread at a time.

    Args:
        model: ``options["path"]`` is its folder, ``options["shorter_dimensions"]`` the lengths its vectors may be cut
            to; ``max_input_tokens`` counts if it is below the model's own limit.
        threads: CPU threads of the whole process; with several workers on a host, its cores divided by the workers.
    """

    def __init__(self, model: Model, *, threads: int = 1) -> None:
        self._model = model
        self._threads = max(1, threads)
        self._lock = threading.Lock()
        self._net: Any = None
        self._tokenizer: Any = None
        self._prompt: str | None = None
        self._reader: Reader | None = None
        self._dimensions = 0
        self._limit = model.max_input_tokens
        self._step_tokens = STEP_TOKENS["cpu"]

    @property
    def name(self) -> str:
        """``sentence_transformers``."""
        return "sentence_transformers"

    @property
    def version(self) -> str:
        """The versions of sentence-transformers and torch; torch's says which device it was built for."""
        return f"{metadata.version('sentence-transformers')} torch {metadata.version('torch')}"

    def load(self) -> None:
        """Load the model. Raises ConfigError when the package or the folder is missing or it is no such model."""
        path = shelf.find(self._model, None)
        try:
            # By name: neither is there when the types are checked.
            torch: Any = import_module("torch")
            library: Any = import_module("sentence_transformers")
            messages: Any = import_module("transformers.utils.logging")
        except (ImportError, OSError, RuntimeError) as error:
            raise ConfigError(f"sentence-transformers cannot be imported: {error}; reinstall it with torch") from error
        messages.disable_progress_bar()  # a worker's log is no terminal
        torch.set_num_threads(self._threads)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            net = library.SentenceTransformer(str(path), device=device, local_files_only=True)
            tokenizer = net.tokenizer.backend_tokenizer
        except (AttributeError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(f"sentence-transformers cannot load {path}: {error}") from error
        net.eval()
        self._dimensions = int(net.get_embedding_dimension())
        self._limit = min(self._model.max_input_tokens, int(net.max_seq_length or self._model.max_input_tokens))
        self._prompt = net.prompts.get(net.default_prompt_name) if net.default_prompt_name else None
        # A copy for counting: the model's own cuts every text to the limit and pads it.
        self._tokenizer = type(tokenizer).from_str(tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        shorter = [int(length) for length in self._model.options.get("shorter_dimensions", ())]
        if shorter and max(shorter) > self._dimensions:
            raise ConfigError(
                f"models.{self._model.name}.shorter_dimensions has {max(shorter)}; its vectors have {self._dimensions}"
            )
        self._reader = Reader(self._model.name, lengths=(*shorter, self._dimensions), max_tokens=self._limit)
        self._step_tokens = STEP_TOKENS[device]
        self._net = net
        logger.info("%s runs on %s, %d dimensions, %d tokens", self._model.name, device, self._dimensions, self._limit)

    def run(self, requests: Sequence[EngineRequest], should_stop: ShouldStop) -> Sequence[EngineResult]:
        """Embed the texts of all requests; an item whose body is wrong or too long gets an error result.

        Raises Stopped, and EngineError when the model fails (out of memory, a lost device).
        """
        if self._net is None or self._reader is None:
            raise EngineError(f"the model {self._model.name} is not loaded", is_retryable=False)
        texts, checked = self._reader.read(requests)
        counts = self._count(texts)
        wanted = [self._reader.judge(each, counts) for each in checked]
        vectors = np.zeros((len(texts), self._dimensions), dtype=np.float32)
        # What is refused is not computed.
        todo = [
            index for each in wanted if isinstance(each, Wanted) for index in range(each.first, each.first + each.count)
        ]
        for step in _steps(todo, counts, self._step_tokens):
            if should_stop():
                raise Stopped
            vectors[step] = self._embed([texts[index] for index in step])
        unit = UnitVectors(vectors)
        return [self._reader.answer(each, unit, counts) for each in wanted]

    def pids(self) -> Sequence[int]:
        """Return none: it runs in the caller's process."""
        return ()

    def close(self) -> None:
        """Free the model; safe to call twice."""
        self._net = self._tokenizer = self._reader = None

    def _count(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text, with the model's own prompt and special tokens, as they are computed."""
        prompt = self._prompt or ""
        found = self._tokenizer.encode_batch_fast([prompt + text for text in texts], add_special_tokens=True)
        return [len(one.ids) for one in found]

    def _embed(self, texts: list[str]) -> Vectors:
        """Pass texts through the model once. Raises EngineError."""
        torch: Any = import_module("torch")
        move: Any = import_module("sentence_transformers.util").batch_to_device
        try:
            # Its tokenizer may be used by one thread at a time; the model itself by several.
            with self._lock:
                features = self._net.preprocess(texts, prompt=self._prompt)
            with torch.inference_mode():
                return self._net(move(features, self._net.device))["sentence_embedding"].float().cpu().numpy()
        except RuntimeError as error:  # torch's own, out of memory too
            raise EngineError(f"sentence-transformers failed: {error}", is_retryable=True) from error


def _steps(indices: Sequence[int], counts: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Yield the texts by length, in runs of at most ``limit`` tokens with padding; a longer text stands alone."""
    step: list[int] = []
    for index in sorted(indices, key=lambda one: (counts[one], one)):
        # Ascending order, so this text is the longest of its run.
        if step and (len(step) + 1) * counts[index] > limit:
            yield step
            step = []
        step.append(index)
    if step:
        yield step
