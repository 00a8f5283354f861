"""The report's bench in small: its steps agree, and its figures are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from carbonq.bench import report as bench
from carbonq.bench.backend import Backend


@pytest.mark.parametrize("is_settled", [False, True])
def test_the_report_comes_to_the_sums_of_its_yardsticks(tmp_path: Path, is_settled: bool) -> None:
    said: list[str] = []
    found = bench.bench(tmp_path, Backend(), entries=300, batch_items=16, is_settled=is_settled, report=said.append)
    assert {name: found[name]["entries"] for name in bench.STEPS} == dict.fromkeys(bench.STEPS, 300)
    assert found["report"]["emission_g"] == found["loop"]["emission_g"]
    # Engine batches of the same hour share a row.
    assert 0 < found["report"]["inventory_rows"] <= 300 // 16 + 1
    assert found["report_by_plain"] > 0
    assert ("settle_s" in found) is is_settled
    assert len(said) == 4 + is_settled
