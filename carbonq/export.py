"""The ledger's CSV: which columns, in which order, and how each value is written. Pure: stored rows in, text out.

RFC 4180: CRLF, quotes where needed, UTF-8, a header row. Energies are whole uJ, decimals exact and without exponent,
times ``YYYY-MM-DDTHH:MM:SS.ffffffZ``, truth ``true``/``false``; an empty cell is unknown or does not apply, never 0.
Text that a spreadsheet would take for a formula gets an apostrophe in front; ``unescape`` takes it off again.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Protocol

from carbonq.model import Signal
from carbonq.units import iso, plain


class StoredRow(Protocol):
    """A row of a table: values by column name."""

    def __getitem__(self, name: str, /) -> Any:
        """Return one column's value."""
        ...


#: Rendered values of one line by column name; text is not yet made safe for spreadsheets.
Cells = dict[str, str]

_RATE = (
    *("g_per_kwh", "gas", "source", "zone", "model", "window", "step_s", "issued_at", "retrieved_at", "raw"),
    *("raw_unit", "estimated", "status"),
)

#: All columns in order: identity, subject, place and time, engine batch, energy, impact book, inventory book, other
#: carbon, plan and claim.
COLUMNS: tuple[str, ...] = (
    *("entry_id", "revision", "supersedes", "reason", "restatement_id", "recorded_at", "recorded_by", "kind"),
    *("outcome", "schema", "method", "software_version", "clock"),
    *("tenant", "api_key_id", "product_line", "workload", "job_id", "custom_id", "item", "chunk_id", "attempt"),
    *("class", "model", "requested_model", "engine", "engine_version", "precision"),
    *("region", "ownership", "hardware", "device_ids", "started_at", "ended_at", "duration_s", "window", "part"),
    "parts",
    *("engine_batch_id", "engine_batch_items", "engine_batch_uj", "engine_batch_gpu_uj", "engine_batch_cpu_uj"),
    *("engine_batch_dram_uj", "share_num", "share_den", "prompt_tokens", "cached_tokens", "completion_tokens"),
    *("w_prompt", "w_cached", "w_completion"),
    *("gpu_uj", "cpu_uj", "dram_uj", "energy_uj", "gpu_meter", "cpu_meter", "dram_meter", "quality"),
    *("uncertainty_pct", "pue", "pue_source"),
    *(f"moer_{name}" for name in _RATE),
    "emission_g",
    *(f"aer_{name}" for name in _RATE),
    *("aer_method", "inventory_g"),
    *("embodied_kg", "life_h", "embodied_g"),
    *("transfer_bytes", "transfer_kwh_per_gb", "transfer_g_per_kwh", "transfer_g"),
    *("plan_id", "planned_region", "planned_window", "planned_moer_g_per_kwh", "planned_issued_at"),
    *("placement_reason", "baseline_region", "baseline_window", "baseline_pue", "baseline_moer_g_per_kwh"),
    *("baseline_moer_status", "baseline_g", "saved_g", "cost"),
)

#: Columns whose values people or other systems choose; only these are escaped.
TEXT_COLUMNS: frozenset[str] = frozenset(
    (
        *("entry_id", "supersedes", "restatement_id", "recorded_by", "outcome", "method", "software_version"),
        *("tenant", "api_key_id", "product_line", "workload", "job_id", "custom_id", "chunk_id", "model"),
        *("requested_model", "engine", "engine_version", "precision", "region", "ownership", "hardware", "device_ids"),
        *("engine_batch_id", "pue_source", "moer_gas", "moer_source", "moer_zone", "moer_model", "moer_raw_unit"),
        *("aer_gas", "aer_source", "aer_zone", "aer_model", "aer_raw_unit", "aer_method", "plan_id"),
        *("planned_region", "placement_reason", "baseline_region"),
    )
)

#: What spreadsheets start a formula or a control with; the apostrophe itself, so that escaping can be undone.
_DANGEROUS = ("=", "+", "-", "@", "\t", "\r", "\n", "'", "＝", "＋", "－", "＠")

#: What makes a cell need quotes.
_QUOTED = re.compile('[",\r\n]')


def escape(text: str) -> str:
    """Make a text cell safe to open in a spreadsheet."""
    return f"'{text}" if text.startswith(_DANGEROUS) else text


def unescape(text: str) -> str:
    """Take back ``escape``."""
    return text[1:] if text.startswith("'") else text


def text_of(value: object) -> str:
    """Write one value as the CSV does; unknown is empty."""
    if value is None:
        return ""
    return value if isinstance(value, str) else _WRITERS.get(value.__class__, str)(value)


@lru_cache(maxsize=4096)
def _time(value: datetime) -> str:
    return iso(value)


_WRITERS: Mapping[type, Callable[[Any], str]] = {
    bool: lambda value: "true" if value else "false",
    datetime: _time,
    Decimal: plain,
    list: lambda value: ";".join(map(str, value)),
}


#: Column of the CSV -> column of ``entries``, with the one name that differs.
ENTRY_COLUMNS: Mapping[str, str] = {
    name: name
    for name in (
        *("entry_id", "revision", "supersedes", "reason", "restatement_id", "recorded_at", "recorded_by", "kind"),
        *("outcome", "schema", "method", "tenant", "api_key_id", "product_line", "workload", "job_id", "custom_id"),
        *("item", "chunk_id", "attempt", "class", "requested_model", "part", "share_num", "share_den"),
        *("prompt_tokens", "cached_tokens", "completion_tokens", "w_prompt", "w_cached", "w_completion"),
        *("gpu_uj", "cpu_uj", "dram_uj", "energy_uj", "moer_status", "emission_g", "aer_status", "inventory_g"),
        *("embodied_g", "transfer_bytes", "transfer_kwh_per_gb", "transfer_g_per_kwh", "transfer_g"),
        *("baseline_region", "baseline_moer_status", "baseline_g", "saved_g", "cost"),
    )
} | {"baseline_window": "baseline_window_at"}

_BATCH = {
    name: name
    for name in (
        *("software_version", "clock", "model", "engine", "engine_version", "precision", "region", "device_ids"),
        *("started_at", "ended_at", "duration_s", "parts", "engine_batch_id", "gpu_meter", "cpu_meter", "dram_meter"),
        *("quality", "uncertainty_pct"),
    )
} | {
    "window": "window_at",
    "engine_batch_items": "items",
    "engine_batch_uj": "energy_uj",
    "engine_batch_gpu_uj": "gpu_uj",
    "engine_batch_cpu_uj": "cpu_uj",
    "engine_batch_dram_uj": "dram_uj",
}

_FACT = ("ownership", "hardware", "pue", "pue_source", "embodied_kg", "life_h")

_PLACEMENT = {
    "plan_id": "plan_id",
    "planned_region": "region",
    "planned_window": "window_at",
    "planned_moer_g_per_kwh": "g_per_kwh",
    "planned_issued_at": "issued_at",
    "placement_reason": "reason",
}

_RATE_SOURCE = {"window": "window_at", "estimated": "is_estimated"}


def entry_cells(row: StoredRow) -> Cells:
    """Render what an ``entries`` row says by itself."""
    return {name: text_of(row[source]) for name, source in ENTRY_COLUMNS.items()}


def batch_cells(row: StoredRow) -> Cells:
    """Render what an ``engine_batches`` row says."""
    return {name: text_of(row[source]) for name, source in _BATCH.items()}


def fact_cells(row: StoredRow) -> Cells:
    """Render what a ``facts`` row says of the region that ran the work."""
    return {name: text_of(row[name]) for name in _FACT}


def rate_cells(prefix: str, row: StoredRow | None) -> Cells:
    """Render a ``rates`` row for one book (``moer`` or ``aer``); all empty without one."""
    names = (*_RATE[:-1], "method") if prefix == "aer" else _RATE[:-1]
    return {f"{prefix}_{name}": "" if row is None else text_of(row[_RATE_SOURCE.get(name, name)]) for name in names}


def placement_cells(row: StoredRow | None) -> Cells:
    """Render the placement an item ran under; all empty without one.

    A placement decided by average rates has no planned marginal one.
    """
    cells = {name: "" if row is None else text_of(row[source]) for name, source in _PLACEMENT.items()}
    if row is not None and row["signal"] == Signal.AER.value:
        cells["planned_moer_g_per_kwh"] = ""
    return cells


def baseline_cells(fact: StoredRow | None, rate: StoredRow | None) -> Cells:
    """Render the baseline's PUE and rate."""
    return {
        "baseline_pue": "" if fact is None else text_of(fact["pue"]),
        "baseline_moer_g_per_kwh": "" if rate is None else text_of(rate["g_per_kwh"]),
    }


#: Columns of ``entries`` in which the items of an engine batch differ, in the order of ``COLUMNS``; the other cells of
#: a line are the same for many.
OWN_COLUMNS: tuple[str, ...] = (
    *("entry_id", "supersedes", "custom_id", "item", "share_num", "prompt_tokens", "cached_tokens"),
    *("completion_tokens", "gpu_uj", "cpu_uj", "dram_uj", "energy_uj", "emission_g", "inventory_g", "embodied_g"),
    *("baseline_g", "saved_g"),
)

#: How many of them, at the beginning, are texts.
OWN_TEXTS = 3


def header() -> str:
    """Return the first line of the CSV, with its CRLF."""
    return ",".join(COLUMNS) + "\r\n"


def quoted(text: str) -> str:
    """Write one text cell: safe for spreadsheets, in quotes where RFC 4180 wants them."""
    text = escape(text)
    return text if _QUOTED.search(text) is None else '"' + text.replace('"', '""') + '"'


def line(cells: Mapping[str, str]) -> str:
    """Write one line, with its CRLF."""
    return ",".join(quoted(cells[name]) if name in TEXT_COLUMNS else cells[name] for name in COLUMNS) + "\r\n"


def line_template(cells: Mapping[str, str]) -> str:
    """Return a line as a ``%`` template with one ``%s`` for each of ``OWN_COLUMNS``, its other cells from ``cells``."""
    parts: list[str] = []
    for name in COLUMNS:
        if name in OWN_COLUMNS:
            parts.append("%s")
        else:
            parts.append((quoted(cells[name]) if name in TEXT_COLUMNS else cells[name]).replace("%", "%%"))
    return ",".join(parts) + "\r\n"


def write_csv(pages: Iterable[str], *, has_header: bool = True) -> Iterator[bytes]:
    """Write the header and then each page of finished lines, as UTF-8, without holding more than a page."""
    if has_header:
        yield header().encode()
    for page in pages:
        yield page.encode()


def read_csv(lines: Iterable[str]) -> Iterator[Cells]:
    """Read what ``write_csv`` wrote, texts unescaped."""
    for row in csv.DictReader(lines):
        yield {name: unescape(value) if name in TEXT_COLUMNS else value for name, value in row.items()}
