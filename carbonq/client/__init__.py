"""The Python client of carbonq's HTTP API: ``Client`` blocks, ``AsyncClient`` awaits, both do the same.

    with carbonq.Client() as client:
        job = client.submit(["a text", "another"], kind="embeddings", model="wordllama-256", deadline="6h")
        client.wait(job.id)
        for result in client.results(job.id):
            print(result.custom_id, result.vector[:3])

Requests and answers are in ``calls``, ``answers`` and ``records``, what is done with them in ``flows``: none of these
does I/O. ``blocking`` and ``awaiting`` do, and decide nothing. Docs: docs/client.md.
"""

from carbonq.client.awaiting import AsyncClient
from carbonq.client.blocking import Client
from carbonq.client.items import Item
from carbonq.client.records import (
    FINAL_STATES,
    Budget,
    BudgetStatus,
    Carbon,
    Chunk,
    Entry,
    Event,
    Job,
    Json,
    Placement,
    Progress,
    Quote,
    QuoteBaseline,
    QuotePoint,
    RateNow,
    Record,
    Region,
    Result,
    Why,
    WhyGroup,
)
from carbonq.client.shared import DEFAULT_URL

__all__ = [
    "DEFAULT_URL",
    "FINAL_STATES",
    "AsyncClient",
    "Budget",
    "BudgetStatus",
    "Carbon",
    "Chunk",
    "Client",
    "Entry",
    "Event",
    "Item",
    "Job",
    "Json",
    "Placement",
    "Progress",
    "Quote",
    "QuoteBaseline",
    "QuotePoint",
    "RateNow",
    "Record",
    "Region",
    "Result",
    "Why",
    "WhyGroup",
]
