"""A real card under the meters: ``python -m pytest tests/gpu -m gpu``; CARBONQ_GPU_REPORT names a file for the figures.

It needs nvidia-ml-py, psutil, numpy, pytest and torch with CUDA, nothing else of carbonq's dependencies.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from . import report

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def card() -> dict[str, Any]:
    """The report, made once for all tests."""
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        pytest.skip(f"no NVIDIA GPU: {error}")
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    found = report.make()
    report.write(found, os.environ.get("CARBONQ_GPU_REPORT"))
    return found


def test_the_counter_moves_often_enough_for_the_lag_we_assume(card: dict[str, Any]) -> None:
    assert card["lag_idle_ms"]["moves"] > 10 and card["lag_busy_ms"]["moves"] > 10, json.dumps(card["card"])
    assert card["lag_busy_ms"]["p95"] < 250


def test_an_idle_card_draws_what_counter_and_samples_agree_on(card: dict[str, Any]) -> None:
    found = card["idle"]
    assert 5 < found["counter_w"] < 400
    assert found["sampled_w"] == pytest.approx(found["counter_w"], rel=0.25)


def test_an_engine_batch_is_what_the_counter_counted(card: dict[str, Any]) -> None:
    found = card["one_batch"]
    assert found["meter"] == "nvml_counter"
    assert found["mean_w"] > 1.5 * card["idle"]["counter_w"]
    # The raw readings lie outside the hub's, and trail as the hub's do.
    assert found["hub_j"] == pytest.approx(found["counter_j"], rel=0.1)
    assert found["sampled_j"] == pytest.approx(found["counter_j"], rel=0.2)


def test_two_overlapping_batches_and_idle_are_the_counter(card: dict[str, Any]) -> None:
    found = card["overlapping"]
    first, second = found["batches_j"]
    assert first > second > 0
    assert found["all_uj"] <= found["counter_uj"]
    assert found["all_uj"] == pytest.approx(found["counter_uj"], rel=0.1)


def test_short_batches_are_not_zero(card: dict[str, Any]) -> None:
    assert card["short_batches"]["zeros"] == 0
    assert card["short_batches_close"]["zeros"] == 0


def test_metering_costs_less_than_a_millisecond_a_batch(card: dict[str, Any]) -> None:
    costs = card["overhead"]
    assert costs["hub_start_us"]["median"] + costs["hub_finish_us"]["median"] < 1000


def test_a_process_that_is_not_ours_makes_the_card_a_shared_one(card: dict[str, Any]) -> None:
    if card["processes"]["compute"] == "[]":
        pytest.skip("this driver lists no processes here")
    assert card["shared"] == {"child": [], "stranger": ["shared_device"], "afterwards": []}
