"""The yardsticks of ``carbonq bench api``: the same web server with one insert and commit a request, and with a file.

What anybody would write first: FastAPI, a checked body, a pooled connection in a thread. Nothing of a queue.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import FileResponse
from pydantic import BaseModel

from carbonq.store.database import Database

TABLE = "bench_rows"

#: As many connections as FastAPI has threads, so that none waits for one or opens one anew.
_THREADS = 40

_CREATE = f"CREATE TABLE IF NOT EXISTS {TABLE} (row_id %s, custom_id TEXT NOT NULL, body TEXT NOT NULL)"


class Row(BaseModel):
    """What a request holds: an OpenAI line."""

    custom_id: str
    body: dict[str, Any]


def make_app(db: Database, file: Path) -> FastAPI:
    """Return the application; ``file`` is what ``/file`` sends."""
    kind = "INTEGER PRIMARY KEY" if db.is_sqlite else "BIGSERIAL PRIMARY KEY"
    mark = "?" if db.is_sqlite else "%s"
    insert = f"INSERT INTO {TABLE} (custom_id, body) VALUES ({mark}, {mark})"
    with db.write() as tx:
        tx.exec_driver_sql(_CREATE.replace("%s", kind))
    app = FastAPI()

    @app.post("/rows", status_code=202)
    def add(row: Row) -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        with db.write() as tx:
            tx.exec_driver_sql(insert, (row.custom_id, json.dumps(row.body)))
        return {"custom_id": row.custom_id}

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return {"status": "ok"}

    @app.get("/file")
    def send() -> FileResponse:  # pyright: ignore[reportUnusedFunction]
        return FileResponse(file)

    return app


def serve(port: int, file: str) -> None:
    """Serve until a stop signal, set up as carbonq's API is; the database is that of ``CARBONQ_BENCH_URL``."""
    app = make_app(Database(os.environ["CARBONQ_BENCH_URL"], pool_size=_THREADS), Path(file))
    uvicorn.run(app, host="127.0.0.1", port=port, access_log=False, log_config=None, server_header=False)


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
