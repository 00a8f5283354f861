"""Settings of a stack whose grid is level: every window and region is alike, so work starts at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from carbonq.units import WINDOW, iso, window_of

#: What every window says, in gCO2e/kWh; the figure plays no part.
LEVEL_G_PER_KWH = 300


def level_settings(folder: Path) -> dict[str, Any]:
    """Return settings for a stack in ``folder`` with two regions on a level grid around now, on free ports."""
    start = window_of(datetime.now(UTC)) - timedelta(hours=3)
    path = folder / "level.csv"
    rows = [f"{iso(start + index * WINDOW)},{LEVEL_G_PER_KWH}" for index in range(12 * 12)]
    path.write_text("\n".join(["time_utc,g_per_kwh", *rows]) + "\n", encoding="utf-8")
    return {
        "data_dir": folder / "data",
        "port": 0,
        "flower_port": 0,
        "zones": {"LEVEL": {"marginal": {"source": "csv", "path": path}}},
        "regions": {"north": {"zone": "LEVEL"}, "south": {"zone": "LEVEL"}},
    }
