"""SCI: (E x I + M) / R; overhead is shared exactly and by attributed energy alone."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq import sci
from carbonq.sci import NOTHING, Carbon, Pool

GRAMS = st.fractions(0, 1000)


def test_the_formula_by_hand() -> None:
    # 2 kWh x 400 g/kWh + 20 g embodied, over 4 items and 2,000,000 tokens
    carbon = Carbon(Fraction(800), Fraction(20))
    assert carbon.total_g == 820
    assert sci.per(carbon.total_g, 4) == Decimal("205.000000000000000")
    assert sci.per(carbon.total_g, 2_000_000, sci.MILLION) == Decimal("410.000000000000000")
    assert sci.kwh_per(7_200_000_000_000, 2_000_000, sci.MILLION) == Decimal("1.000000000000000")
    assert sci.per(Fraction(1), 3) == Decimal("0.333333333333333")


@pytest.mark.parametrize("carbon", [Carbon(None, Fraction(1)), Carbon(Fraction(1), None)])
def test_what_is_unknown_stays_unknown(carbon: Carbon) -> None:
    assert carbon.total_g is None
    assert (carbon + NOTHING).total_g is None
    assert sci.total([NOTHING, carbon]).total_g is None
    assert carbon.share(1, 2).total_g is None
    assert sci.per(None, 3) is None
    assert sci.per(Fraction(1), 0) is None
    assert sci.kwh_per(None, 3) is None


@given(
    st.lists(st.tuples(GRAMS, GRAMS), min_size=1, max_size=4),
    st.lists(st.lists(st.integers(0, 10**12), min_size=4, max_size=4), min_size=1, max_size=5),
)
def test_shares_of_the_overhead_sum_to_it(overheads: list[tuple[Fraction, Fraction]], users: list[list[int]]) -> None:
    pools: dict[object, Pool] = {
        number: Pool(Carbon(*one), sum(user[number] for user in users)) for number, one in enumerate(overheads)
    }
    shares = [sci.shared_overhead(dict(enumerate(user)), pools) for user in users]
    together = sci.total(shares)
    used = [pool.overhead for pool in pools.values() if pool.attributed_uj]
    assert together == sci.total(used)


def test_a_pool_in_which_nothing_ran_is_shared_by_nobody() -> None:
    assert sci.shared_overhead({"a": 0}, {"a": Pool(Carbon(Fraction(5), Fraction(5)), 0)}) == NOTHING
