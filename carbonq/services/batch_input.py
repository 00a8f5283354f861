"""Read a batch's input, line by line: the lines of equal terms together, and what is wrong with as many as are told.

In memory bounded by the number of lines. Nothing is stored here: ``validate`` makes jobs of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import orjson

from carbonq import estimate, jsonl, terms
from carbonq.errors import CarbonqError, InvalidRequest
from carbonq.model import Endpoint, Model, NewItem
from carbonq.services import meaning, submit
from carbonq.store.batches import Batch
from carbonq.terms import Carrier, Terms

#: Errors told of one batch at most.
MAX_ERRORS = 100

#: Distinct terms that the lines of one batch may have: each makes a job.
MAX_TERMS = 100

#: Texts of all lines of an embeddings batch together, as OpenAI has it.
MAX_EMBEDDING_INPUTS = 50_000

#: What a job's fields are called here.
_PARAMS = {"region": "carbon.regions", "deadline": "carbon.deadline", "max_carbon_g": "carbon.max_gco2e"}


@dataclass(slots=True)
class Group:
    """Lines with the same terms, which become one job.

    ``first_line`` is the first of those that state terms of their own; ``has_own_cap``: a carbon cap among them, which
    counts for each line, where the batch's counts for all together.
    """

    terms: Terms
    first_line: int | None
    has_own_cap: bool = False
    items: list[NewItem] = field(default_factory=list[NewItem])
    est_tokens: int = 0
    longest_item: int = 0
    input_bytes: int = 0

    def add(self, custom_id: str, offset: int, size: int, tokens: int) -> None:
        """Take a line of these terms."""
        self.items.append(NewItem(len(self.items), custom_id, offset, size, tokens))
        self.est_tokens += tokens
        self.longest_item = max(self.longest_item, tokens)
        self.input_bytes += size

    @property
    def found(self) -> submit.Input:
        """The lines as a submit sees them."""
        return submit.Input(self.items, self.est_tokens, self.longest_item)


@dataclass(slots=True)
class Reading:
    """What one pass over an input found; with errors there are no jobs."""

    groups: Sequence[Group] = ()
    model: str | None = None
    lines: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


def read(stream: BinaryIO, batch: Batch, models: Mapping[str, Model], limits: submit.Limits) -> Reading:
    """Read and check every line, in memory bounded by the number of lines. Raises what the stream raises."""
    reader = _Reader(batch, models, limits)
    lines = jsonl.read_lines(stream, max_line_bytes=limits.max_line_bytes)
    try:
        for line in lines:
            if len(reader.made.errors) >= MAX_ERRORS:
                break
            try:
                reader.take(line)
            except _StopError:
                raise
            except InvalidRequest as error:
                reader.made.errors.append(error_view(error))
        if not reader.made.lines:
            raise jsonl.empty_input("the input file")
    except InvalidRequest as error:  # of the stream, whose lines cannot be told apart any more, or the last word
        reader.made.errors.append(error_view(error))
    reader.made.groups = list(reader.groups.values())
    return reader.made


class _StopError(InvalidRequest):
    """Nothing more need be said of this input."""


class _Reader:
    """Takes an input's lines one by one."""

    def __init__(self, batch: Batch, models: Mapping[str, Model], limits: submit.Limits) -> None:
        self.made = Reading()
        self.groups: dict[tuple[Terms, bool], Group] = {}
        self._batch, self._models, self._max_items = batch, models, limits.max_items
        self._base = terms.load(batch.terms)
        self._model: Model | None = None
        self._inputs = 0
        self._lines_of: dict[str, int] = {}
        self._terms_of: dict[bytes, tuple[Terms, bool]] = {}

    def take(self, raw: jsonl.RawLine) -> None:
        """Take a line. Raises InvalidRequest saying what is wrong with it."""
        number, offset, data = raw
        self.made.lines += 1
        limit = self._max_items
        if self.made.lines > limit:
            raise _StopError(
                f"line {number}: the file has more than {limit:,} requests; split it over several batches or raise "
                "CARBONQ_MAX_ITEMS",
                line=number,
                code="too_many_tasks",
            )
        line = jsonl.parse_line(data, number, endpoint=self._batch.endpoint, model=self.made.model)
        first = self._lines_of.setdefault(line.custom_id, number)
        if first != number:
            raise jsonl.duplicate(line.custom_id, number, first)
        model = self._model or self._choose_model(line.model, number)
        self._count_inputs(line.body, number)
        tokens = estimate.body_tokens(line.body, model)
        if estimate.is_surely_over(tokens.longest, model.max_input_tokens):
            raise submit.too_long(number, tokens.longest, model)
        self._group(line.carbon, number).add(line.custom_id, offset, len(data), tokens.total)

    def _choose_model(self, name: str | None, number: int) -> Model:
        if name is None:
            raise InvalidRequest(
                f"line {number}: body.model is missing; each request names the model it is for",
                line=number,
                param="body.model",
                code="missing_required_parameter",
            )
        try:
            model = meaning.find_model(name, self._batch.endpoint, self._models)
        except InvalidRequest as error:
            message = f"line {number}: {error.message}"
            raise InvalidRequest(message, line=number, param="body.model", code=error.code) from None
        self.made.model, self._model = name, model
        return model

    def _count_inputs(self, body: Mapping[str, Any], number: int) -> None:
        given = body.get("input")
        if self._batch.endpoint is not Endpoint.EMBEDDINGS or not isinstance(given, list):
            self._inputs += 1
        else:
            self._inputs += 1 if given and isinstance(given[0], int) else len(given)
        if self._inputs > MAX_EMBEDDING_INPUTS and self._batch.endpoint is Endpoint.EMBEDDINGS:
            raise _StopError(
                f"line {number}: the file has more than {MAX_EMBEDDING_INPUTS:,} texts in all; split it over several "
                "batches",
                line=number,
                param="body.input",
                code="too_many_tasks",
            )

    def _group(self, carbon: object, number: int) -> Group:
        found = (self._base, False)
        if carbon is not None:
            key = orjson.dumps(carbon, option=orjson.OPT_SORT_KEYS)
            if key not in self._terms_of:
                self._terms_of[key] = self._own(carbon, number)
            found = self._terms_of[key]
        group = self.groups.get(found)
        if group is None:
            if len(self.groups) == MAX_TERMS:
                raise _StopError(
                    f"line {number}: the lines of one batch may have {MAX_TERMS} different terms (carbon) at most; "
                    "split it over several batches",
                    line=number,
                    param="carbon",
                    code="too_many_terms",
                )
            group = Group(found[0], None if carbon is None else number, has_own_cap=found[1])
            self.groups[found] = group
        return group

    def _own(self, carbon: object, number: int) -> tuple[Terms, bool]:
        if not isinstance(carbon, dict):
            message = f'line {number}: carbon must be an object such as {{"deadline": "6h"}}'
            raise InvalidRequest(message, line=number, param="carbon", code="invalid_value")
        carrier = Carrier(cast("dict[str, Any]", carbon), line=number)
        own = terms.read([carrier], now=self._batch.created_at, takes=terms.BATCH_KEYS)
        return own.over(self._base), own.max_gco2e is not None


def error_view(error: CarbonqError) -> dict[str, Any]:
    """Return an error as a batch's ``errors.data`` holds it."""
    line = error.line if isinstance(error, InvalidRequest) else None
    param = error.param if isinstance(error, InvalidRequest) else None
    return {"code": error.code, "line": line, "message": error.message, "param": _PARAMS.get(param or "", param)}
