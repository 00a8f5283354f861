from __future__ import annotations

import json

import pytest

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
