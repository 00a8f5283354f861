"""The yardstick of the way that most queues take: one Celery task for each item, results through a result backend.

A real Celery worker with the same engine, on the same broker as carbonq, one thread; items are sent in one pipeline.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery import Celery
from celery.result import ResultSet

#: Seconds that the worker may take to be there.
_READY_S = 120.0


def make_app(broker_url: str) -> Celery:
    """Make the application of both sides; results lie in Redis as Celery's do by default."""
    app = Celery("per_task", broker=broker_url, backend=broker_url, set_as_current=False)
    app.conf.update(
        task_default_queue="bench.per_task",
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"global_keyprefix": "bench:"},
        result_backend_transport_options={"global_keyprefix": "bench:"},
    )
    return app


def work(broker_url: str, model_name: str) -> None:
    """Be the worker: one task an item, the engine called with one request each."""
    from carbonq import models, wiring
    from carbonq.engines.protocol import EngineRequest

    engine = wiring.make_engine(models.BUILTIN[model_name])
    engine.load()
    app = make_app(broker_url)

    @app.task(name="embed")
    def embed(text: str) -> str:  # pyright: ignore[reportUnusedFunction]
        request = EngineRequest("one", {"model": model_name, "input": text})
        return (engine.run([request], lambda: False)[0].body_json or b"").decode()

    app.worker_main(["worker", "--pool=threads", "--concurrency=1", "--loglevel=ERROR", "--without-gossip"])


def items_per_s(broker_url: str, model_name: str, texts: Sequence[str], log: Path) -> float:
    """Return how many items a second come back, the worker's start left out. Raises RuntimeError if none do."""
    app = make_app(broker_url)
    code = f"from carbonq.bench.per_task import work; work({broker_url!r}, {model_name!r})"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as stream:
        worker = subprocess.Popen(
            [sys.executable, "-c", code], stdout=stream, stderr=stream, env=environment, start_new_session=True
        )
    try:
        app.send_task("embed", args=(texts[0],)).get(timeout=_READY_S)
        began = time.perf_counter()
        with app.producer_pool.acquire(block=True) as producer:
            sent = [app.send_task("embed", args=(text,), producer=producer) for text in texts]
        answers: Any = ResultSet(sent, app=app).join_native(timeout=_READY_S + len(texts) / 20)
        elapsed_s = time.perf_counter() - began
        if len(answers) != len(texts) or not all(answers):
            raise RuntimeError(f"{len(answers)} of {len(texts)} items came back; see {log}")
        return len(texts) / elapsed_s
    finally:
        worker.terminate()
        worker.wait(30)
        app.close()
