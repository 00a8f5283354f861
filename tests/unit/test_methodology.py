"""docs/methodology.md says what the code does."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

from carbonq import export
from carbonq.config import Settings
from carbonq.meters.protocol import MARKS
from carbonq.methods import METHOD, METHODS
from carbonq.model import EntryKind, Quality, RateStatus
from carbonq.units import grams, plain

TEXT = (Path(__file__).parents[2] / "docs" / "methodology.md").read_text(encoding="utf-8")


def test_the_formulas_are_the_registered_text() -> None:
    assert METHODS[METHOD].formulas in TEXT
    assert f"`{METHOD}`" in TEXT


def test_the_worked_line_is_right() -> None:
    assert f"= {plain(grams(3276, Decimal('1.20'), Decimal('412.3453')))}" in TEXT


def test_every_status_quality_and_the_kinds_in_use_are_explained() -> None:
    for word in [*RateStatus, *Quality, *EntryKind]:
        assert f"`{word.value}`" in TEXT, word


def test_every_column_it_names_exists() -> None:
    known = {*export.COLUMNS, *Settings.model_fields, *EntryKind, *MARKS, "cpu_time", "upper_bound"}
    known |= {
        "overhead_entries",
        "unmetered_entries",
        "unrated_entries",
        "kwh_per_million_tokens",
    }  # fields of summaries
    names = {name for name in re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", TEXT)}
    assert names <= known, names - known
