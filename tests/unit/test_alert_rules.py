"""The Prometheus rules that ship: well formed, and about metrics that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import REGISTRY

from carbonq import telemetry

RULES = sorted((Path(__file__).parents[2] / "ops/prometheus").glob("*.rules.yml"))


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_rules_are_about_metrics_that_exist(path: Path) -> None:
    assert telemetry.GRID_STALE_SHARE is not None
    known = {sample.removesuffix("_created") for metric in REGISTRY.collect() for sample in _samples(metric)}
    groups = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert rules
    for rule in rules:
        names = set(re.findall(r"\bcarbonq_\w+", rule["expr"]))
        assert names and names <= known, f"{rule['alert']}: {names - known}"
        assert {"severity"} <= rule["labels"].keys() and "summary" in rule["annotations"]


def _samples(metric: object) -> set[str]:
    name, kind = getattr(metric, "name"), getattr(metric, "type")  # noqa: B009
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(kind, ("",))
    return {name + suffix for suffix in suffixes}


def test_there_is_an_alarm_above_a_fifth_of_stale_zones() -> None:
    (path,) = (path for path in RULES if path.name == "grid.rules.yml")
    rules = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"][0]["rules"]
    assert any(rule["expr"] == "max by (signal) (carbonq_grid_stale_zones_ratio) > 0.2" for rule in rules)
