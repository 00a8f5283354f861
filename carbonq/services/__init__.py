"""Use cases: one per file, each a story with its transactions. Adapters are passed in."""
