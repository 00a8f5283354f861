"""The month's report as a document: what stands in it, and how it is written as JSON and CSV. Pure."""

from __future__ import annotations
