"""Token weights are learned from what engine batches used, where that tells kinds of token apart."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from carbonq import config, models, verify
from carbonq.clock import ClockKind
from carbonq.engines.protocol import EngineRequest, EngineResult, ShouldStop
from carbonq.meters.hub import Hub
from carbonq.meters.protocol import MERGED, WEIGHTS_LEARNED, Component, MeteredPart, MeterInfo, MeterKind
from carbonq.model import Quality
from carbonq.services import checkpoint, heartbeat, weighing
from carbonq.services.burnt import Burnt
from carbonq.services.checkpoint import Checkpoint, Learned
from carbonq.services.run import Result, run_chunk
from carbonq.services.weighing import NO_SUMS, Known, Sums
from carbonq.store import throughputs
from carbonq.store.database import Database
from carbonq.testing import FakeEngine, FakeMeter
from tests.services.booked import lines
from tests.services.running import MODEL, Bench

AT = datetime(2026, 3, 2, 8, tzinfo=UTC)
STATED = (5, 0, 12)
MEASURED = MeterInfo(MeterKind.NVML_COUNTER, MeterKind.NONE, MeterKind.NONE, Quality.MEASURED, None, ("GPU-1",))
BY_TIME = MeterInfo(MeterKind.NONE, MeterKind.CPU_TIME, MeterKind.NONE, Quality.ESTIMATED, None, ("cpu",))
DOUBTED = replace(MEASURED, quality=Quality.ESTIMATED, device_ids=("GPU-1", MERGED))


def burnt(uj: int, info: MeterInfo = MEASURED, seconds: float = 1.0) -> Burnt:
    part = MeteredPart(AT, AT, AT + timedelta(seconds=seconds), seconds, uj, None, None)
    return Burnt("eb_1", "w", "fr", "m", "fake", "1", "1", ClockKind.REAL, (part,), info)


def mixes(count: int = 150, kinds: int = 3, seed: int = 1) -> list[tuple[int, int, int]]:
    rng = random.Random(seed)
    drawn = [[rng.randrange(10, 2_000) if kind < kinds else 0 for kind in range(3)] for _ in range(count)]
    return [(one[0], one[1], one[2]) for one in drawn]


def sums(
    counts: Sequence[tuple[int, int, int]],
    costs: Sequence[float] = (1000, 20, 4130),
    *,
    noise: float = 0.0,
    info: MeterInfo = MEASURED,
) -> Sums:
    """Add engine batches in which tokens cost so many uJ (and ns) each, but for noise."""
    rng, found = random.Random(2), NO_SUMS
    for one in counts:
        uj = sum(count * cost for count, cost in zip(one, costs, strict=True)) * (1 + noise * rng.uniform(-1, 1))
        found = found.plus(Sums.of(one, burnt(round(uj), info, uj / 1e9)))
    return found


def test_what_tokens_cost_is_found_from_energy_and_from_time() -> None:
    assert sums(mixes()).solve(STATED) == (100, 2, 413)
    by_time = sums(mixes(), info=BY_TIME)
    assert (by_time.basis, by_time.solve(STATED)) == ("time", (100, 2, 413))
    found = sums(mixes(600), noise=0.1).solve(STATED)
    assert found is not None
    assert found[2] == pytest.approx(413, rel=0.1)


def test_no_weight_is_negative() -> None:
    assert sums(mixes(), (1000, -50, 4000)).solve(STATED) == (100, 0, pytest.approx(400, abs=10))


def test_nothing_is_learned_that_is_not_identified() -> None:
    alike = [(100 * n, 10 * n, 300 * n) for n in range(1, 200)]
    assert sums(mixes(99)).solve(STATED) is None, "too few"
    assert sums(alike).solve(STATED) is None, "the mixes are all alike"
    assert sums(mixes(120), noise=0.9).solve(STATED) is None, "too noisy"
    assert sums([(0, b, c) for _, b, c in mixes()]).solve(STATED) is None, "no prompts"
    assert sums([(a, 0, 0) for a, _, _ in mixes()]).solve(STATED) is None, "nothing but prompts"
    assert sums(mixes(), (1000, 20, 0.1)).solve(STATED) is None, "what is generated is never free"
    assert sums(mixes(), info=DOUBTED) == NO_SUMS, "estimates of a meter that counts teach nothing"
    assert Sums.of((0, 0, 0), burnt(5)) == NO_SUMS


def test_a_kind_that_was_hardly_seen_keeps_what_is_stated_beside_the_prompt() -> None:
    uncached = [(a, 0, c) for a, _, c in mixes()]
    assert sums(uncached).solve((5, 1, 12)) == (100, 20, 413)
    assert sums(uncached).solve((0, 1, 12)) is None
    assert sums(uncached).solve((0, 0, 12)) == (100, 0, 413)


def test_weights_are_held_for_a_day_unless_one_moves_by_a_tenth() -> None:
    known = Known().after(sums(mixes()), STATED, AT)
    assert (known.weights, known.since) == ((100, 2, 413), AT)
    slowly = known
    for step in range(20):
        slowly = slowly.after(sums(mixes(seed=step), (1000, 20, 4300)), STATED, AT + timedelta(hours=1))
    assert (slowly.weights, slowly.since) == (known.weights, AT), "within a tenth"
    later = slowly.after(sums(mixes(1)), STATED, AT + timedelta(days=1))
    assert later.weights is not None and later.weights != known.weights
    assert later.since == AT + timedelta(days=1)
    moved = slowly
    for step in range(20):
        moved = moved.after(sums(mixes(seed=step), (1000, 20, 5000)), STATED, AT + timedelta(hours=2))
    assert moved.weights is not None and moved.weights[2] > 413 * 1.1
    assert Known.from_json(moved.to_json()) == moved
    unsure = moved.after(sums(mixes(1)), (0, 1, 12), AT + timedelta(days=9))
    assert unsure.weights is not None, "what was learned stays until something better is"
    assert moved.after(sums(mixes(1), info=BY_TIME), STATED, AT).weights is None, "time says nothing of energy"


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(*[st.integers(0, 10**6)] * 3), min_size=1, max_size=8),
    st.lists(st.integers(0, 10**13), min_size=1, max_size=8),
    st.floats(1, 1000),
)
@example([(1, 0, 0), (0, 1, 0), (0, 0, 1)], [1, 1, 1], 200.0)
def test_whatever_is_learned_can_weigh(counts: list[tuple[int, int, int]], energies: list[int], times: float) -> None:
    found = NO_SUMS
    for one, uj in zip(counts, energies, strict=False):
        found = found.plus(Sums.of(one, burnt(uj)))
    weights = Sums(found.basis, tuple(value * times for value in found.values)).solve(STATED)
    assert weights is None or (weights[0] == 100 and min(weights) >= 0 and weights[2] > 0)


def test_both_databases_keep_what_was_learned(database: Database) -> None:
    model = replace(MODEL, learns_weights=True)
    with database.write() as tx:
        weighing.learn(tx, "m", "cpu", sums(mixes(1)), STATED)  # whose speed was never learned: nothing is kept
        assert throughputs.token_weights(tx, "m", "cpu") is None
        throughputs.learn(tx, model.name, "cpu", 10, 1.0, 10)
        assert weighing.in_force(tx, {model.name: model}, "cpu") == {model.name: model}
        weighing.learn(tx, model.name, "cpu", sums(mixes()), STATED)
        found = weighing.in_force(tx, {model.name: model, "b": MODEL}, "cpu")[model.name]
        assert (found.w_prompt, found.w_cached, found.w_completion) == (100, 2, 413)
        assert found.weights_learned_at is not None
        assert weighing.in_force(tx, {model.name: model}, "gpu") == {model.name: model}, "each hardware by itself"


def test_the_spool_keeps_it_and_reads_records_of_before() -> None:
    made = Checkpoint("chk", 1, 1, AT, learned=Learned("m", "cpu", 1, 1.0, 1), weighed=sums(mixes(3)), stated=STATED)
    record = checkpoint.to_record(made)
    assert checkpoint.from_record(record) == made
    del record["weighed"]
    assert checkpoint.from_record(record).weighed == NO_SUMS


class Writing(FakeEngine):
    """Answers a text of n words with n % 7 words, which cost four times as much; some of the prompt is cached."""

    def __init__(self, meter: FakeMeter) -> None:
        super().__init__()
        self._meter = meter

    def run(self, requests: Sequence[EngineRequest], should_stop: ShouldStop) -> Sequence[EngineResult]:
        found: list[EngineResult] = []
        for one in super().run(requests, should_stop):
            n = one.prompt_tokens
            found.append(replace(one, cached_tokens=n // 3 % 5, completion_tokens=3 * n % 7))
            self._meter.burn(1_000 * (n - n // 3 % 5) + 4_000 * (3 * n % 7))
        return found


def test_a_worker_learns_and_weighs_with_it_and_its_lines_say_so(sqlite_database: Database, tmp_path: Path) -> None:
    bench = Bench(sqlite_database, tmp_path)
    meter = FakeMeter(Component.GPU, kind=MeterKind.NVML_COUNTER, quality=Quality.MEASURED)
    bench.engine = Writing(meter)
    model = replace(MODEL, batch_items=1, w_cached=1, w_completion=2, learns_weights=True)
    hub = Hub([meter], bench.clock, bench.clock.machine)
    site = replace(bench.site, models={MODEL.name: model}, hub=hub)

    def run(count: int) -> list[dict[str, str]]:
        job_id = bench.job(count, prefix=f"c{count}-", text=lambda i: "word " * (5 + i % 31))
        assert run_chunk(site, bench.chunk(job_id), threading.Event()) is Result.DONE
        heartbeat.beat(site, host="h", pid=1)
        return [line for line in lines(sqlite_database) if line["job_id"] == job_id]

    names = ("w_prompt", "w_cached", "w_completion")
    before = run(110)
    assert {tuple(line[name] for name in names) for line in before} == {("1", "1", "2")}
    assert not any(WEIGHTS_LEARNED in line["device_ids"] for line in before)
    model = site.models[MODEL.name]
    site = replace(site, models={MODEL.name: replace(model, batch_items=4)})
    heartbeat.beat(site, host="h", pid=1)
    after = run(10)
    assert {tuple(line[name] for name in names) for line in after} == {("100", "0", "400")}
    assert all(WEIGHTS_LEARNED in line["device_ids"] and line["quality"] == "measured" for line in after)
    by_batch = {line["engine_batch_id"]: int(line["engine_batch_uj"]) for line in after}
    assert sum(int(line["energy_uj"]) for line in after) == sum(by_batch.values())
    assert sum(Fraction(int(line["share_num"]), int(line["share_den"])) for line in after) == len(by_batch)
    assert [verify.line_problems(line) for line in after] == [[]] * 10
    assert verify.line_problems(after[0] | {"w_completion": "399"}) != []


def test_a_setting_turns_it_on(tmp_path: Path) -> None:
    gguf = {"engine": "llama_cpp", "path": str(tmp_path / "a.gguf")}
    settings = config.load(data_dir=tmp_path, models={"a": gguf, "b": gguf | {"token_weights": "learned"}})
    found = models.catalogue({name: one.model_dump() for name, one in settings.models.items()})
    assert (found["a"].learns_weights, found["b"].learns_weights) == (False, True)
