from __future__ import annotations

import json

import pytest

from carbonq.cli import output


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0, "0 ngCO2e"),
        ("0.0000001234", "123 ngCO2e"),
        ("0.0123", "12.3 mgCO2e"),
        (-0.5, "-500 mgCO2e"),
        (12.345, "12.3 gCO2e"),
        (12_345, "12.3 kgCO2e"),
        (2_500_000, "2.5 tCO2e"),
    ],
)
def test_grams_have_a_fitting_unit(value: float | str | None, text: str) -> None:
    assert output.grams(value) == text


@pytest.mark.parametrize(
    ("uj", "text"),
    [
        (None, "unknown"),
        (12, "12 µJ"),
        (12_300, "12.3 mJ"),
        (1_500_000, "1.5 J"),
        (3_600_000_000, "1 Wh"),
        (3_600_000_000_000, "1 kWh"),
    ],
)
def test_energy_has_a_fitting_unit(uj: int | None, text: str) -> None:
    assert output.energy(uj) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.84, "0.8 s"), (42, "42 s"), (200, "3 min 20 s"), (18_720, "5 h 12 min")]
)
def test_spans(seconds: float, text: str) -> None:
    assert output.span(seconds) == text


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
