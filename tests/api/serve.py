"""A real API process around fakes, for tests that look at a process from outside: ``python -m tests.api.serve DIR``.

Prints one line of JSON (``url``, ``acme``, ``rival``) when it listens; the embedder answers at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from carbonq.api.app import create_app
from carbonq.api.process import listen
from carbonq.api.server import Server, server_config
from carbonq.store import schema
from carbonq.store.database import Database
from tests.api.harness import build_harness


def main(folder: Path) -> None:
    """Serve until a signal."""
    database = Database(f"sqlite:///{folder / 'carbonq.db'}")
    schema.upgrade(database)
    harness = build_harness(database, folder / "blobs")
    listener = listen("127.0.0.1", 0)
    server = Server(server_config(create_app(harness.api)), harness.api.feed.close)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    sys.stdout.write(json.dumps({"url": url, "acme": harness.acme, "rival": harness.rival}) + "\n")
    sys.stdout.flush()
    server.run(sockets=[listener])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
