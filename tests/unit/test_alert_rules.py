"""The Prometheus rules that ship: well formed, and about metrics that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import REGISTRY

from carbonq import telemetry
from tests.conftest import require

OPS = Path(__file__).parents[2] / "ops/prometheus"
RULES = sorted(OPS.glob("*.rules.yml"))
TESTS = sorted((OPS / "tests").glob("*.test.yml"))
#: The same sum as the one that is tested, of another metric; and the errors' ratio, which its alarm tests.
UNTESTED = {"carbonq:ledger_impact_kilograms", "carbonq:ledger_inventory_kilograms", "carbonq:api_errors:ratio5m"}
RECORDED = {
    rule["record"]
    for path in RULES
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
    if "record" in rule
}


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_rules_are_about_metrics_that_exist(path: Path) -> None:
    assert telemetry.GRID_STALE_SHARE is not None
    known = {sample.removesuffix("_created") for metric in REGISTRY.collect() for sample in _samples(metric)}
    groups = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert rules
    for rule in rules:
        names = set(re.findall(r"\bcarbonq_\w+", rule["expr"]))
        recorded = set(re.findall(r"\bcarbonq:[\w:]+", rule["expr"]))
        assert names <= known and recorded <= RECORDED, f"{rule}: {names - known} {recorded - RECORDED}"
        assert names or recorded or "up{job=~" in rule["expr"]
        if "alert" in rule:
            assert {"severity"} <= rule["labels"].keys() and "summary" in rule["annotations"]


def _samples(metric: object) -> set[str]:
    name, kind = getattr(metric, "name"), getattr(metric, "type")  # noqa: B009
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(kind, ("",))
    return {name + suffix for suffix in suffixes}


def test_there_is_an_alarm_above_a_fifth_of_stale_zones() -> None:
    (path,) = (path for path in RULES if path.name == "grid.rules.yml")
    rules = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"][0]["rules"]
    assert any(rule["expr"] == "max by (signal) (carbonq_grid_stale_zones_ratio) > 0.2" for rule in rules)


def promtool(*words: str | Path) -> str:
    program = shutil.which("promtool")
    if program is None:
        require("promtool is missing: install Debian's package prometheus")
    assert program is not None
    done = subprocess.run((program, *words), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_takes_rules_and_scrape_config() -> None:
    assert "SUCCESS" in promtool("check", "rules", *RULES)
    assert "SUCCESS" in promtool("check", "config", OPS / "prometheus.yml")


def test_each_alarm_comes_when_it_should() -> None:
    promtool("test", "rules", *TESTS)
    tested = "".join(path.read_text(encoding="utf-8") for path in TESTS)
    for path in RULES:
        for name in re.findall(r"(?:alert|record): (\S+)", path.read_text(encoding="utf-8")):
            assert name in tested or name in UNTESTED, f"no unit test is about {name}"
