"""docs/celery.md as it stands: a real Celery worker on a real Redis broker, and Django's own test client."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import _state
from sqlalchemy import func, select, update
from standardwebhooks import Webhook

from carbonq.store.tables import jobs
from tests.api.conftest import harness
from tests.api.harness import EMBEDDER, Harness, serving
from tests.system.processes import until
from tests.system.servers import RedisServer

__all__ = ["harness"]

pytestmark = [pytest.mark.system, pytest.mark.timeout(150)]

SECRET = "whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0"

#: What the test adds: a task that leaves a trace, and a broker that soon gives a killed worker's tasks back.
MORE = """
import json, os
import signals
from tasks import app

app.conf.broker_transport_options = {
    "visibility_timeout": 2,
    "unacked_mutex_expire": 2,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}
app.conf.broker_connection_retry_on_startup = True

@app.task
def note(job, mark):
    with open(os.environ["TRACE"], "a") as trace:
        trace.write(json.dumps([job["id"], job["state"], mark]) + "\\n")
"""


def recipe(name: str) -> str:
    """The code block of docs/celery.md that begins with its file's name."""
    text = Path("docs/celery.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"```python\n# {re.escape(name)}\n(.*?)```", text, re.DOTALL)
    return str(found)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the recipe's modules, importable while the test lasts."""
    for name in ("tasks.py", "signals.py", "views.py", "urls.py"):
        (tmp_path / name).write_text(recipe(name))
    (tmp_path / "more.py").write_text(MORE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("tasks", "signals", "views", "urls", "more"):
        sys.modules.pop(name, None)
    _state._set_current_app(None)


def test_a_job_is_a_task_call_and_its_end_calls_a_task_whatever_dies(
    harness: Harness, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = RedisServer()
    workers: list[subprocess.Popen[bytes]] = []
    trace = folder / "trace"
    try:
        with serving(harness.api) as url:
            settings = {"BROKER_URL": broker.url, "CARBONQ_API_URL": url, "CARBONQ_API_KEY": harness.acme}
            for name, value in settings.items():
                monkeypatch.setenv(name, value)

            def start() -> None:
                command = (sys.executable, "-m", "celery", "-A", "more", "worker", "--pool", "solo", "-l", "WARNING")
                environment = {**os.environ, "TRACE": str(trace), "PYTHONWARNINGS": "ignore"}
                workers.append(subprocess.Popen(command, cwd=folder, env=environment))

            more = importlib.import_module("more")
            from carbonq.celery import submit

            start()
            more.app.set_current()
            task_id = uuid.uuid4().hex
            given: dict[str, Any] = {"kind": "embeddings", "model": EMBEDDER, "deadline": "6h"}
            for _ in range(2):  # as a broker that delivers twice
                submit.apply_async((["one", "two"],), {**given, "on_done": more.note.s(mark="shop")}, task_id=task_id)
            until(lambda: counted(harness) == 1, 60, "job")
            workers[0].send_signal(signal.SIGKILL)
            workers[0].wait(10)
            with harness.db.write() as tx:
                assert tx.execute(select(jobs.c.metadata)).scalar_one() == {"celery_task_id": task_id}
                ended = {"state": "completed", "finished_at": datetime.now(UTC), "items_succeeded": 2}
                tx.execute(update(jobs).values(ended))
            start()
            until(trace.exists, 60, "call")
            job_id, state, mark = json.loads(trace.read_text().splitlines()[0])
            assert (state, mark) == ("completed", "shop")
            # What the killed worker had taken comes back, and makes no other job.
            left = redis.Redis.from_url(broker.url)
            until(lambda: left.llen("celery") == 0 == left.hlen("unacked"), 60, "end of all tasks")
            left.close()
            assert counted(harness) == 1
            here = submit(["three"], **given)  # a direct call
            assert here["id"] != job_id
            assert counted(harness) == 2
    finally:
        for worker in workers:
            worker.kill()
            worker.wait(10)
        broker.close()


def counted(harness: Harness) -> int:
    with harness.db.read() as tx:
        return tx.execute(select(func.count()).select_from(jobs)).scalar_one()


def test_a_django_view_takes_webhooks_that_are_carbonqs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import django
    from celery import Celery
    from django.conf import settings
    from django.test import Client, override_settings

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["testserver"], SECRET_KEY="x", ROOT_URLCONF="urls", USE_TZ=True)
        django.setup()
    app = Celery("django", broker="memory://", set_as_current=False)
    app.set_current()
    views = importlib.import_module("views")
    sent: list[Any] = []
    monkeypatch.setattr(views, "handle", type("Handle", (), {"delay": staticmethod(sent.append)}))
    body = json.dumps({"id": "evt_1", "object": "event", "type": "job.completed", "data": {"id": "job_1"}})
    now = datetime.now(UTC)
    headers = {
        "webhook-id": "evt_1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(SECRET).sign("evt_1", now, body),
    }
    with override_settings(CARBONQ_WEBHOOK_SECRET=SECRET, ROOT_URLCONF="urls"):
        client = Client()

        def post(text: str, **more: str) -> int:
            answer = client.post("/carbonq/", text, content_type="application/json", headers={**headers, **more})
            return answer.status_code

        assert post(body) == 204
        assert post(body + " ") == 400
        assert post(body, **{"webhook-signature": "v1,none"}) == 400
        assert client.get("/carbonq/").status_code == 405
    assert [one["data"]["id"] for one in sent] == ["job_1"]
