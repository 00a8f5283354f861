"""The shapes of budgets: what was set, and how it stands in its running period."""

from __future__ import annotations

from typing import Annotated, Literal

from carbonq.api.shapes.words import OUT, Count, Grams, Page, Shape, Text, Time, eg

BudgetId = Annotated[str, eg("bgt_0190c2a17b0e7c3e9f005f6d")]
Level = Annotated[Literal["product_line", "workload", "item"], eg("product_line")]
Name = Annotated[str, eg("search", says="the product line or workload; `*` for the items of all work")]
Book = Annotated[Literal["impact", "inventory"], eg("impact", says="which book it counts, and no other")]
Action = Annotated[
    Literal["warn", "queue", "downgrade", "reject"], eg("queue", says="what happens to work that does not fit")
]
Cap = Annotated[str, eg("5000", says="grams of CO2e of a period, or of an item; exact", pattern=r"^\d+(\.\d+)?$")]


class BudgetStatus(Shape):
    """How a budget stands in its running period, which is in grid time, UTC; those of items have none."""

    started_at: Time | None
    ends_at: Time | None
    spent_g: Annotated[Grams | None, eg("1250.5", says="what the ledger has of the period")]
    provisional_g: Annotated[Grams | None, eg("250.5", says="the part of `spent_g` that is not settled yet")]
    reserved_g: Annotated[Grams | None, eg("500", says="what accepted work that has not ended is expected to emit")]
    left_g: Annotated[Grams | None, eg("3249.5", says="`cap_g - spent_g - reserved_g`; below 0 where it was passed")]
    unknown_entries: Annotated[int | None, eg(0, says="entries of the period without a rate yet; they are in no sum")]
    unknown_reserved: Annotated[int | None, eg(0, says="accepted chunks and jobs without a known rate; in no sum")]
    elapsed_share: Annotated[float | None, eg(0.25, says="how much of the period has passed")]
    burn_rate: Annotated[float | None, eg(1.0004, says="(spent / cap) / elapsed share; above 1 it will not last")]
    exhausted_at: Annotated[Time | None, eg(None, says="when nothing is left, at the present rate; an estimate")]
    waiting_chunks: Annotated[Count, eg(0, says="chunks that it holds back now")]


class Budget(Shape):
    """A budget, and how it stands now."""

    id: BudgetId
    object: Literal["budget"]
    tenant: Text
    level: Level
    name: Name
    period: Annotated[Literal["month", "day", "item"], eg("month")]
    book: Book
    action: Action
    cap_g: Cap
    created_at: Time
    updated_at: Time
    status: BudgetStatus


class BudgetPage(Page):
    """A tenant's budgets, by level and name."""

    data: list[Budget]


class NewBudget(Shape):
    """What a budget is to be; ``book`` and ``action`` stay where they are left out.

    Of a new one they are `impact` and `warn`, or `reject` for items, whose budget has no alarms.
    """

    level: Level
    name: Name
    cap_g: Annotated[str | float, eg("5000", says="grams of CO2e, above 0; text keeps every digit")]
    book: Book = OUT
    action: Action = OUT


class DeletedBudget(Shape):
    """What is left of a budget."""

    id: BudgetId
    object: Literal["budget.deleted"]
    deleted: Literal[True]
