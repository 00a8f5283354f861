"""The settings shown in ``docs/sources.md`` are settings, and make the sources they speak of."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from carbonq import config
from carbonq.clock import GridClock
from carbonq.sourcing import make_sources

TEXT = (Path(__file__).parents[2] / "docs/sources.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```toml\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: re.findall(r'source = "(\w+)"', one)[0])
def test_an_example_makes_its_sources(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (zone,) = tomllib.loads(example)["zones"]
    path = tmp_path / "c.toml"
    path.write_text(f'[regions.here]\nzone = "{zone}"\n{example}', encoding="utf-8")
    monkeypatch.setenv("CARBONQ_CONFIG", str(path))
    (made,) = make_sources(config.load(), GridClock.real()).values()
    assert len(made) == len(re.findall("^source = ", example, re.MULTILINE))
    for source in made:
        source.close()


def test_every_live_source_has_an_example() -> None:
    shown = set(re.findall(r'^source = "(\w+)"', TEXT, re.MULTILINE))
    assert shown == {"watttime", "sgip", "electricity_maps", "uk", "carbon_aware_sdk", "entsoe", "http"}
