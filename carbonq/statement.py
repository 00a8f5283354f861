"""A cloud provider's statement of carbon, read from CSV and compared with the ledger. Pure."""

from __future__ import annotations
