from __future__ import annotations

import json

import pytest
import typer

from carbonq.cli import output


def test_tables_are_aligned_and_empty_cells_visible(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit_table(("name", "n"), [("a", None), ("longer", 12)])
    assert capsys.readouterr().out == "name    n\na       -\nlonger  12\n"


def test_messages_go_to_stderr_and_data_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("hello")
    output.emit_json({"b": 1, "a": [1, 2]})
    written = capsys.readouterr()
    assert written.err == "hello\n"
    assert json.loads(written.out) == {"a": [1, 2], "b": 1}


def test_no_bar_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with output.bar("sending", total=10) as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")


def test_quiet_silences_messages_and_no_errors(capsys: pytest.CaptureFixture[str]) -> None:
    with output.speaking(is_quiet=True):
        with output.speaking():  # an inner command that says nothing of it
            output.say("hello")
        output.complain("wrong")
    output.say("again")
    assert capsys.readouterr().err == "wrong\nagain\n"


def test_no_bar_where_quiet_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output.sys.stderr, "isatty", lambda: True, raising=False)
    assert output.is_watched()
    with output.speaking(is_quiet=True):
        assert not output.is_watched()


def test_colours_can_be_switched_off_by_option_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert not output.console().no_color
    with output.speaking(is_colourless=True):
        assert output.console().no_color
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.console().no_color


@pytest.mark.parametrize(
    ("is_terminal", "is_sure", "answer", "is_asked"),
    [(False, False, "", False), (True, True, "", False), (True, False, "y\n", True), (True, False, "n\n", True)],
)
def test_only_a_person_is_asked(
    is_terminal: bool, is_sure: bool, answer: str, is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def confirm(question: str, *, abort: bool, err: bool) -> None:
        asked.append(question)
        if abort and err and answer != "y\n":
            raise typer.Abort

    for stream in (output.sys.stdin, output.sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(output.typer, "confirm", confirm)
    if answer == "n\n":
        with pytest.raises(typer.Abort):
            output.confirm("really?", is_sure=is_sure)
    else:
        output.confirm("really?", is_sure=is_sure)
    assert bool(asked) == is_asked
