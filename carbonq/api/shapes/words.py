"""The words of the shapes: kinds of values with an example each, and the shapes that all routes share.

Times are RFC 3339 in UTC, decimals are text so that no digit is lost, units stand in the names; what may be unknown is
null, never 0.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

#: The default of a member that may be left out.
OUT: Any = None


def _without_defaults(schema: dict[str, Any]) -> None:
    # A member that may be left out is not the same as one that is null then.
    for member in schema.get("properties", {}).values():
        member.pop("default", None)


class Shape(BaseModel):
    """An object with exactly these members; those with ``OUT`` may be left out."""

    model_config = ConfigDict(
        extra="forbid", defer_build=True, protected_namespaces=(), json_schema_extra=_without_defaults
    )


class OpenShape(BaseModel):
    """An object with at least these members; those with ``OUT`` may be left out."""

    model_config = ConfigDict(
        extra="allow", defer_build=True, protected_namespaces=(), json_schema_extra=_without_defaults
    )


def eg(*examples: Any, says: str | None = None, **rules: Any) -> Any:
    """Return a field with an example and, where the name does not say it all, what it means."""
    return Field(examples=list(examples), description=says, **rules)


Text = Annotated[str, eg("text")]
Time = Annotated[datetime, eg("2026-11-30T06:00:00.000000Z")]
Grams = Annotated[str, eg("0.0123", says="grams, exact", pattern=r"^-?\d+(\.\d+)?$")]
Rate = Annotated[str, eg("412.5", says="gCO2e/kWh, exact", pattern=r"^-?\d+(\.\d+)?$")]
Decimal = Annotated[str, eg("1.2", says="exact", pattern=r"^-?\d+(\.\d+)?$")]
Count = Annotated[int, eg(3, ge=0)]
Seconds = Annotated[float, eg(12.5, ge=0)]
JobId = Annotated[str, eg("job_0190c2a17b0e7c3e9f005f6d")]
ChunkId = Annotated[str, eg("chunk_0190c2a17b0e7c3e9f005f6d")]
EntryId = Annotated[str, eg("eb_0190c2a17b0e7c3e9f005f6d.0")]
RegionName = Annotated[str, eg("fr")]
Zone = Annotated[str, eg("FR")]
ModelName = Annotated[str, eg("wordllama-256")]
Unix = Annotated[int, eg(1_795_989_600, says="seconds since 1970, UTC")]


class Page(Shape):
    """A page of a list: pass ``last_id`` as ``after`` for the next one, until ``has_more`` is false."""

    object: Literal["list"]
    first_id: Text | None
    last_id: Text | None
    has_more: bool


class ErrorObject(OpenShape):
    """OpenAI's error object."""

    message: Annotated[str, eg("there is no job 'job_none'; `carbonq jobs list` shows yours")]
    type: Annotated[str, eg("not_found_error")]
    param: Annotated[str | None, eg(None, says="the field that is wrong")]
    code: Annotated[str, eg("not_found", says="stable; docs/errors.md lists all of them")]


class Problem(OpenShape):
    """What every error looks like: OpenAI's error object and RFC 9457's members, the same sentence in both.

    ``line`` is added where a line of the input is wrong, ``best`` where a deadline cannot be met.
    """

    error: ErrorObject
    type: Annotated[str, eg("urn:carbonq:error:not_found")]
    title: Annotated[str, eg("Not Found")]
    status: Annotated[int, eg(404, ge=400, le=599)]
    detail: Annotated[str, eg("there is no job 'job_none'; `carbonq jobs list` shows yours")]
    instance: Annotated[str | None, eg("/v1/jobs/job_none", says="the path that was asked for")]


class Clock(Shape):
    """Grid time: when it is, and how fast it runs (1 except in the demo and replays)."""

    now: Time
    kind: Annotated[str, eg("real")]
    factor: Annotated[float, eg(1.0)]
