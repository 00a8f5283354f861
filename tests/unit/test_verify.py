"""The standalone checker finds nothing in what we write and everything that was tampered with (invariant 7)."""

from __future__ import annotations

import ast
import gzip
import io
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from carbonq import export, verify
from carbonq.booking import EngineBatch
from carbonq.methods import METHODS
from carbonq.model import EntryKind, RateKind
from carbonq.ratebook import RateBook
from carbonq.units import WINDOW
from tests.unit.bookings import (
    FACTS,
    PATIENT,
    W0,
    WRITER,
    batch,
    book,
    cells,
    check,
    csv_text,
    engine_batches,
    item,
    overhead,
    part,
    rate,
    rate_book,
    rate_books,
)

Lines = list[dict[str, str]]


def whole() -> Lines:
    """Two parts of three unlike items, every figure known, both books, a settled baseline."""
    items = [item(n, tokens=(10 * n + 3, n, n + 1)) for n in range(3)]
    parts = [part(n, gpu=1_000_001 + n, cpu=500_009, dram=70_001) for n in range(2)]
    return cells(book(batch(items, parts, model=WRITER)))


@settings(max_examples=30, **PATIENT)
@given(engine_batches(), rate_books())
def test_every_booking_is_recomputed_from_its_own_fields(made: EngineBatch, rates: RateBook) -> None:
    report = check(cells(book(made, rates)))
    assert report.problems == []
    assert report.lines == len(made.items) * len(made.parts)
    assert (report.whole_batches, report.partial_batches) == (len(made.parts), 0)


@settings(max_examples=20, **PATIENT)
@given(engine_batches(), rate_books(), st.data())
def test_a_part_of_an_engine_batch_is_checked_and_called_partial(
    made: EngineBatch, rates: RateBook, data: st.DataObject
) -> None:
    lines = cells(book(made, rates))
    kept = [line for line in lines if data.draw(st.booleans())]
    assume(0 < len(kept) < len(lines))
    report = check(kept)
    assert report.problems == []
    assert report.whole_batches + report.partial_batches == len({line["part"] for line in kept})
    assert report.whole_batches < len(made.parts) or report.partial_batches == 0


#: Figures that follow from others or are held against others: changing one alone must be noticed.
CHECKED = (
    *("entry_id", "revision", "supersedes", "reason", "kind", "schema", "method", "clock", "started_at", "ended_at"),
    *("duration_s", "window", "part", "engine_batch_id", "engine_batch_items", "engine_batch_uj"),
    *("engine_batch_gpu_uj", "engine_batch_cpu_uj", "engine_batch_dram_uj", "share_num", "share_den"),
    *(
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "w_prompt",
        "w_cached",
        "w_completion",
        "gpu_uj",
        "cpu_uj",
        "dram_uj",
    ),
    *("energy_uj", "gpu_meter", "pue", "moer_g_per_kwh", "moer_window", "moer_step_s", "moer_raw", "moer_status"),
    *("emission_g", "aer_g_per_kwh", "aer_window", "aer_raw", "aer_status", "inventory_g", "embodied_kg", "life_h"),
    *("embodied_g", "transfer_g", "baseline_region", "baseline_window", "baseline_pue", "baseline_moer_g_per_kwh"),
    *("baseline_moer_status", "baseline_g", "saved_g"),
)


def changed(name: str, value: str) -> str:
    special = {
        "moer_status": "missing",
        "aer_status": "settled",
        "baseline_moer_status": "settled",
        "gpu_meter": "none",
        "baseline_region": "",
        "kind": "idle",
        "moer_step_s": "0",
        "window": "2026-03-02T08:00:01.000000Z",
        "moer_window": "2026-03-02T08:05:00.000000Z",
        "aer_window": "2026-03-02T07:55:00.000000Z",
        "baseline_window": "2026-03-02T07:55:30.000000Z",
        "started_at": "2026-03-02T07:59:59.999999Z",
        "ended_at": "2026-03-02T08:05:00.000001Z",
        "transfer_g": "0.000000000000000",
        "supersedes": "x#1",
        "reason": "settled",
    }
    if name in special:
        return special[name]
    if value.replace(".", "").isdigit():
        return value[:-1] + str((int(value[-1]) + 1) % 10)
    return value + "x"


#: What no formula uses: a word that is none, a figure that is none, or nothing where something is stated.
ODD = {
    **dict.fromkeys(("quality", "class", "ownership", "gpu_meter", "moer_gas", "aer_gas", "aer_method"), "good"),
    **dict.fromkeys(("moer_estimated", "aer_estimated"), "yes"),
    **dict.fromkeys(("recorded_at", "moer_retrieved_at", "moer_issued_at", "planned_window"), "2026-03-02"),
    **dict.fromkeys(("attempt", "item"), "first"),
    **dict.fromkeys(("uncertainty_pct", "cost", "planned_moer_g_per_kwh"), "-"),
    **dict.fromkeys(("recorded_by", "software_version", "pue_source", "hardware", "moer_zone", "aer_source"), ""),
    "restatement_id": "rst_1",
}

#: What lines of one part of an engine batch must say alike, though by itself each could be right.
OTHERWISE = {
    **dict.fromkeys(("region", "model", "device_ids", "hardware", "engine", "engine_version", "precision"), "other"),
    **dict.fromkeys(("software_version", "pue_source"), "other"),
    "quality": "mixed",
    "ownership": "rented",
    "uncertainty_pct": "7.5",
}


@pytest.mark.parametrize("name", ODD)
def test_what_no_formula_uses_is_checked_by_its_form(name: str) -> None:
    lines = whole()
    lines[1][name] = ODD[name]
    (line, what), *others = [(problem.line, problem.what) for problem in check(lines).problems]
    assert not others or name == "moer_retrieved_at"
    assert line == 3 and name in what


@pytest.mark.parametrize("name", OTHERWISE)
def test_lines_of_one_engine_batch_must_say_alike_what_is_the_batchs(name: str) -> None:
    lines = whole()
    assert lines[1][name] != OTHERWISE[name]
    before = lines[1][name]
    lines[1][name] = OTHERWISE[name]
    assert [(problem.line, problem.what) for problem in check(lines).problems] == [
        (3, f"{name} is {OTHERWISE[name]!r}, other entries of the engine batch say {before!r}")
    ]


@pytest.mark.parametrize("name", CHECKED)
def test_a_change_of_any_checked_field_is_noticed_on_its_line(name: str) -> None:
    lines = whole()
    lines[1][name] = changed(name, lines[1][name])
    report = check(lines)
    assert not report.is_consistent
    assert 3 in {problem.line for problem in report.problems}


def test_nothing_is_wrong_with_the_lines_those_changes_were_made_to() -> None:
    assert check(whole()).problems == []


@settings(max_examples=20, **PATIENT)
@given(engine_batches(), rate_books(), st.randoms(use_true_random=False))
def test_a_microjoule_moved_between_two_items_is_noticed(
    made: EngineBatch, rates: RateBook, chance: random.Random
) -> None:
    lines = [line for line in cells(book(made, rates)) if line["part"] == "1"]
    names = [f"{name}_uj" for name in ("gpu", "cpu", "dram") if lines[0][f"{name}_uj"]]
    assume(names)
    name = chance.choice(names)
    richer = [line for line in lines if line[name] != "0"]
    assume(richer and len(lines) > 1)
    giver = chance.choice(richer)
    taker = chance.choice([line for line in lines if line is not giver])
    for line, step in ((giver, -1), (taker, 1)):
        line[name] = str(int(line[name]) + step)
        line["energy_uj"] = str(int(line["energy_uj"]) + step)
        recomputed = verify.recompute(line)
        line |= {key: "" if value is None else verify.grams_text(value) for key, value in recomputed.items()}
    assert not check(lines).is_consistent


def test_a_line_left_out_makes_an_engine_batch_partial_and_one_too_many_is_wrong() -> None:
    lines = [line for line in whole() if line["part"] == "1"]
    assert check(lines[1:]).partial_batches == 1
    assert any("here twice" in problem.what for problem in check([*lines, lines[-1]]).problems)


@pytest.mark.parametrize("step", [1, -1])
def test_shares_that_do_not_sum_to_one_are_named(step: int) -> None:
    # No energy and no hardware, so that nothing but the sum can tell.
    lines = cells(book(batch([item(n, tokens=(n + 5, 0, 0)) for n in range(3)], [part(cpu=0)], fact=FACTS["home"])))
    for line in lines:
        line["share_den"] = str(int(line["share_den"]) + step)
    (problem,) = check(lines).problems
    assert problem.what == f"the shares of the engine batch sum to 18/{18 + step}, not to 1"


def test_a_share_is_the_same_in_every_part() -> None:
    lines = cells(book(batch([item(tokens=(2, 0, 0)), item(1, tokens=(1, 0, 0))], [part(0, cpu=0), part(1, cpu=0)])))
    lines[2]["share_num"], lines[3]["share_num"] = "1", "2"
    for line in lines:
        line["embodied_kg"] = line["embodied_g"] = ""
    assert [problem.line for problem in check(lines).problems] == [4, 5]


def test_entries_of_one_engine_batch_must_agree_on_it() -> None:
    lines = whole()
    lines[1] |= {"pue": "9.9"}
    recomputed = verify.recompute(lines[1])
    lines[1] |= {key: "" if value is None else verify.grams_text(value) for key, value in recomputed.items()}
    assert [(problem.line, problem.what) for problem in check(lines).problems] == [
        (3, "pue is '9.9', other entries of the engine batch say '1.2'")
    ]


def test_the_order_of_lines_does_not_matter() -> None:
    lines = whole() + whole() + cells(overhead(EntryKind.IDLE), overhead(EntryKind.WASTED))
    random.Random(5).shuffle(lines)
    report = check(lines)
    assert report.problems == []
    assert (report.whole_batches, report.partial_batches) == (6, 0)
    pipe = io.StringIO(csv_text(lines), newline="")
    pipe.seekable = lambda: False  # type: ignore[method-assign]
    assert verify.check(pipe).problems == []


def settled(line: dict[str, str]) -> dict[str, str]:
    return line | {"revision": "2", "supersedes": f"{line['entry_id']}#1", "reason": "settled"}


def test_revisions_are_one_entry_and_may_not_change_its_energy() -> None:
    lines = whole()
    second = settled(lines[0])
    assert check([lines[0], second, *lines[1:]]).problems == []
    assert check([second, *lines[1:]]).whole_batches == 2
    forged = second | {"cpu_uj": str(int(second["cpu_uj"]) + 1), "energy_uj": str(int(second["energy_uj"]) + 1)}
    recomputed = verify.recompute(forged)
    forged |= {key: "" if value is None else verify.grams_text(value) for key, value in recomputed.items()}
    assert any("changes the energy or share" in p.what for p in check([lines[0], forged, *lines[1:]]).problems)
    assert any("supersedes" in p.what for p in check([second | {"supersedes": ""}, *lines]).problems)


def test_a_forecast_cannot_be_called_settled() -> None:
    lines = cells(book(rates=rate_book([rate(), rate("Z-HOME", W0 - WINDOW)])))
    for line in lines:
        line["moer_status"] = line["baseline_moer_status"] = "settled"
    report = check(lines)
    assert {problem.what for problem in report.problems} == {
        "moer_status is 'settled', but the rate is a forecast or imputed"
    }
    final = [rate(kind=RateKind.OBSERVED), rate("Z-HOME", W0 - WINDOW, kind=RateKind.OBSERVED)]
    assert check(cells(book(rates=rate_book(final, now=W0 + WINDOW)))).problems == []


def test_raw_figures_must_convert_to_the_rate() -> None:
    lines = cells(book(rates=rate_book([rate(value="453.59237", raw=1000, raw_unit="lb/MWh")])))
    assert check(lines).problems == []
    lines[0]["moer_raw"] = "1001"
    assert "is not 453.59237 g/kWh" in check(lines).problems[0].what


def test_known_transfer_is_deducted_from_the_saving() -> None:
    (line, *_) = cells(book(batch([item()])))
    line |= {"transfer_bytes": "1000000000", "transfer_kwh_per_gb": "0.000001", "transfer_g_per_kwh": "400"}
    assert {problem.what.split(" is ")[0] for problem in check([line]).problems} == {"transfer_g", "saved_g"}
    expected = verify.recompute(line)
    line |= {name: verify.grams_text(expected[name]) for name in ("transfer_g", "saved_g")}
    assert line["transfer_g"] == "0.000400000000000"
    assert check([line]).problems == []


@pytest.mark.parametrize(
    ("cell", "what"),
    [
        ("1e3", "not a whole number"),
        ("-5", "not a whole number"),
        ("٣", "not a whole number"),
        ("9" * 19, "not a whole number"),
        ("", "do not agree"),
    ],
)
def test_unreadable_figures_are_named_and_never_crash(cell: str, what: str) -> None:
    lines = whole()
    lines[0]["cpu_uj"] = cell
    assert any(what in problem.what and problem.line == 2 for problem in check(lines).problems)


@settings(max_examples=80, **PATIENT)
@given(st.sampled_from(export.COLUMNS), st.text(max_size=12) | st.sampled_from(["0", "-1", "1.5", "nan", "2026"]))
def test_no_cell_whatever_makes_it_crash(name: str, value: str) -> None:
    lines = whole()
    lines[2][name] = value
    check(lines)


@settings(max_examples=40, **PATIENT)
@given(st.sampled_from(sorted(verify.REQUIRED)), st.integers(1, 5), st.data())
def test_what_is_read_once_for_many_lines_hides_nothing(name: str, row: int, data: st.DataObject) -> None:
    """The quick way through lines that have much in common says what the slow one says."""
    lines = whole()
    others = [lines[0][name], "", "0", "1", "-1", "x", changed(name, lines[row][name]), lines[row][name] + "0"]
    lines[row][name] = data.draw(st.sampled_from(others))
    quick = check(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify._Context, "numbers", lambda _context, _own: None)
        patch.setattr(verify._Part, "_quickly", lambda _part, _items, _den: None)
        assert check(lines) == quick


def test_a_component_far_from_its_share_is_named_among_lines_that_have_much_in_common() -> None:
    first, second, _ = (line for line in whole() if line["part"] == "1")
    forged = second | {name: str(int(second[name]) + 2) for name in ("cpu_uj", "energy_uj")}
    recomputed = verify.recompute(forged)
    forged |= {key: "" if value is None else verify.grams_text(value) for key, value in recomputed.items()}
    assert check([first, second]).problems == []
    (problem,) = check([first, forged]).problems
    assert problem.what.startswith(f"cpu_uj is {forged['cpu_uj']}, 1 uJ or more from ")


@pytest.mark.parametrize(
    ("kind", "changes", "what"),
    [
        (EntryKind.GAP, {"quality": "measured"}, "an entry of kind gap is an estimate, not measured"),
        (EntryKind.HOST_OTHER, {"item": "3"}, "an entry of kind host_other belongs to no item, not to 3"),
        (EntryKind.WASTED, {"prompt_tokens": "3"}, "an entry of kind wasted carries its energy whole, not 1/1"),
        (EntryKind.IDLE, {"revision": "2", "reason": "guessed"}, "revision 2 has reason 'guessed'"),
    ],
)
def test_what_is_no_items_energy_has_rules_of_its_own(kind: EntryKind, changes: dict[str, str], what: str) -> None:
    (line,) = cells(overhead(kind))
    assert check([line]).problems == []
    if "revision" in changes:
        changes = changes | {"supersedes": f"{line['entry_id']}#1"}
    assert [problem.what for problem in check([line | changes]).problems] == [what]


def test_a_compressed_export_is_read_and_a_broken_one_refused(tmp_path: Path) -> None:
    data = gzip.compress(csv_text(whole()).encode())
    for name, content in (("a.csv.gz", data), ("named-otherwise.csv", data)):
        (tmp_path / name).write_bytes(content)
        assert verify.check(str(tmp_path / name)).lines == 6
    (tmp_path / "cut.csv.gz").write_bytes(data[: len(data) // 2])
    with pytest.raises(verify.NotALedger, match="compression is broken"):
        verify.check(str(tmp_path / "cut.csv.gz"))


def test_lines_given_one_by_one_must_come_as_exports_have_them() -> None:
    text = csv_text(whole())
    assert verify.check_lines(io.StringIO(text, newline="")).lines == 6
    first, second = (line for line in whole() if line["part"] == "1" and line["entry_id"].endswith((".0", ".1")))
    mixed = csv_text([first, *whole()[3:], second])
    with pytest.raises(verify.NotALedger, match="not together"):
        verify.check_lines(io.StringIO(mixed, newline=""))


def test_custom_ids_with_line_breaks_do_not_shift_the_line_numbers() -> None:
    lines = cells(book(batch([item(custom_id="a\nb"), item(1)])))
    lines[1]["emission_g"] = "1.000000000000000"
    (problem,) = check(lines).problems
    assert problem.line == 4
    assert problem.entry_id == lines[1]["entry_id"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("a,b\r\n1,2\r\n", "missing"),
        (",".join(export.COLUMNS) + '\r\n"', "line"),
    ],
)
def test_what_is_no_export_is_refused(text: str, why: str) -> None:
    with pytest.raises(verify.NotALedger, match=why):
        verify.check(io.StringIO(text, newline=""))


def test_a_cut_line_is_named() -> None:
    text = csv_text(whole())
    cut = text[: text.rindex(",", 0, -200)] + "\r\n"
    problems = verify.check(io.StringIO(cut, newline="")).problems
    assert [problem.line for problem in problems] == [7]
    assert "fields instead of" in problems[0].what


def test_the_file_works_alone_with_nothing_installed(tmp_path: Path) -> None:
    copy = tmp_path / "check.py"
    shutil.copy(verify.__file__, copy)
    good, bad, odd = tmp_path / "good.csv", tmp_path / "bad.csv", tmp_path / "odd.csv"
    good.write_bytes(csv_text(whole()).encode())
    lines = whole()
    lines[1]["emission_g"] = "1.000000000000000"
    bad.write_bytes(csv_text(lines).encode())
    odd.write_text("x\n", encoding="utf-8")

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-S", str(copy), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, **options)

    found = run("good.csv")
    assert (found.returncode, found.stdout) == (
        0,
        "consistent: 6 lines recomputed, 2 whole and 0 partial engine batches\n",
    )
    found = run("bad.csv")
    assert found.returncode == 1
    assert f"line 3: {lines[1]['entry_id']}: emission_g is 1.000000000000000, recomputed" in found.stdout
    assert "NOT consistent: 1 of 6 lines" in found.stdout
    assert json.loads(run("--json", "bad.csv").stdout)["problems"][0]["line"] == 3
    assert run("odd.csv").returncode == run("none.csv").returncode == run().returncode == 2
    assert run("-", input=good.read_text(encoding="utf-8")).returncode == 0
    module = subprocess.run([sys.executable, "-m", "carbonq.verify", str(good)], capture_output=True, check=False)
    assert module.returncode == 0


def test_it_imports_nothing_but_the_standard_library() -> None:
    tree = ast.parse(Path(verify.__file__).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_it_knows_the_export_and_the_methods() -> None:
    assert set(export.COLUMNS) >= verify.REQUIRED
    assert set(verify.ESCAPED) == verify.REQUIRED & export.TEXT_COLUMNS
    assert set(METHODS) == verify.METHODS


def test_a_file_that_is_no_text_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"\xff\xfea\0,\0")
    with pytest.raises(verify.NotALedger, match="it is not UTF-8 text"):
        verify.check(str(path))


def test_a_saving_across_settled_and_restated_is_by_the_second_method_only() -> None:
    """Both statuses are final; the first method asked for the very same one."""
    final = [rate(kind=RateKind.OBSERVED), rate("Z-HOME", W0 - WINDOW, kind=RateKind.OBSERVED)]
    line = next(iter(cells(book(rates=rate_book(final, now=W0 + WINDOW))))) | {"moer_status": "restated"}
    assert line["saved_g"]
    assert verify.line_problems(line) == []
    assert verify.line_problems(line | {"method": "cq-2026-1"}) != []
    assert verify.line_problems(line | {"method": "cq-2026-1", "saved_g": ""}) == []
    assert verify.line_problems(line | {"saved_g": ""}) != []
    assert verify.line_problems(line | {"moer_status": "unsettleable"}) != []
