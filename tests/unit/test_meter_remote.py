"""DCGM's exporter and external meters, over real HTTP to a small server, and in files."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from carbonq.errors import ConfigError
from carbonq.meters import fetch
from carbonq.meters.dcgm import DcgmMeter
from carbonq.meters.external import ExternalMeter, Place
from carbonq.meters.polled import Unanswered
from carbonq.meters.protocol import COUNTER_RESET, METER_OUTAGE, Component, MeterKind, MeterLost
from carbonq.model import Quality


class Server:
    """Answers with ``text`` and ``status``, and counts and keeps what it was asked with."""

    def __init__(self) -> None:
        server = self
        self.text, self.status = "", 200
        self.headers: dict[str, str] = {}
        self.answers = 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = server.text.encode()
                self.send_response(server.status)
                self.send_header("Location", "http://127.0.0.1:1/")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                server.headers = dict(self.headers)
                server.answers += 1

            def log_message(self, format: str, *args: object) -> None:
                return

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/metrics"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def show(self, text: str, status: int = 200) -> None:
        """Change the answer."""
        self.text, self.status = text, status

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition, 20 s at most."""
    end, pause = time.monotonic() + 20, threading.Event()
    while not is_so():
        assert time.monotonic() < end
        pause.wait(0.005)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def lines(**mj: int) -> str:
    head = "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n"
    other = 'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a"} 40\n'
    rows = [
        f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu="{index}",UUID="GPU-{name}",GPU_I_ID="{slice_}"}} {value}\n'
        for index, (name, value) in enumerate(mj.items())
        for slice_ in ("1", "2")  # a MIG GPU shows its counter once for each slice
    ]
    return head + "".join(rows) + other


@pytest.fixture
def dcgm(server: Server) -> Iterator[Callable[..., DcgmMeter]]:
    made: list[DcgmMeter] = []

    def make(*gpus: str, lost_after_s: float = 60.0) -> DcgmMeter:
        made.append(DcgmMeter(server.url, gpus, period_s=0.01, lag_s=0.1, lost_after_s=lost_after_s))
        return made[-1]

    yield make
    for meter in made:
        meter.close()


def test_an_exporters_counters_are_summed_once_each(server: Server, dcgm: Callable[..., DcgmMeter]) -> None:
    server.text = lines(a=1_000, b=5_000)
    both, one = dcgm(), dcgm("1")
    assert (both.component, both.kind, both.quality) == (Component.GPU, MeterKind.DCGM, Quality.MEASURED)
    assert (both.device_ids, one.device_ids, both.lag_s) == (("GPU-a", "GPU-b"), ("GPU-b",), pytest.approx(0.11))
    server.show(lines(a=1_010, b=5_001))
    until(lambda: both.read_uj() == 11_000)
    server.show("not known just now", status=503)
    answers = server.answers
    until(lambda: server.answers > answers + 5)
    server.show(lines(a=7, b=5_002))
    until(lambda: (both.read_uj(), one.read_uj()) == (19_000, 2_000))
    assert (both.marks(), one.marks()) == ((COUNTER_RESET, METER_OUTAGE), (METER_OUTAGE,))
    until(lambda: (both.marks(), one.marks()) == ((), ()))


def test_an_exporter_that_shows_no_such_gpu_or_is_silent_is_an_error(
    server: Server, dcgm: Callable[..., DcgmMeter]
) -> None:
    for text, gpus, message in [
        (lines(a=1), ("GPU-z",), "does not show GPU GPU-z"),
        ("", (), "does not show DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
        ("<html>", (), "no Prometheus text"),
    ]:
        server.text = text
        with pytest.raises(ConfigError, match=message):
            dcgm(*gpus)
    server.text = lines(a=1)
    meter = dcgm(lost_after_s=-1.0)
    server.show(lines(b=1))

    def reason() -> str:
        with pytest.raises(MeterLost) as lost:
            meter.read_uj()
        return str(lost.value)

    until(lambda: "shows GPU-a no more" in reason())


def external(server: Server, unit: str, value: str = "$.outlets[6].energy") -> ExternalMeter:
    place = Place(server.url + "?key=secret", value, unit, headers={"X-Key": "k"})
    return ExternalMeter(place, Component.CPU, period_s=0.01, lag_s=1.0, uncertainty_pct=1.0)


def pdu(energy: object) -> str:
    return json.dumps({"outlets": [{"energy": 0}] * 6 + [{"energy": energy}]})


def test_any_json_is_a_meter(server: Server) -> None:
    server.text = pdu(12.5)
    meter = external(server, "kWh")
    assert (meter.kind, meter.quality, meter.uncertainty_pct) == (MeterKind.EXTERNAL, Quality.MEASURED, 1.0)
    assert meter.lag_s == pytest.approx(1.01)
    assert "secret" not in meter.device_ids[0], "addresses may hold keys"
    server.show(pdu("12.500001"))
    until(lambda: meter.read_uj() == 3_600_000)
    assert server.headers["X-Key"] == "k"
    server.show(pdu(3))
    until(lambda: meter.marks() == (COUNTER_RESET,))
    assert meter.read_uj() == 3_600_000
    server.show(pdu(3.000001))
    until(lambda: meter.read_uj() == 7_200_000)
    assert meter.marks() == ()
    meter.close()


@pytest.mark.parametrize("broken", [("sorry", 200), ("{}", 500), ('{"energy": -5}', 200), ('{"energy": 1e25}', 200)])
def test_what_was_counted_while_nothing_was_answered_is_marked(server: Server, broken: tuple[str, int]) -> None:
    server.show('{"energy": 5}')
    meter = external(server, "J", "$.energy")
    try:
        assert METER_OUTAGE not in meter.marks()
        server.show(*broken)
        until(lambda: METER_OUTAGE in meter.marks())
        assert meter.read_uj() == 0
        assert METER_OUTAGE in meter.marks()
        server.show('{"energy": 7}')
        until(lambda: meter.read_uj() == 2_000_000)
        until(lambda: METER_OUTAGE not in meter.marks())
    finally:
        meter.close()


@pytest.mark.parametrize("number", ["1e30", '"9e999999999"', str(36 * 10**15 + 6_000_000)])
def test_a_number_that_no_meter_can_have_counted_is_refused(server: Server, number: str) -> None:
    server.show('{"energy": 5}')
    meter = external(server, "uJ", "$.energy")
    try:
        server.show(f'{{"energy": {number}}}')
        asked = server.answers
        until(lambda: server.answers > asked + 2)
        assert meter.read_uj() == 0
        assert METER_OUTAGE in meter.marks()
    finally:
        meter.close()


def test_power_is_sampled_and_called_an_estimate(server: Server) -> None:
    server.text = pdu(400)
    meter = external(server, "W")
    until(lambda: meter.read_uj() > 0)
    first = meter.read_uj()
    until(lambda: meter.read_uj() > first)
    assert meter.quality is Quality.ESTIMATED
    meter.close()


@pytest.mark.parametrize(
    ("text", "unit", "value", "message"),
    [
        (pdu(1), "BTU", "$.a", "unknown unit 'BTU'; known: uJ"),
        (pdu(1), "J", "$[", "is no JSON path"),
        (pdu(1), "J", "$.nothing", "finds 0 numbers"),
        (pdu(1), "J", "$.outlets[*].energy", "finds 7 numbers"),
        ("oops", "J", "$.a", "no JSON"),
        *((pdu(bad), "J", "$.outlets[6].energy", "no number of at least 0") for bad in (-1, None, "NaN", True, "x")),
    ],
)
def test_what_is_no_reading_is_refused_by_name(server: Server, text: str, unit: str, value: str, message: str) -> None:
    server.text = text
    with pytest.raises(ConfigError, match=message):
        external(server, unit, value)


def test_a_file_of_rows_is_a_meter_whose_last_row_counts(tmp_path: Path) -> None:
    path = tmp_path / "ipmi.csv"
    path.write_text("at,joules\n1,100\n2,150\n")
    meter = ExternalMeter(Place(str(path), "joules", "J", "csv"), Component.DRAM, period_s=0.01)
    path.write_text("at,joules\n1,100\n2,150\n3,151.5\n")
    until(lambda: meter.read_uj() == 1_500_000)
    meter.close()
    with pytest.raises(ConfigError, match="no row with a column 'watts'"):
        ExternalMeter(Place(str(path), "watts", "J", "csv"), Component.DRAM)


def test_fetching_follows_no_redirect_and_reads_no_endless_answer(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.status = 302
    with pytest.raises(Unanswered, match="302"):
        fetch.text(server.url, {"X-Key": "k"})
    server.status, server.text = 200, "x" * 11
    monkeypatch.setattr(fetch, "MAX_BYTES", 10)
    with pytest.raises(Unanswered, match="more than 10 bytes"):
        fetch.text(server.url, {})
    with pytest.raises(Unanswered, match=r"missing\.csv cannot be read"):
        fetch.text(str(tmp_path / "missing.csv"), {})
    assert fetch.shown_address("https://me:pw@pdu.local/x?key=1") == "https://pdu.local/x"
