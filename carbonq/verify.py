#!/usr/bin/env python3
"""Check a carbonq ledger export: recompute every line from its own fields, and every whole engine batch.

One file, Python 3.11 standard library only, shares no code with carbonq: copy it anywhere and run

    python verify.py FILE.csv        (or FILE.csv.gz; "-" reads standard input; --json for a machine)
    python verify.py --proof PROOF.json [--head HASH]
    python verify.py --audit AUDIT.json [--head HASH] [--expect IDS.txt]       (or AUDIT.json.gz; --json)

The second form checks that one entry is under a seal: from what is stored of it to the seal's root, and from there to
the head, the hash of the newest seal; give the head that you filed yourself. The third does so for all entries of a
customer's month at once, recomputes each and their sums, and says which of the entry ids in IDS.txt (one a line, those
you kept) are not in the file.

Exit status 0: all is consistent. 1: some is not; each is named. 2: the file is no ledger export, proof or audit file.
Memory: about 50 bytes a line of engine batches that are not complete in the file, 150 bytes an engine batch; of audit
files 40 bytes a sealed revision, 150 bytes an engine batch and a page of the file (64 MB at most).
"""

from __future__ import annotations

import csv
import datetime
import gzip
import hashlib
import io
import json
import re
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from typing import IO, Any

METHODS = frozenset({"cq-2026-1", "cq-2026-2"})
#: By these a saving needs the very same status on both sides; by the others settled and restated are alike.
STRICT_METHODS = frozenset({"cq-2026-1"})
FINAL = frozenset({"settled", "restated"})
KINDS = frozenset({"item", "idle", "wasted", "gap", "host_other"})
REASONS = frozenset({"initial", "settled", "restated", "corrected"})
STATUSES = frozenset({"provisional", "settled", "restated", "unsettleable", "missing"})
COMPONENTS = ("gpu", "cpu", "dram")

_METERS = frozenset(
    {
        *("nvml_counter", "nvml_power", "amdsmi", "dcgm", "rapl", "cpu_time", "tdp", "nameplate", "external", "none"),
    }
)
#: All that columns with a closed vocabulary may say; the columns of rates and of what never applies may be empty.
WORDS: Mapping[str, frozenset[str]] = {
    "kind": KINDS,
    "clock": frozenset({"real", "accelerated", "simulated"}),
    "class": frozenset({"realtime", "interactive", "flexible", ""}),
    "quality": frozenset({"measured", "mixed", "estimated", "upper_bound"}),
    "ownership": frozenset({"owned", "colocated", "rented"}),
    "moer_gas": frozenset({"co2", "co2e", ""}),
    "aer_gas": frozenset({"co2", "co2e", ""}),
    "aer_method": frozenset({"direct", "lifecycle", ""}),
    "moer_estimated": frozenset({"true", "false", ""}),
    "aer_estimated": frozenset({"true", "false", ""}),
} | {f"{name}_meter": _METERS for name in COMPONENTS}

#: Columns that hold a time, a whole number or a decimal and that no formula reads; empty where unknown.
TIMES = ("recorded_at", "moer_issued_at", "moer_retrieved_at", "aer_issued_at", "aer_retrieved_at")
PLANNED_TIMES = ("planned_window", "planned_issued_at")
NUMBERS = ("attempt", "item")
DECIMALS = ("planned_moer_g_per_kwh", "cost")

#: Columns that are never empty.
STATED = ("recorded_at", "recorded_by", "software_version", "region", "hardware", "pue", "pue_source", "quality")

#: What a line says of a rate that is there, beside the figures; all of it is empty where there is none.
RATE_STATED = ("gas", "source", "zone", "window", "step_s", "retrieved_at", "raw", "raw_unit", "estimated")

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
        *("entry_id", "revision", "supersedes", "reason", "kind", "outcome", "schema", "method", "clock", "started_at"),
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
        *("restatement_id", "model", "engine", "engine_version", "precision", "device_ids", "uncertainty_pct"),
        *("reason", *WORDS, *TIMES, *PLANNED_TIMES, *NUMBERS, *DECIMALS, *STATED),
        *(f"{book}_{name}" for book in ("moer", "aer") for name in RATE_STATED),
    )
)

#: Text columns among them: the export puts an apostrophe before what a spreadsheet would take for a formula.
ESCAPED = (
    *("entry_id", "supersedes", "restatement_id", "recorded_by", "outcome", "method", "software_version", "model"),
    *("engine", "engine_version", "precision", "region", "ownership", "hardware", "device_ids", "engine_batch_id"),
    *("pue_source", "moer_gas", "moer_source", "moer_zone", "moer_raw_unit", "aer_gas", "aer_source", "aer_zone"),
    *("aer_raw_unit", "aer_method", "baseline_region"),
)

_INT = re.compile(r"\d{1,18}\Z", re.ASCII)
_DECIMAL = re.compile(r"-?\d{1,30}(\.\d{1,40})?\Z", re.ASCII)
_GRAMS = re.compile(r"-?\d{1,30}\.\d{15}\Z", re.ASCII)
_PERCENT = re.compile(r"\d{1,6}(\.\d{1,20})?(e-\d{1,3})?\Z", re.ASCII)
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


def may_compare(line: Line) -> bool:
    """Say whether a line's method lets its emission and its baseline be compared."""
    statuses = {line["moer_status"], line["baseline_moer_status"]}
    return len(statuses) == 1 or (statuses <= FINAL and line["method"] not in STRICT_METHODS)


def is_taken_back(line: Line) -> bool:
    """Say whether a line is a gap whose worker came back: its own meters tell the energy, and the gap's is 0."""
    return line["kind"] == "gap" and line["outcome"] == "returned"


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
        share_num = 0 if is_taken_back(line) else needed(line, "share_num")
        embodied = rounded(kg[0] * 1000 * duration[0] * share_num * life[1], hours)
    size = integer(line, "transfer_bytes")
    if size is not None and kwh_per_gb is not None and transfer_rate is not None:
        transfer = rounded(size * kwh_per_gb[0] * transfer_rate[0], 10**9 * kwh_per_gb[1] * transfer_rate[1])
    baseline = energy_grams(energy_uj, other_pue, other_rate)
    if emission is not None and baseline is not None and may_compare(line):
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
    if (revision == 1) != (line["reason"] == "initial") or line["reason"] not in REASONS:
        yield f"revision {revision} has reason {line['reason']!r}"
    if line["method"] not in METHODS or line["schema"] != "1":
        yield f"method {line['method']!r}, schema {line['schema']!r} are not known to this checker"
    if line["kind"] != "item" and line["item"]:
        yield f"an entry of kind {line['kind']} belongs to no item, not to {line['item']}"
    if line["kind"] == "gap" and line["quality"] == "measured":
        yield "an entry of kind gap is an estimate, not measured"
    if (line["restatement_id"] == "") != (line["reason"] != "restated"):
        yield f"restatement_id is {line['restatement_id']!r} in a revision with reason {line['reason']!r}"
    prefix = f"{line['engine_batch_id']}.{line['part']}."
    if not line["entry_id"].startswith(prefix) or _INT.match(line["entry_id"][len(prefix) :]) is None:
        yield f"entry_id does not name its engine batch and part ({prefix}N)"
    if not 1 <= needed(line, "part") <= needed(line, "parts"):
        yield f"part {line['part']} of {line['parts']}"


def _check_words(line: Line) -> Iterator[str]:
    """What no formula uses: the words of closed vocabularies, and whether times and numbers are some."""
    for name, words in WORDS.items():
        if line[name] not in words:
            yield f"{name} is {line[name]!r}, none of {', '.join(sorted(words - {''}))}"
    for name in STATED:
        if not line[name]:
            yield f"{name} is empty"
    for name in (*TIMES, *PLANNED_TIMES):
        if line[name]:
            second(line[name], name)
    for name in NUMBERS:
        integer(line, name)
    for name in DECIMALS:
        ratio(line[name], name)
    if line["uncertainty_pct"] and _PERCENT.match(line["uncertainty_pct"]) is None:
        yield f"uncertainty_pct is {line['uncertainty_pct']!r}, not a number"
    if line["kind"] == "item" and not (line["model"] and line["class"]):
        yield f"an item has model {line['model']!r} and class {line['class']!r}"


def _check_stated(line: Line) -> Iterator[str]:
    """Whether all is said of a rate that is there, and nothing of one that is not."""
    for book in ("moer", "aer"):
        for name in RATE_STATED:
            if (line[f"{book}_{name}"] == "") != (line[f"{book}_g_per_kwh"] == ""):
                yield f"{book}_{name} is {line[f'{book}_{name}']!r}, {book}_g_per_kwh {line[f'{book}_g_per_kwh']!r}"


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
        if is_taken_back(line):
            if part:
                yield f"{name}_uj is {part} in a gap that was taken back"
        elif abs(part * den - total * num) >= den:
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
    _check_words,
    _check_stated,
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


# --- many lines -------------------------------------------------------------------------------------------------

#: What lines of one part of an engine batch differ in; all other columns that are checked are alike in most of them.
OWN = (
    *("entry_id", "supersedes", "reason"),
    *("revision", "share_num", "prompt_tokens", "cached_tokens", "completion_tokens"),
    *("gpu_uj", "cpu_uj", "dram_uj", "energy_uj", "transfer_bytes"),
    *("emission_g", "inventory_g", "embodied_g", "transfer_g", "baseline_g", "saved_g"),
)
SHARED = tuple(sorted(REQUIRED - {*OWN, "item"}))

_NUMBERS = re.compile(
    ",".join([r"[0-9]{1,18}"] * 5 + [r"(?:[0-9]{1,18})?"] * 5 + [r"(?:-?[0-9]{1,30}\.[0-9]{15})?"] * 6)
)
_POSITION = re.compile(r"[0-9]{1,18}")

_LATER_REASONS = REASONS - {"initial"}

Numbers = tuple[int, int, int, int, int, int]


class _Context:
    """What lines that share all of ``SHARED`` have in common, read once.

    Made from a line that ``line_problems`` finds nothing wrong with. ``numbers`` then says of another one, much faster,
    that nothing is wrong with it either; what it does not say that of is looked at by ``line_problems``.
    """

    def __init__(self, line: Line) -> None:
        self.batch = line["engine_batch_id"]
        self.number = needed(line, "part")
        self.alike = tuple(line[name] for name in ALIKE)
        self.key = (self.batch, line["part"])
        self._prefix = f"{self.batch}.{line['part']}."
        self._den = den = needed(line, "share_den")
        self._totals = tuple(integer(line, f"engine_batch_{name}_uj") for name in COMPONENTS)
        self._is_item = line["kind"] == "item"
        self._has_tokens = self._is_item and line["part"] == "1"
        self._weights = tuple(needed(line, f"w_{name}") for name in ("prompt", "cached", "completion"))
        self._has_equal_shares = line["share_den"] == line["engine_batch_items"]
        pue, moer, aer, kg, life, duration, kwh_per_gb, transfer_rate, other_pue, other_rate = (
            ratio(line[name], name)
            for name in (
                *("pue", "moer_g_per_kwh", "aer_g_per_kwh", "embodied_kg", "life_h", "duration_s"),
                *("transfer_kwh_per_gb", "transfer_g_per_kwh", "baseline_pue", "baseline_moer_g_per_kwh"),
            )
        )
        self._emission = _product(pue, moer)
        self._inventory = _product(pue, aer)
        self._baseline = _product(other_pue, other_rate)
        self._embodied = self._transfer = None
        if kg is not None and life is not None and duration is not None:
            self._embodied = (
                kg[0] * 1000 * duration[0] * life[1] * 10**15,
                life[0] * 3600 * kg[1] * duration[1] * den,
            )
        if kwh_per_gb is not None and transfer_rate is not None:
            numerator = kwh_per_gb[0] * transfer_rate[0] * 10**15
            self._transfer = (numerator, 10**9 * kwh_per_gb[1] * transfer_rate[1])
        self._is_alike = may_compare(line)
        self.is_taken_back = is_taken_back(line)

    def numbers(self, own: tuple[str, ...]) -> Numbers | None:
        """Return position, revision, share and components (-1: not metered) of a line that is right, else None."""
        entry_id, supersedes, reason, *figures = own
        position = entry_id[len(self._prefix) :]
        if (
            self.is_taken_back
            or _NUMBERS.fullmatch(",".join(figures)) is None
            or not entry_id.startswith(self._prefix)
            or _POSITION.fullmatch(position) is None
        ):
            return None
        revision, share, prompt, cached, completion, gpu, cpu, dram, energy, size, *grams = figures
        if revision == "1":
            is_named = not supersedes and reason == "initial"
        else:
            is_named = supersedes == f"{entry_id}#{int(revision) - 1}" and reason in _LATER_REASONS
        num = int(share)
        if not is_named or num > self._den or not self._is_share(num, int(prompt), int(cached), int(completion)):
            return None
        parts = self._components(num, gpu, cpu, dram)
        if parts is None:
            return None
        known = [part for part in parts if part >= 0]
        energy_uj = sum(known) if known else None
        if (int(energy) if energy else None) != energy_uj or not self._are_grams(energy_uj, num, size, grams):
            return None
        return int(position), int(revision), num, *parts

    def _components(self, num: int, *cells: str) -> tuple[int, int, int] | None:
        """Read the components (-1: not metered); None where one is not its share, to less than 1 uJ."""
        den = self._den
        parts: list[int] = []
        for cell, total in zip(cells, self._totals, strict=True):
            if (total is None) == bool(cell):
                return None
            if total is None:
                parts.append(-1)
                continue
            part = int(cell)
            if not -den < part * den - total * num < den:
                return None
            parts.append(part)
        return parts[0], parts[1], parts[2]

    def _is_share(self, num: int, prompt: int, cached: int, completion: int) -> bool:
        if not self._has_tokens:
            return not (prompt or cached or completion) and (self._is_item or num == self._den == 1)
        w_prompt, w_cached, w_completion = self._weights
        weight = w_prompt * (prompt - cached) + w_cached * cached + w_completion * completion
        return cached <= prompt and (weight == num or (weight == 0 and num == 1 and self._has_equal_shares))

    def _are_grams(self, energy_uj: int | None, num: int, size: str, grams: list[str]) -> bool:
        emission = _scaled(energy_uj, self._emission)
        baseline = _scaled(energy_uj, self._baseline)
        transfer = _scaled(int(size), self._transfer) if size else None
        saved = None
        if self._is_alike and emission is not None and baseline is not None:
            saved = baseline - emission - (transfer or 0)
        expected = (
            emission,
            _scaled(energy_uj, self._inventory),
            _scaled(num, self._embodied),
            transfer,
            baseline,
            saved,
        )
        return expected == tuple([int(cell.replace(".", "", 1)) if cell else None for cell in grams])


def _product(pue: Ratio | None, rate: Ratio | None) -> Ratio | None:
    """Return what microjoules are multiplied with and divided by, to have 1e-15 g."""
    if pue is None or rate is None:
        return None
    return pue[0] * rate[0] * 10**15, 3_600_000_000_000 * pue[1] * rate[1]


def _scaled(amount: int | None, by: Ratio | None) -> int | None:
    """Return ``rounded`` of an amount, the powers of ten multiplied before."""
    if amount is None or by is None:
        return None
    quotient, remainder = divmod(amount * by[0], by[1])
    twice = 2 * remainder
    return quotient + (twice > by[1] or (twice == by[1] and quotient % 2))


# --- engine batches ---------------------------------------------------------------------------------------------

#: What all entries of one part of an engine batch must say alike.
ALIKE = (
    *("engine_batch_items", "engine_batch_uj", "engine_batch_gpu_uj", "engine_batch_cpu_uj", "engine_batch_dram_uj"),
    *("share_den", "parts", "window", "started_at", "ended_at", "duration_s", "pue", "clock"),
    *("region", "ownership", "hardware", "device_ids", "model", "engine", "engine_version", "precision"),
    *("software_version", "gpu_meter", "cpu_meter", "dram_meter", "quality", "uncertainty_pct", "pue_source"),
    *("embodied_kg", "life_h", "w_prompt", "w_cached", "w_completion", "kind"),
)
_FIELDS = 7  # position, revision, share_num, gpu, cpu, dram, line: what is kept of an entry


#: Is whole, energy, shares by position, problems as (position, line, what).
Checked = tuple[bool, int, dict[int, int], list[tuple[int, int, str]]]


class _Part:
    """One part of an engine batch, as far as it was seen; energies that were not metered are kept as -1."""

    __slots__ = ("alike", "batch", "context", "entries", "is_taken_back", "number")

    def __init__(self, batch: str, number: int, alike: tuple[str, ...]) -> None:
        self.batch = batch
        self.number = number
        self.alike = alike
        self.entries = array("q")
        self.context: _Context | None = None  # the last one seen to be alike
        self.is_taken_back = False

    def add(self, alike: tuple[str, ...], numbers: Numbers, line: int) -> Iterator[str]:
        if alike != self.alike:
            for name, own, expected in zip(ALIKE, alike, self.alike, strict=True):
                if own != expected:
                    yield f"{name} is {own!r}, other entries of the engine batch say {expected!r}"
        self.entries.extend(numbers)
        self.entries.append(line)

    def name(self, position: int) -> str:
        """Return the id of an entry."""
        return f"{self.batch}.{self.number}.{position}"

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

    def check(self, before: dict[int, int] | None) -> Checked:
        """Return (is whole, energy, shares by position, problems); ``before``: shares of an earlier part."""
        if self.is_taken_back:
            return True, 0, {}, []
        found: list[tuple[int, int, str]] = []
        items, den = int(self.alike[0] or 0), int(self.alike[5])
        quick = self._quickly(items, den) if before is None else None
        if quick is not None:
            return quick
        newest: dict[int, list[int]] = {}
        for row, what in self.latest():
            newest[row[0]] = row
            if what:
                found.append((row[0], row[6], what))
        rows = list(newest.values())
        for row in rows:
            if before is not None and before.get(row[0], row[2]) != row[2]:
                found.append((row[0], row[6], f"share_num is {row[2]}, in an earlier part {before[row[0]]}"))
        if len(rows) > items:
            found.append((rows[-1][0], rows[-1][6], f"{len(rows)} entries of an engine batch of {items}"))
        is_whole = len(rows) == items
        weights = [row[2] for row in rows]
        if sum(weights) > den or (is_whole and sum(weights) != den):
            found.append(
                (rows[0][0], rows[0][6], f"the shares of the engine batch sum to {sum(weights)}/{den}, not to 1")
            )
        else:
            found += self._check_components(rows, weights, is_whole)
        energy = sum(energy for row in rows for energy in row[3:6] if energy > 0)
        return is_whole, energy, {row[0]: row[2] for row in rows}, found

    def _quickly(self, items: int, den: int) -> Checked | None:
        """Return what ``check`` does where nothing is wrong with a whole part of first revisions; None otherwise."""
        flat = self.entries
        positions, weights = flat[0::_FIELDS].tolist(), flat[2::_FIELDS].tolist()
        if len(positions) != items or positions != list(range(items)) or set(flat[1::_FIELDS]) != {1}:
            return None
        if sum(weights) != den:
            return None
        energy = 0
        for index in range(len(COMPONENTS)):
            cell = self.alike[2 + index]
            if cell:
                total = int(cell)
                if flat[3 + index :: _FIELDS].tolist() != apportion(total, weights):
                    return None
                energy += total
        shares = dict(zip(positions, weights, strict=True)) if self.alike[6] != "1" else {}
        return True, energy, shares, []

    def _check_components(
        self, rows: list[list[int]], weights: list[int], is_whole: bool
    ) -> Iterator[tuple[int, int, str]]:
        for index, name in enumerate(COMPONENTS):
            if not self.alike[2 + index]:
                continue
            total = int(self.alike[2 + index])
            actual = [row[3 + index] for row in rows]
            if not is_whole:
                if sum(actual) > total:
                    yield rows[0][0], rows[0][6], f"{name}_uj of the entries sums to {sum(actual)} of {total}"
                continue
            if sum(actual) != total:
                yield rows[0][0], rows[0][6], f"{name}_uj of the whole engine batch sums to {sum(actual)}, not {total}"
            for row, expected in zip(rows, apportion(total, weights), strict=True):
                if row[3 + index] != expected:
                    yield row[0], row[6], f"{name}_uj is {row[3 + index]}, the largest-remainder share is {expected}"


class _Scattered(Exception):
    """An engine batch's lines are not together, so nothing may be forgotten before the end."""


class _Checker:
    def __init__(self, header: Sequence[str], *, keep: bool) -> None:
        self.report = Report()
        self._keep = keep
        self._open: dict[tuple[str, str], _Part] = {}
        self._closed: set[str] = set()
        self._last: tuple[str, str] | None = None
        self._before: tuple[str, dict[int, int]] = ("", {})
        self._names = sorted(REQUIRED)
        self._pick, self._pick_own, self._pick_shared, self._pick_item = (
            itemgetter(*(header.index(name) for name in names))
            for names in (self._names, OWN, SHARED, ("item", "kind"))
        )
        self._shared: tuple[str, ...] = ()
        self._context: _Context | None = None
        self._contexts: dict[tuple[str, ...], _Context] = {}

    def take(self, row: Sequence[str], number: int) -> None:
        """Check a line by itself, and keep what its engine batch is checked by."""
        self.report.lines += 1
        shared = self._pick_shared(row)
        if shared != self._shared:
            self._shared, self._context = shared, self._contexts.get(shared)
        context = self._context
        item, kind = self._pick_item(row)
        if context is not None and (not item or (kind == "item" and _POSITION.fullmatch(item) is not None)):
            numbers = context.numbers(self._pick_own(row))
            if numbers is not None:
                for what in self._join(context, numbers, number):
                    self.report.problems.append(Problem(number, self._pick_own(row)[0], what))
                return
        self._take_slowly(row, number)

    def _take_slowly(self, row: Sequence[str], number: int) -> None:
        line: dict[str, str] = dict(zip(self._names, self._pick(row), strict=True))
        for name in ESCAPED:
            if line[name][:1] == "'":
                line[name] = line[name][1:]
        problems = line_problems(line)
        if not problems:  # a line that is wrong by itself would only make its engine batch look wrong too
            energies = (integer(line, f"{name}_uj") for name in COMPONENTS)
            gpu, cpu, dram = (-1 if energy is None else energy for energy in energies)
            position = int(line["entry_id"].rpartition(".")[2])
            numbers = (position, needed(line, "revision"), needed(line, "share_num"), gpu, cpu, dram)
            context = _Context(line)
            if len(self._contexts) > _CONTEXTS:
                self._contexts.clear()
            self._context = self._contexts[self._shared] = context
            problems = self._join(context, numbers, number)
        self.report.problems += [Problem(number, line["entry_id"], what) for what in problems]

    def _join(self, context: _Context, numbers: Numbers, number: int) -> Sequence[str]:
        key = context.key
        if key != self._last:
            if not self._keep:
                self._close()
                if f"{key[0]}.{key[1]}" in self._closed:
                    raise _Scattered
            self._last = key
        part = self._open.get(key)
        if part is None:
            part = self._open[key] = _Part(context.batch, context.number, context.alike)
        part.is_taken_back |= context.is_taken_back
        if part.context is context:
            part.entries.extend((*numbers, number))
            return ()
        problems = list(part.add(context.alike, numbers, number))
        part.context = None if problems else context
        return problems

    def _close(self) -> None:
        for key in sorted(self._open, key=lambda key: (key[0], int(key[1]))):
            part = self._open[key]
            batch, shares = self._before
            is_whole, energy, shares, found = part.check(shares if batch == part.batch else None)
            self._before = (part.batch, shares)
            self.report.whole_batches += is_whole
            self.report.partial_batches += not is_whole
            self.report.energy_uj += energy
            self.report.problems += [Problem(line, part.name(position), what) for position, line, what in found]
            if not self._keep:
                self._closed.add(f"{key[0]}.{key[1]}")
        self._open.clear()

    def finish(self) -> Report:
        self._close()
        self.report.problems.sort(key=lambda problem: problem.line)
        return self.report


#: Contexts kept at once: lines of one engine batch may belong to several jobs, each with its own baseline.
_CONTEXTS = 256


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
        checker = _Checker(header, keep=keep)
        number = reader.line_num + 1
        width = len(header)
        for row in reader:
            if len(row) == width:
                checker.take(row, number)
            else:
                checker.report.lines += 1
                what = f"{len(row)} fields instead of {width}"
                checker.report.problems.append(Problem(number, row[0] if row else "", what))
            number = reader.line_num + 1
        return checker.finish()
    except UnicodeDecodeError as error:
        raise NotALedger("it is not UTF-8 text") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise NotALedger(f"its compression is broken: {error}") from error
    except csv.Error as error:
        raise NotALedger(f"line {reader.line_num}: {error}") from error


def check_lines(lines: Iterable[str]) -> Report:
    """Check an export given line by line, the lines of each part of an engine batch together, as exports have them.

    Raises NotALedger when it is no export, or its lines are in another order.
    """
    try:
        return _run(lines, keep=False)
    except _Scattered:
        raise NotALedger("the lines of an engine batch are not together") from None


def check(source: str | IO[str]) -> Report:
    """Check an export, given as a path or an open text stream (opened with ``newline=""``).

    Raises NotALedger when it is no export, OSError when it cannot be read.
    """
    if isinstance(source, str):
        with open(source, "rb") as probe:
            is_zipped = probe.read(2) == b"\x1f\x8b"
        opened = gzip.open if is_zipped else open
        with opened(source, "rt", encoding="utf-8-sig", newline="") as stream:
            return check(stream)
    if not source.seekable():
        return _run(source, keep=True)
    start = source.tell()
    try:
        return _run(source, keep=False)
    except _Scattered:
        source.seek(start)
        return _run(source, keep=True)


# --- proofs -----------------------------------------------------------------------------------------------------


class NotAProof(Exception):
    """The input is no proof of an entry."""


@dataclass
class Proof:
    """What a proof shows; ``head`` is the hash of the seal that vouches for the entry."""

    entry_id: str
    revision: int
    seal: int
    sealed_at: str
    head: str
    head_seal: int
    problems: list[str] = field(default_factory=list[str])

    def summary(self) -> str:
        """Return one sentence."""
        what = f"{self.entry_id} revision {self.revision}"
        if self.problems:
            return f"NOT proved: {what}"
        return f"proved: {what} is under seal {self.seal} of {self.sealed_at}; head {self.head} (seal {self.head_seal})"


def check_proof(document: Any, head: str | None = None) -> Proof:
    """Recompute a proof from what is stored of the entry up to the head, and the entry's own figures.

    ``head`` is the hash that must come out; without one it is the proof's own. Raises NotAProof.
    """
    try:
        if document["carbonq_proof"] != 1:
            raise NotAProof(f"its layout {document['carbonq_proof']!r} is unknown")
        entry, batch = (_content(document[name]["content"], table) for name, table in _CONTENTS)
        seal, vouching = (_content(document[name], "seal") for name in ("seal", "head"))
        hashed = _hash(b"\x02", document["head"])
        proof = Proof(entry["entry_id"], entry["revision"], seal["seal"], seal["sealed_at"], hashed, vouching["seal"])
        proof.problems += _path_problems(document, seal, vouching)
        proof.problems += _reference_problems(document, entry, batch)
        if (entry["engine_batch_id"], entry["part"]) != (batch["engine_batch_id"], batch["part"]):
            proof.problems.append("the engine batch is not the entry's")
        if head is not None and hashed != head:
            proof.problems.append(f"it leads to the head {hashed}, not to {head}")
        if not proof.problems:
            proof.problems += line_problems(_line(document, entry, batch))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise NotAProof(f"a part of it cannot be read ({error!r})") from error
    return proof


_CONTENTS = (("entry", "entries"), ("engine_batch", "engine_batches"))


def _content(text: str, table: str) -> dict[str, Any]:
    """Read what was hashed: the table's name, the format, and a JSON object."""
    name, version, body = text.split(" ", 2)
    if (name, version) != (table, "1"):
        raise NotAProof(f"it has {name!r} in format {version!r} where {table} in format 1 belongs")
    return json.loads(body)


def _hash(kind: bytes, text: str) -> str:
    return hashlib.sha256(kind + text.encode()).hexdigest()


def _root(hashed: str, index: int, count: int, path: list[str]) -> str:
    """Follow an inclusion proof (RFC 6962, section 2.1.1) from a leaf to the root; empty where it is none."""
    rest = iter(path)
    last = count - 1
    if not 0 <= index <= last:
        return ""
    own = bytes.fromhex(hashed)
    while last:
        if index % 2 or index < last:
            neighbour = bytes.fromhex(next(rest, ""))
            pair = neighbour + own if index % 2 else own + neighbour
            own = hashlib.sha256(b"\x01" + pair).digest()
        index, last = index // 2, last // 2
    return own.hex() if next(rest, None) is None else ""


def _path_problems(document: Any, seal: dict[str, Any], vouching: dict[str, Any]) -> Iterator[str]:
    for name, table in _CONTENTS:
        one = document[name]
        if _root(_hash(b"\x00", one["content"]), one["index"], seal["leaves"], one["path"]) != seal["root"]:
            yield f"the path of {table} does not lead to the root of seal {seal['seal']}"
    history = document["history"]
    if history is None:
        if document["seal"] != document["head"]:
            yield "no path leads from the seal to the head"
        return
    own = _hash(b"\x02", document["seal"])
    root = _root(own, history["index"], vouching["seal"] - 1, history["path"])
    if root != vouching["history"] or history["index"] != seal["seal"] - 1:
        yield f"the path of seal {seal['seal']} does not lead to seal {vouching['seal']}"


def _reference_problems(document: Any, entry: dict[str, Any], batch: dict[str, Any]) -> Iterator[str]:
    for table, own in _wanted(entry, batch):
        values = document[table].get(own)
        if values is None:
            yield f"{own} of {table} is missing"
        elif not _is_digest(own, values):
            yield f"{own} is not the digest of its values"
    if "placement" in entry and _hash(b"\x00", document["placement"] or "") != entry["placement"]:
        yield "the placement is not the entry's"


def _wanted(entry: Mapping[str, Any], batch: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return which rows of which tables an entry and its engine batch refer to by digest."""
    wanted = {("rates", entry.get(f"{name}_rate_id")) for name in ("moer", "aer", "baseline")}
    wanted |= {("facts", entry.get("baseline_fact_id")), ("facts", batch.get("fact_id"))}
    restated_by = entry.get("restatement_id")
    if restated_by is not None and re.fullmatch(r"rst_[0-9a-f]{32}", restated_by):  # older ones are no digests
        wanted.add(("restatements", restated_by))
    return sorted((table, own) for table, own in wanted if own is not None)


def _is_digest(own: str, values: Mapping[str, Any]) -> bool:
    text = json.dumps(list(values.values()), ensure_ascii=False, separators=(",", ":"))
    return own.partition("_")[2] == hashlib.sha256(text.encode()).hexdigest()[:32]


def _line(document: Any, entry: dict[str, Any], batch: dict[str, Any]) -> dict[str, str]:
    """Put the fields of an export's line together from what was sealed."""
    facts, rates = document["facts"], document["rates"]
    fact, other = facts[batch["fact_id"]], facts.get(entry.get("baseline_fact_id"), {})
    cells: dict[str, Any] = dict.fromkeys(REQUIRED) | entry
    cells |= {name: batch[name] for name in _BATCH_CELLS if name in batch}
    cells |= {f"engine_batch_{name}": batch.get(name) for name in ("uj", "gpu_uj", "cpu_uj", "dram_uj", "items")}
    cells |= {"engine_batch_uj": batch.get("energy_uj"), "window": batch["window_at"]}
    cells |= {name: fact[name] for name in ("pue", "pue_source", "hardware", "ownership", "embodied_kg", "life_h")}
    for book in ("moer", "aer"):
        rate = rates.get(entry.get(f"{book}_rate_id"), {})
        cells |= {f"{book}_{name}": rate.get(source) for name, source in _RATE_CELLS}
    cells["aer_method"] = rates.get(entry.get("aer_rate_id"), {}).get("method")
    cells["baseline_pue"] = other.get("pue")
    cells["baseline_moer_g_per_kwh"] = rates.get(entry.get("baseline_rate_id"), {}).get("g_per_kwh")
    cells["baseline_window"] = entry.get("baseline_window_at")
    return {name: _cell(cells[name]) for name in REQUIRED}


_BATCH_CELLS = (
    *("clock", "started_at", "ended_at", "duration_s", "parts", "gpu_meter", "cpu_meter", "dram_meter", "quality"),
    *("model", "engine", "engine_version", "precision", "region", "uncertainty_pct", "software_version"),
)
_RATE_CELLS = (
    *(("g_per_kwh", "g_per_kwh"), ("window", "window_at"), ("step_s", "step_s"), ("raw", "raw")),
    *(("raw_unit", "raw_unit"), ("estimated", "is_estimated"), ("issued_at", "issued_at")),
    *((name, name) for name in ("gas", "source", "zone", "retrieved_at")),
)
_DIGESTED_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?\+00:00", re.ASCII)


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = str(value)
    if value.__class__ is int or len(text) not in {
        4,
        5,
        25,
        32,
    }:  # as True, False, and times without or with a fraction
        return text
    if text in {"True", "False"}:
        return text.lower()
    found = _DIGESTED_TIME.fullmatch(text)
    return text if found is None else f"{text[:19]}{found[1] or '.000000'}Z"


def _main_proof(path: str, head: str | None, *, as_json: bool) -> int:
    try:
        with open(path, encoding="utf-8") as stream:
            proof = check_proof(json.load(stream), head)
    except (NotAProof, OSError, ValueError, RecursionError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    if as_json:
        print(json.dumps(asdict(proof) | {"is_proved": not proof.problems}, indent=2))
    else:
        for what in proof.problems:
            print(f"{proof.entry_id}: {what}")
        print(proof.summary())
    return 1 if proof.problems else 0


# --- audit files ------------------------------------------------------------------------------------------------


class NotAnAudit(Exception):
    """The input is no audit file."""


@dataclass
class Audit:
    """What an audit file shows; ``head`` vouches for ``sealed`` of the entry revisions."""

    tenant: str
    month: str
    api_key_id: str | None
    head: str | None = None
    head_seal: int | None = None
    entries: int = 0
    revisions: int = 0
    sealed: int = 0
    seals: int = 0
    whole_batches: int = 0
    partial_batches: int = 0
    problems: list[Problem] = field(default_factory=list["Problem"])

    def summary(self) -> str:
        """Return one sentence."""
        of_key = "" if self.api_key_id is None else f" with key {self.api_key_id}"
        what = f"{self.entries} entries ({self.revisions} revisions) of {self.tenant}{of_key} in {self.month}"
        batches = f"{self.whole_batches} whole and {self.partial_batches} partial engine batches"
        if self.problems:
            return f"NOT consistent: {len(self.problems)} problems among {what}; {batches}"
        under = f"{self.sealed} revisions under {self.seals} seals, {self.revisions - self.sealed} not sealed"
        vouching = "" if self.head is None else f"; head {self.head} (seal {self.head_seal})"
        return f"consistent: {what} recomputed, {batches}; {under}{vouching}"


#: Characters of one member of a list, and how many are read at once.
_MEMBER, _CHUNK = 64 * 2**20, 2**20

_SPACE = re.compile(r"[ \t\r\n]*")


def _refuse(text: str) -> Any:
    raise NotAnAudit(f"it has the number {text[:40]}; its numbers are whole")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotAnAudit("an object has a member twice")
    return found


class _Members:
    """Reads one JSON object member by member, and lists among them value by value, in bounded memory."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._text, self._at, self._is_end = "", 0, False
        self._decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_refuse, parse_constant=_refuse)

    def _fill(self) -> bool:
        """Read more; False at the end."""
        if self._is_end:
            return False
        more = self._stream.read(max(_CHUNK, len(self._text) - self._at))
        self._is_end = not more
        self._text, self._at = self._text[self._at :] + more, 0
        return bool(more)

    def next(self) -> str:
        """Return the next character that is no space, without taking it; empty at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = self._at if found is None else found.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill():
                return ""

    def take(self, wanted: str) -> None:
        """Take one character. Raises NotAnAudit where another one stands."""
        found = self.next()
        if found != wanted:
            raise NotAnAudit("it is cut off" if not found else f"there is {found!r} where {wanted!r} belongs")
        self._at += 1

    def value(self) -> Any:
        """Take a whole value; a number must have one digit, as all that stand by themselves in an audit file."""
        self.next()
        while True:
            try:
                found, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > _MEMBER:
                    raise NotAnAudit(f"a member has more than {_MEMBER} characters, or is no JSON") from error
                if not self._fill():
                    raise NotAnAudit(f"it is cut off, or no JSON ({error.msg})") from error
                continue
            self._at = end
            return found

    def name(self, wanted: str, *, is_first: bool = False) -> None:
        """Take the name of the next member, which must be this one."""
        if not is_first:
            self.take(",")
        found = self.value()
        if found != wanted:
            raise NotAnAudit(f"there is {str(found)[:40]!r} where {wanted!r} belongs")
        self.take(":")

    def list(self) -> Iterator[Any]:
        """Give the values of a list."""
        self.take("[")
        if self.next() != "]":
            yield self.value()
            while self.next() != "]":
                self.take(",")
                yield self.value()
        self.take("]")


#: Members before the lists, in order.
_AUDIT_FIRST = (
    *("carbonq_audit", "tenant", "month", "api_key_id", "made_at", "software_version", "boundary", "methods", "head"),
    "head_hash",
)

#: What an entry says by its place in the file, and what its group shares: its own columns are none of these.
_PLACED = frozenset(
    {
        *("entry_id", "engine_batch_id", "part", "supersedes", "revision", "moer_rate_id", "aer_rate_id"),
        *("baseline_rate_id", "baseline_fact_id", "restatement_id", "placement", "baseline_region"),
        *("baseline_window_at",),
    }
)

_CELLS = tuple(sorted(REQUIRED))
_CELL_AT = {name: index for index, name in enumerate(_CELLS)}

_SUM_KEYS = ("clock", "kind", "quality", "method", "moer_status", "aer_status")
_SUM_TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")
_SUM_ENERGIES = ("gpu_uj", "cpu_uj", "dram_uj", "energy_uj")
_SUM_GRAMS = ("emission_g", "inventory_g", "embodied_g", "transfer_g", "baseline_g", "saved_g")
_SUM_UNKNOWN = (
    *(("unmetered", "energy_uj"), ("unrated", "emission_g"), ("unrated_aer", "inventory_g")),
    ("no_embodied", "embodied_g"),
)

#: Where a line has the figures that are added up; grams have 15 decimals, always.
_SUM_AT = tuple((name, _CELL_AT[name]) for name in (*_SUM_TOKENS, *_SUM_ENERGIES, *_SUM_GRAMS))

_WINDOW_US = 300_000_000


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


def _as_content(table: str, values: Mapping[str, Any]) -> bytes:
    """Return the hash of a row's leaf, written as it was hashed."""
    return hashlib.sha256(f"\x00{table} 1 {_encode(values)}".encode()).digest()


class _Tree:
    """A tree of which some leaves are known and the others are whole subtrees between them (RFC 6962, section 2.1)."""

    def __init__(self, hidden: str) -> None:
        self._hidden = bytes.fromhex(hidden)
        self._used = 0
        self._peaks: list[tuple[int, bytes]] = []  # leaves and hash of whole subtrees, largest first
        self._count = 0

    def _add(self, size: int, hashed: bytes) -> None:
        while self._peaks and self._peaks[-1][0] == size:
            hashed = hashlib.sha256(b"\x01" + self._peaks.pop()[1] + hashed).digest()
            size *= 2
        self._peaks.append((size, hashed))
        self._count = sum(size for size, _ in self._peaks)

    def skip(self, to: int) -> bool:
        """Take hidden subtrees up to a leaf; False where there are not enough of them, or it lies behind."""
        if to < self._count:
            return False
        while self._count < to:
            size = 1 << ((to - self._count).bit_length() - 1)
            if self._count:
                size = min(size, self._count & -self._count)
            one = self._hidden[self._used : self._used + 32]
            self._used += 32
            if len(one) < 32:
                return False
            self._add(size, one)
        return True

    def root(self, known: Iterable[tuple[int, bytes]], count: int) -> str:
        """Return the root over ``count`` leaves; empty where the hidden ones are not what belongs between the known."""
        for index, hashed in known:
            if not self.skip(index) or index >= count:
                return ""
            self._add(1, hashed)
        if not self.skip(count) or self._used != len(self._hidden) or not self._peaks:
            return ""
        *rest, (_, own) = self._peaks
        for _, left in reversed(rest):
            own = hashlib.sha256(b"\x01" + left + own).digest()
        return own.hex()


class _Sums:
    """Sums of entries alike in ``_SUM_KEYS`` and in whether they have a saving; grams in whole 1e-15 g."""

    def __init__(self) -> None:
        self.groups: dict[tuple[Any, ...], dict[str, int | None]] = {}

    def add(self, key: tuple[Any, ...], figures: Mapping[str, int | None]) -> None:
        group = self.groups.setdefault(key, {})
        for name, value in figures.items():
            if value is not None:
                group[name] = (group.get(name) or 0) + value
            else:
                group.setdefault(name, None)

    def listed(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Return the groups as the file writes them."""
        return {
            key: {
                name: grams_text(value) if name in _SUM_GRAMS and value is not None else value
                for name, value in group.items()
            }
            for key, group in self.groups.items()
        }


def _month(text: str) -> tuple[int, int]:
    """Return where a month (``2026-11``) begins and ends, in microseconds since 1970."""
    found = re.fullmatch(r"(\d{4})-(0[1-9]|1[0-2])", text, re.ASCII)
    if found is None:
        raise NotAnAudit(f"month is {text!r}")
    year, month = int(found[1]), int(found[2])
    following = f"{year + month // 12:04d}-{month % 12 + 1:02d}"
    return second(f"{text}-01T00:00:00.000000Z", "month"), second(f"{following}-01T00:00:00.000000Z", "month")


class _Auditor:
    """Goes through an audit file once."""

    def __init__(self, first: Mapping[str, Any], expected: set[str]) -> None:
        self.audit = Audit(first["tenant"], first["month"], first["api_key_id"])
        self._expected = expected
        self._methods = set(first["methods"])
        self._checker = _Checker(_CELLS, keep=False)
        self._row = 0
        self._leaves: dict[int, tuple[array[int], bytearray]] = {}  # seal -> indexes and hashes of leaves
        self._by_key: dict[str | None, _Sums] = {}
        self._reasons: dict[str, int] = {}
        self._batch = ""
        self._seen: set[str] = set()
        self._parts: list[tuple[int, int, int, frozenset[int]]] = []  # of the engine batch being read
        self._start, self._end = _month(first["month"])

    def say(self, who: str, what: str) -> None:
        """Note a problem."""
        self.audit.problems.append(Problem(0, who, what))

    def page(self, page: Mapping[str, Any]) -> None:
        """Check a page: its parts of engine batches, and what they refer to."""
        _check_members(page, {"rates", "facts", "restatements", "placements", "shared", "parts"}, "a page")
        _check_members(page["shared"], {"engine_batch", "entries"}, "what a page shares")
        for table in ("rates", "facts", "restatements"):
            for own, values in page[table].items():
                if not _is_digest(own, values):
                    self.say(own, f"of {table} is not the digest of its values")
        for hashed, text in page["placements"].items():
            if _hash(b"\x00", text) != hashed:
                self.say(hashed, "of placements is not the hash of its text")
        for part in page["parts"]:
            self._part(page, part)

    def _part(self, page: Mapping[str, Any], part: Mapping[str, Any]) -> None:
        _check_members(part, {"engine_batch", "sealed", "entries"}, "a part of an engine batch")
        batch = _joined(page["shared"]["engine_batch"], part["engine_batch"])
        name = f"{batch['engine_batch_id']}.{batch['part']}"
        if batch["engine_batch_id"] != self._batch:
            self._end_batch()
            self._batch = batch["engine_batch_id"]
            if self._batch in self._seen:
                self.say(self._batch, "the engine batch is here twice")
            self._seen.add(self._batch)
        hashes: dict[tuple[int, int], bytes] = {}
        newest: dict[int, tuple[int, Mapping[str, Any], list[str]]] = {}
        for group in part["entries"]:
            for entry, row in self._group(page, batch, group):
                revision, position = entry["revision"], int(entry["entry_id"].rpartition(".")[2])
                if (revision, position) in hashes:
                    self.say(entry["entry_id"], f"revision {revision} is here twice")
                hashes[revision, position] = _as_content("entries", entry)
                if position not in newest or newest[position][0] < revision:
                    newest[position] = (revision, entry, row)
                self._entry(entry, row)
        for position, (revision, entry, row) in newest.items():
            missing = [number for number in range(1, revision) if (number, position) not in hashes]
            if missing:
                self.say(entry["entry_id"], f"revision {missing[0]} is missing before revision {revision}")
            self._add(batch, entry, row)
        self.audit.revisions += len(hashes)
        self.audit.entries += len(newest)
        self._keep(name, part["sealed"], _as_content("engine_batches", batch), hashes)
        window = second(batch["window_at"], "window_at")
        self._parts.append((batch["part"], batch["parts"], window, frozenset(newest)))

    def _group(
        self, page: Mapping[str, Any], batch: dict[str, Any], group: Mapping[str, Any]
    ) -> Iterator[tuple[dict[str, Any], list[str]]]:
        """Give each entry of a group as it was hashed, with its cells as an export's line has them."""
        _check_members(group, {"shared", "columns", "rows"}, "a group of entries")
        shared, columns = _joined(page["shared"]["entries"], group["shared"]), group["columns"]
        if columns[0] != "position" or _PLACED.intersection(columns) or len(set(columns)) != len(columns):
            raise NotAnAudit(f"a group of entries has the columns {columns}")
        if {"position", *columns[1:]} & shared.keys() or {"entry_id", "engine_batch_id", "part"} & shared.keys():
            raise NotAnAudit("a group of entries says something twice")
        prefix, revision = f"{batch['engine_batch_id']}.{batch['part']}.", shared["revision"]
        common = shared | {"engine_batch_id": batch["engine_batch_id"], "part": batch["part"]}
        document = {"rates": page["rates"], "facts": page["facts"]}
        self._check_references(page, common, batch, f"{prefix}{group['rows'][0][0]}")
        cells = _line(document, common | {"entry_id": "", "supersedes": None}, batch)
        base = [cells[name] for name in _CELLS]
        places = [(_CELL_AT[name], index) for index, name in enumerate(columns) if name in _CELL_AT]
        for values in group["rows"]:
            if len(values) != len(columns):
                raise NotAnAudit(f"a row of {prefix}* has {len(values)} values for {len(columns)} columns")
            entry_id = f"{prefix}{values[0]}"
            entry = common | {
                name: value for name, value in zip(columns[1:], values[1:], strict=True) if value is not None
            }
            entry["entry_id"] = entry_id
            row = base.copy()
            for at, index in places:
                row[at] = _cell(values[index])
            row[_CELL_AT["entry_id"]] = entry_id
            if revision != 1:
                entry["supersedes"] = row[_CELL_AT["supersedes"]] = f"{entry_id}#{revision - 1}"
            yield entry, row

    def _check_references(
        self, page: Mapping[str, Any], entry: Mapping[str, Any], batch: Mapping[str, Any], who: str
    ) -> None:
        for table, own in _wanted(entry, batch):
            if own not in page[table]:
                raise NotAnAudit(f"{own} of {table} is missing; {who} refers to it")
        if "placement" in entry and entry["placement"] not in page["placements"]:
            self.say(who, "the placement it ran under is missing")

    def _entry(self, entry: Mapping[str, Any], row: list[str]) -> None:
        self._row += 1
        self._checker.take(row, self._row)
        for one in self._checker.report.problems:
            self.say(one.entry_id, one.what)
        self._checker.report.problems.clear()
        self._expected.discard(entry["entry_id"])
        self._reasons[entry["reason"]] = self._reasons.get(entry["reason"], 0) + 1
        if entry.get("tenant") != self.audit.tenant:
            self.say(entry["entry_id"], f"tenant is {entry.get('tenant')!r}, the file is of {self.audit.tenant!r}")
        if self.audit.api_key_id not in {None, entry.get("api_key_id")}:
            self.say(entry["entry_id"], f"api_key_id is {entry.get('api_key_id')!r}, not {self.audit.api_key_id!r}")
        if not self._start <= second(entry["window_at"], "window_at") < self._end:
            self.say(entry["entry_id"], f"window_at is {entry['window_at']}, not in {self.audit.month}")
        if entry["window_at"] != row[_CELL_AT["window"]]:
            self.say(
                entry["entry_id"], f"window_at is {entry['window_at']}, of its engine batch {row[_CELL_AT['window']]}"
            )

    def _add(self, batch: Mapping[str, Any], entry: Mapping[str, Any], row: Sequence[str]) -> None:
        one = {"clock": batch["clock"], "quality": batch["quality"], **entry}
        key = (*(one[name] for name in _SUM_KEYS), one.get("saved_g") is not None)
        figures: dict[str, int | None] = {"entries": 1, "items": int(one["kind"] == "item" and one["part"] == 1)}
        figures |= {name: int(one.get(column) is None) for name, column in _SUM_UNKNOWN}
        try:
            for name, at in _SUM_AT:
                cell = row[at]
                figures[name] = int(cell.replace(".", "", 1)) if cell else None
        except ValueError:  # the line was named for it
            return
        self._by_key.setdefault(one.get("api_key_id"), _Sums()).add(key, figures)

    def _keep(self, name: str, places: Any, batch: bytes, hashes: Mapping[tuple[int, int], bytes]) -> None:
        """Remember which leaves of which seals a part's hashes are."""
        waiting = set(hashes)
        for place in places:
            _check_members(place, {"seal", "leaf", "lines"}, "a place under a seal")
            indexes, kept = self._leaves.setdefault(place["seal"], (array("Q"), bytearray()))
            indexes.append(place["leaf"])
            kept += batch
            for revision, start, end, leaf in place["lines"]:
                for position in range(start, min(end, start + len(hashes)) + 1):
                    hashed = hashes.get((revision, position))
                    if hashed is None:
                        self.say(f"{name}.{position}", f"revision {revision} is said to be sealed and is not shown")
                        break
                    indexes.append(leaf + position - start)
                    kept += hashed
                    waiting.discard((revision, position))
        self.audit.sealed += len(hashes) - len(waiting)

    def _end_batch(self) -> None:
        """Check that no part of the engine batch is left out between others, nor before or after within the month."""
        parts, self._parts = self._parts, []
        if not parts:
            return
        numbers = [number for number, *_ in parts]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            self.say(self._batch, f"the parts {numbers} of the engine batch are not one after the other")
        if any(positions != parts[0][3] for *_, positions in parts):
            self.say(self._batch, "the parts of the engine batch do not show the same entries")
        first, last = parts[0], parts[-1]
        if first[0] > 1 and first[2] > self._start:
            self.say(self._batch, f"part {first[0] - 1} of the engine batch is missing")
        if last[0] < last[1] and last[2] + _WINDOW_US < self._end:
            self.say(self._batch, f"part {last[0] + 1} of the engine batch is missing")

    def end_pages(self) -> None:
        """Check what is known only when all pages were seen."""
        self._end_batch()
        report = self._checker.finish()
        self.audit.whole_batches, self.audit.partial_batches = report.whole_batches, report.partial_batches
        for one in report.problems:
            self.say(one.entry_id, one.what)
        used = {key[_SUM_KEYS.index("method")] for sums in self._by_key.values() for key in sums.groups}
        for method in sorted(used.difference(self._methods)):
            self.say(method, "the text of the method is missing")
        for entry_id in sorted(self._expected):
            self.say(entry_id, "is expected and not in the file")

    def seals(self, given: Iterable[Mapping[str, Any]]) -> dict[int, str]:
        """Check each seal's root and return the texts of the headers by number."""
        found: dict[int, str] = {}
        for one in given:
            _check_members(one, {"header", "hidden"}, "a seal")
            header = _content(one["header"], "seal")
            number = header["seal"]
            if number in found or number not in self._leaves:
                self.say(f"seal {number}", "is here twice" if number in found else "holds no entry of the file")
                continue
            found[number] = one["header"]
            indexes, kept = self._leaves.pop(number)
            known = sorted((index, bytes(kept[at * 32 : at * 32 + 32])) for at, index in enumerate(indexes))
            if _Tree(one["hidden"]).root(known, header["leaves"]) != header["root"]:
                self.say(f"seal {number}", "the entries shown and the hashes of the others do not lead to its root")
        for number in sorted(self._leaves):
            self.say(f"seal {number}", "is missing")
        self.audit.seals = len(found)
        return found

    def chain(self, first: Mapping[str, Any], found: Mapping[int, str], hidden: str, head: str | None) -> None:
        """Check that each seal leads to the head, and that this is the one given."""
        hashed = {number: _hash(b"\x02", text) for number, text in found.items()}
        if first["head"] is None:
            if found or hidden or first["head_hash"]:
                self.say("head", "is missing")
        else:
            vouching = _content(first["head"], "seal")
            self.audit.head, self.audit.head_seal = _hash(b"\x02", first["head"]), vouching["seal"]
            if self.audit.head != first["head_hash"]:
                self.say("head", f"its hash is {self.audit.head}, not {first['head_hash']}")
            if any(number > vouching["seal"] for number in found):
                self.say("head", "a seal of the file is newer than the head")
            if found.get(vouching["seal"], first["head"]) != first["head"]:
                self.say("head", f"is not seal {vouching['seal']} of the file")
            known = [
                (number - 1, bytes.fromhex(one)) for number, one in sorted(hashed.items()) if number < vouching["seal"]
            ]
            if known and _Tree(hidden).root(known, vouching["seal"] - 1) != vouching["history"]:
                self.say("head", "the seals of the file do not lead to it")
            if not known and hidden:
                self.say("head", "there are hashes of other seals, and none that they belong to")
        if head is not None and head not in {self.audit.head, *hashed.values()}:
            self.say("head", f"the file leads to {self.audit.head}; no seal in it has the hash {head}")

    def sums(self, sums: Mapping[str, Any]) -> None:
        """Compare the sums with those of the entries that were seen; not where entries are wrong."""
        if self.audit.problems:
            return
        expected = {
            "api_key_id": self.audit.api_key_id,
            "entries": self.audit.entries,
            "revisions": self.audit.revisions,
            "unsealed_revisions": self.audit.revisions - self.audit.sealed,
            "reasons": self._reasons,
        }
        _check_members(sums, {*expected, "customer", "keys"}, "sums")
        for name, value in expected.items():
            if sums[name] != value:
                self.say(f"sums.{name}", f"is {sums[name]!r}, the entries give {value!r}")
        total = _Sums()
        for one in self._by_key.values():
            for key, group in one.groups.items():
                total.add(key, group)
        self._compare("sums.customer", sums["customer"], total)
        keys = {one["api_key_id"]: one["groups"] for one in sums["keys"]}
        if len(keys) != len(sums["keys"]) or keys.keys() != self._by_key.keys():
            self.say("sums.keys", f"has the keys {[one['api_key_id'] for one in sums['keys']]}")
            return
        for own, groups in keys.items():
            self._compare(f"sums.keys[{own}]", groups, self._by_key[own])

    def _compare(self, where: str, groups: Sequence[Mapping[str, Any]], own: _Sums) -> None:
        given = {tuple(group.get(name) for name in (*_SUM_KEYS, "has_saving")): group for group in groups}
        expected = own.listed()
        if len(given) != len(groups) or given.keys() != expected.keys():
            self.say(where, f"has {len(groups)} groups, the entries give {len(expected)}, or other ones")
            return
        for key, figures in expected.items():
            names = (*_SUM_KEYS, "has_saving")
            for name in sorted({*figures, *given[key]} - {*names}):
                if name not in figures or name not in given[key] or given[key][name] != figures[name]:
                    value, text = given[key].get(name), "/".join(map(str, key))
                    self.say(where, f"{name} of {text} is {value!r}, the entries give {figures.get(name)!r}")


def _joined(shared: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    if shared.keys() & own.keys():
        raise NotAnAudit(f"{sorted(shared.keys() & own.keys())} is said twice")
    return shared | own


def _check_members(value: Mapping[str, Any], names: set[str], what: str) -> None:
    if set(value) != names:
        raise NotAnAudit(f"{what} has the members {sorted(value)}, not {sorted(names)}")


def check_audit(stream: IO[str], *, head: str | None = None, expected: Iterable[str] = ()) -> Audit:
    """Check an audit file: each entry, their sums, and that what is sealed leads to the head.

    ``head`` is the hash of a seal that was filed elsewhere: it must be the file's head, or another seal in it.
    ``expected`` are ids of entries that must be there. Raises NotAnAudit.
    """
    members = _Members(stream)
    try:
        members.take("{")
        first: dict[str, Any] = {}
        for index, name in enumerate(_AUDIT_FIRST):
            members.name(name, is_first=not index)
            first[name] = members.value()
        if first["carbonq_audit"] is True or first["carbonq_audit"] != 1:
            raise NotAnAudit(f"its layout {first['carbonq_audit']!r} is unknown")
        auditor = _Auditor(first, set(expected))
        members.name("pages")
        for page in members.list():
            auditor.page(page)
        auditor.end_pages()
        members.name("seals")
        found = auditor.seals(members.list())
        members.name("history")
        auditor.chain(first, found, members.value(), head)
        members.name("sums")
        auditor.sums(members.value())
        members.take("}")
        if members.next():
            raise NotAnAudit("there is something behind its end")
    except Wrong as error:
        raise NotAnAudit(str(error)) from error
    except _Scattered as error:
        raise NotAnAudit("a part of an engine batch is here twice") from error
    except UnicodeError as error:
        raise NotAnAudit("it is not UTF-8 text") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise NotAnAudit(f"its compression is broken: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise NotAnAudit(f"a part of it cannot be read ({error!r:.200})") from error
    return auditor.audit


def _main_audit(path: str, head: str | None, expect: str | None, *, as_json: bool) -> int:
    try:
        expected: list[str] = []
        if expect is not None:
            with open(expect, encoding="utf-8") as lines:
                expected = [line.strip() for line in lines if line.strip()]
        with open(path, "rb") as probe:
            is_zipped = probe.read(2) == b"\x1f\x8b"
        with (gzip.open if is_zipped else open)(path, "rt", encoding="utf-8") as stream:
            audit = check_audit(stream, head=head, expected=expected)
    except (NotAnAudit, OSError, UnicodeError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    if as_json:
        print(json.dumps(asdict(audit) | {"is_consistent": not audit.problems}, indent=2))
    else:
        for problem in audit.problems:
            print(f"{problem.entry_id}: {problem.what}")
        print(audit.summary())
    return 1 if audit.problems else 0


def _option(given: list[str], name: str) -> str | None:
    """Take an option and its value out of the arguments; None where it is not there or has no value."""
    if name not in given[:-1]:
        return None
    at = given.index(name)
    value = given[at + 1]
    del given[at : at + 2]
    return value


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    head, proof, audit, expect = (_option(given, name) for name in ("--head", "--proof", "--audit", "--expect"))
    if proof is not None and set(given) <= {"--json"} and not (audit or expect):
        return _main_proof(proof, head, as_json="--json" in given)
    if audit is not None and set(given) <= {"--json"} and not proof:
        return _main_audit(audit, head, expect, as_json="--json" in given)
    paths = [argument for argument in given if argument != "--json"]
    if len(paths) != 1 or paths[0] in {"-h", "--help"} or proof or head or audit or expect:
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
