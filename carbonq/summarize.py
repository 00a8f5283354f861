"""Summarise a text of any length by a model with a limited context: map and reduce. Pure: no engine, no clock.

A chat body with a member ``summarize`` (``{"prompt_version": "1"}``) has one message, the document. One that fits is
asked about once; a longer one is cut at paragraphs, else sentences, else words; each part is summarised, and then the
summaries of the parts, in rounds, until one text fits. Every answer says which prompts made it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import Any, NamedTuple

#: Member of a chat body that asks for a summary of its message.
MEMBER = "summarize"

#: Rounds after which a model whose summaries do not get shorter is given up.
MAX_ROUNDS = 12

#: Part of a model's input limit that a prompt may take by estimate; estimates of tokens are off by some.
FILL = 0.75

#: Tokens of a prompt around the text, the chat template included.
PROMPT_TOKENS = 64

#: Part of a piece that its summary may be as long as: so every round at least halves what is left.
_ANSWER_SHARE = 1 / 4

#: Fewest tokens of a piece, however small the context.
_LEAST_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Prompts:
    """The words of one version; ``{text}`` stands for the text. They never change: new words are a new version."""

    whole: str
    part: str
    merge: str


PROMPT_VERSION = "1"

PROMPTS: Mapping[str, Prompts] = MappingProxyType(
    {
        "1": Prompts(
            whole="Summarize the following text in one or two sentences.\n\n{text}",
            part="Summarize the following part of a longer text in one or two sentences.\n\n{text}",
            merge="These are summaries of the parts of one text, in order. Summarize the whole text in one or two "
            "sentences.\n\n{text}",
        )
    }
)

#: Tokens of a text, by whatever counts them.
Count = Callable[[str], int]

#: What a text is cut into, coarse to fine; each piece keeps what follows it, so that all pieces are the text. A run of
#: full stops is tried at its first one only: in a line of 20,000 dots each would look at all that follow (8 s).
_UNITS = (
    re.compile(r".+?(?:\n\s*\n|\Z)", re.DOTALL),
    re.compile(r".+?(?:(?<![.!?。！？])[.!?。！？]++[\"'”’)\]]*+\s+|[。！？]+|\n|\Z)", re.DOTALL),
    re.compile(r"\s*\S+\s*|\s+\Z"),
)


def split(text: str, limit: int, count: Count) -> list[str]:
    """Cut a text into pieces of at most ``limit`` tokens at its largest borders; joined they are the text.

    A single character is never cut, whatever it counts.
    """
    return list(_split(text, max(1, limit), count, 0)) if text else []


def _split(text: str, limit: int, count: Count, level: int) -> Iterator[str]:
    if count(text) <= limit or len(text) == 1:
        yield text
        return
    if level == len(_UNITS):
        middle = len(text) // 2
        yield from _split(text[:middle], limit, count, level)
        yield from _split(text[middle:], limit, count, level)
        return
    piece = ""
    for unit in _UNITS[level].findall(text):
        if piece and count(piece + unit) <= limit:
            piece += unit
            continue
        if piece:
            yield piece
            piece = ""
        if count(unit) <= limit:
            piece = unit
        else:
            yield from _split(unit, limit, count, level + 1)
    if piece:
        yield piece


class Room(NamedTuple):
    """What fits: tokens of a piece, and of the answer about a part."""

    piece: int
    answer: int


def room(max_input_tokens: int, max_output_tokens: int) -> Room:
    """Return what fits a model whose input and answer have these limits."""
    piece = max(_LEAST_TOKENS, int(max_input_tokens * FILL) - PROMPT_TOKENS)
    return Room(piece, max(1, min(max_output_tokens, int(piece * _ANSWER_SHARE))))


class Foretold(NamedTuple):
    """Tokens that a summary is thought to take: prompts, answers, and the longest single prompt."""

    prompt: int
    completion: int
    longest: int


def foretell(tokens: int, fits: Room, answer_tokens: int) -> Foretold:
    """Estimate the tokens of a summary of a document of ``tokens``, over all rounds."""
    prompt = completion = 0
    left = tokens
    for _ in range(MAX_ROUNDS):
        pieces = ceil(left / fits.piece)
        prompt += left + pieces * PROMPT_TOKENS
        if pieces <= 1:
            break
        left = pieces * fits.answer
        completion += left
    return Foretold(prompt, completion + answer_tokens, min(tokens, fits.piece))


class NotShorterError(Exception):
    """The model's summaries do not get shorter."""


class Summary:
    """One document on its way to its summary: ``asks`` says what to ask now, ``take`` takes the answers."""

    def __init__(self, text: str, version: str, fits: Room, count: Count) -> None:
        """Begin with a document; ``version`` is one of ``PROMPTS``."""
        self._prompts = PROMPTS[version]
        self._version = version
        self._fits = fits
        self._count = count
        self._todo: list[str] = split(text, fits.piece, count)
        self._answers: list[str | None] = [None] * len(self._todo)
        self._is_first = True
        self.pieces = len(self._todo)
        self.rounds = 1

    @property
    def is_last(self) -> bool:
        """Say whether the answer to what is asked now is the summary."""
        return len(self._todo) == 1

    def facts(self) -> Mapping[str, Any]:
        """Return what the answer says of itself."""
        return {"prompt_version": self._version, "pieces": self.pieces, "rounds": self.rounds}

    def asks(self) -> list[str]:
        """Return the prompts that have no answer yet."""
        words = (
            self._prompts.merge if not self._is_first else self._prompts.whole if self.is_last else self._prompts.part
        )
        waiting = zip(self._todo, self._answers, strict=True)
        # replace, not format: a document may be full of braces
        return [words.replace("{text}", text) for text, answer in waiting if answer is None]

    def take(self, answers: Sequence[str | None]) -> bool:
        """Take the answers to ``asks``, in order; True when the last one was the summary.

        None says that a prompt was too long for the model after all: its text is cut in two. Raises NotShorterError.
        """
        given = iter(answers)
        was_last = self.is_last
        todo: list[str] = []
        known: list[str | None] = []
        for text, before in zip(self._todo, self._answers, strict=True):
            answer = next(given) if before is None else before
            halves = [text] if answer is not None else self._halves(text)
            todo += halves
            known += [answer] if answer is not None else [None] * len(halves)
        self._todo, self._answers = todo, known
        if self._is_first:
            self.pieces = len(todo)
        if None in known:
            return False
        if was_last:
            return True
        self._next_round([answer for answer in known if answer is not None])
        return False

    def _halves(self, text: str) -> list[str]:
        halves = split(text, max(1, self._count(text) // 2), self._count)
        if len(halves) < 2:
            raise NotShorterError("a single word is too long for the model")
        return halves

    def _next_round(self, summaries: Sequence[str]) -> None:
        if self.rounds == MAX_ROUNDS:
            raise NotShorterError(f"after {MAX_ROUNDS} rounds the summaries of its parts still do not fit the model")
        joined = "\n\n".join(text.strip() for text in summaries if text.strip()) or "(empty)"
        self._todo = split(joined, self._fits.piece, self._count)
        self._answers = [None] * len(self._todo)
        self._is_first = False
        self.rounds += 1
