"""The ledger as Parquet: the lines of the CSV with types, texts as they were stored.

Whole numbers are int64, gram figures decimal(38, 15), times microseconds in UTC, truth boolean; rates, PUE and other
exact decimals stay text, because they have as many places as their source wrote. Unknown is null.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

from carbonq import export
from carbonq.errors import ConfigError

_WHOLE = (
    *("revision", "schema", "item", "attempt", "part", "parts", "engine_batch_items", "engine_batch_uj"),
    *("engine_batch_gpu_uj", "engine_batch_cpu_uj", "engine_batch_dram_uj", "share_num", "share_den", "prompt_tokens"),
    *("cached_tokens", "completion_tokens", "w_prompt", "w_cached", "w_completion", "gpu_uj", "cpu_uj", "dram_uj"),
    *("energy_uj", "moer_step_s", "aer_step_s", "transfer_bytes"),
)
_GRAMS = ("emission_g", "inventory_g", "embodied_g", "transfer_g", "baseline_g", "saved_g")
_TIMES = (
    *("recorded_at", "started_at", "ended_at", "window", "moer_window", "moer_issued_at", "moer_retrieved_at"),
    *("aer_window", "aer_issued_at", "aer_retrieved_at", "planned_window", "planned_issued_at", "baseline_window"),
)
_TRUTHS = ("moer_estimated", "aer_estimated")


def write(pages: Iterable[str]) -> Iterator[bytes]:
    """Turn finished CSV lines into a Parquet file, one row group a page. Raises ConfigError without pyarrow."""
    try:
        import pyarrow
        from pyarrow import csv, parquet
    except ImportError as error:
        raise ConfigError("Parquet needs the extra parquet: pip install 'carbonq[parquet]'") from error
    return _write(pages, pyarrow, csv, parquet)


def _write(pages: Iterable[str], pyarrow: Any, csv: Any, parquet: Any) -> Iterator[bytes]:
    schema = pyarrow.schema([(name, _type(pyarrow, name)) for name in export.COLUMNS])
    reading = csv.ReadOptions(column_names=list(export.COLUMNS), block_size=2**30)
    parsing = csv.ParseOptions(newlines_in_values=True)
    converting = csv.ConvertOptions(
        column_types=schema, strings_can_be_null=True, null_values=[""], quoted_strings_can_be_null=True
    )
    sink = _Sink()
    with parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        for page in pages:
            table = csv.read_csv(io.BytesIO(page.encode()), reading, parsing, converting)
            writer.write_table(_unescaped(pyarrow, table))
            yield sink.drain()
    yield sink.drain()


class _Sink(io.RawIOBase):
    """Takes what the writer writes, in order, until it is drained."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any, /) -> int:
        self._pieces.append(bytes(data))
        self._size += len(self._pieces[-1])
        return len(self._pieces[-1])

    def drain(self) -> bytes:
        """Return what was written since the last time."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data


def _type(pyarrow: Any, name: str) -> Any:
    if name in _WHOLE:
        return pyarrow.int64()
    if name in _GRAMS:
        return pyarrow.decimal128(38, 15)
    if name in _TIMES:
        return pyarrow.timestamp("us", tz="UTC")
    return pyarrow.bool_() if name in _TRUTHS else pyarrow.string()


def _unescaped(pyarrow: Any, table: Any) -> Any:
    """Take the apostrophes off again that the CSV puts before what a spreadsheet would run."""
    compute = pyarrow.compute
    for number, name in enumerate(table.column_names):
        if name in export.TEXT_COLUMNS:
            column = table.column(number)
            is_escaped = compute.starts_with(column, "'")
            if compute.any(is_escaped).as_py():
                stripped = compute.utf8_slice_codeunits(column, 1)
                table = table.set_column(number, name, compute.if_else(is_escaped, stripped, column))
    return table
