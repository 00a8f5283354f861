"""What OpenTelemetry's own variables say of traces: whether any are asked for, and whether they can be sent. Pure.

Where spans go, with which headers and how many, is read by OpenTelemetry's SDK itself, from ``OTEL_EXPORTER_OTLP_*``,
``OTEL_TRACES_SAMPLER``, ``OTEL_BSP_*`` and ``OTEL_RESOURCE_ATTRIBUTES``: they mean here what they mean everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

DISABLED = "OTEL_SDK_DISABLED"
EXPORTER = "OTEL_TRACES_EXPORTER"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")

#: The one protocol that the extra ``otel`` brings.
PROTOCOL = "http/protobuf"

#: Variables that ask for traces.
ASKING = (EXPORTER, *ENDPOINTS)


def asked(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return what the variables say of the setting ``traces``, and which one says it; None: they say nothing."""
    if environ.get(DISABLED, "").strip().lower() == "true":
        return "none", DISABLED
    exporters = [one.strip().lower() for one in environ.get(EXPORTER, "").split(",") if one.strip()]
    if exporters:
        return "otlp" if "otlp" in exporters else "none", EXPORTER
    return next((("otlp", name) for name in ENDPOINTS if environ.get(name)), None)


def trouble(environ: Mapping[str, str]) -> str | None:
    """Say in one sentence why spans could never arrive; None: they might."""
    for name in PROTOCOLS:
        protocol = environ.get(name, "").strip()
        if protocol and protocol != PROTOCOL:
            return (
                f"{name} is {protocol!r}; traces are sent by {PROTOCOL} only: set it to that, with the collector's "
                "HTTP port (4318 by custom), or set CARBONQ_TRACES=none"
            )
        if protocol:
            break
    for name in ENDPOINTS:
        endpoint = environ.get(name, "").strip()
        if endpoint and not endpoint.lower().startswith(("http://", "https://")):
            return f"{name} must be a URL that begins with http:// or https://"  # not shown: it may hold a password
    return None
