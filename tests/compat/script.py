"""What a user of the `openai` package does, against a carbonq; run by ``test_sdk.py`` under each major version of it.

``python script.py URL KEY``: imports nothing of carbonq, and ends with a traceback at the first thing that is not so.
Works for 1.109, 2.x and 3.x.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai

EMBEDDER, CHATTER = "wordllama-256", "smollm2-135m-instruct"
HELLO: Any = [{"role": "user", "content": "hi"}]


def lines(count: int, *, bad: bool = False) -> bytes:
    """Return an input file of embeddings; ``bad`` adds one that the model refuses."""
    texts: list[Any] = [f"text number {number}" for number in range(count)] + ([""] if bad else [])
    made = [
        {"custom_id": f"c-{n}", "method": "POST", "url": "/v1/embeddings", "body": {"model": EMBEDDER, "input": text}}
        for n, text in enumerate(texts)
    ]
    return b"\n".join(json.dumps(one).encode() for one in made)


def exact(text: str) -> Any:
    """Read JSON without losing a digit."""
    return json.loads(text, parse_float=Decimal)


def carbon_of(usage: Any) -> dict[str, Any]:
    """Return what this version's model keeps of ``usage.carbon``."""
    found = usage["carbon"] if isinstance(usage, dict) else usage.model_extra["carbon"]
    assert isinstance(found, dict)
    return found


def expect(kind: type[Exception], act: Callable[[], object]) -> Any:
    """Return the error that ``act`` must raise."""
    try:
        act()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def wait(client: openai.OpenAI, batch_id: str, status: str = "completed") -> Any:
    """Poll as users do."""
    known = {"validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"}
    end = time.monotonic() + 60
    while time.monotonic() < end:
        batch = client.batches.retrieve(batch_id)
        assert batch.status in known, batch.status
        if batch.status == status:
            return batch
        assert batch.status in {"validating", "in_progress", "finalizing", "cancelling"}, batch
        time.sleep(0.05)
    raise AssertionError(f"{batch_id} is not {status} after a minute")


def files_and_batches(client: openai.OpenAI) -> None:
    """Upload, create, poll, list in pages, cancel, download, delete."""
    file = client.files.create(file=("in.jsonl", lines(3, bad=True)), purpose="batch")
    assert (file.object, file.purpose, file.filename, file.status) == ("file", "batch", "in.jsonl", "processed")
    assert file.bytes == len(lines(3, bad=True))
    made = [
        client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/embeddings",
            completion_window="24h",
            metadata={"number": str(number)},
            extra_body={"carbon": {"deadline": "6h", "regions": ["fr"]}},
        )
        for number in range(3)
    ]
    assert len({one.id for one in made}) == 3
    batch = wait(client, made[0].id)
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (4, 3, 1)
    assert (batch.metadata, batch.input_file_id, batch.endpoint) == ({"number": "0"}, file.id, "/v1/embeddings")
    assert isinstance(batch.created_at, int) and isinstance(batch.completed_at, int)
    assert batch.errors is None or batch.errors.object == "list"
    assert isinstance(batch.model_extra["carbon"], dict)
    assert carbon_of(batch.usage if hasattr(batch, "usage") else batch.model_extra["usage"])

    pages = client.batches.list(limit=2)
    assert len(pages.data) == 2 and pages.has_more
    newest = [one.id for one in pages]
    assert len(newest) == len(set(newest))
    assert [one for one in newest if one in {b.id for b in made}] == [one.id for one in reversed(made)]
    expect(openai.BadRequestError, lambda: client.batches.list(after="batch_nothing"))

    output = client.files.content(batch.output_file_id).text
    rows = {one["custom_id"]: one for one in map(exact, output.splitlines())}
    assert sorted(rows) == ["c-0", "c-1", "c-2"]
    body = rows["c-0"]["response"]["body"]
    assert rows["c-0"]["error"] is None and rows["c-0"]["response"]["request_id"].startswith("req_")
    assert len(body["data"][0]["embedding"]) == 256
    agrees(client, body["usage"]["carbon"])
    (failed,) = map(json.loads, client.files.content(batch.error_file_id).text.splitlines())
    assert failed["custom_id"] == "c-3" and failed["response"]["body"]["error"]["param"] == "input"
    assert {one.id for one in client.files.list(purpose="batch_output")} >= {batch.output_file_id, batch.error_file_id}
    assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"

    again = client.batches.cancel(batch.id)  # final already: it stays what it is
    assert (again.id, again.status) == (batch.id, "completed")
    late = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
    assert client.batches.cancel(late.id).status in {"cancelling", "cancelled", "completed"}

    assert client.files.delete(batch.output_file_id).deleted
    gone = expect(openai.NotFoundError, lambda: client.files.content(batch.output_file_id))
    assert gone.request_id.startswith("req_")


def windows_and_refusals_of_batches(client: openai.OpenAI) -> None:
    """Any completion window; what is wrong with a file is said by the batch, with its line."""
    torn = expect(
        openai.BadRequestError,
        lambda: client.files.create(file=("torn.jsonl", lines(1) + b'\n{"no json'), purpose="batch"),
    )
    assert torn.code == "invalid_json_line" and "line 2" in torn.message
    twice = lines(1) + b'\n{"custom_id": "a"}\n' + lines(1)
    file = client.files.create(file=("bad.jsonl", twice), purpose="batch")
    made = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/embeddings",
        completion_window="6h",  # pyright: ignore[reportArgumentType] - any duration
    )
    failed = wait(client, made.id, "failed")
    assert [one.line for one in failed.errors.data] == [2, 3]
    assert all(one.code and one.message for one in failed.errors.data)
    unknown = expect(
        openai.BadRequestError,
        lambda: client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/embeddings",
            completion_window="24h",
            extra_body={"carbon": {"colour": "green"}},
        ),
    )
    assert unknown.param == "carbon.colour"


def agrees(client: openai.OpenAI, carbon: dict[str, Any]) -> None:
    """The figures of ``usage.carbon`` are those of its ledger entries, to the last digit."""
    entries = [exact(client.get(f"/ledger/{entry_id}?revision=1", cast_to=str)) for entry_id in carbon["entry_ids"]]
    assert entries
    for ours, theirs in (
        ("energy_uj", "energy_uj"),
        ("gco2e", "emission_g"),
        ("inventory_gco2e", "inventory_g"),
        ("saved_gco2e", "saved_g"),
        ("baseline_gco2e", "baseline_g"),
    ):
        known = [entry[theirs] for entry in entries]
        expected = None if None in known else sum(map(Decimal, known))
        assert carbon[ours] == expected, (ours, carbon[ours], expected)
    assert carbon["gco2e"] is not None
    first = entries[0]
    assert (str(carbon["pue"]), carbon["region"]) == (first["pue"], first["region"])
    assert (carbon["method"], carbon["quality"], carbon["status"]) == (
        first["method"],
        first["quality"],
        first["moer_status"],
    )
    window = carbon["windows"][0]
    assert (window["window"], str(window["moer"]["g_per_kwh"])) == (first["window"], first["moer_g_per_kwh"])


def realtime(client: openai.OpenAI) -> None:
    """Embeddings in both encodings, chat, models."""
    packed = client.embeddings.create(model=EMBEDDER, input=["one", "two"])  # the SDK asks for base64
    plain = client.embeddings.create(model=EMBEDDER, input=["one", "two"], encoding_format="float", user="me")
    assert len(packed.data) == 2 and len(packed.data[0].embedding) == 256
    near = [abs(a - b) for a, b in zip(packed.data[1].embedding, plain.data[1].embedding, strict=True)]
    assert max(near) < 1e-6
    short = client.embeddings.create(model=EMBEDDER, input="one", dimensions=64)
    assert len(short.data[0].embedding) == 64
    raw = client.embeddings.with_raw_response.create(model=EMBEDDER, input="one")
    carbon = exact(raw.http_response.text if hasattr(raw, "http_response") else raw.text)["usage"]["carbon"]
    assert raw.headers["x-carbonq-region"] == carbon["region"]
    assert Decimal(raw.headers["x-carbonq-gco2e"]) == carbon["gco2e"]
    deadline = time.monotonic() + 20
    while True:  # entries of realtime calls are written behind
        try:
            agrees(client, carbon)
            break
        except openai.NotFoundError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert raw.headers["x-request-id"].startswith("req_")
    for tokens in ([1, 2, 3], [[1, 2], [3]]):
        refused = expect(
            openai.BadRequestError, lambda tokens=tokens: client.embeddings.create(model=EMBEDDER, input=tokens)
        )
        assert refused.param == "input" and "text" in refused.message
    chat = client.chat.completions.create(model=CHATTER, messages=HELLO, max_tokens=5)
    assert chat.choices[0].message.content and chat.choices[0].finish_reason == "stop"
    assert chat.usage is not None and chat.usage.total_tokens > 0 and carbon_of(chat.usage)["entry_ids"]
    streamed = client.chat.completions.create(
        model=CHATTER, messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    *pieces, last = list(streamed)
    assert "".join(one.choices[0].delta.content or "" for one in pieces).startswith("answer to req_")
    assert last.usage is not None and carbon_of(last.usage)["entry_ids"]
    assert {one.id for one in client.models.list()} >= {EMBEDDER, CHATTER}
    assert client.models.retrieve(EMBEDDER).object == "model"


def errors(client: openai.OpenAI) -> None:
    """Each error is of the class, code, param and request id that users look at."""
    for kind, code, param, act in (
        (openai.BadRequestError, "model_not_found", "model", lambda: client.embeddings.create(model="x", input="x")),
        (openai.AuthenticationError, None, None, client.with_options(api_key="cq_no").models.list),
        (openai.NotFoundError, None, None, lambda: client.files.retrieve("file-nothing")),
        (openai.NotFoundError, None, None, lambda: client.batches.retrieve("batch_nothing")),
        (openai.NotFoundError, "model_not_found", None, lambda: client.models.retrieve("gpt-9")),
        (openai.NotFoundError, "unknown_route", None, lambda: client.get("/nothing", cast_to=str)),
    ):
        error = expect(kind, act)
        assert error.code == code or (code is None and error.code), (error.code, code)
        assert error.param == param, error.param
        assert error.request_id is not None and error.request_id.startswith("req_")
        assert len(error.message) > 20


def attempts(client: openai.OpenAI) -> None:
    """How often the SDK asks: what may pass again, what may not once."""
    patient = client.with_options(max_retries=1)
    for name, wanted, kind in (
        ("409", 1, openai.ConflictError),
        ("422", 1, openai.UnprocessableEntityError),
        ("429", 2, openai.RateLimitError),
        ("502", 2, openai.InternalServerError),
        ("503", 2, openai.InternalServerError),
    ):
        forced = {"X-Test-Name": f"{openai.__version__}-{name}"}
        error = expect(
            kind,
            lambda forced=forced, name=name: patient.embeddings.create(
                model=EMBEDDER, input="x", user=f"force-{name}", extra_headers=forced
            ),
        )
        assert error.status_code == int(name), (name, error)
        assert error.code and error.request_id.startswith("req_")
        assert seen(client, forced["X-Test-Name"]) == wanted, (name, seen(client, forced["X-Test-Name"]))


def seen(client: openai.OpenAI, name: str) -> int:
    """Return how many requests of a name the server was sent."""
    return int(client.get(f"/_seen/{name}", cast_to=str))


def one_batch_after_a_lost_answer(client: openai.OpenAI) -> None:
    """The batch was made but its answer was lost on the way: the SDK's second try returns the same one."""
    file = client.files.create(file=("in.jsonl", lines(1)), purpose="batch")
    name = f"{openai.__version__}-lost"
    before = len(list(client.batches.list(limit=100)))
    made = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/embeddings",
        completion_window="24h",
        extra_headers={"X-Test-Name": name, "X-Test-Lose": "first"},
    )
    assert seen(client, name) == 2
    assert len(list(client.batches.list(limit=100))) == before + 1
    assert wait(client, made.id).request_counts.total == 1


class Receiver(BaseHTTPRequestHandler):
    """Takes webhooks: what came is in ``came``."""

    came: queue.SimpleQueue[tuple[bytes, dict[str, str]]] = queue.SimpleQueue()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.came.put((body, dict(self.headers)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def webhooks(client: openai.OpenAI) -> None:
    """A batch that ends is told to an endpoint, and the SDK's own ``unwrap`` believes it and nothing else."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        asked = {"url": f"http://127.0.0.1:{server.server_port}/", "event_types": ["batch.completed"]}
        endpoint = json.loads(client.post("/webhooks", body=asked, cast_to=str))
        file = client.files.create(file=("in.jsonl", lines(1)), purpose="batch")
        made = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
        body, headers = Receiver.came.get(timeout=60)
        server.shutdown()
    event = client.webhooks.unwrap(body, headers, secret=endpoint["signing_secret"])
    assert (event.type, event.data.id) == ("batch.completed", made.id)
    assert isinstance(event.created_at, int) and event.id.startswith("evt_")
    for forged in (body.replace(b"batch_", b"botch_"), body + b" "):
        expect(
            openai.InvalidWebhookSignatureError,
            lambda forged=forged: client.webhooks.unwrap(forged, headers, secret=endpoint["signing_secret"]),
        )


if __name__ == "__main__":
    with openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key=sys.argv[2], max_retries=2) as sdk:
        for check in (realtime, errors, attempts, files_and_batches, windows_and_refusals_of_batches):
            check(sdk)
        one_batch_after_a_lost_answer(sdk)
        webhooks(sdk)
    sys.stdout.write(openai.__version__)
