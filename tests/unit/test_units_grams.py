"""Grams are exact and rounded once."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from carbonq.units import GRAM_QUANTUM, from_quanta, grams, grams_text, plain, quanta

WIDE = Context(prec=120, rounding=ROUND_HALF_EVEN)


@given(
    st.integers(0, 10**19),
    st.decimals(Decimal(1), Decimal(5), places=4),
    st.decimals(Decimal(-3000), Decimal(3000), places=12),
)
def test_grams_are_the_exact_product_rounded_once(energy_uj: int, pue: Decimal, rate: Decimal) -> None:
    product = WIDE.multiply(WIDE.multiply(Decimal(energy_uj), pue), rate)
    expected = WIDE.divide(product, Decimal(3_600_000_000_000)).quantize(GRAM_QUANTUM, context=WIDE)
    assert grams(energy_uj, pue, rate) == expected


def test_ties_go_to_the_even_neighbour_on_both_sides_of_zero() -> None:
    assert [quanta(n, 2 * 10**15) for n in (1, 3, 5, -1, -3, -5)] == [0, 2, 2, 0, -2, -2]


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**6))
def test_quanta_are_what_python_rounds_a_fraction_to(numerator: int, denominator: int) -> None:
    assert quanta(numerator, denominator) == round(Fraction(numerator * 10**15, denominator))


def test_grams_always_have_fifteen_decimals() -> None:
    assert plain(grams(3_600_000_000_000, Decimal("1.20"), Decimal(100))) == "120.000000000000000"
    assert plain(from_quanta(-1)) == "-0.000000000000001"


def test_precision_that_34_digits_would_lose_is_kept() -> None:
    # 34 digits then 15 decimals would round this twice, to the other side.
    rate = Decimal("0.0000000000000018000000000000000000000000000000000000001")
    assert grams(10**12, Decimal(1), rate) == Decimal("0.000000000000001")


@given(st.integers(min_value=-(10**33), max_value=10**33))
def test_quanta_are_written_as_their_decimal_is(count: int) -> None:
    assert grams_text(count) == plain(from_quanta(count))
