"""Learned throughput on both databases."""

from __future__ import annotations

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
