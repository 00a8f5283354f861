"""carbonq: a carbon-aware job queue for batch AI inference, with a ledger anyone can recompute."""

__all__ = ["__version__"]

__version__ = "0.1.0"
