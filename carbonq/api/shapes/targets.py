"""The shapes of contract targets: what was promised, how the month stands, where it is going."""

from __future__ import annotations

from typing import Annotated, Literal

from carbonq.api.shapes.words import OUT, Count, Grams, Page, Shape, Text, Time, eg

TargetId = Annotated[str, eg("tgt_0190c2a17b0e7c3e9f005f6d")]
Book = Annotated[Literal["impact", "inventory"], eg("impact", says="which book it counts, and no other")]
Model = Annotated[str | None, eg("wordllama-256", says="the model that ran; null: all of them")]
Promise = Annotated[str, eg("0.5", says="gCO2e per thousand tokens over a month; exact", pattern=r"^\d+(\.\d+)?$")]
Value = Annotated[str, eg("0.4125", says="gCO2e per thousand tokens", pattern=r"^-?\d+(\.\d+)?$")]


class TargetForecast(Shape):
    """The month's value at its end, an estimate, and the tokens that it is made of."""

    value: Value
    low: Annotated[Value | None, eg("0.35", says="if the rest ran like the cleanest recent day")]
    high: Annotated[Value | None, eg("0.5125", says="if the rest ran like the dirtiest recent day")]
    ran_tokens: Annotated[Count, eg(1_200_000)]
    accepted_tokens: Annotated[Count, eg(200_000, says="of accepted work that has not ended")]
    further_tokens: Annotated[Count, eg(900_000, says="what the recent tokens an hour bring beyond that")]
    method: Annotated[Text, eg("what has run, plus accepted work ...", says="how it is made")]


class TargetStatus(Shape):
    """How a target stands in its running month, which is in grid time, UTC; as of the last count, a minute ago."""

    month: Annotated[str, eg("2026-11", pattern=r"^\d{4}-\d{2}$")]
    started_at: Time
    ends_at: Time
    state: Annotated[
        Literal["on_track", "at_risk", "broken", "kept", "unknown"],
        eg("on_track", says="`broken`: work that emits nothing could not bring it back, or the month ended above it"),
    ]
    value: Annotated[Value | None, eg("0.4125", says="`grams` per thousand `tokens`")]
    grams: Annotated[Grams, eg("495", says="of current entries of items that have a rate")]
    tokens: Annotated[Count, eg(1_200_000, says="prompt and completion tokens of the same entries")]
    provisional_share: Annotated[float | None, eg(0.25, says="the part of `grams` that is not settled yet")]
    unknown_entries: Annotated[Count, eg(0, says="entries without a rate; neither their grams nor tokens are in")]
    unknown_tokens: Annotated[Count, eg(0)]
    forecast: TargetForecast | None


class Target(Shape):
    """A promise of grams per thousand tokens, and how it stands now."""

    id: TargetId
    object: Literal["target"]
    tenant: Text
    model: Model
    book: Book
    g_per_1k_tokens: Promise
    created_at: Time
    updated_at: Time
    status: TargetStatus


class TargetPage(Page):
    """A tenant's targets, by model, that of all models first."""

    data: list[Target]


class NewTarget(Shape):
    """What is promised; without ``model`` of all models; ``book`` stays where it is left out, of a new one `impact`."""

    g_per_1k_tokens: Annotated[str | float, eg("0.5", says="grams of CO2e, above 0; text keeps every digit")]
    model: Model = OUT
    book: Book = OUT


class DeletedTarget(Shape):
    """What is left of a target."""

    id: TargetId
    object: Literal["target.deleted"]
    deleted: Literal[True]
