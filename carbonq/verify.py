#!/usr/bin/env python3
"""Check a carbonq ledger export: recompute every line from its own fields, and every whole engine batch.

One file, Python 3.11 standard library only, shares no code with carbonq: copy it anywhere and run

    python verify.py FILE.csv        ("-" reads standard input; --json for a machine)

Exit status 0: all lines are consistent. 1: some are not; each is named. 2: the file is no ledger export.
Memory: about 50 bytes a line of engine batches that are not complete in the file, 150 bytes an engine batch.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from typing import IO

METHODS = frozenset({"cq-2026-1", "cq-2026-2"})
#: By these a saving needs the very same status on both sides; by the others settled and restated are alike.
STRICT_METHODS = frozenset({"cq-2026-1"})
FINAL = frozenset({"settled", "restated"})
KINDS = frozenset({"item", "idle", "wasted", "gap", "host_other"})
STATUSES = frozenset({"provisional", "settled", "restated", "unsettleable", "missing"})
COMPONENTS = ("gpu", "cpu", "dram")

#: Grams for one raw unit, where the unit is one of these; raw figures in other units are not checked.
UNITS = {
    "g/kWh": "1",
    "kg/MWh": "1",
    "kg/kWh": "1000",
    "t/MWh": "1000",
    "lb/MWh": "0.45359237",
}
#: How far a raw figure may be from the rate, relatively: sources print rounded figures.
RAW_TOLERANCE = Decimal("1e-9")

REQUIRED: frozenset[str] = frozenset(
    (
        *("entry_id", "revision", "supersedes", "reason", "kind", "schema", "method", "clock", "started_at"),
        *("ended_at", "duration_s", "window", "part", "parts", "engine_batch_id", "engine_batch_items"),
        *("engine_batch_uj", "engine_batch_gpu_uj", "engine_batch_cpu_uj", "engine_batch_dram_uj", "share_num"),
        *("share_den", "prompt_tokens", "cached_tokens", "completion_tokens", "w_prompt", "w_cached"),
        *("w_completion", "gpu_uj", "cpu_uj", "dram_uj", "energy_uj", "gpu_meter", "cpu_meter", "dram_meter"),
        *("pue", "moer_g_per_kwh", "moer_window", "moer_step_s", "moer_raw", "moer_raw_unit", "moer_estimated"),
        *("moer_issued_at", "moer_status", "emission_g", "aer_g_per_kwh", "aer_window", "aer_step_s", "aer_raw"),
        *("aer_raw_unit", "aer_estimated", "aer_issued_at", "aer_status", "inventory_g", "embodied_kg", "life_h"),
        *("embodied_g", "transfer_bytes", "transfer_kwh_per_gb", "transfer_g_per_kwh", "transfer_g"),
        *("baseline_region", "baseline_window", "baseline_pue", "baseline_moer_g_per_kwh"),
        *("baseline_moer_status", "baseline_g", "saved_g"),
    )
)

#: Text columns among them: the export puts an apostrophe before what a spreadsheet would take for a formula.
ESCAPED = ("entry_id", "supersedes", "engine_batch_id", "method", "moer_raw_unit", "aer_raw_unit", "baseline_region")

_INT = re.compile(r"\d{1,18}\Z", re.ASCII)
_DECIMAL = re.compile(r"-?\d{1,30}(\.\d{1,40})?\Z", re.ASCII)
_GRAMS = re.compile(r"-?\d{1,30}\.\d{15}\Z", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z\Z", re.ASCII)


class NotALedger(Exception):
    """The input is no carbonq ledger export."""


class Wrong(Exception):
    """A field of a line is not what it must be."""


@dataclass(frozen=True)
class Problem:
    """One thing that is not right; ``line`` counts from 1, the header is line 1."""

    line: int
    entry_id: str
    what: str


@dataclass
class Report:
    """What a check found. ``partial_batches``: parts of engine batches of which the file holds only some entries."""

    lines: int = 0
    whole_batches: int = 0
    partial_batches: int = 0
    energy_uj: int = 0
    problems: list[Problem] = field(default_factory=list["Problem"])

    @property
    def is_consistent(self) -> bool:
        """Say whether nothing is wrong."""
        return not self.problems

    def summary(self) -> str:
        """Return one sentence."""
        batches = f"{self.whole_batches} whole and {self.partial_batches} partial engine batches"
        if self.is_consistent:
            return f"consistent: {self.lines} lines recomputed, {batches}"
        wrong = len({problem.line for problem in self.problems})
        return f"NOT consistent: {wrong} of {self.lines} lines are wrong; {batches}"


Line = Mapping[str, str]
Ratio = tuple[int, int]


# --- reading fields ---------------------------------------------------------------------------------------------


def integer(line: Line, name: str) -> int | None:
    """Read a whole number; None where the cell is empty."""
    text = line[name]
    if not text:
        return None
    if _INT.match(text) is None:
        raise Wrong(f"{name} is {text!r}, not a whole number")
    return int(text)


def needed(line: Line, name: str) -> int:
    """Read a whole number that must be there."""
    value = integer(line, name)
    if value is None:
        raise Wrong(f"{name} is empty")
    return value


@lru_cache(maxsize=65536)
def ratio(text: str, name: str) -> Ratio | None:
    """Read an exact decimal as a fraction; None where the cell is empty."""
    if not text:
        return None
    if _DECIMAL.match(text) is None:
        raise Wrong(f"{name} is {text!r}, not a decimal")
    return Decimal(text).as_integer_ratio()


def quanta(line: Line, name: str) -> int | None:
    """Read grams as a whole number of 1e-15 g; None where the cell is empty."""
    text = line[name]
    if not text:
        return None
    if _GRAMS.match(text) is None:
        raise Wrong(f"{name} is {text!r}, not grams with 15 decimals")
    return int(text.replace(".", "", 1))


@lru_cache(maxsize=65536)
def second(text: str, name: str) -> int:
    """Read a time as microseconds since 1970."""
    if _TIME.match(text) is None:
        raise Wrong(f"{name} is {text!r}, not a time like 2026-01-31T12:00:00.000000Z")
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise Wrong(f"{name} is {text!r}: {error}") from None
    return (at - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)


# --- the formulas of the methods ---------------------------------------------------------------------------------


def rounded(numerator: int, denominator: int) -> int:
    """Return grams as whole 1e-15 g, rounded half to even."""
    quotient, remainder = divmod(numerator * 10**15, denominator)
    twice = 2 * remainder
    return quotient + (twice > denominator or (twice == denominator and quotient % 2))


def energy_grams(energy_uj: int | None, pue: Ratio | None, rate: Ratio | None) -> int | None:
    """Return energy_uj / 3.6e12 x pue x rate."""
    if energy_uj is None or pue is None or rate is None:
        return None
    return rounded(energy_uj * pue[0] * rate[0], 3_600_000_000_000 * pue[1] * rate[1])


def recompute(line: Line) -> dict[str, int | None]:
    """Return the gram columns of a line as whole 1e-15 g, from its other fields. Raises Wrong for unreadable ones."""
    energy_uj = integer(line, "energy_uj")
    pue, moer, aer, kg, life, duration, kwh_per_gb, transfer_rate, other_pue, other_rate = (
        ratio(line[name], name)
        for name in (
            *("pue", "moer_g_per_kwh", "aer_g_per_kwh", "embodied_kg", "life_h", "duration_s"),
            *("transfer_kwh_per_gb", "transfer_g_per_kwh", "baseline_pue", "baseline_moer_g_per_kwh"),
        )
    )
    emission = energy_grams(energy_uj, pue, moer)
    embodied = transfer = saved = None
    if kg is not None and life is not None and duration is not None:
        hours = life[0] * 3600 * kg[1] * duration[1] * needed(line, "share_den")
        if not hours:
            raise Wrong("life_h or share_den is 0")
        embodied = rounded(kg[0] * 1000 * duration[0] * needed(line, "share_num") * life[1], hours)
    size = integer(line, "transfer_bytes")
    if size is not None and kwh_per_gb is not None and transfer_rate is not None:
        transfer = rounded(size * kwh_per_gb[0] * transfer_rate[0], 10**9 * kwh_per_gb[1] * transfer_rate[1])
    baseline = energy_grams(energy_uj, other_pue, other_rate)
    statuses = {line["moer_status"], line["baseline_moer_status"]}
    is_alike = len(statuses) == 1 or (statuses <= FINAL and line["method"] not in STRICT_METHODS)
    if emission is not None and baseline is not None and is_alike:
        saved = baseline - emission - (transfer or 0)
    return {
        "emission_g": emission,
        "inventory_g": energy_grams(energy_uj, pue, aer),
        "embodied_g": embodied,
        "transfer_g": transfer,
        "baseline_g": baseline,
        "saved_g": saved,
    }


def apportion(total: int, weights: list[int]) -> list[int]:
    """Divide whole microjoules by weights: rounded down, the rest to the largest remainders, earlier first."""
    denominator = sum(weights)
    pairs = [divmod(total * weight, denominator) for weight in weights]
    parts = [quotient for quotient, _ in pairs]
    order = sorted(range(len(parts)), key=lambda index: (-pairs[index][1], index))
    for index in order[: total - sum(parts)]:
        parts[index] += 1
    return parts


# --- one line ---------------------------------------------------------------------------------------------------


def grams_text(value: int | None) -> str:
    """Write 1e-15 g as the export does."""
    return "nothing" if value is None else format(Decimal(value).scaleb(-15), "f")


def _check_identity(line: Line) -> Iterator[str]:
    revision = needed(line, "revision")
    expected = f"{line['entry_id']}#{revision - 1}" if revision > 1 else ""
    if line["supersedes"] != expected:
        yield f"supersedes is {line['supersedes']!r}, revision {revision} needs {expected!r}"
    if (revision == 1) != (line["reason"] == "initial"):
        yield f"revision {revision} has reason {line['reason']!r}"
    if line["method"] not in METHODS or line["schema"] != "1":
        yield f"method {line['method']!r}, schema {line['schema']!r} are not known to this checker"
    if line["kind"] not in KINDS:
        yield f"kind {line['kind']!r} is unknown"
    if line["clock"] not in {"real", "accelerated", "simulated"}:
        yield f"clock {line['clock']!r} is unknown"
    prefix = f"{line['engine_batch_id']}.{line['part']}."
    if not line["entry_id"].startswith(prefix) or _INT.match(line["entry_id"][len(prefix) :]) is None:
        yield f"entry_id does not name its engine batch and part ({prefix}N)"
    if not 1 <= needed(line, "part") <= needed(line, "parts"):
        yield f"part {line['part']} of {line['parts']}"


def _check_times(line: Line) -> Iterable[str]:
    return _times(line["window"], line["started_at"], line["ended_at"], line["baseline_window"])


@lru_cache(maxsize=4096)
def _times(window: str, started_at: str, ended_at: str, baseline_window: str) -> tuple[str, ...]:
    found: list[str] = []
    start = second(window, "window")
    if start % 300_000_000:
        found.append(f"window {window} is not aligned to five minutes")
    if not start <= second(started_at, "started_at") <= second(ended_at, "ended_at") <= start + 300_000_000:
        found.append(f"{started_at} to {ended_at} is not inside window {window}")
    if baseline_window and second(baseline_window, "baseline_window") % 300_000_000:
        found.append(f"baseline_window {baseline_window} is not aligned to five minutes")
    return tuple(found)


def _check_energy(line: Line) -> Iterator[str]:
    known: list[int] = []
    totals: list[int] = []
    num, den = needed(line, "share_num"), needed(line, "share_den")
    if not 0 <= num <= den or not den:
        raise Wrong(f"share {num}/{den} is no share")
    for name in COMPONENTS:
        part, total = integer(line, f"{name}_uj"), integer(line, f"engine_batch_{name}_uj")
        is_metered = line[f"{name}_meter"] not in {"none", ""}
        if (part is None) != (total is None) or (part is not None and not is_metered):
            yield f"{name}_uj, engine_batch_{name}_uj and {name}_meter do not agree on whether it was metered"
            continue
        if part is None or total is None:
            continue
        known.append(part)
        totals.append(total)
        if abs(part * den - total * num) >= den:
            yield f"{name}_uj is {part}, 1 uJ or more from {num}/{den} of {total}"
    for name, values in (("energy_uj", known), ("engine_batch_uj", totals)):
        if integer(line, name) != (sum(values) if values else None):
            yield f"{name} is {line[name] or 'empty'}, its components sum to {sum(values) if values else 'nothing'}"


def _check_share(line: Line) -> Iterator[str]:
    num, den = needed(line, "share_num"), needed(line, "share_den")
    prompt, cached, completion = (needed(line, f"{name}_tokens") for name in ("prompt", "cached", "completion"))
    w_prompt, w_cached, w_completion = (needed(line, f"w_{name}") for name in ("prompt", "cached", "completion"))
    if cached > prompt:
        yield f"{cached} cached tokens among {prompt}"
    if line["kind"] != "item":
        if (num, den, prompt, cached, completion) != (1, 1, 0, 0, 0):
            yield f"an entry of kind {line['kind']} carries its energy whole, not {num}/{den}"
    elif line["part"] != "1":  # its share is part 1's; the whole batch is compared below
        if prompt or cached or completion:
            yield "tokens are counted on part 1 only"
    else:
        weight = w_prompt * (prompt - cached) + w_cached * cached + w_completion * completion
        is_equal_share = weight == 0 and num == 1 and line["share_den"] == line["engine_batch_items"]
        if weight != num and not is_equal_share:
            yield f"share_num is {num}, the tokens weigh {weight}"


_RATE_FIELDS: tuple[str, ...] = ("status", "g_per_kwh", "issued_at", "estimated", "window", "step_s", "raw_unit", "raw")
_read_rate = {book: itemgetter(*(f"{book}_{name}" for name in _RATE_FIELDS)) for book in ("moer", "aer")}


def _check_rate(line: Line, book: str) -> Iterable[str]:
    return _rate(book, line["window"], _read_rate[book](line))


@lru_cache(maxsize=4096)
def _rate(book: str, at: str, cells: tuple[str, ...]) -> tuple[str, ...]:
    """Return what is wrong with the rate of one book; the entries of an engine batch share theirs."""
    line: dict[str, str] = dict(zip(_RATE_FIELDS, cells, strict=True))
    line[f"{book}_step_s"] = line["step_s"]
    status, stated = line["status"], ratio(line["g_per_kwh"], f"{book}_g_per_kwh")
    found: list[str] = []
    if status not in STATUSES:
        found.append(f"{book}_status {status!r} is unknown")
    if (status == "missing") != (stated is None):
        found.append(f"{book}_status is {status!r} and {book}_g_per_kwh is {line['g_per_kwh'] or 'empty'}")
    if stated is None:
        return tuple(found)
    if status in {"settled", "restated"} and (line["issued_at"] or line["estimated"] != "false"):
        found.append(f"{book}_status is {status!r}, but the rate is a forecast or imputed")
    start, window = second(line["window"], f"{book}_window"), second(at, "window")
    if not start <= window < start + 1_000_000 * needed(line, f"{book}_step_s"):
        found.append(f"the {book} rate of {line['window']} does not cover window {at}")
    unit = UNITS.get(line["raw_unit"])
    if unit is not None and ratio(line["raw"], f"{book}_raw") is not None:
        rate = Decimal(line["g_per_kwh"])
        if abs(Decimal(line["raw"]) * Decimal(unit) - rate) > RAW_TOLERANCE * max(abs(rate), Decimal(1)):
            found.append(f"{book}_raw {line['raw']} {line['raw_unit']} is not {rate} g/kWh")
    return tuple(found)


def _check_grams(line: Line) -> Iterator[str]:
    for name, expected in recompute(line).items():
        if quanta(line, name) != expected:
            yield f"{name} is {line[name] or 'empty'}, recomputed {grams_text(expected)}"
    status = line["baseline_moer_status"]
    if status not in STATUSES | {""} or (status == "") != (line["baseline_region"] == ""):
        yield f"baseline_region {line['baseline_region']!r} has baseline_moer_status {status!r}"
    elif (status in {"missing", ""}) != (line["baseline_moer_g_per_kwh"] == ""):
        yield f"baseline_moer_status is {status!r} and its rate {line['baseline_moer_g_per_kwh'] or 'empty'}"


CHECKS: tuple[Callable[[Line], Iterable[str]], ...] = (
    _check_identity,
    _check_times,
    _check_energy,
    _check_share,
    lambda line: _check_rate(line, "moer"),
    lambda line: _check_rate(line, "aer"),
    _check_grams,
)


def line_problems(line: Line) -> list[str]:
    """Return what is wrong with one line by itself (cells by column name)."""
    found: list[str] = []
    for check_one in CHECKS:
        try:
            found.extend(check_one(line))
        except Wrong as error:
            if str(error) not in found:
                found.append(str(error))
    return found


# --- engine batches ---------------------------------------------------------------------------------------------

#: What all entries of one part of an engine batch must say alike.
ALIKE = (
    *("engine_batch_items", "engine_batch_uj", "engine_batch_gpu_uj", "engine_batch_cpu_uj", "engine_batch_dram_uj"),
    *("share_den", "parts", "window", "started_at", "ended_at", "duration_s", "pue", "clock"),
)
_FIELDS = 7  # position, revision, share_num, gpu, cpu, dram, line: what is kept of an entry


class _Part:
    """One part of an engine batch, as far as it was seen; energies that were not metered are kept as -1."""

    __slots__ = ("alike", "batch", "entries", "number")

    def __init__(self, line: Line) -> None:
        self.batch = line["engine_batch_id"]
        self.number = needed(line, "part")
        self.alike = tuple(line[name] for name in ALIKE)
        self.entries = array("q")

    def add(self, line: Line, number: int) -> Iterator[str]:
        for name, expected in zip(ALIKE, self.alike, strict=True):
            if line[name] != expected:
                yield f"{name} is {line[name]!r}, other entries of the engine batch say {expected!r}"
        energies = (integer(line, f"{name}_uj") for name in COMPONENTS)
        self.entries.extend(
            (
                int(line["entry_id"].rpartition(".")[2]),
                needed(line, "revision"),
                needed(line, "share_num"),
                *(-1 if energy is None else energy for energy in energies),
                number,
            )
        )

    def latest(self) -> Iterator[tuple[list[int], str | None]]:
        """Give the newest revision of each entry by position, with what is wrong among its revisions."""
        flat = self.entries
        rows = sorted(flat[start : start + _FIELDS].tolist() for start in range(0, len(flat), _FIELDS))
        for index, row in enumerate(rows):
            following = rows[index + 1] if index + 1 < len(rows) else None
            before = rows[index - 1] if index else None
            what = None
            if before is not None and before[0] == row[0]:
                if before[1] == row[1]:
                    what = f"revision {row[1]} is here twice"
                elif before[2:6] != row[2:6]:
                    what = f"revision {row[1]} changes the energy or share of revision {before[1]}"
            if following is None or following[0] != row[0] or what:
                yield row, what

    def check(self, before: dict[int, int] | None) -> tuple[bool, int, dict[int, int], list[tuple[int, str]]]:
        """Return (is whole, energy, shares by position, problems by line); ``before``: shares of an earlier part."""
        found: list[tuple[int, str]] = []
        newest: dict[int, list[int]] = {}
        for row, what in self.latest():
            newest[row[0]] = row
            if what:
                found.append((row[6], what))
        rows = list(newest.values())
        items, den = int(self.alike[0] or 0), int(self.alike[5])
        for row in rows:
            if before is not None and before.get(row[0], row[2]) != row[2]:
                found.append((row[6], f"share_num is {row[2]}, in an earlier part {before[row[0]]}"))
        if len(rows) > items:
            found.append((rows[-1][6], f"{len(rows)} entries of an engine batch of {items}"))
        is_whole = len(rows) == items
        weights = [row[2] for row in rows]
        if sum(weights) > den or (is_whole and sum(weights) != den):
            found.append((rows[0][6], f"the shares of the engine batch sum to {sum(weights)}/{den}, not to 1"))
        else:
            found += self._check_components(rows, weights, is_whole)
        energy = sum(energy for row in rows for energy in row[3:6] if energy > 0)
        return is_whole, energy, {row[0]: row[2] for row in rows}, found

    def _check_components(self, rows: list[list[int]], weights: list[int], is_whole: bool) -> Iterator[tuple[int, str]]:
        for index, name in enumerate(COMPONENTS):
            if not self.alike[2 + index]:
                continue
            total = int(self.alike[2 + index])
            actual = [row[3 + index] for row in rows]
            if not is_whole:
                if sum(actual) > total:
                    yield rows[0][6], f"{name}_uj of the entries sums to {sum(actual)} of {total}"
                continue
            if sum(actual) != total:
                yield rows[0][6], f"{name}_uj of the whole engine batch sums to {sum(actual)}, not {total}"
            for row, expected in zip(rows, apportion(total, weights), strict=True):
                if row[3 + index] != expected:
                    yield row[6], f"{name}_uj is {row[3 + index]}, the largest-remainder share is {expected}"


class _Scattered(Exception):
    """An engine batch's lines are not together, so nothing may be forgotten before the end."""


class _Checker:
    def __init__(self, *, keep: bool) -> None:
        self.report = Report()
        self._keep = keep
        self._open: dict[tuple[str, str], _Part] = {}
        self._closed: set[str] = set()
        self._last: tuple[str, str] | None = None
        self._names: dict[int, str] = {}
        self._before: tuple[str, dict[int, int]] = ("", {})

    def take(self, line: Line, number: int) -> None:
        self.report.lines += 1
        problems = line_problems(line)
        if not problems:  # a line that is wrong by itself would only make its engine batch look wrong too
            problems = list(self._join(line, number))
        self.report.problems += [Problem(number, line["entry_id"], what) for what in problems]

    def _join(self, line: Line, number: int) -> Iterator[str]:
        key = (line["engine_batch_id"], line["part"])
        if key != self._last:
            if not self._keep:
                self._close()
                if f"{key[0]}.{key[1]}" in self._closed:
                    raise _Scattered
            self._last = key
        part = self._open.get(key)
        if part is None:
            part = self._open[key] = _Part(line)
        self._names[number] = line["entry_id"]
        yield from part.add(line, number)

    def _close(self) -> None:
        for key in sorted(self._open, key=lambda key: (key[0], int(key[1]))):
            part = self._open[key]
            batch, shares = self._before
            is_whole, energy, shares, found = part.check(shares if batch == part.batch else None)
            self._before = (part.batch, shares)
            self.report.whole_batches += is_whole
            self.report.partial_batches += not is_whole
            self.report.energy_uj += energy
            self.report.problems += [Problem(line, self._names[line], what) for line, what in found]
            if not self._keep:
                self._closed.add(f"{key[0]}.{key[1]}")
        self._open.clear()
        self._names.clear()

    def finish(self) -> Report:
        self._close()
        self.report.problems.sort(key=lambda problem: problem.line)
        return self.report


def _run(lines: Iterable[str], *, keep: bool) -> Report:
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(lines, strict=True)
    try:
        header = next(reader, None)
        if header is None:
            raise NotALedger("the file is empty")
        missing = sorted(REQUIRED - set(header))
        if missing:
            raise NotALedger(f"these columns of a ledger export are missing: {', '.join(missing[:5])}")
        if len(set(header)) != len(header):
            raise NotALedger("a column is there twice")
        checker = _Checker(keep=keep)
        names: list[str] = sorted(REQUIRED)
        pick = itemgetter(*(header.index(name) for name in names))
        number = reader.line_num + 1
        for row in reader:
            if len(row) == len(header):
                cells: dict[str, str] = dict(zip(names, pick(row), strict=True))
                for name in ESCAPED:
                    if cells[name][:1] == "'":
                        cells[name] = cells[name][1:]
                checker.take(cells, number)
            else:
                checker.report.lines += 1
                what = f"{len(row)} fields instead of {len(header)}"
                checker.report.problems.append(Problem(number, row[0] if row else "", what))
            number = reader.line_num + 1
        return checker.finish()
    except UnicodeDecodeError as error:
        raise NotALedger("it is not UTF-8 text") from error
    except csv.Error as error:
        raise NotALedger(f"line {reader.line_num}: {error}") from error


def check(source: str | IO[str]) -> Report:
    """Check an export, given as a path or an open text stream (opened with ``newline=""``).

    Raises NotALedger when it is no export, OSError when it cannot be read.
    """
    if isinstance(source, str):
        with open(source, encoding="utf-8-sig", newline="") as stream:
            return check(stream)
    if not source.seekable():
        return _run(source, keep=True)
    start = source.tell()
    try:
        return _run(source, keep=False)
    except _Scattered:
        source.seek(start)
        return _run(source, keep=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    paths = [argument for argument in given if argument != "--json"]
    if len(paths) != 1 or paths[0] in {"-h", "--help"}:
        print(__doc__)
        return 0 if paths[:1] in (["-h"], ["--help"]) else 2
    try:
        standard_input = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", newline="")
        report = check(standard_input if paths[0] == "-" else paths[0])
    except (NotALedger, OSError) as error:
        print(f"{paths[0]}: {error}", file=sys.stderr)
        return 2
    if "--json" in given:
        print(json.dumps(asdict(report) | {"is_consistent": report.is_consistent}, indent=2))
    else:
        for problem in report.problems:
            print(f"line {problem.line}: {problem.entry_id}: {problem.what}")
        print(report.summary())
    return 0 if report.is_consistent else 1


if __name__ == "__main__":
    sys.exit(main())
