"""Alembic migrations of the carbonq schema (PostgreSQL and SQLite)."""
