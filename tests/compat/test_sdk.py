"""The real `openai` package of each major version against one carbonq, and the recipe of docs/openai-recipe.md.

Each version lies in a folder of its own (the Makefile puts them there) and runs in a process of its own; all at once,
since most of their time is waiting between tries.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.stack import running
from tests.conftest import require
from tests.databases import opened

SCRIPT = Path(__file__).with_name("script.py")
PAGE = Path(__file__).parents[2] / "docs" / "openai-recipe.md"
ENVIRONMENT = Path(sys.prefix)

#: Major version -> the folder that holds it; None: the environment's own.
VERSIONS: dict[str, Path | None] = {"1": ENVIRONMENT / "openai-1", "2": ENVIRONMENT / "openai-2", "3": None}

Runs = dict[str, subprocess.Popen[str]]


@pytest.fixture(scope="module")
def runs(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """The script under each version and the page's recipe, started together, each with a tenant's key of its own."""
    root = tmp_path_factory.mktemp("compat")
    (root / "carbonq.db").write_bytes(sqlite_template.read_bytes())
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (root / "recipe.py").write_text(text)
    database = opened(f"sqlite:///{root / 'carbonq.db'}")
    with running(database, root) as (url, stack):
        started = {
            version: _start([SCRIPT, url, stack.key(f"tenant-{version}")], folder)
            for version, folder in VERSIONS.items()
            if folder is None or folder.is_dir()
        }
        told = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": stack.key("recipe")}
        started["recipe"] = _start([root / "recipe.py"], None, **told)
        try:
            yield started
        finally:
            for process in started.values():
                process.kill()
                process.communicate()
    database.dispose()


def _start(command: list[Path | str], folder: Path | None, **told: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
    if folder is not None:
        environment["PYTHONPATH"] = str(folder)
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=environment | told,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_the_unmodified_sdk_does_all_that_users_do(version: str, runs: Runs) -> None:
    if version not in runs:
        require(f"openai {version}.x is not there; `make test` puts it into {VERSIONS[version]}")
    output, _ = runs[version].communicate(timeout=120)
    assert runs[version].returncode == 0, output
    assert output.splitlines()[-1].startswith(f"{version}."), output


def test_the_recipe_of_the_page_runs(runs: Runs) -> None:
    output, _ = runs["recipe"].communicate(timeout=60)
    assert runs["recipe"].returncode == 0, output
    *batch, now = output.splitlines()
    assert [line.partition(":")[0] for line in sorted(batch)] == ["doc-1", "doc-2", "doc-3"]
    assert all("256 numbers" in line and "None Wh" not in line and "gCO2e in fr" in line for line in batch)
    assert re.fullmatch(r"now: [\d.e-]+ gCO2e", now)
