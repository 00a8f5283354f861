"""The standalone checker finds whatever was changed in an audit file, and says what is no audit file."""

from __future__ import annotations

import copy
import gzip
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq import merkle, verify
from carbonq.services import audit
from carbonq.services.seal import seal
from carbonq.store.database import Database
from tests.services.audited import MONTH, fill

Json = Any
Path_ = tuple[str | int, ...]

#: What nothing vouches for, as the file itself says.
NOT_VERIFIED = {"made_at", "software_version", "boundary", "methods"}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[Json]:
    """An audit file in which everything is sealed."""
    path = tmp_path_factory.mktemp("audit") / "carbonq.db"
    shutil.copy(sqlite_template, path)
    database = Database(f"sqlite:///{path}")
    fill(database)
    seal(database)
    yield json.loads(b"".join(audit.stream(database, "acme", MONTH)))
    database.dispose()


def check(given_: Json, **how: Any) -> verify.Audit:
    text = given_ if isinstance(given_, str) else json.dumps(given_)
    return verify.check_audit(io.StringIO(text), **how)


def is_noticed(given_: Json, head: str) -> bool:
    try:
        return check(given_, head=head).problems != []
    except verify.NotAnAudit:
        return True


def paths(value: Json, path: Path_ = ()) -> Iterator[Path_]:
    """Every value in a document, but for what nothing vouches for."""
    members: Iterator[tuple[str | int, Json]]
    if isinstance(value, dict):
        members = iter(value.items())
    elif isinstance(value, list):
        members = enumerate(value)
    else:
        return
    for name, member in members:
        if path or name not in NOT_VERIFIED:
            yield (*path, name)
            yield from paths(member, (*path, name))


def at(document: Json, path: Path_) -> Json:
    for name in path:
        document = document[name]
    return document


def changed(value: Json) -> Json:
    """Another value of the same kind."""
    if value is None:
        return 1
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return value[:-1] + ("1" if value[-1:] != "1" else "2")
    return [] if value else [1]


def test_it_is_whole_and_read_with_any_spacing(document: Json) -> None:
    for text in (json.dumps(document), json.dumps(document, indent=2), json.dumps(document, ensure_ascii=False)):
        found = check(text, head=document["head_hash"])
        assert found.problems == []
        assert found.sealed == found.revisions == 18


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_single_change_is_noticed(document: Json, data: st.DataObject) -> None:
    every = list(paths(document))
    path = data.draw(st.sampled_from(every))
    tampered = copy.deepcopy(document)
    where, name = at(tampered, path[:-1]), path[-1]
    kinds = ["change", "remove", "null"] + (["twice"] if isinstance(name, int) else [])
    match data.draw(st.sampled_from(kinds)):
        case "change":
            where[name] = changed(where[name])
        case "remove":
            del where[name]
        case "null":
            where[name] = None if where[name] is not None else 0
        case _:
            where.insert(name, copy.deepcopy(where[name]))
    assert is_noticed(tampered, document["head_hash"]), path


def groups(document: Json) -> Iterator[Json]:
    for page in document["pages"]:
        for part in page["parts"]:
            yield from part["entries"]


def first_row(document: Json) -> tuple[Json, list[Json]]:
    group = next(groups(document))
    return group, group["rows"][0]


def change_figure(document: Json) -> None:
    group, row = first_row(document)
    row[group["columns"].index("emission_g")] = "0.000000000000001"


def change_sum(document: Json) -> None:
    document["sums"]["customer"][0]["energy_uj"] += 1


def drop_entry(document: Json) -> None:
    first_row(document)[0]["rows"].pop(0)


def change_tenant(document: Json) -> None:
    document["tenant"] = "globex"


def change_month(document: Json) -> None:
    document["month"] = "2026-04"


def change_rate(document: Json) -> None:
    rate = next(iter(document["pages"][0]["rates"].values()))
    rate["g_per_kwh"] = "1"


def change_placement(document: Json) -> None:
    placements = document["pages"][0]["placements"]
    (own,) = placements
    placements[own] = placements[own].replace("carbon", "price")


def change_head(document: Json) -> None:
    document["head"] = document["head"].replace('"entries":', '"entries":1')


def change_history(document: Json) -> None:
    document["history"] = changed(document["history"])


def change_sealed_at(document: Json) -> None:
    seal_ = document["seals"][0]
    seal_["header"] = seal_["header"].replace('"sealed_at":"2', '"sealed_at":"3')


def drop_seal(document: Json) -> None:
    document["seals"].pop(0)


def make_huge(document: Json) -> None:
    group, row = first_row(document)
    row[group["columns"].index("energy_uj")] = 10**400


@pytest.mark.parametrize(
    ("tamper", "who", "what"),
    [
        (change_figure, "eb_", "emission_g is 0.000000000000001, recomputed"),
        (change_sum, "sums.customer", "energy_uj of real/item/"),
        (drop_entry, "eb_", "is said to be sealed and is not shown"),
        (change_tenant, "eb_", "tenant is 'acme', the file is of 'globex'"),
        (change_month, "eb_", "not in 2026-04"),
        (change_rate, "rate_", "of rates is not the digest of its values"),
        (change_placement, "", "of placements is not the hash of its text"),
        (change_head, "head", "its hash is"),
        (change_history, "head", "the seals of the file do not lead to it"),
        (change_sealed_at, "head", "the seals of the file do not lead to it"),
        (drop_seal, "seal 1", "is missing"),
        (make_huge, "eb_", "not a whole number"),
    ],
)
def test_entry_and_field_are_named(document: Json, tamper: Callable[[Json], None], who: str, what: str) -> None:
    tampered = copy.deepcopy(document)
    tamper(tampered)
    problems = check(tampered).problems
    assert any(one.entry_id.startswith(who) and what in one.what for one in problems), problems


def test_a_figure_that_is_changed_with_all_that_is_recomputed_from_it_does_not_lead_to_the_seal(document: Json) -> None:
    """The model's name is in no formula and in no sum: only the seal tells."""
    tampered = copy.deepcopy(document)
    for page in tampered["pages"]:
        for part in page["parts"]:
            part["engine_batch"]["model"] = part["engine_batch"].get("model") and "smaller"
    problems = check(tampered).problems
    assert {one.what for one in problems} == {
        "the entries shown and the hashes of the others do not lead to its root",
    }


def test_an_entry_that_is_withheld_with_its_hash_in_place_needs_the_customers_own_list(document: Json) -> None:
    """What can be told from the file alone, and what cannot: docs/audit.md says so."""
    own = [
        f"{part['engine_batch']['engine_batch_id']}.{part['engine_batch']['part']}.{row[0]}"
        for page in document["pages"]
        for part in page["parts"]
        for group in part["entries"]
        for row in group["rows"]
    ]
    assert check(document, expected=own).problems == []
    (problem,) = check(document, expected=[*own, "eb_mine.1.7"]).problems
    assert (problem.entry_id, problem.what) == ("eb_mine.1.7", "is expected and not in the file")


@pytest.mark.parametrize("part", [1, 2])
def test_a_part_that_is_left_out_of_an_engine_batch_is_noticed(document: Json, part: int) -> None:
    tampered = copy.deepcopy(document)
    for page in tampered["pages"]:
        page["parts"] = [one for one in page["parts"] if one["engine_batch"]["part"] != part]
    assert any(f"part {part} of the engine batch is missing" in one.what for one in check(tampered).problems)


def test_order_of_pages_and_groups_carries_no_meaning(document: Json) -> None:
    turned = copy.deepcopy(document)
    turned["pages"].reverse()
    for page in turned["pages"]:
        page["rates"] = dict(reversed(page["rates"].items()))
        for part in page["parts"]:
            part["entries"].reverse()
    turned["sums"]["customer"].reverse()
    assert check(turned, head=document["head_hash"]).problems == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "cut off"),
        ("[]", "where '{' belongs"),
        ("{}", "no JSON"),
        ('{"carbonq_audit": 1, "month": "a"}', "'month' where 'tenant' belongs"),
        ("entry_id,revision\r\n", "where '{' belongs"),
        ('{"carbonq_audit": 1.5', "number 1.5"),
        ('{"carbonq_audit": NaN', "number NaN"),
        ('{"carbonq_audit": ' + "[" * 100_000, "cannot be read|no JSON"),
        ('{"carbonq_audit": {"a": 1, "a": 2}', "a member twice"),
        ('{"carbonq_audit": ' + "9" * 5000 + ",", "cannot be read"),
    ],
)
def test_what_is_no_audit_file_is_said_so(text: str, what: str) -> None:
    with pytest.raises(verify.NotAnAudit, match=what):
        check(text)


@settings(max_examples=40, deadline=None)
@given(cut=st.floats(0, 0.999999))
def test_a_file_that_is_cut_off_is_no_audit_file(document: Json, cut: float) -> None:
    text = json.dumps(document)
    with pytest.raises(verify.NotAnAudit):
        check(text[: int(len(text) * cut)])


def test_members_are_read_across_chunks(document: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_CHUNK", 7)
    assert check(document, head=document["head_hash"]).problems == []
    monkeypatch.setattr(verify, "_MEMBER", 2_000)
    with pytest.raises(verify.NotAnAudit, match="more than 2000 characters"):
        check(document)


@given(count=st.integers(1, 70), data=st.data())
def test_a_tree_is_proved_from_any_of_its_leaves_at_once(count: int, data: st.DataObject) -> None:
    leaves = [merkle.leaf(str(at)) for at in range(count)]
    known = sorted(data.draw(st.sets(st.integers(0, count - 1))))
    hidden = b"".join(merkle.hidden(leaves, [(at, at + 1) for at in known])).hex()
    shown = [(at, leaves[at]) for at in known]
    root = merkle.root_of(leaves).hex()
    assert verify._Tree(hidden).root(shown, count) == root  # pyright: ignore[reportPrivateUsage]
    if known:
        wrong = [(at, merkle.leaf("x") if at == known[0] else hashed) for at, hashed in shown]
        assert verify._Tree(hidden).root(wrong, count) != root  # pyright: ignore[reportPrivateUsage]
    assert verify._Tree(hidden + "00" * 32).root(shown, count) == ""  # pyright: ignore[reportPrivateUsage]
    # Never more hashes than the paths of the leaves by themselves would have.
    assert len(hidden) // 64 <= max(1, len(known) + 1) * 2 * count.bit_length()


def test_it_runs_alone(document: Json, tmp_path: Path) -> None:
    alone = shutil.copy(verify.__file__, tmp_path / "verify.py")
    file = tmp_path / "audit.json.gz"
    file.write_bytes(gzip.compress(json.dumps(document).encode()))
    bad = copy.deepcopy(document)
    change_sum(bad)
    (tmp_path / "bad.json").write_text(json.dumps(bad))
    (tmp_path / "ids.txt").write_text("eb_mine.1.7\n")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", str(alone), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    right = run("--audit", file.name, "--head", document["head_hash"])
    assert (right.returncode, right.stderr) == (0, "")
    assert right.stdout.startswith("consistent: 14 entries (18 revisions) of acme in 2026-03 recomputed")
    wrong = run("--audit", "bad.json", "--json")
    assert wrong.returncode == 1
    assert json.loads(wrong.stdout)["problems"][0]["entry_id"] == "sums.customer"
    missing = run("--audit", file.name, "--expect", "ids.txt")
    assert (missing.returncode, missing.stdout.splitlines()[0]) == (1, "eb_mine.1.7: is expected and not in the file")
    none = run("--audit", "ids.txt")
    assert (none.returncode, none.stdout) == (2, "")
    assert "ids.txt: " in none.stderr
    assert run("--audit", "absent.json").returncode == 2
    assert run("--audit", file.name, "--proof", file.name).returncode == 2
