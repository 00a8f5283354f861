"""How figures are written and drawn: one unit a column, nothing rounded to nothing, all bars within their drawing."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq.render import figures, plots, svg
from carbonq.render.figures import GRAMS, grams_of, unit_of
from carbonq.render.plots import Bar, Column, Segment

amounts = st.decimals(min_value=0, max_value=10**15, places=15, allow_nan=False)


@given(st.lists(st.none() | amounts, min_size=1, max_size=6))
def test_a_columns_largest_figure_has_four_digits_and_none_looks_like_nothing(values: list[Decimal | None]) -> None:
    unit = grams_of(values)
    written = [unit.write(value) for value in values]
    for value, text in zip(values, written, strict=True):
        if value is None:
            assert text == "unknown"
        elif value == 0:
            assert text == "0"
        else:
            assert re.search("[1-9]", text), (value, text)
    most = max((value for value in values if value is not None), default=Decimal(0))
    if most >= Decimal("1e-9"):
        digits = re.sub(r"[^0-9]", "", unit.write(most)).lstrip("0")
        assert len(digits) >= 4


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([Decimal("0.00124")], ["1.240 mgCO2e"]),
        ([Decimal(1500), Decimal(2)], ["1.500 kgCO2e", "0.002 kgCO2e"]),
        ([Decimal(1500), Decimal("0.2")], ["1.500 kgCO2e", "< 0.001 kgCO2e"]),
        ([Decimal(-1500), Decimal("-0.2")], ["−1.500 kgCO2e", "> −0.001 kgCO2e"]),
        ([Decimal("999.94")], ["999.9 gCO2e"]),
        ([Decimal("999.96")], ["1.000 kgCO2e"]),
        ([Decimal(12_345_678_901)], ["12,346 tCO2e"]),
        ([None], ["unknown"]),
        ([Decimal(0)], ["0 gCO2e"]),
    ],
)
def test_masses(values: list[Decimal | None], expected: list[str]) -> None:
    unit = grams_of(values)
    assert [unit.say(value).replace("\N{NO-BREAK SPACE}", " ") for value in values] == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "unknown"), (0.0, "0.0 %"), (0.0004, "< 0.1 %"), (0.5, "50.0 %"), (0.9996, "> 99.9 %"), (1.25, "125.0 %")],
)
def test_shares_are_not_rounded_to_all_or_nothing(value: float | None, expected: str) -> None:
    assert figures.share(value).replace("\N{NO-BREAK SPACE}", " ") == expected


@given(st.text())
def test_what_is_made_visible_is(text: str) -> None:
    shown = figures.visible(text)
    assert all(letter.isprintable() or letter in " \u200c\u200d" or letter.isspace() for letter in shown)
    assert figures.visible(shown) == shown
    if text.isprintable():
        assert shown == text


@given(st.text(max_size=400), st.floats(30, 400))
def test_a_shortened_name_fits(text: str, room: float) -> None:
    cut = svg.shortened(text, room, 11)
    assert svg.text_width(cut, 11) <= room or cut == "…"


@given(st.lists(st.tuples(amounts, st.none() | amounts), min_size=1, max_size=20))
def test_bars_stay_within_their_drawing(rows: list[tuple[Decimal, Decimal | None]]) -> None:
    unit = unit_of(GRAMS, [value for row in rows for value in row])
    made = [
        Bar("name", (Segment("impact", float(value)),), "says", None if cap is None else float(cap))
        for value, cap in rows
    ]
    drawing = plots.bars("t", "alt", made, unit)
    assert drawing is not None
    _within(drawing)
    assert ("drawn" in drawing.note) == (len(rows) > plots.MOST_BARS)


@given(st.lists(st.none() | amounts, min_size=1, max_size=31))
def test_columns_stay_within_their_drawing_and_unknown_is_marked(values: list[Decimal | None]) -> None:
    unit = unit_of(GRAMS, values)
    made = [
        Column(str(n), () if value is None else (Segment("impact", float(value)),), "says", is_unknown=value is None)
        for n, value in enumerate(values)
    ]
    drawing = plots.columns("t", "alt", made, unit)
    if all(value == 0 for value in values):
        assert drawing is None
        return
    assert drawing is not None
    _within(drawing)
    assert drawing.body.count('class="unknown"') == values.count(None)
    assert drawing.body.count("<rect") == sum(1 for value in values if value)


def _within(drawing: svg.Drawing) -> None:
    for x, y, width, height in re.findall(r'<rect[^>]* x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', drawing.body):
        assert float(x) >= 0 and float(x) + float(width) <= drawing.width + 0.2
        assert float(y) >= -0.1 and float(y) + float(height) <= drawing.height + 0.2
    for at in re.findall(r'class="limit" x1="(.*?)"', drawing.body):
        assert 0 <= float(at) <= drawing.width


def test_what_is_not_known_is_not_drawn() -> None:
    unit = grams_of([Decimal(1)])
    drawing = plots.bars("t", "alt", [Bar("a", (Segment("impact", None),), "unknown", label="unknown")], unit)
    assert drawing is not None and "<rect" not in drawing.body and ">unknown<" in drawing.body
    assert plots.bars("t", "alt", [], unit) is None
