"""What an engine is: one object per model and process that turns requests into answers, one engine batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

#: The status of a request that its engine failed on, of a job's item and of a realtime call alike: the engine stands
#: behind carbonq as a server behind a gateway.
ENGINE_FAILED = 502


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One item's request: the ``body`` of its OpenAI line.

    ``on_text``: called with each piece of the answer's text as it comes, where the engine can tell; never raises.
    """

    custom_id: str
    body: Mapping[str, Any]
    on_text: Callable[[str], None] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class EngineResult:
    """One item's answer.

    ``body_json`` is the serialised OpenAI response body *without* its ``usage`` member (bytes, so that a million
    vectors are encoded once); ``error_code`` and ``error_message`` are set instead when this item alone failed, with
    ``status_code`` 400 for the client's fault and ``ENGINE_FAILED`` for the engine's. Tokens count what was really
    computed, failed or not. ``is_retryable``: the item failed in a way that another attempt may mend. ``is_estimated``:
    the engine did not say how many tokens there were, the counts are estimates. ``ttft_s`` is the time to the first
    token and ``decode_s`` that from the first token to the last, in machine seconds; None is unknown. ``odd_usage`` is
    what the engine said of tokens that cannot be, in words: the counts are estimates then.
    """

    status_code: int
    body_json: bytes | None
    prompt_tokens: int
    cached_tokens: int = 0
    completion_tokens: int = 0
    error_code: str | None = None
    error_message: str | None = None
    error_param: str | None = None
    is_retryable: bool = False
    is_estimated: bool = False
    ttft_s: float | None = None
    decode_s: float | None = None
    odd_usage: str | None = None


#: Called by an engine between steps; True means stop now and raise ``Stopped``.
ShouldStop = Callable[[], bool]


class Stopped(Exception):
    """The engine was asked to stop in the middle of an engine batch; nothing of it counts as done."""


class Engine(Protocol):
    """A loaded model. ``run`` may be called from several threads; an engine that cannot bear that locks inside."""

    @property
    def name(self) -> str:
        """The engine's name, e.g. ``wordllama``."""
        ...

    @property
    def version(self) -> str:
        """The engine's version, for the ledger."""
        ...

    def load(self) -> None:
        """Load the model. Raises ConfigError when the package or file is missing, naming what to install."""
        ...

    def run(self, requests: Sequence[EngineRequest], should_stop: ShouldStop) -> Sequence[EngineResult]:
        """Run one engine batch; one result per request, in order.

        A bad item gets an error result and spoils nothing else. Raises EngineError when the whole call failed,
        EngineAway when the engine cannot be used at all for now, and Stopped when ``should_stop`` said so.
        """
        ...

    def pids(self) -> Sequence[int]:
        """Return the process ids that burn CPU for this engine besides the caller's own (empty: none)."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...
