"""carbonq from an existing Celery or Django app: a job is a task call, and a task of yours is called at its end.

    from carbonq.celery import submit

    submit.delay(["a text", "another"], model="wordllama-256", kind="embeddings", deadline="6h", on_done=store.s())

The two tasks here run in your own workers (``include=["carbonq.celery"]``) and talk to carbonq's API; nothing of
carbonq's workers, database or broker is needed there. Where the API is: ``configure``, else ``carbonq_url`` and
``carbonq_api_key`` of your Celery settings, else what every client reads (``CARBONQ_API_URL``, ``CARBONQ_API_KEY``).
Docs: docs/celery.md. All seconds are the machine's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from celery import Celery, Task, shared_task, signature
from celery.canvas import Signature
from celery.utils.dispatch import Signal
from standardwebhooks import Webhook, WebhookVerificationError

from carbonq.client import FINAL_STATES, Client, Json
from carbonq.errors import InvalidRequest, QuotaExceeded, Unavailable

__all__ = ["configure", "event_received", "job_done", "receive", "submit", "watch"]

#: Sent in your worker with ``job`` (as the API shows it) when a job that was submitted with ``on_done`` has ended.
job_done = Signal(name="job_done", providing_args={"job"})

#: Sent with ``event`` (``id``, ``type``, ``data`` ...) by ``receive``, where your app gets carbonq's webhooks.
event_received = Signal(name="event_received", providing_args={"event"})

#: How long the first look at a job waits, and the longest wait between two looks, in seconds. Short enough for brokers
#: that deliver again what nobody has acknowledged in time.
FIRST_LOOK_S = 2.0
LONGEST_LOOK_S = 60.0

#: Longest wait before a submit is tried again that the API could not take, in seconds.
LONGEST_RETRY_S = 300.0

#: Pairs of metadata that a job may have.
_MAX_METADATA = 16

_configured: dict[str, str | None] = {"url": None, "api_key": None}


def configure(*, url: str | None = None, api_key: str | None = None) -> None:
    """Say where carbonq's API is, for this process; what is left out comes from the settings as above."""
    _configured.update(url=url, api_key=api_key)


def _client(app: Celery) -> Client:
    settings: Any = app.conf
    url = _configured["url"] or settings.get("carbonq_url")
    return Client(url, _configured["api_key"] or settings.get("carbonq_api_key"))


@shared_task(bind=True, name="carbonq.submit", acks_late=True, max_retries=None)
def submit(
    self: Task,
    items: Sequence[Any],
    *,
    model: str,
    deadline: str,
    on_done: Signature | Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
    **terms: Any,
) -> Json:
    """Submit a job and return it as the API shows it (``id``, ``state`` ...); call it, or send it with ``delay``.

    ``items`` are texts, ``{"id", "text"}`` or OpenAI lines; ``terms`` those of ``carbonq.Client.submit`` (``kind``,
    ``regions``, ``max_carbon_g``, ``metadata`` ...). ``on_done``, any signature of yours, is called with the job once
    it is final. A task that is delivered twice makes one job: its id is the idempotency key. While the API is away or
    the quota is full the task is tried again. Raises InvalidRequest, Infeasible and NotAuthenticated.
    """
    task_id: str | None = self.request.id
    key = idempotency_key or (None if task_id is None else f"celery-{task_id}")
    metadata: dict[str, str] = dict(terms.pop("metadata", None) or {})
    if task_id is not None and len(metadata) < _MAX_METADATA:
        metadata.setdefault("celery_task_id", task_id)
    try:
        with _client(self.app) as client:
            made = client.submit(items, model=model, deadline=deadline, idempotency_key=key, metadata=metadata, **terms)
    except (QuotaExceeded, Unavailable) as error:
        if isinstance(error, QuotaExceeded) and error.retry_after_s is None:
            raise  # waiting will not help
        wait_s = max(error.retry_after_s or 1.0, 2.0 ** min(self.request.retries, 20))
        raise self.retry(exc=error, countdown=min(LONGEST_RETRY_S, wait_s)) from error
    if on_done is not None:
        # Sent twice where this task is: whoever is called twice is told the same job.
        look: Any = watch  # defined below, and a task by then
        look.apply_async((made.id, dict(on_done)), countdown=FIRST_LOOK_S)
    return made.raw


@shared_task(bind=True, name="carbonq.watch", acks_late=True, ignore_result=True, max_retries=None)
def watch(self: Task, job_id: str, on_done: Mapping[str, Any] | None = None) -> None:
    """Look at a job now and then, and when it is final tell ``job_done`` and call ``on_done`` with it.

    It waits in your broker, so it outlives your workers. At least once: the task it calls has the same id every time.
    """
    try:
        with _client(self.app) as client:
            job = client.job(job_id).raw
    except Unavailable as error:
        raise self.retry(exc=error, countdown=LONGEST_LOOK_S / 4) from error
    if job["state"] not in FINAL_STATES:
        wait_s = min(LONGEST_LOOK_S, FIRST_LOOK_S * 1.5 ** min(self.request.retries, 20))
        raise self.retry(countdown=wait_s)
    job_done.send(sender=submit, job=job)
    if on_done is not None:
        _call(cast("Signature", signature(dict(on_done), app=self.app)), job)


def _call(wanted: Signature, job: Json) -> None:
    # A group or chord gives one id to all of its tasks.
    is_plain = wanted.subtask_type is None
    options: dict[str, Any] = {"task_id": f"carbonq-{job['id']}-done"} if is_plain else {}
    wanted.apply_async((job,), **options)


def receive(body: bytes | str, headers: Mapping[str, str], *, secret: str) -> Json:
    """Verify a webhook of carbonq's, tell ``event_received``, and return the event.

    For the view of a web app; answer 2xx once this has returned. The same event may come more than once, with the same
    ``id``. Raises InvalidRequest where the signature is not carbonq's or minutes old; answer 400 then.
    """
    try:
        event: Json = Webhook(secret).verify(body, dict(headers))
    except (WebhookVerificationError, ValueError) as error:
        raise InvalidRequest(f"this is no webhook of carbonq's: {error}", code="invalid_signature") from error
    event_received.send(sender=receive, event=event)
    return event
