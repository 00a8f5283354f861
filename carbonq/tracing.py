"""OpenTelemetry traces: a submit linked to the runs of its items, hours later; off by default.

The only module that knows opentelemetry, and it is imported only when traces are asked for. Where spans go and how many
are kept is read by the SDK from OpenTelemetry's own ``OTEL_*`` variables; whether there are any is a setting. Spans
carry ids of jobs and chunks, never prompts, custom ids, tenants, keys or the text of an error. What is not known is no
attribute, never 0. Times are machine time in ns since 1970.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from decimal import Decimal
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Literal, Protocol

from carbonq.errors import CarbonqError, ConfigError

logger = logging.getLogger(__name__)

Value = str | bool | int | float | Decimal | Sequence[str] | None
Attributes = Mapping[str, Value]
Kind = Literal["internal", "server", "client", "producer", "consumer"]

#: Most links of one span, as the SDK's own limit is unless told otherwise; the count of all is said beside.
MAX_LINKS = 128

#: How long the end of a process waits for the last spans to be delivered, in seconds.
FLUSH_S = 3.0

#: Longest ``traceparent`` that is looked at: of version 00 it has 55 characters.
_MAX_CONTEXT_CHARS = 200

# OpenTelemetry's conventions for generative AI and messaging, all of them "Development": pinned here as they are in
# semantic-conventions 1.45 and semantic-conventions-genai 0.1, so that an upgrade of a package renames nothing.
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
MESSAGING_SYSTEM = "messaging.system"
MESSAGING_OPERATION = "messaging.operation.name"
MESSAGING_OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
BATCH_COUNT = "messaging.batch.message_count"
ERROR = "error.type"


class Span(Protocol):
    """A span that has begun; as a context it ends with the body, and an exception becomes its error."""

    @property
    def context(self) -> str | None:
        """A ``traceparent`` for children in other processes; None where traces are off."""
        ...

    @property
    def link(self) -> str | None:
        """The same, to be linked to later; None where nobody will see this span."""
        ...

    def set(self, attributes: Attributes) -> None:
        """Add attributes; None is left out."""
        ...

    def fail(self, error: str) -> None:
        """Say what went wrong, by its code."""
        ...

    def __enter__(self) -> Span: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End with the code of the exception."""
        ...


class Traces(Protocol):
    """Makes spans; may be used from many threads."""

    @property
    def is_on(self) -> bool:
        """Whether anybody gets to see a span: what is only for them need not be worked out."""
        ...

    def begin(
        self,
        name: str,
        *,
        kind: Kind = "internal",
        parent: str | None = None,
        links: Sequence[str] = (),
        attributes: Attributes | None = None,
        began_ns: int | None = None,
    ) -> Span:
        """Begin a span, below ``parent`` (a ``traceparent``) if there is one."""
        ...

    def record(
        self,
        name: str,
        began_ns: int,
        ended_ns: int,
        *,
        kind: Kind = "internal",
        parent: str | None = None,
        links: Sequence[str] = (),
        attributes: Attributes | None = None,
        error: str | None = None,
    ) -> None:
        """Make a span of what is over."""
        ...

    def close(self) -> None:
        """Deliver what is left, for at most ``FLUSH_S``."""
        ...


class _NoSpan:
    context = link = None

    def set(self, attributes: Attributes) -> None:
        pass

    def fail(self, error: str) -> None:
        pass

    def __enter__(self) -> Span:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        pass


_NO_SPAN = _NoSpan()


class _Off:
    is_on = False

    def begin(self, name: str, **_more: Any) -> Span:
        return _NO_SPAN

    def record(self, name: str, began_ns: int, ended_ns: int, **_more: Any) -> None:
        pass

    def close(self) -> None:
        pass


#: No traces.
OFF: Traces = _Off()


#: What an installation without OpenTelemetry says.
_MISSING = "traces are asked for and need the extra otel: pip install 'carbonq[otel]'; or set CARBONQ_TRACES=none"


def check_installed() -> None:
    """Raise ConfigError naming the extra where OpenTelemetry is not installed; loads nothing of it."""
    try:
        is_there = all(
            find_spec(name) for name in ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
        )
    except ImportError:  # of what stands above it
        is_there = False
    if not is_there:
        raise ConfigError(_MISSING)


def start(service: str, *, version: str, instance: str | None = None) -> Traces:
    """Begin to trace this process, of the given service.

    Raises ConfigError naming the extra where OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(_MISSING) from error
    resource = Resource.create({"service.version": version, "service.namespace": "carbonq"})
    if str(resource.attributes.get("service.name", "unknown_service")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": f"carbonq-{service}"}))
    if instance is not None:
        resource = resource.merge(Resource({"service.instance.id": instance}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.sampler = _Linked(provider.sampler)  # pyright: ignore[reportAttributeAccessIssue]
    provider.add_span_processor(BatchSpanProcessor(_Exporter(OTLPSpanExporter())))  # pyright: ignore[reportArgumentType]
    # Beyond this line they repeat themselves for as long as a collector is away: the exporter says it once.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    return _On(provider, version)


def caller_context() -> dict[str, str]:
    """Return the headers that name the span in which this thread is; none where its process does not trace."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return {}
    context = api.get_current_span().get_span_context()
    return {"traceparent": _written(context)} if context.is_valid else {}


class _On:
    is_on = True

    def __init__(self, provider: Any, version: str) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace: Any = trace
        self._provider = provider
        self._tracer = provider.get_tracer("carbonq", version)
        self._read = TraceContextTextMapPropagator().extract

    def begin(
        self,
        name: str,
        *,
        kind: Kind = "internal",
        parent: str | None = None,
        links: Sequence[str] = (),
        attributes: Attributes | None = None,
        began_ns: int | None = None,
    ) -> _OpenSpan:
        trace = self._trace
        targets = [self._span_context(one) for one in links[:MAX_LINKS]]
        made = self._tracer.start_span(
            name,
            # An empty one, or else what this thread traces by itself would become the parent.
            self._context(parent),
            trace.SpanKind[kind.upper()],
            _known(attributes or {}),
            [trace.Link(one) for one in targets if one.is_valid and one.trace_flags.sampled],
            began_ns,
            record_exception=False,
            set_status_on_exception=False,
        )
        return _OpenSpan(made, trace)

    def record(
        self,
        name: str,
        began_ns: int,
        ended_ns: int,
        *,
        kind: Kind = "internal",
        parent: str | None = None,
        links: Sequence[str] = (),
        attributes: Attributes | None = None,
        error: str | None = None,
    ) -> None:
        made = self.begin(name, kind=kind, parent=parent, links=links, attributes=attributes, began_ns=began_ns)
        if error is not None:
            made.fail(error)
        made.end(ended_ns)

    def close(self) -> None:
        # The SDK waits for half a minute; a stop must not, whatever a collector does.
        last = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        last.start()
        last.join(FLUSH_S)

    def _context(self, parent: str | None) -> Any:
        from opentelemetry.context import Context

        if parent is None or len(parent) > _MAX_CONTEXT_CHARS:
            return Context()
        return self._read({"traceparent": parent}, Context())

    def _span_context(self, context: str) -> Any:
        return self._trace.get_current_span(self._context(context)).get_span_context()


class _OpenSpan:
    def __init__(self, span: Any, trace: Any) -> None:
        self._span = span
        self._trace = trace

    @property
    def context(self) -> str | None:
        context = self._span.get_span_context()
        return _written(context) if context.is_valid else None

    @property
    def link(self) -> str | None:
        return self.context if self._span.get_span_context().trace_flags.sampled else None

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(_known(attributes))

    def fail(self, error: str) -> None:
        self._span.set_attribute(ERROR, error)
        self._span.set_status(self._trace.StatusCode.ERROR)

    def end(self, at_ns: int | None = None) -> None:
        self._span.end(at_ns)

    def __enter__(self) -> Span:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:  # its text may quote what a client sent; the code never does
            self.fail(error.code if isinstance(error, CarbonqError) else type(error).__name__)
        self.end()


def _known(attributes: Attributes) -> dict[str, Any]:
    """Leave out what is not known, and write decimals as the floats that attributes may be."""
    return {
        name: float(value) if isinstance(value, Decimal) else value
        for name, value in attributes.items()
        if value is not None
    }


def _written(context: Any) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


class _Linked:
    """Keeps what a kept span is linked to by a root, and else what the sampler of the environment keeps."""

    def __init__(self, inner: Any) -> None:
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        self._inner, self._always = inner, ALWAYS_ON

    def should_sample(  # noqa: PLR0917 - as the SDK calls it
        self,
        parent_context: Any,
        trace_id: int,
        name: str,
        kind: Any = None,
        attributes: Any = None,
        links: Any = None,
        *more: Any,
    ) -> Any:
        asked = self._always if links else self._inner  # a link to what nobody kept is not made
        return asked.should_sample(parent_context, trace_id, name, kind, attributes, links, *more)

    def get_description(self) -> str:
        return f"Linked{{{self._inner.get_description()}}}"


class _Exporter:
    """Says once that a collector is away and once that it is back; spans that it did not take are lost."""

    def __init__(self, inner: Any) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._inner, self._success = inner, SpanExportResult.SUCCESS
        self._lost = 0

    def export(self, spans: Sequence[Any]) -> Any:
        result = self._inner.export(spans)
        if result is self._success:
            if self._lost:
                logger.warning("traces are taken again; %d spans were lost", self._lost)
            self._lost = 0
            return result
        if not self._lost:
            logger.warning("the collector of traces does not take them; spans are lost until it does")
        self._lost += len(spans)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)
