"""The figures of metering: exact against the script, and cheap; the limit is the one we promise."""

from carbonq.bench import meters


def test_attribution_is_exact_and_nothing_is_lost() -> None:
    found = meters.error_uj(events=400, seed=7)
    assert found["counted_uj"] > 10**6
    assert (found["largest_error_uj"], found["lost_uj"]) == (0, 0)


def test_a_slow_counter_costs_an_engine_batch_less_than_a_millisecond() -> None:
    found = meters.bench(batches=200, events=50)
    assert found["overhead"]["median_us"] < 1_000
