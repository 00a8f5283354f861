"""OpenTelemetry traces: a submit linked to the runs of its items, hours later; off by default."""

from __future__ import annotations
