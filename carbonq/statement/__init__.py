"""A cloud provider's statement of carbon, read from CSV and compared with the ledger's inventory book. Pure.

Only location-based figures are compared, and only with the inventory book: the impact book answers another question,
and market-based figures are shown beside and stand outside. Energies are whole uJ, carbon is grams; a figure that the
statement does not have is None.
"""

from __future__ import annotations

from carbonq.statement.comparing import Booked, Compared, Comparison, compare
from carbonq.statement.reading import FIELDS, MAX_LINES, Columns, read, read_region_map
from carbonq.statement.stated import Stated, Statement

__all__ = [
    "FIELDS",
    "MAX_LINES",
    "Booked",
    "Columns",
    "Compared",
    "Comparison",
    "Stated",
    "Statement",
    "compare",
    "read",
    "read_region_map",
]
