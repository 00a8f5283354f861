from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq import config, wiring
from carbonq.errors import ConfigError
from carbonq.meters.calibrated import CalibratedMeter
from carbonq.meters.power import PowerCounter
from carbonq.meters.protocol import Component, Meter, MeterKind, MeterLost
from carbonq.meters.rated import RatedMeter
from carbonq.model import Quality
from carbonq.testing import FakeMeter


def test_rated_watts_times_time_is_an_estimate_or_an_upper_bound() -> None:
    now = [5_000]
    tdp = RatedMeter(Component.GPU, 350.5, is_upper_bound=False, uncertainty_pct=30.0, now_ns=lambda: now[0])
    most = RatedMeter(Component.GPU, 1.0, is_upper_bound=True, now_ns=lambda: now[0])
    now[0] += 2_000_000_000
    assert (tdp.read_uj(), most.read_uj()) == (701_000_000, 2_000_000)
    assert (tdp.kind, tdp.quality, tdp.uncertainty_pct) == (MeterKind.TDP, Quality.ESTIMATED, 30.0)
    assert (most.kind, most.quality, most.uncertainty_pct) == (MeterKind.NAMEPLATE, Quality.UPPER_BOUND, None)
    assert (tdp.device_ids, most.device_ids) == (("gpu at 350.5 W (TDP)",), ("gpu at 1 W (nameplate)",))


def test_a_calibrated_meter_is_the_meter_times_its_factor_and_says_so() -> None:
    meter = FakeMeter(Component.GPU, kind=MeterKind.NVML_COUNTER, quality=Quality.MEASURED, lag_s=0.1)
    calibrated = CalibratedMeter(meter, Decimal("1.07"), date(2026, 5, 1), uncertainty_pct=2.0)
    meter.burn(10**9)
    meter.next_marks = ("counter_reset",)
    assert calibrated.read_uj() == 1_070_000_000
    assert (calibrated.kind, calibrated.quality, calibrated.lag_s) == (MeterKind.NVML_COUNTER, Quality.MEASURED, 0.1)
    assert (calibrated.uncertainty_pct, calibrated.marks()) == (2.0, ("counter_reset",))
    assert calibrated.device_ids == ("fake-0", "x 1.07 since 2026-05-01")
    meter.lose()
    with pytest.raises(MeterLost):
        calibrated.read_uj()
    calibrated.close()
    assert meter.is_closed


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2_000_000), st.integers(0, 10**10)), max_size=20))
def test_trapezoids_are_exact_whatever_the_samples(samples: list[tuple[int, int]]) -> None:
    power, now = [1_000], [0]
    counter = PowerCounter(lambda: power[0], lambda: now[0])
    twice_pj, read = 0, 0
    for mw, passed_ns in samples:
        twice_pj += (power[0] + mw) * passed_ns
        power[0] = mw
        now[0] += passed_ns
        last, read = read, counter.read_uj()
        assert read >= last
    assert read == twice_pj // 2_000_000
    assert counter.had_gap() == any(passed > 10**9 for _, passed in samples)
    assert not counter.had_gap()


def make(tmp_path: Path, **meters: object) -> list[Meter]:
    settings = config.load(data_dir=tmp_path, regions={"se": {"zone": "SE", "meters": meters}}, zones={"SE": {}})
    return wiring.make_meters(settings, "se", pids=tuple, may_use_rapl=False)


def test_settings_choose_the_meters_of_a_region(tmp_path: Path) -> None:
    found = make(
        tmp_path,
        gpu={"by": "nameplate", "watts": 700},
        cpu={"by": "tdp", "watts": 200, "factor": "0.9", "factor_on": "2026-05-01"},
        dram={"by": "tdp", "watts": 20, "uncertainty_pct": 50},
    )
    assert [(one.component, one.quality, one.uncertainty_pct) for one in found] == [
        (Component.GPU, Quality.UPPER_BOUND, None),
        (Component.CPU, Quality.ESTIMATED, None),
        (Component.DRAM, Quality.ESTIMATED, 50.0),
    ]
    assert found[1].device_ids[-1] == "x 0.9 since 2026-05-01"
    assert make(tmp_path, gpu={"by": "none"}, cpu={"by": "none"}) == []


def test_a_meter_of_the_whole_host_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "wall.csv"
    path.write_text("Wh\n5\n")
    wall = {"by": "external", "url": str(path), "value": "Wh", "unit": "Wh", "form": "csv", "is_whole_host": True}
    [meter] = make(tmp_path, cpu=wall)
    assert (meter.component, meter.kind) == (Component.CPU, MeterKind.EXTERNAL)
    meter.close()
    with pytest.raises(ConfigError, match="covers the whole host"):
        make(tmp_path, cpu=wall, dram={"by": "tdp", "watts": 5})


@pytest.mark.parametrize(
    ("meters", "message"),
    [
        ({"gpu": {"by": "tdp"}}, "'tdp' needs watts"),
        ({"gpu": {"by": "dcgm"}}, "'dcgm' needs url"),
        ({"cpu": {"by": "external", "url": "http://x"}}, "'external' needs value, unit"),
        ({"cpu": {"by": "nvml"}}, "nvml"),
        ({"cpu": {"factor": "1.1"}}, "factor and factor_on belong together"),
        ({"cpu": {"is_whole_host": True}}, "is for an external meter"),
        ({"cpu": {"by": "tdp", "watts": -1}}, "watts"),
    ],
)
def test_settings_that_make_no_meter_are_refused(tmp_path: Path, meters: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(tmp_path, **meters)


def test_rapl_that_was_asked_for_and_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carbonq.meters.rapl.find", list)
    settings = config.load(
        data_dir=tmp_path, regions={"se": {"zone": "SE", "meters": {"cpu": {"by": "rapl"}}}}, zones={"SE": {}}
    )
    with pytest.raises(ConfigError, match="RAPL cannot be read for cpu"):
        wiring.make_meters(settings, "se", pids=tuple, may_use_rapl=True)
