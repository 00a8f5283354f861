"""The wheel, as someone who has only that: built, looked into, installed beside nothing of the checkout, and used.

Its environment is new; only the dependencies are those of the tests' own, which installing anew would take a minute,
less those that requirements/unused.txt calls unused. `python -m tests.bench.installs` installs everything from the
index and measures it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import carbonq
from carbonq.bench.level_grid import level_settings
from carbonq.config import environment, load
from tests.system.processes import REGIONS

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

CHECKOUT = Path(__file__).resolve().parents[2]

#: Generic names that a user's folder may have, too; one of them imported instead of ours would raise.
ROOMS = ("workers", "beat", "migrations")


def run(*words: str | Path, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)


def build(source: Path, into: Path, *kinds: str) -> Path:
    done = run(sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", into, source, cwd=into.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = into.glob("*.whl")
    return wheel


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist() if not name.endswith("/RECORD")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `python -m build` makes from its own sdist."""
    return build(CHECKOUT, tmp_path_factory.mktemp("build") / "dist")


def unused_modules() -> list[str]:
    names = (CHECKOUT / "requirements" / "unused.txt").read_text().split()
    modules = {"absl-py": "absl", "protobuf": "google.protobuf"}
    return [modules.get(name, name.replace("-", "_")) for name in names]


@pytest.fixture(scope="module")
def bin_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with our wheel, to which the dependencies are lent."""
    home = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(home, symlinks=True)
    programs = home / "bin"
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "--disable-pip-version-check")
    installed = run(*pip, "install", "--no-deps", "--no-index", "--no-compile", wheel, cwd=home)
    assert installed.returncode == 0, installed.stderr
    # Found by path only: the editable carbonq of that folder is a .pth file, which counts in a site folder alone.
    [site] = home.glob("lib/python*/site-packages")
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # An import of one of these fails as if it were not there.
    (site / "unused.pth").write_text(f"import sys; sys.modules.update(dict.fromkeys({unused_modules()!r}))\n")
    return programs


def test_it_holds_carbonq_with_its_rooms_and_data_and_nothing_else(wheel: Path) -> None:
    held = contents(wheel)
    info = f"carbonq-{carbonq.__version__}.dist-info"
    assert {name.partition("/")[0] for name in held} == {"carbonq", info}
    for name in (
        "carbonq/py.typed",
        "carbonq/workers/region.py",
        "carbonq/beat/process.py",
        "carbonq/migrations/env.py",
        "carbonq/migrations/versions/0001_initial.py",
        "carbonq/data/watts_per_core.csv",
        "carbonq/data/grid/ATTRIBUTION.md",
        f"{info}/licenses/LICENSE",
    ):
        assert held[name] or name.endswith("py.typed")
    stray = [name for name in held if "test" in name.lower().split("/")[:-1] or name.endswith((".pyc", ".db", ".log"))]
    assert stray == []
    shipped = {name for name in held if name.startswith("carbonq/") and name.endswith(".py")}
    written = {f"carbonq/{path.relative_to(CHECKOUT / 'carbonq')}" for path in CHECKOUT.glob("carbonq/**/*.py")}
    written |= {f"carbonq/{path.relative_to(CHECKOUT)}" for room in ROOMS for path in CHECKOUT.glob(f"{room}/**/*.py")}
    assert shipped == written


def test_the_wheel_of_the_checkout_is_the_wheel_of_the_sdist(wheel: Path, tmp_path: Path) -> None:
    assert contents(build(CHECKOUT, tmp_path / "direct", "--wheel")) == contents(wheel)


def make_folder(folder: Path) -> None:
    """Make a user's folder, which has modules of our generic names; each raises when it is imported."""
    for room in ROOMS:
        (folder / room).mkdir()
        (folder / room / "__init__.py").write_text(f"raise RuntimeError('the user\\'s own {room} was imported')\n")
    lines = (json.dumps({"id": f"d{n}", "text": f"document number {n}"}) for n in range(20))
    (folder / "docs.jsonl").write_text("\n".join(lines) + "\n")


class Up:
    """`carbonq up` of the wheel in a user's folder."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder = programs, folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        # PATH without the tests' own environment, so that every program started is the wheel's.
        system = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if not p.startswith(sys.prefix))
        path = f"{programs}{os.pathsep}{system}"
        settings = load(**{**level_settings(folder), "regions": REGIONS})
        self.env = {**kept, **environment(settings), "PATH": path}
        self.process = subprocess.Popen(
            ("carbonq", "up", "--json"),
            cwd=folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            executable=programs / "carbonq",
        )

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line == "}\n":
                return
        pytest.fail(f"it did not start: {self.process.communicate()[1]}{self.logs()}")

    def run(self, *words: str) -> str:
        done = run(self.programs / words[0], *words[1:], cwd=self.folder, env=self.env)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}{self.logs()}"
        return done.stdout

    def logs(self) -> str:
        logs = sorted(self.folder.glob("data/logs/*.log"))
        return "".join(f"\n--- {path.name}\n{path.read_text()[-1500:]}" for path in logs)

    def stop(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@pytest.fixture
def up(bin_folder: Path, tmp_path: Path) -> Iterator[Up]:
    make_folder(tmp_path)
    made = Up(bin_folder, tmp_path)
    try:
        made.wait_until_ready()
        yield made
    finally:
        # Its children are tethered: they end with it.
        made.process.kill()
        made.process.communicate()


def test_it_works_in_a_folder_with_workers_of_its_own(up: Up, wheel: Path) -> None:
    where = Path(up.run("python", "-c", "import carbonq; print(carbonq.__file__)").strip())
    assert where.is_relative_to(up.programs.parent)
    assert where.parent.joinpath("workers").is_dir()
    assert f"{carbonq.__version__}\n" == up.run("carbonq", "--version")

    blocked = f"import {', '.join(unused_modules())}"
    assert run(up.programs / "python", "-c", blocked, cwd=up.folder, env=up.env).returncode == 1

    job = ("submit", "embeddings", "docs.jsonl", "--deadline", "2h", "--wait", "-o", "out.jsonl")
    up.run("carbonq", *job)
    lines = [json.loads(line) for line in (up.folder / "out.jsonl").read_text().splitlines()]
    assert sorted(line["custom_id"] for line in lines) == sorted(f"d{n}" for n in range(20))
    assert all(len(line["response"]["body"]["data"][0]["embedding"]) == 256 for line in lines)

    up.run("carbonq", "ledger", "export", "-o", "ledger.csv")
    assert "consistent: 20 lines recomputed" in up.run("python", "-m", "carbonq.verify", "ledger.csv")
    findings = json.loads(up.run("carbonq", "doctor", "--json"))
    assert "ports" in {one["check"] for one in findings}

    started = psutil.Process(up.process.pid).children()
    code, said = up.stop()
    assert code == 0, said
    assert "stopped" in said
    assert len(started) >= 8 and psutil.wait_procs(started, timeout=10)[1] == []
    assert "the user's own" not in up.logs()
