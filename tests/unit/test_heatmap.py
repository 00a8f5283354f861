"""The map of the plan: how windows become columns, and what is drawn in which width, with and without colours."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from carbonq.cli.heatmap import fold, render
from carbonq.units import iso

NOW = datetime(2021, 6, 14, 12, 7, tzinfo=UTC)
START = datetime(2021, 6, 14, 12, 5, tzinfo=UTC)


def answer(
    values: dict[str, list[float | None]],
    *,
    basis: str = "forecast",
    placements: list[tuple[str, int, int]] | None = None,
) -> dict[str, Any]:
    """An answer of /v1/plan; placements are (region, window number, chunks)."""
    regions = [
        {
            "region": name,
            "values": [None if one is None else str(one) for one in given],
            "basis": ["none" if one is None else basis for one in given],
        }
        for name, given in values.items()
    ]
    placed = [
        {"region": name, "window_at": iso(START + window * timedelta(minutes=5)), "chunks": count}
        for name, window, count in placements or []
    ]
    outlook = {"signal": "moer", "start_at": iso(START), "step_s": 300, "regions": regions}
    return {"clock": {"now": iso(NOW)}, "outlook": outlook, "placements": placed}


def drawn(plan: dict[str, Any], width: int, *, in_colour: bool = False) -> list[str]:
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        color_system="truecolor" if in_colour else None,
        force_terminal=in_colour,
        soft_wrap=True,
        highlight=False,
        legacy_windows=False,
    )
    console.print(render(plan, console))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(("width", "windows"), [(80, 12), (80, 288), (100, 288), (100, 2016), (200, 288), (60, 2016)])
def test_a_row_fits_whatever_the_width(width: int, windows: int) -> None:
    plan = answer({"norcal": [100.0 + i % 97 for i in range(windows)], "a-long-name": [200.0] * windows})
    lines = drawn(plan, width)
    for line in lines[1:-2]:
        assert len(line) <= width, line
    made = fold(plan, width)
    assert len(made.starts) * made.cell <= width and all(len(row.levels) == len(made.starts) for row in made.rows)
    assert all(at.timestamp() % (made.span * 300) == 0 for at in made.starts[1:])  # columns begin at round times


def test_columns_hold_means_the_least_sure_basis_and_all_chunks() -> None:
    plan = answer({"a": [100.0, 200.0, None, 400.0] * 72}, placements=[("a", 1, 2), ("a", 3, 40), ("a", 287, 1)])
    made = fold(plan, 60)
    assert (made.span, made.cell) == (12, 1)
    (row,) = made.rows
    # 12:05 to 12:55 is the rest of the hour: eleven windows.
    assert made.starts[:2] == (START, datetime(2021, 6, 14, 13, tzinfo=UTC))
    assert row.levels[0] == pytest.approx((100 * 3 + 200 * 3 + 400 * 2) / 8)
    assert set(row.bases[:-1]) == {"none"} and row.bases[-1] == "forecast"  # the last one is one window, known
    assert sum(row.chunks) == 43 and row.chunks[0] == 42 and row.chunks[-1] == 1
    assert (row.low, row.high) == (100, 400)


def test_what_runs_since_an_earlier_window_stands_at_now() -> None:
    made = fold(answer({"a": [100.0] * 12}, placements=[("a", -9, 1), ("a", 0, 1), ("a", 99, 5)]), 80)
    assert made.rows[0].chunks[0] == 2 and sum(made.rows[0].chunks) == 2


def test_plain_text_has_bars_a_row_of_counts_and_a_legend() -> None:
    values: list[float | None] = [100.0] * 6 + [450.0] * 6 + [800.0] * 6 + [None] * 6
    lines = drawn(answer({"norcal": values}, placements=[("norcal", 0, 3), ("norcal", 12, 12345)]), 60)
    assert lines[0] == (
        "marginal rates (MOER), gCO2e/kWh, as they are thought of at Mon 14 Jun 12:07Z; a column is one window of 5 min"
    )
    assert lines[1].split() == ["12:05", "13:00", "14:00"] or lines[1].split()[:2] == ["12:05", "13:00"]
    assert lines[2] == "norcal    " + "▁" * 6 + "▅" * 6 + "█" * 6 + "?" * 6 + "  100 to 800"
    assert lines[3] == "  basis   " + "f" * 18 + "?" * 6
    assert lines[4] == "  chunks  3" + " " * 11 + "+"
    assert lines[5] == "▁ 100 to █ 800 gCO2e/kWh; digits count your chunks, + is more than fits"
    assert lines[6] == "basis: f forecast as issued; ? not known, never counted as clean"


def test_wide_columns_show_larger_counts() -> None:
    lines = drawn(answer({"a": [100.0, 200.0]}, placements=[("a", 1, 1234)]), 80)
    assert lines[2].startswith("a         ▁▁▁▁████") and lines[4] == "  chunks      1234"


def test_in_colour_the_ground_says_it_and_digits_stand_on_it() -> None:
    values: list[float | None] = [100.0] * 6 + [800.0] * 6 + [None] * 6
    lines = drawn(answer({"norcal": values}, placements=[("norcal", 2, 7), ("norcal", 13, 2)]), 60, in_colour=True)
    level = lines[2]
    assert "▁" not in level and "48;2;26;152;80m7" in level and "48;2;215;48;39m" in level
    unknown = level.partition("215;48;39m")[2]
    assert "??" in unknown and "2?" in unknown and "2;7m" in unknown  # no ground colour stands for unknown
    assert not any("chunks  " in line for line in lines)


def test_nothing_known_is_never_drawn_as_clean() -> None:
    plain = drawn(answer({"a": [None] * 12, "b": [None] * 12}), 80)
    assert plain[2].startswith("a         ????") and plain[2].endswith("not known")
    assert "no rate is known of any region" in plain[-2] and "no chunk of yours is placed" in plain[-2]
    mixed = drawn(answer({"a": [None] * 12, "b": [50.0] * 12}), 80)
    assert "▁" not in mixed[2] and "?" in mixed[2]
    assert "48;2;" not in drawn(answer({"a": [None] * 12}), 80, in_colour=True)[2]


def test_each_basis_has_a_letter_of_its_own() -> None:
    letters = {
        basis: drawn(answer({"a": [1.0]}, basis=basis), 80)[3].split()[-1][0]
        for basis in ("blend", "forecast", "held", "seasonal")
    }
    assert letters == {"blend": "b", "forecast": "f", "held": "h", "seasonal": "s"}


def test_averages_are_called_so() -> None:
    plan = answer({"a": [1.0]})
    plan["outlook"]["signal"] = "aer"
    assert drawn(plan, 80)[0].startswith("average rates (AER)")


def test_a_new_day_is_named_in_the_line_of_times() -> None:
    ticks = drawn(answer({"a": [1.0] * 288}), 100)[1]
    assert ticks.split()[0] == "12:05" and "Tue 15" in ticks and "15:00" in ticks


def test_a_day_whose_midnight_had_no_room_is_named_at_the_next_time() -> None:
    plan = answer({"a": [1.0] * 288})
    plan["outlook"]["start_at"] = iso(datetime(2021, 6, 14, 23, 30, tzinfo=UTC))
    ticks = drawn(plan, 100)[1].split()
    assert ticks[:4] == ["23:30", "Tue", "03:00", "09:00"]
