"""carbonq: a carbon-aware job queue for batch AI inference, with a ledger anyone can recompute.

``carbonq.Client`` and ``carbonq.AsyncClient`` talk to an installation; they are imported when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from carbonq.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in {"AsyncClient", "Client"}:
        from carbonq import client

        return getattr(client, name)
    raise AttributeError(f"module 'carbonq' has no attribute {name!r}")
