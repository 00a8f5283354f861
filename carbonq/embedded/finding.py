"""What a check of `carbonq doctor` says, and how long it may take to say it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from carbonq.errors import CarbonqError, Unavailable

T = TypeVar("T")

#: How long one check may take, in seconds: a host that swallows packets would keep it for minutes.
PATIENCE_S = 12.0


class State(StrEnum):
    """How a check came out; only FAIL keeps carbonq from working."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check, in a sentence."""

    check: str
    state: State
    finding: str


def within(timeout_s: float, act: Callable[[], T]) -> Callable[[], T]:
    """Begin something on a thread of its own; the function returned gives its outcome, or raises what it raised.

    Raises Unavailable when it took longer; the thread ends with the process.
    """
    outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((act(), None))
        except BaseException as error:  # handed on to whoever asks
            outcome.put((None, error))

    threading.Thread(target=run, daemon=True).start()

    def result() -> T:
        try:
            value, error = outcome.get(timeout=timeout_s)
        except queue.Empty:
            raise Unavailable(f"no answer within {timeout_s:g} s") from None
        if error is not None:
            raise error
        return value  # pyright: ignore[reportReturnType]

    return result


def found(check: str, act: Callable[[], Iterator[Finding]]) -> Callable[[], list[Finding]]:
    """Begin a check; the function returned gives its findings. An error is a finding, too: it hides no other check."""
    result = within(PATIENCE_S, lambda: list(act()))

    def findings() -> list[Finding]:
        try:
            return result()
        except CarbonqError as error:
            return [Finding(check, State.FAIL, error.message)]
        except Exception as error:
            first = str(error).partition("\n")[0]
            text = f"the check itself failed, which is a defect of carbonq: {type(error).__name__}: {first}"
            return [Finding(check, State.FAIL, text)]

    return findings
