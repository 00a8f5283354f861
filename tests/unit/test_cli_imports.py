"""Help answers at once: whatever is heavy is imported by the command that needs it, when it runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: What takes long to import, or is not there in every installation.
HEAVY = {
    "alembic",
    "asyncio",
    "celery",
    "fastapi",
    "flower",
    "httpx",
    "kombu",
    "numpy",
    "obstore",
    "ortools",
    "psycopg",
    "pydantic_settings",
    "redis",
    "sentence_transformers",
    "sqlalchemy",
    "tornado",
    "torch",
    "uvicorn",
    "wordllama",
    "xllamacpp",
}


def imported(*words: str) -> set[str]:
    """Return the top-level packages that a command imports."""
    done = subprocess.run(
        (sys.executable, "-X", "importtime", "-m", "carbonq", *words), capture_output=True, text=True, check=True
    )
    assert "Usage: " in done.stdout
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("words", [("--help",), ("submit", "embeddings", "--help"), ("worker", "--help")], ids=" ".join)
def test_help_imports_nothing_heavy(words: tuple[str, ...]) -> None:
    found = imported(*words)
    assert "typer" in found
    assert sorted(found & HEAVY) == []
