"""The scene of the demonstration: its own folder, settings and clock, apart from any installation of the user's."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

from carbonq import config
from carbonq.config import Settings

#: Grid seconds for each machine second: a window lasts 4 s.
FACTOR = 75.0

#: Earlier demonstrations kept beside the new one.
KEPT = 2

#: Settings of the demonstration, as a file that people may read and change for an installation of their own.
_TOML = """\
# Made by `carbonq demo`: two regions on the recorded demo grid, chunks small enough for windows of four seconds.
data_dir = "{folder}"
port = 0
flower_port = 0
home_region = "norcal"
max_chunk_items = 400
chunk_fill = 0.6
log_level = "INFO"

[zones.SGIP_CAISO_PGE.marginal]
source = "recorded"

[zones.SGIP_CAISO_SCE.marginal]
source = "recorded"

[regions.norcal]
zone = "SGIP_CAISO_PGE"
pue = "1.20"
pue_source = "assumed for the demo"
latency_ms = 1

[regions.socal]
zone = "SGIP_CAISO_SCE"
pue = "1.20"
pue_source = "assumed for the demo"
latency_ms = 9
"""


def make_folder(parent: Path) -> Path:
    """Make the folder of this run and drop those of older runs but the last few."""
    folder = parent.resolve() / datetime.now(UTC).strftime("run-%Y%m%dT%H%M%S")
    folder.mkdir(parents=True, mode=0o700)
    for old in sorted(parent.glob("run-*"))[: -(KEPT + 1)]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def load(folder: Path) -> Settings:
    """Write the settings file of the demonstration and read it; the user's own settings play no part."""
    path = folder / "carbonq.toml"
    path.write_text(_TOML.format(folder=str(folder).replace("\\", "\\\\").replace('"', '\\"')), encoding="utf-8")
    config.isolate(path)
    # Workers share two cores: a thread more per library would only take turns.
    return config.load()


def cores() -> int:
    """Return the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
