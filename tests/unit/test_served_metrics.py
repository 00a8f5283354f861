"""A worker's own metrics: off unless wanted, on a port of its own, told to Prometheus, and never in the way of work."""

from __future__ import annotations

import json
import logging
import socket
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from prometheus_client import REGISTRY

from carbonq import telemetry
from tests.unit.bookings import EMBEDDER, batch, book, overhead, part, rate_book


def get(port: int) -> str:
    with httpx.Client(trust_env=False, timeout=30) as client:
        return client.get(f"http://127.0.0.1:{port}/metrics").text


def test_no_port_no_server(tmp_path: Path) -> None:
    with telemetry.served("127.0.0.1", None, tmp_path, "control") as port:
        assert port is None
    assert not list(tmp_path.iterdir())


def test_workers_of_one_host_take_one_port_after_the_other(tmp_path: Path) -> None:
    telemetry.CHUNKS.labels("fr", "done").inc()
    with telemetry.served("127.0.0.1", 0, tmp_path, "worker-fr") as first:
        assert first
        with telemetry.served("127.0.0.1", first, tmp_path, "worker-se") as second:
            assert second and first < second < first + telemetry.PORTS
            assert 'carbonq_chunk_tickets_total{region="fr",result="done"}' in get(second)
            told = [json.loads(path.read_text())[0] for path in sorted((tmp_path / "metrics").glob("*.json"))]
            assert [one["targets"] for one in told] == [[f"127.0.0.1:{first}"], [f"127.0.0.1:{second}"]]
            assert [one["labels"] for one in told] == [{"process": "worker-fr"}, {"process": "worker-se"}]
    assert not list((tmp_path / "metrics").glob("*.json"))
    with pytest.raises(httpx.ConnectError):
        get(first)


def test_what_a_killed_worker_announced_goes(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    gone = tmp_path / "metrics" / f"control.{socket.gethostname()}.999999999.json"
    gone.write_text("[]")
    with telemetry.served("127.0.0.1", 0, tmp_path, "control"):
        assert not gone.exists()


def test_without_a_port_to_take_work_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telemetry, "PORTS", 1)
    with socket.create_server(("127.0.0.1", 0)) as taken, caplog.at_level(logging.WARNING):
        port = taken.getsockname()[1]
        with telemetry.served("127.0.0.1", port, tmp_path, "control") as found:
            assert found is None
    assert f"no metrics of this process: 127.0.0.1 port {port}" in caplog.text


def test_what_is_booked_is_counted_by_book_and_what_is_unknown_nowhere() -> None:
    def told(name: str, **labels: str) -> float | None:
        return REGISTRY.get_sample_value(f"carbonq_{name}_total", {"region": "away", **labels})

    item = {"model": "counted", "kind": "item"}
    model = replace(EMBEDDER, name="counted")
    made = [book(batch(parts=[part(0), part(1, cpu=None)], model=model)), overhead(parts=[part(cpu=77)])]
    idle_before = told("energy_joules", model="", kind="idle", quality="estimated") or 0.0
    telemetry.count_booked(made)
    assert told("energy_joules", **item, quality="estimated") == pytest.approx(1.000003)
    emission_g = sum(row["emission_g"] or 0 for row in made[0].entries)
    assert told("impact_grams", **item, status="provisional") == pytest.approx(float(emission_g))
    inventory_g = sum(row["inventory_g"] or 0 for row in made[0].entries)
    assert told("inventory_grams", **item, status="provisional") == pytest.approx(float(inventory_g))
    idle = told("energy_joules", model="", kind="idle", quality="estimated")
    assert idle is not None and idle - idle_before == pytest.approx(77e-6)
    telemetry.count_booked([book(batch(model=model), rate_book([]))])
    assert told("impact_grams", **item, status="missing") is None
