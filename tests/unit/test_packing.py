"""Packed forecasts come back digit for digit."""

from __future__ import annotations

import csv
import gzip
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carbonq.store.packing import pack, unpack, unpack_floats

DECIMALS = st.one_of(
    st.none(),
    st.decimals(min_value=0, max_value=2000, places=1),
    st.decimals(min_value=0, max_value=3000, places=1).map(lambda value: abs(value) * Decimal("0.45359237")),
    st.decimals(min_value=0, allow_nan=False, allow_infinity=False).map(abs),
    st.integers(0, 10**40).map(Decimal),
)
SERIES = st.one_of(
    st.lists(DECIMALS, max_size=60),
    st.lists(st.one_of(st.none(), st.integers(0, 9999).map(lambda n: Decimal(n).scaleb(-1))), max_size=200),
)


def exact(values: list[Decimal | None]) -> list[object]:
    """The digits and exponents: equal decimals may differ in them."""
    return [None if value is None else value.as_tuple() for value in values]


@given(SERIES, st.integers(0, 70), st.integers(0, 70))
@example([Decimal(2**53 + 1), Decimal(2**53 + 3)], 0, 2)
@example([Decimal("3E-25"), Decimal("7E-25")], 0, 2)
@example([Decimal("3E+7"), Decimal("7E+7")], 0, 2)
def test_it_is_exact(values: list[Decimal | None], start: int, stop: int) -> None:
    packed = pack(values)
    assert exact(unpack(packed)) == exact(values)
    assert exact(unpack(packed, start, stop)) == exact(values[start:stop])
    expected = np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)
    np.testing.assert_array_equal(unpack_floats(packed), expected)


@pytest.mark.parametrize("bad", ["NaN", "-0.1", "Infinity", "-0"])
def test_what_is_no_intensity_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="is not an intensity"):
        pack([Decimal(1), Decimal(bad)])


def test_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 9"):
        unpack(b"\x09" + pack([Decimal(1)])[1:])


def test_three_days_take_less_than_two_bytes_a_value() -> None:
    """A walk in steps of up to 30 lb/MWh in tenths, converted: harder than a real forecast."""
    steps = np.random.default_rng(7).integers(-300, 301, 864)
    tenths = np.abs(5000 + np.cumsum(steps))
    values = [Decimal(int(one)).scaleb(-1) * Decimal("0.45359237") for one in tenths]
    packed = pack(values)
    assert exact(unpack(packed)) == exact(list(values))
    assert len(packed) < 2 * len(values)
    assert len(pack([Decimal("412.3")] * 864)) < 30


def test_the_recorded_forecasts_that_ship_are_small() -> None:
    path = Path(__file__).parents[2] / "carbonq/data/grid/sgip_caiso_2021-06-07.csv.gz"
    with gzip.open(path, "rt") as file:
        rows = list(csv.reader(file))[1:1001]
    series = [[Decimal(cell) if cell else None for cell in row[3:]] for row in rows]
    packed = [pack(values) for values in series]
    assert [exact(unpack(one)) for one in packed] == [exact(values) for values in series]
    # 36 values each: the head of 7 bytes weighs more than it does for 864.
    assert sum(map(len, packed)) < 1.5 * sum(map(len, series))
