"""Budgets and contract targets in /metrics: the worst of each book without a name, or those that were set by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

import pytest
from prometheus_client.parser import text_string_to_metric_families

from carbonq.api import scrape, scrape_budgets
from carbonq.budget import Action, Book, Level
from carbonq.errors import StoreUnavailable
from carbonq.services import budget, budgets_admin, targets, targets_admin
from tests.api.harness import Harness
from tests.api.test_budgets import run_clock
from tests.api.test_ledger import book


@dataclass(frozen=True)
class Told:
    """What a scrape said."""

    text: str

    def values(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Return a metric's values by some of its labels."""
        (family,) = (one for one in text_string_to_metric_families(self.text) if one.name == name)
        return {tuple(sample.labels[label] for label in labels): sample.value for sample in family.samples}


def prepare(harness: Harness) -> None:
    run_clock(harness)
    for tenant, name, cap_g, which in (
        ("acme", "=search", "0.0002", Book.IMPACT),
        ("rival", "=search", "1000", Book.IMPACT),
        ("acme", "wholesale", "7", Book.INVENTORY),
    ):
        budgets_admin.set_budget(
            harness.db,
            harness.clock,
            tenant,
            level=Level.PRODUCT_LINE,
            name=name,
            cap_g=cap_g,
            book=which,
            action=Action.QUEUE,
            actor="me",
        )
    budgets_admin.set_budget(harness.db, harness.clock, "acme", level=Level.ITEM, name="nightly", cap_g="1", actor="me")
    targets_admin.set_target(harness.db, harness.clock, "acme", g_per_1k_tokens="1000", actor="me")
    targets_admin.set_target(harness.db, harness.clock, "rival", g_per_1k_tokens="0.0000001", actor="me")
    book(harness, "eb_1", tenant="acme")
    book(harness, "eb_2", tenant="rival")
    targets.tick(harness.db, harness.clock)


def told(harness: Harness, *, names: bool) -> Told:
    return Told(scrape.text(replace(harness.api, metrics_name_tenants=names)).decode())


def test_without_names_each_level_and_book_has_its_worst(harness: Harness) -> None:
    prepare(harness)
    caps = {
        (one.budget.tenant, one.budget.name): one
        for one in budget.statuses(harness.db, harness.clock.now())
        if one.started_at is not None
    }
    worst = caps["acme", "=search"]
    assert worst.burn_rate is not None and worst.spent_g > 0
    found = told(harness, names=False)
    burn = found.values("carbonq_budget_burn_ratio", "tenant", "level", "name", "book")
    assert burn == {
        ("", "product_line", "", "impact"): worst.burn_rate,
        ("", "product_line", "", "inventory"): 0,
    }
    left = found.values("carbonq_budget_left_ratio", "level", "book")
    assert left["product_line", "impact"] == float(worst.left_g / Decimal("0.0002"))
    assert found.values("carbonq_budget_elapsed_ratio", "level") == {("product_line",): worst.elapsed_share}
    for name in ("cap", "spent", "reserved"):
        assert not found.values(f"carbonq_budget_{name}_grams", "tenant")
    states = found.values("carbonq_targets", "state")
    assert states["on_track",] == 1 and states["broken",] + states["at_risk",] == 1
    (ratio,) = found.values("carbonq_target_forecast_ratio", "tenant", "model", "book").items()
    assert ratio[0] == ("", "", "impact") and ratio[1] > 1
    assert not found.values("carbonq_target_promised_grams_per_thousand_tokens", "tenant")
    for secret in ("acme", "rival", "=search", "wholesale", "nightly"):
        assert secret not in found.text


def test_with_names_what_was_set_is_told_and_nothing_else(harness: Harness) -> None:
    prepare(harness)
    found = told(harness, names=True)
    caps = found.values("carbonq_budget_cap_grams", "tenant", "level", "name", "book")
    assert caps == {
        ("acme", "product_line", "=search", "impact"): 0.0002,
        ("acme", "product_line", "wholesale", "inventory"): 7,
        ("rival", "product_line", "=search", "impact"): 1000,
    }
    spent = found.values("carbonq_budget_spent_grams", "tenant", "name")
    assert spent["acme", "=search"] == spent["rival", "=search"] > 0 and spent["acme", "wholesale"] == 0
    assert set(found.values("carbonq_budget_waiting_chunks", "tenant", "name").values()) == {0}
    promised = found.values("carbonq_target_promised_grams_per_thousand_tokens", "tenant", "model", "book")
    assert promised == {("acme", "", "impact"): 1000, ("rival", "", "impact"): 1e-7}
    value = found.values("carbonq_target_grams_per_thousand_tokens", "tenant")
    assert value["acme",] == value["rival",] > 0
    assert found.values("carbonq_target_forecast_grams_per_thousand_tokens", "tenant") == value
    assert "nightly" not in found.text  # what each item has by itself has no burn rate


def test_as_many_are_named_as_are_bounded_those_that_burn_fastest(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(harness)
    monkeypatch.setattr(scrape_budgets, "MOST", 1)
    found = told(harness, names=True)
    assert set(found.values("carbonq_budget_burn_ratio", "tenant", "name")) == {("acme", "=search")}
    assert set(found.values("carbonq_target_forecast_ratio", "tenant")) == {("rival",)}
    assert sum(found.values("carbonq_targets", "state").values()) == 2


def test_what_is_removed_or_not_known_disappears(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(harness)
    told(harness, names=True)
    for one in budget.statuses(harness.db, harness.clock.now()):
        budgets_admin.remove(harness.db, one.budget.tenant, one.budget.budget_id, actor="me")
    found = told(harness, names=True)
    assert not found.values("carbonq_budget_burn_ratio", "tenant")
    assert found.values("carbonq_targets", "state")

    def away(*_: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(targets, "statuses", away)
    assert not told(harness, names=True).values("carbonq_targets", "state")
