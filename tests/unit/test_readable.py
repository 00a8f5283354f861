from __future__ import annotations

import pytest

from carbonq import readable


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0, "0 gCO2e"),
        ("0.0000001234", "123 ngCO2e"),
        ("0.0123", "12.3 mgCO2e"),
        (-0.5, "-500 mgCO2e"),
        (12.345, "12.3 gCO2e"),
        (12_345, "12.3 kgCO2e"),
        (2_500_000, "2.5 tCO2e"),
        (12_345_678_901, "12,346 tCO2e"),
        (0.0009999, "1 mgCO2e"),
        (-999.6, "-1 kgCO2e"),
    ],
)
def test_grams_have_a_fitting_unit(value: float | str | None, text: str) -> None:
    assert readable.grams(value) == text


@pytest.mark.parametrize(
    ("uj", "text"),
    [
        (None, "unknown"),
        (12, "12 µJ"),
        (12_300, "12.3 mJ"),
        (1_500_000, "1.5 J"),
        (1_790_000_000, "1,790 J"),
        (3_599_000_000, "1 Wh"),
        (3_600_000_000, "1 Wh"),
        (3_600_000_000_000, "1 kWh"),
        (36_000_000_000_000_000, "10,000 kWh"),
    ],
)
def test_energy_has_a_fitting_unit(uj: int | None, text: str) -> None:
    assert readable.energy(uj) == text
