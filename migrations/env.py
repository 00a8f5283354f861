"""Alembic's entry: runs the revisions on the engine that ``carbonq.store.schema`` hands over."""

from __future__ import annotations

from alembic import context

from carbonq.store import tables
from carbonq.store.dialect import serialise

engine = context.config.attributes["engine"]
with engine.execution_options(carbonq_write=True).connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=tables.metadata,
        render_as_batch=True,
        transactional_ddl=True,
        transaction_per_migration=False,
    )
    with context.begin_transaction():
        serialise(connection, "migrations")  # several hosts may start at once; the others find the work done
        context.run_migrations()
