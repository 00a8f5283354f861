from __future__ import annotations

import os
from pathlib import Path

import pytest

from carbonq import config
from carbonq.embedded import address
from carbonq.errors import ConfigError

HERE = address.Address("http://127.0.0.1:1", "http://127.0.0.1:2", "redis://:secret@127.0.0.1:3/0")


def test_an_address_counts_only_while_its_stack_holds_the_folder(tmp_path: Path) -> None:
    assert address.running(tmp_path) is None
    handle = address.lock(tmp_path)
    address.write(tmp_path, HERE)
    assert address.running(tmp_path) == HERE
    os.close(handle)
    assert address.running(tmp_path) is None


def test_two_stacks_on_one_folder_refuse(tmp_path: Path) -> None:
    handle = address.lock(tmp_path)
    with pytest.raises(ConfigError, match="another carbonq runs on"):
        address.lock(tmp_path)
    os.close(handle)
    os.close(address.lock(tmp_path))


def test_the_address_is_private(tmp_path: Path) -> None:
    address.write(tmp_path, HERE)
    assert (tmp_path / "stack").stat().st_mode & 0o077 == 0


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/x cannot be written.*CARBONQ_DATA_DIR"):
        address.lock(tmp_path / "file" / "x")


def test_a_file_in_the_folders_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file cannot be written: it is a file; set CARBONQ_DATA_DIR"):
        address.lock(tmp_path / "file")


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:80"), ("0.0.0.0", "http://127.0.0.1:80"), ("fd00::1", "http://[fd00::1]:80")],
)
def test_the_url_of_this_machine(host: str, url: str) -> None:
    assert address.api_url(config.load(host=host, port=80)) == url
