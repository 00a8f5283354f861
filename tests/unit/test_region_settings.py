"""What is said of regions in the settings, and how it reaches the planner."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from carbonq import config, wiring
from carbonq.errors import ConfigError
from carbonq.model import Maintenance

TEXT = """
[zones.SE]
marginal = [{ source = "csv", path = "a.csv" }]
[regions.se]
zone = "SE"
slots = 4
price_per_kwh = "0.10"
[[regions.se.maintenance]]
start = 2026-11-03T08:00:00Z
end = "2026-11-03T12:00+02:00"
slots = 1
[[regions.se.maintenance]]
start = "2026-12-24T00:00Z"
end = "2026-12-25T00:00Z"
"""


def load(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> config.Settings:
    path = folder / "c.toml"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("CARBONQ_CONFIG", str(path))
    return config.load()


def test_maintenance_is_written_with_a_zone_and_known_in_utc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = load(monkeypatch, tmp_path, TEXT)
    (region,) = wiring.make_regions(settings)
    first, second = region.maintenance
    assert first == Maintenance(datetime(2026, 11, 3, 8, tzinfo=UTC), datetime(2026, 11, 3, 10, tzinfo=UTC), 1)
    assert second.slots == 0
    # As the database keeps it and another host takes it from there.
    kept = config.shared(settings)["regions"]["se"]
    assert config.RegionSettings.model_validate(kept).maintenance == settings.regions["se"].maintenance
    assert wiring.make_shared(settings).digest == wiring.make_shared(load(monkeypatch, tmp_path, TEXT)).digest


@pytest.mark.parametrize(
    ("was", "becomes", "sentence"),
    [
        ('"2026-11-03T12:00+02:00"', '"2026-11-03T08:00Z"', "must be after start"),
        ('"2026-11-03T12:00+02:00"', '"2026-11-03T12:00"', "regions.se.maintenance.0.end"),
        ("slots = 1", "slots = -1", "regions.se.maintenance.0.slots"),
        ("slots = 1", "slots = 5", "regions.se.*maintenance.0.slots is 5, more than the region's 4 slots"),
        ('price_per_kwh = "0.10"', 'price_per_kwh = "-1"', "regions.se.price_per_kwh"),
    ],
)
def test_a_span_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, was: str, becomes: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(monkeypatch, tmp_path, TEXT.replace(was, becomes))
