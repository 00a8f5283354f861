"""The benchmarks that need servers, in small: they measure what they say and leave nothing behind."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from carbonq.bench import ledger, meters, per_task, queue, run, start, store, tracing
from carbonq.bench.backend import Backend
from tests.databases import connected
from tests.system.backends import backend
from tests.system.processes import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(200)]


def scratch_databases(url: str) -> set[str]:
    with connected(url) as connection:
        found = connection.exec_driver_sql("SELECT datname FROM pg_database WHERE datname LIKE 'carbonq_bench_%%'")
        return set(found.scalars())


def nothing_is_left(url: str, before: set[str]) -> None:
    """All that were made since are gone, at the latest when others who use the server have removed theirs."""
    until(lambda: not scratch_databases(url) - before, 60, "server without scratch databases", pause_s=0.5)


def test_claims_and_checkpoints_are_counted_on_both_databases(postgres_url: str, tmp_path: Path) -> None:
    said: list[str] = []
    before = scratch_databases(postgres_url)
    found = store.bench(
        tmp_path,
        [Backend(), Backend(postgres_url)],
        claimers=[2],
        chunks=3,
        items=70,
        rounds=1,
        report=said.append,
    )
    assert [one["database"] for one in found["median"]] == ["sqlite", "postgresql"]
    for one in found["median"]:
        assert min(one["claims_per_s"], one["entries_per_s"], one["plain_rows_per_s"]) > 0
        assert one["ratio"] == one["entries_per_s"] / one["plain_rows_per_s"]
    assert len(said) == 2
    nothing_is_left(postgres_url, before)


def test_the_ledgers_figures_are_measured(postgres_url: str, tmp_path: Path) -> None:
    def figures(backend: Backend, *parts: str) -> dict[str, Any]:
        found = ledger.bench(
            tmp_path, [backend], parts=parts, entries=700, batch_items=64, report=lambda _sentence: None
        )
        return found["databases"][backend.database_name]

    before = scratch_databases(postgres_url)
    steps = figures(Backend(), "check", "verify", "settle")
    assert steps["check"]["lines"] == steps["seal"]["entries"] == steps["check_seals"]["sealed"] == 700
    assert steps["settle"]["revisions"] == 700
    assert all(step["cpu_s"] > 0 for step in steps.values())
    steps = figures(Backend(postgres_url), "export", "size")
    assert min(steps["export"]["bytes"], steps["plain"]["bytes"]) > 700 * 500
    assert steps["size"]["bytes_per_entry"] > 100
    assert all(step["peak_mb"] >= step["start_mb"] > 0 for name, step in steps.items() if name != "fill")
    nothing_is_left(postgres_url, before)


def test_metering_is_measured_without_any_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(meters, "bench", partial(meters.bench, batches=100, events=200))  # a tenth of the real one
    found = ledger.bench(tmp_path, [Backend()], parts=["meters"], entries=1, batch_items=64, report=said.append)
    exact = found["meters"]["attribution"]
    assert (exact["largest_error_uj"], exact["lost_uj"]) == (0, 0) and exact["counted_uj"] > 10**6
    assert 0 < found["meters"]["overhead"]["median_us"] < 1_000
    assert "databases" not in found and "commit" not in found
    assert [sentence.partition(":")[0] for sentence in said] == ["meters"]


@pytest.mark.chaos  # whole installations, which `make chaos` has the time for
def test_a_run_is_shared_by_all_api_and_control_processes(
    request: pytest.FixtureRequest, postgres_url: str, tmp_path: Path
) -> None:
    with backend("postgresql-rabbitmq", request) as chosen:
        on = Backend(postgres_url, chosen.broker_url)
        found = run.bench(tmp_path, on, items=51, words=20, rounds=1, processes=[2], report=lambda _sentence: None)
    (two,) = found["with"]
    assert found["backend"] == "postgresql, amqp"
    assert two["processes"] == 2
    median = two["median"]
    assert median["ratio"] == pytest.approx(median["carbonq_items_per_s"] / median["plain_items_per_s"])


@pytest.mark.chaos  # whole installations, which `make chaos` has the time for
def test_a_start_is_measured_beside_what_no_start_can_save(tmp_path: Path) -> None:
    found = start.bench(tmp_path, [Backend()], rounds=1, report=lambda _sentence: None)
    median = found["backends"]["sqlite, embedded broker"]["median"]
    assert median["ratio"] == median["ready_s"] / median["alone_s"] > 1


def test_the_lag_of_tickets_and_the_memory_of_a_long_queue_are_measured(tmp_path: Path) -> None:
    found = queue.bench(tmp_path, chunks=20, waiting=30, report=lambda _sentence: None)
    lag, memory = found["lag"], found["memory"]
    assert lag["chunks"] == 20 and 0 < lag["p50_s"] <= lag["p99_s"] <= lag["max_s"]
    assert memory["waiting"] == 30
    assert min(memory["peak_mb"][name] for name in ("api", "control", "control-slow")) > 10


def test_one_task_an_item_is_a_worker_of_its_own(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with backend("sqlite-redis", request) as chosen:
        assert per_task.items_per_s(chosen.broker_url, run.MODEL, ["a text"] * 5, tmp_path / "log") > 0


@pytest.mark.chaos  # whole installations, which `make chaos` has the time for
def test_traces_are_measured_beside_none(tmp_path: Path) -> None:
    said: list[str] = []
    found = tracing.bench(tmp_path, jobs=5, items=20, calls=5, rounds=1, report=said.append)
    assert found["sent_bytes"] > 1_000
    for unit in ("job", "item", "call"):
        assert min(found[unit]["off_us"], found[unit]["on_us"]) >= 0 and len(found[unit]["pairs"]) == 1
        assert any(sentence.startswith(f"{unit}: ") for sentence in said)
