"""Learned throughput on both databases."""

from __future__ import annotations

import random

import pytest

from carbonq.store import throughputs
from carbonq.store.database import Database


def test_the_first_samples_are_averaged_and_later_ones_weigh_a_fifth(database: Database) -> None:
    key = ("m", "cpu")
    with database.write() as tx:
        for speed in (100, 200, 300, 400, 500):
            throughputs.learn(tx, *key, tokens=speed, seconds=1.0, uj=speed * 7)
        learned = throughputs.get_all(tx)[key]
        assert learned.tokens_per_s == pytest.approx(300)
        assert (learned.uj_per_token, learned.samples) == (7, 5)
        throughputs.learn(tx, *key, tokens=800, seconds=1.0, uj=800 * 17)
        learned = throughputs.get_all(tx)[key]
        assert learned.tokens_per_s == pytest.approx(400)
        assert learned.uj_per_token == 9


def test_an_empty_sample_teaches_nothing(database: Database) -> None:
    with database.write() as tx:
        throughputs.learn(tx, "m", "cpu", 0, 1.0, 5)
        throughputs.learn(tx, "m", "cpu", 5, 0.0, 5)
        assert throughputs.get_all(tx) == {}


def overrun_of(database: Database) -> float | None:
    with database.read() as tx:
        return throughputs.get_all(tx)["m", "cpu"].overrun


def test_nothing_is_known_of_overruns_before_something_was_foretold(database: Database) -> None:
    with database.write() as tx:
        throughputs.learn(tx, "m", "cpu", 100, 100.0, 1)
    assert overrun_of(database) is None
    with database.write() as tx:
        throughputs.learn(tx, "m", "cpu", 100, 100.0, 1, is_whole=False)  # given back halfway: no end to compare
    assert overrun_of(database) is None
    with database.write() as tx:
        throughputs.learn(tx, "m", "cpu", 100, 100.0, 1)
    assert overrun_of(database) == pytest.approx(throughputs.FIRST_OVERRUN * throughputs.OVERRUN_DOWN)


def test_the_overrun_becomes_what_one_chunk_in_twenty_exceeds(sqlite_database: Database) -> None:
    draw = random.Random(7)
    ratios = [draw.lognormvariate(0.0, 0.4) for _ in range(1500)]
    with sqlite_database.write() as tx:
        for ratio in ratios:
            # 60 s of work each, foretold by the running mean, which hovers about one token a second.
            throughputs.learn(tx, "m", "cpu", 60, 60 * ratio, 1)
        found = throughputs.get_all(tx)["m", "cpu"]
    assert found.overrun is not None
    exceeded = sum(ratio * found.tokens_per_s > found.overrun for ratio in ratios[500:]) / 1000
    assert 0.02 < exceeded < 0.09


def test_absurd_chunks_move_the_overrun_by_one_step_and_never_out_of_bounds(database: Database) -> None:
    with database.write() as tx:
        for _ in range(3):
            throughputs.learn(tx, "m", "cpu", 100, 100.0, 1)
    before = overrun_of(database)
    assert before is not None
    with database.write() as tx:
        throughputs.learn(tx, "m", "cpu", 100, 1e9, 1)
    after = overrun_of(database)
    assert after == pytest.approx(before * throughputs.OVERRUN_UP)
    with database.write() as tx:
        for step in range(60):
            throughputs.learn(tx, "m", "cpu", 100, 100.0 * 10**step if step < 12 else 1e14, 1)
    assert overrun_of(database) is not None
    with database.write() as tx:
        for _ in range(200):
            tokens_per_s = throughputs.get_all(tx)["m", "cpu"].tokens_per_s
            throughputs.learn(tx, "m", "cpu", 1000, 9 * 1000 / tokens_per_s, 1)
    assert overrun_of(database) == throughputs.MOST_OVERRUN
    with database.write() as tx:
        for _ in range(600):
            throughputs.learn(tx, "m", "cpu", 100, 1.0, 1)
    assert overrun_of(database) == throughputs.LEAST_OVERRUN


def test_the_fixed_cost_of_tiny_chunks_says_nothing_of_large_ones(database: Database) -> None:
    with database.write() as tx:
        for _ in range(5):
            throughputs.learn(tx, "m", "cpu", 1000, 100.0, 1)
        for _ in range(50):
            throughputs.learn(tx, "m", "cpu", 1, 0.9, 1)
    overrun = overrun_of(database)
    assert overrun is not None
    assert overrun < throughputs.FIRST_OVERRUN
