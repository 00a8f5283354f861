"""The real `openai` package of each major version against one carbonq: facts of `docs/openai.md`, run as users do.

Each version lies in a folder of its own (the Makefile puts them there) and runs in a process of its own; all three at
once, since most of their time is waiting between tries.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.stack import running
from tests.conftest import require
from tests.databases import opened

SCRIPT = Path(__file__).with_name("script.py")
ENVIRONMENT = Path(sys.prefix)

#: Major version -> the folder that holds it; None: the environment's own.
VERSIONS: dict[str, Path | None] = {"1": ENVIRONMENT / "openai-1", "2": ENVIRONMENT / "openai-2", "3": None}


@pytest.fixture(scope="module")
def runs(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """The script under each version, started together; each with a tenant's key of its own."""
    root = tmp_path_factory.mktemp("compat")
    (root / "carbonq.db").write_bytes(sqlite_template.read_bytes())
    database = opened(f"sqlite:///{root / 'carbonq.db'}")
    with running(database, root) as (url, stack):
        started = {
            version: subprocess.Popen(
                [sys.executable, str(SCRIPT), url, stack.key(f"tenant-{version}")],
                env=_environment(folder),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for version, folder in VERSIONS.items()
            if folder is None or folder.is_dir()
        }
        try:
            yield started
        finally:
            for process in started.values():
                process.kill()
                process.communicate()
    database.dispose()


def _environment(folder: Path | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
    return kept | ({} if folder is None else {"PYTHONPATH": str(folder)})


@pytest.mark.parametrize("version", VERSIONS)
def test_the_unmodified_sdk_does_all_that_users_do(version: str, runs: dict[str, subprocess.Popen[str]]) -> None:
    if version not in runs:
        require(f"openai {version}.x is not there; `make test` puts it into {VERSIONS[version]}")
    output, _ = runs[version].communicate(timeout=120)
    assert runs[version].returncode == 0, output
    assert output.splitlines()[-1].startswith(f"{version}."), output
