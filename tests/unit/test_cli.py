"""What holds for the whole command line: help with examples, JSON, one sentence for trouble."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from carbonq.cli import connect, main
from carbonq.errors import ConfigError, InvalidRequest, NotFound


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_keys_are_made_listed_and_revoked() -> None:
    run = CliRunner()
    assert isinstance(run.invoke(main.app, ["keys", "list"]).exception, ConfigError)
    assert run.invoke(main.app, ["db", "upgrade"]).exit_code == 0
    made = json.loads(run.invoke(main.app, ["keys", "create", "mine", "--json"]).stdout)
    assert [key["name"] for key in json.loads(run.invoke(main.app, ["keys", "list", "--json"]).stdout)] == ["mine"]
    revoked = run.invoke(main.app, ["keys", "revoke", made["key_id"], "--json"])
    assert json.loads(revoked.stdout) == {"key_id": made["key_id"], "is_revoked": True}
    assert isinstance(run.invoke(main.app, ["keys", "revoke", made["key_id"]]).exception, NotFound)
    for words, param in ((["", "--tenant", "t"], "name"), (["a\nb"], "name"), (["x", "--tenant", "A b"], "tenant")):
        refused = run.invoke(main.app, ["keys", "create", *words]).exception
        assert isinstance(refused, InvalidRequest)
        assert refused.param == param


def test_a_command_that_needs_a_database_makes_none(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no database in .*: run `carbonq up`"), connect.open_database():
        pass
    assert not list(folder.iterdir())


def test_an_upgrade_into_a_file_is_refused_in_a_sentence(folder: Path) -> None:
    (folder / ".carbonq").touch()
    refused = CliRunner().invoke(main.app, ["db", "upgrade"]).exception
    assert isinstance(refused, ConfigError)
    assert "it is a file" in refused.message


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_forbidden_disk_is_one_sentence(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise OSError(number, "a reason", "some/file")

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 1
    assert capsys.readouterr().err == "carbonq: some/file: a reason; `carbonq doctor` looks the machine over\n"


def test_bytes_that_are_no_text_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "app", "\udcff".encode)
    monkeypatch.setattr("sys.argv", ["carbonq", "budget", "set", "--product-line", "\udcffx"])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 1
    assert capsys.readouterr().err == "carbonq: '\\udcffx' is no text in UTF-8\n"
    monkeypatch.setattr("sys.argv", ["carbonq"])
    with pytest.raises(UnicodeEncodeError):  # not of an argument: a defect
        main.main()


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(errno.EBADF, "a defect")

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(OSError, match="a defect"):
        main.main()
