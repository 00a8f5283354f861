"""What the database computes is what Python computes, to the last digit, on both engines."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import BigInteger, Integer, Text, select

from carbonq.store import compute
from carbonq.store.database import Database
from carbonq.store.dialect import ExactDecimal, UtcDateTime
from carbonq.units import grams
from tests.unit.bookings import W0

#: Nothing is written: the database is the same for every example.
PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}

_RATES = st.decimals("-9999", "99999", allow_nan=False, places=6) | st.sampled_from(
    # Half a quantum exactly, an odd and an even one: 9/5000 x 1e-15 g an uJ.
    [Decimal(one) for one in ("0.0018", "0.0054", "0.0090", "-0.0018", "0", "250.50")]
)
_CASES = st.lists(
    st.tuples(
        st.none() | st.integers(0, 10**15) | st.integers(0, 9),
        st.none() | st.sampled_from([Decimal(1), Decimal("1.2"), Decimal("1.200")]),
        st.none() | _RATES,
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=12, **PATIENT)
@given(_CASES)
@example([(energy, Decimal(1), Decimal(rate)) for energy in (1, 3, 5, 7) for rate in ("0.0018", "-0.0018")])
def test_grams_are_exact(database: Database, cases: list[tuple[int | None, Decimal | None, Decimal | None]]) -> None:
    with database.read() as tx:
        rows = compute.given(
            tx,
            "c",
            {
                "number": (Integer(), list(range(len(cases)))),
                "energy_uj": (BigInteger(), [energy for energy, _, _ in cases]),
                "factor": (ExactDecimal(), [compute.product(pue, rate) for _, pue, rate in cases]),
            },
        )
        columns = (rows.c.number, compute.grams(tx, rows.c.energy_uj, rows.c.factor))
        found = {number: value for number, value in tx.execute(select(*columns))}
    for number, (energy, pue, rate) in enumerate(cases):
        known = energy is not None and pue is not None and rate is not None
        expected = grams(energy, pue, rate) if known else None
        assert str(found[number]) == str(expected), (energy, pue, rate)


@settings(max_examples=6, **PATIENT)
@given(st.lists(st.tuples(*[st.none() | st.decimals(-(10**6), 10**9, places=15)] * 3), min_size=1, max_size=20))
def test_a_saving_is_exact(database: Database, cases: list[tuple[Decimal | None, ...]]) -> None:
    with database.read() as tx:
        names = ("baseline", "emission", "transfer")
        rows = compute.given(
            tx,
            "c",
            {"number": (Integer(), list(range(len(cases))))}
            | {name: (ExactDecimal(), [case[at] for case in cases]) for at, name in enumerate(names)},
        )
        saved = compute.less(tx, *(rows.c[name] for name in names))
        found = {number: value for number, value in tx.execute(select(rows.c.number, saved))}
    for number, (baseline, emission, transfer) in enumerate(cases):
        known = baseline is not None and emission is not None
        assert found[number] == (baseline - emission - (transfer or 0) if known else None)


def test_given_rows_come_back_as_they_were(database: Database) -> None:
    texts = ["a", None, "", "NULL", 'q"uo\\te', "co,m{m}a", "ü🔌", "line\nbreak", "'"]
    times = [W0 + timedelta(microseconds=number) if number % 2 else None for number in range(len(texts))]
    with database.read() as tx:
        rows = compute.given(tx, "r", {"text": (Text(), texts), "at": (UtcDateTime(), times)})
        assert [tuple(row) for row in tx.execute(select(rows.c.text, rows.c.at))] == list(
            zip(texts, times, strict=True)
        )
