"""Energy that is reported and booked in pieces sums to what was burnt, to the microjoule (invariant 2)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from carbonq.clock import ClockKind
from carbonq.meters.protocol import MeteredPart, MeterInfo, MeterKind
from carbonq.model import Quality
from carbonq.services import burnt
from carbonq.services.burnt import Burnt

AT = datetime(2026, 1, 1, tzinfo=UTC)
INFO = MeterInfo(MeterKind.NONE, MeterKind.CPU_TIME, MeterKind.NONE, Quality.ESTIMATED, 20.0, ("cpu",))


def make(energies: list[int], name: str = "eb_1") -> Burnt:
    parts = tuple(
        MeteredPart(
            AT + timedelta(seconds=300 * i),
            AT + timedelta(seconds=300 * i),
            AT + timedelta(seconds=300 * i + 10),
            float(uj) / 1000,
            None,
            uj,
            None,
        )
        for i, uj in enumerate(energies)
    )
    return Burnt(name, "w", "fr", "m", "fake", "1", "0", ClockKind.REAL, parts, INFO, "lost")


reports = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)), min_size=1, max_size=4)


@given(reports, st.integers(0, 4))
def test_report_and_remainder_sum_to_the_whole(pairs: list[tuple[int, int]], seen: int) -> None:
    whole = make([a + b for a, b in pairs])
    report = make([a for a, _ in pairs[: max(1, min(seen, len(pairs)))]])
    rest = burnt.remainders([whole], [report])
    assert report.energy_uj + sum(one.energy_uj for one in rest) == whole.energy_uj
    assert all(one.engine_batch_id != whole.engine_batch_id for one in rest)
    assert all(part.cpu_uj is not None and part.cpu_uj >= 0 for one in rest for part in one.parts)
    assert burnt.remainders([whole], [whole]) == []
    assert burnt.remainders([whole], []) == [whole]


@given(reports)
def test_a_report_survives_json(pairs: list[tuple[int, int]]) -> None:
    reported = [make([a], "eb_1") for a, _ in pairs] + [make([b, b], "eb_2") for _, b in pairs]
    assert burnt.from_json(json.loads(json.dumps(burnt.to_json(reported)))) == reported
    assert burnt.from_json(None) == []
