"""Traces: off unless asked for, spans as a collector gets them, and no harm without one."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from carbonq import config, tracing, wiring
from carbonq.config import otel
from carbonq.embedded import checkup
from carbonq.errors import ConfigError, Unavailable
from carbonq.tracing import OFF, Traces
from tests.collector import Collector, collector
from tests.system.processes import until

#: A caller's span, kept and not kept.
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNKEPT = CALLER[:-1] + "0"


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collector() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        yield made


def started() -> Traces:
    return wiring.make_traces(config.load(), "test", "test-1")


# --- whether ---------------------------------------------------------------------------------------------------------

_LOADS = """
import sys
{imports}
from carbonq import config, wiring
traces = wiring.make_traces(config.load(), "test")
with traces.begin("submit", parent="00-" + "a" * 32 + "-" + "b" * 16 + "-01") as span:
    assert span.context is None and span.link is None
print(traces.is_on, [name for name in sys.modules if name.startswith({names!r})])
"""


@pytest.mark.parametrize(
    ("imports", "names"),
    [
        ("import workers.region, workers.control, carbonq.client, carbonq.services.run", "opentelemetry"),
        # FastAPI and redis themselves import parts of OpenTelemetry where it is installed.
        ("import carbonq.api.process, carbonq.cli.main", ("opentelemetry.sdk.trace", "opentelemetry.exporter")),
    ],
    ids=["workers", "api"],
)
def test_off_nothing_of_opentelemetry_is_imported(imports: str, names: str | tuple[str, ...], tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", _LOADS.format(imports=imports, names=names)],
        env={**environment, "PYTHONPATH": os.getcwd(), "CARBONQ_DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "False []\n", done.stderr


@pytest.mark.parametrize(
    ("variables", "traces", "origin"),
    [
        ({}, "none", "default"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/t"}, "otlp", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ({"OTEL_TRACES_EXPORTER": "OTLP"}, "otlp", "OTEL_TRACES_EXPORTER"),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, "otlp", "OTEL_TRACES_EXPORTER"),
        (
            {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"},
            "none",
            "OTEL_TRACES_EXPORTER",
        ),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "none", "OTEL_TRACES_EXPORTER"),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, "none", "OTEL_SDK_DISABLED"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "CARBONQ_TRACES": "none"}, "none", "CARBONQ_TRACES"),
        ({"CARBONQ_TRACES": "otlp"}, "otlp", "CARBONQ_TRACES"),
    ],
)
def test_the_standard_variables_ask_for_traces_and_carbonqs_own_decides(
    variables: Mapping[str, str], traces: str, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    reading = config.given().read()
    assert (reading.settings.traces, reading.origin(("traces",))) == (traces, origin)


def test_a_demo_is_not_traced_because_its_shell_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in otel.ASKING:
        monkeypatch.setenv(name, "otlp")
    monkeypatch.setenv("CARBONQ_CONFIG", "gone")  # what isolate sets is taken back
    (tmp_path / "carbonq.toml").touch()
    config.isolate(tmp_path / "carbonq.toml")
    assert config.load().traces == "none"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'"),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is 'http/json'",
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "user:secret@host:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT must be a URL"),
    ],
)
def test_what_could_never_arrive_is_refused_at_the_start(
    variables: Mapping[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARBONQ_TRACES", "otlp")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for act in (started, lambda: checkup.check_before_start(config.load())):
        with pytest.raises(ConfigError) as caught:
            act()
        assert said in caught.value.message and "secret" not in caught.value.message
    monkeypatch.setenv("CARBONQ_TRACES", "none")
    assert started() is OFF


def test_without_the_extra_the_start_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for act in (started, lambda: checkup.check_before_start(config.load())):
        with pytest.raises(ConfigError, match=r"pip install 'carbonq\[otel\]'; or set CARBONQ_TRACES=none"):
            act()


# --- spans -----------------------------------------------------------------------------------------------------------


def test_a_span_is_its_callers_child_and_carries_what_is_known(there: Collector) -> None:
    traces = started()
    with traces.begin("submit", kind="server", parent=CALLER, attributes={"a": Decimal("1.5"), "b": None}) as span:
        span.set({"c": 3, "d": None, "e": ["x", "y"], "f": False, "g": 0.0})
    traces.close()
    (seen,) = there.spans
    assert (seen.name, seen.kind, seen.service) == ("submit", 2, "carbonq-test")
    assert (seen.trace_id, seen.parent_id) == (CALLER[3:35], CALLER[36:52])
    assert seen.attributes == {"a": 1.5, "c": 3, "e": ["x", "y"], "f": False, "g": 0.0}
    assert span.context == span.link == f"00-{seen.trace_id}-{seen.span_id}-01"
    assert not seen.is_error


def test_ones_own_name_of_the_service_is_kept(there: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "inference")
    traces = started()
    traces.record("plan", 1, 2)
    traces.close()
    assert there.spans[0].service == "inference"
    assert (there.spans[0].began_ns, there.spans[0].ended_ns) == (1, 2)


@given(context=st.one_of(st.text(max_size=60), st.from_regex(r"\A[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")))
def test_whatever_a_caller_sends_as_its_context_a_span_is_made(context: str) -> None:
    traces = _silent()
    with traces.begin("submit", parent=context, links=[context]) as span:
        assert span.context is not None and len(span.context) == 55
    if span.context[3:35] == context[3:35]:
        assert context[36:52] != "0" * 16 and not context.startswith("ff")


def _silent(made: list[Traces] = []) -> Traces:  # noqa: B006 - one for all examples
    if not made:
        made.append(tracing._On(TracerProvider(shutdown_on_exit=False), "1"))  # pyright: ignore[reportPrivateUsage]
    return made[0]


def test_an_error_is_its_code_never_its_text(there: Collector) -> None:
    traces = started()
    with pytest.raises(Unavailable), traces.begin("realtime"):
        raise Unavailable("the secret prompt was too long", code="realtime_timeout")
    with pytest.raises(ZeroDivisionError), traces.begin("submit"):
        raise ZeroDivisionError("the secret prompt")
    traces.record("commit", 1, 2, error="lease_lost")
    traces.close()
    assert [(one.name, one.attributes["error.type"]) for one in there.spans] == [
        ("realtime", "realtime_timeout"),
        ("submit", "ZeroDivisionError"),
        ("commit", "lease_lost"),
    ]
    assert all(one.is_error and one.message == "" and one.events == 0 for one in there.spans)
    assert b"secret" not in b"".join(there.bodies)


def test_links_are_to_kept_spans_only_and_bounded(there: Collector) -> None:
    traces = started()
    contexts = [f"00-{number:032x}-{number:016x}-01" for number in range(1, 201)]
    traces.record("run chunk", 1, 2, links=[UNKEPT, "nonsense", CALLER])
    traces.record("run chunk", 1, 2, links=contexts)
    traces.close()
    few, many = there.spans
    assert few.links == [(CALLER[3:35], CALLER[36:52])]
    assert many.links == [(f"{number:032x}", f"{number:016x}") for number in range(1, tracing.MAX_LINKS + 1)]
    assert not few.parent_id and few.trace_id not in {CALLER[3:35], many.trace_id}


def test_what_a_kept_submit_is_linked_to_is_kept(there: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    traces = started()
    with traces.begin("submit") as alone:
        assert alone.link is None and alone.context is not None
    with traces.begin("submit", parent=CALLER) as asked:
        assert asked.link == asked.context
    with traces.begin("run chunk", links=[UNKEPT]):
        pass
    with traces.begin("run chunk", links=[asked.link or ""]) as run:
        traces.record("commit", 1, 2, parent=run.context)
    traces.record("commit", 1, 2, parent=alone.context)
    traces.close()
    assert sorted(one.name for one in there.spans) == ["commit", "run chunk", "submit"]


# --- without a collector ---------------------------------------------------------------------------------------------


def closed_port() -> int:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_a_collector_that_is_away_blocks_nothing_and_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16")
    with caplog.at_level(logging.INFO):
        traces = started()
        for _ in range(2_000):
            traces.record("plan", 1, 2)
        began = time.monotonic()
        traces.close()
        assert time.monotonic() - began < tracing.FLUSH_S + 2
    said = [record.getMessage() for record in caplog.records]
    assert said == ["the collector of traces does not take them; spans are lost until it does"]


def test_a_collector_that_hangs_keeps_no_process_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "FLUSH_S", 0.3)
    with closing(socket.create_server(("127.0.0.1", 0))) as deaf:  # takes connections, never answers
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        traces = started()
        traces.record("plan", 1, 2)
        began = time.monotonic()
        traces.close()
        assert 0.2 < time.monotonic() - began < 5


def test_what_waits_for_a_collector_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100")
    monkeypatch.setattr(tracing, "FLUSH_S", 0.1)
    attributes = {"text": "x" * 1_000}
    with closing(socket.create_server(("127.0.0.1", 0))) as deaf:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        traces = started()
        tracemalloc.start()
        try:
            for _ in range(500):
                traces.record("plan", 1, 2, attributes=attributes | {"n": os.urandom(4).hex() * 250})
            first, _ = tracemalloc.get_traced_memory()
            for _ in range(5_000):
                traces.record("plan", 1, 2, attributes=attributes | {"n": os.urandom(4).hex() * 250})
            last, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        traces.close()
    assert last - first < 1_000_000  # 5,000 spans of more than 2 kB would be ten times that


def test_a_collector_that_comes_back_gets_what_comes_then(
    there: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    there.status = 400
    traces = started()
    traces.record("plan", 1, 2)
    until(lambda: caplog.records, 10, "word of the loss", pause_s=0.01)
    there.status = 200
    traces.record("dispatch", 3, 4)
    traces.close()
    assert [one.name for one in there.spans] == ["dispatch"]
    assert [record.getMessage() for record in caplog.records][-1] == "traces are taken again; 1 spans were lost"


# --- callers ---------------------------------------------------------------------------------------------------------


def test_a_client_in_a_traced_program_passes_its_span_on() -> None:
    assert tracing.caller_context() == {}
    with TracerProvider(shutdown_on_exit=False).get_tracer("theirs").start_as_current_span("theirs") as span:
        context = span.get_span_context()
        headers = tracing.caller_context()
    assert headers == {"traceparent": f"00-{trace.format_trace_id(context.trace_id)}-{context.span_id:016x}-03"} or (
        headers == {"traceparent": f"00-{trace.format_trace_id(context.trace_id)}-{context.span_id:016x}-01"}
    )
