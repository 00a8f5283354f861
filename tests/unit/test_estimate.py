"""Estimates before anything ran."""

from __future__ import annotations

import functools
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq import estimate, models
from carbonq.engines.wordllama import WordLlamaEngine
from carbonq.model import Endpoint, Model, Region, Throughput
from carbonq.units import wh

EMBED = Model("e", "x", Endpoint.EMBEDDINGS, 100, 4.0, 1000.0, 7, 1000, 10)
CHAT = Model("c", "x", Endpoint.CHAT, 100, 4.0, 10.0, 7, 1000, 10, max_output_tokens=50)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("value", "prompt", "longest"),
    [
        ("12345678", 2, 2),
        ("", 1, 1),
        ("ääää", 2, 2),
        (["1234", "12345678"], 3, 2),
        ([1, 2, 3], 3, 3),
        ([[1, 2, 3], [4]], 4, 3),
        (None, 0, 0),
        (5, 0, 0),
        ([], 0, 0),
    ],
)
def test_embedding_inputs(value: Any, prompt: int, longest: int) -> None:
    tokens = estimate.body_tokens({"input": value}, EMBED)
    assert (tokens.prompt, tokens.completion, tokens.longest) == (prompt, 0, longest)
    assert tokens.total == max(1, prompt)


@pytest.mark.parametrize(
    ("body", "prompt", "completion"),
    [
        ({"messages": [{"role": "user", "content": "12345678"}]}, 6, 50),
        ({"messages": [{"role": "user", "content": "1234"}] * 2, "max_tokens": 7}, 10, 7),
        ({"messages": [{"content": [{"type": "text", "text": "1234"}, {"type": "image"}, 3]}]}, 5, 50),
        ({"max_completion_tokens": 9, "max_tokens": 7}, 0, 9),
        ({"messages": "x", "max_tokens": 1000}, 0, 50),
        ({"messages": ["x", None], "max_tokens": True}, 8, 50),
        ({"max_tokens": -5}, 0, 50),
    ],
)
def test_chat_bodies(body: dict[str, Any], prompt: int, completion: int) -> None:
    tokens = estimate.body_tokens(body, CHAT)
    assert (tokens.prompt, tokens.completion, tokens.longest) == (prompt, completion, prompt)


@given(
    st.dictionaries(st.sampled_from(["input", "messages", "max_tokens", "max_completion_tokens", "summarize"]), JSON)
)
@settings(max_examples=40, deadline=None)
def test_no_body_makes_it_fail(body: dict[str, Any]) -> None:
    for model in (EMBED, CHAT):
        assert estimate.body_tokens(body, model).total >= 1


def test_learned_speed_wins() -> None:
    learned = {("e", "gpu"): Throughput("e", "gpu", 5000.0, 3, 10)}
    assert estimate.speed(EMBED, "gpu", learned) == (5000.0, 3, True)
    assert estimate.speed(EMBED, "cpu", learned) == (1000.0, 7, False)
    assert estimate.duration_s(500, 1000.0) == 0.5
    assert estimate.energy_uj(500, 7) == 3500


def test_allowed_regions() -> None:
    def region(name: str, models: tuple[str, ...] | None = None) -> Region:
        return Region(name, "z", 1, Decimal(1), "", "cpu", models=models)

    regions = [region("a"), region("b", ("other",)), region("c", ("e",))]
    assert [one.name for one in estimate.allowed_regions(regions, None, "e")] == ["a", "c"]
    assert [one.name for one in estimate.allowed_regions(regions, ("b", "c"), "e")] == ["c"]


def test_a_job_alone() -> None:
    # 90 s of work on each of two slots, chunks of 30 s in windows of 50 s: three windows, the last one ending after 30.
    alone = estimate.alone(18_000, 10, [(1, 100.0), (1, 100.0)], window_s=50, chunk_fill=0.6)
    assert (alone.shortest_s, alone.longest_chunk_s, alone.slots) == (150.0, 30.0, 2)
    short = estimate.alone(100, 10, [(2, 100.0)], window_s=50, chunk_fill=0.6)
    assert short.shortest_s == short.longest_chunk_s == 0.5
    # An item cannot be cut: it takes its time on the fastest slot, however many slots there are.
    single = estimate.alone(1000, 1000, [(9, 10.0), (1, 20.0)], window_s=50, chunk_fill=0.6)
    assert single.shortest_s == single.longest_chunk_s == 50.0


def test_only_texts_far_over_the_limit_are_surely_over() -> None:
    assert not estimate.is_surely_over(150, 100)
    assert estimate.is_surely_over(151, 100)


def test_a_request_to_a_model_of_70_billion_is_estimated_at_a_fraction_of_a_watt_hour() -> None:
    energy = estimate.token_energy(70.0, "4x NVIDIA H100 80GB")
    assert 0.05 < wh(energy.request_uj(500, 0, 300)) < 0.5
    # What is cached is not computed, and what is generated costs more than what is read.
    assert energy.request_uj(500, 500, 0) == 0
    assert energy.decode_uj > energy.prefill_uj > energy.cached_uj


def test_estimates_of_energy_lie_between_the_published_figures_of_full_and_small_batches() -> None:
    for parameters_b, best_j in estimate.DECODE_BEST_J[:4]:
        decode_j = estimate.token_energy(parameters_b, "h100").decode_uj / 1e6
        assert best_j < decode_j < 10.2 * best_j
    for parameters_b, at_8_j in estimate.DECODE_AT_8_J:
        assert estimate.token_energy(parameters_b, "h100").decode_uj / 1e6 < at_8_j
    b200, h100 = (estimate.token_energy(8.0, name).decode_uj for name in ("NVIDIA B200", "H100"))
    assert b200 / h100 == pytest.approx(0.047 / 0.070, abs=0.005)


@given(st.floats(0.01, 2000), st.floats(1.0, 3.0), st.sampled_from([*estimate.GPU_FACTORS, "cpu", ""]))
def test_a_larger_model_never_needs_less(parameters_b: float, times: float, hardware: str) -> None:
    small, large = (estimate.token_energy(size, hardware) for size in (parameters_b, parameters_b * times))
    assert all(one <= other for one, other in zip(small, large, strict=True))


def test_a_server_s_model_starts_with_the_energy_of_its_size_and_gpu_until_it_was_measured() -> None:
    url = {"engine": "openai_http", "base_url": "http://h/v1"}
    made = models.catalogue(
        {"big": {**url, "parameters_b": 70.0}, "plain": url, "e": {**url, "endpoint": Endpoint.EMBEDDINGS}}
    )
    on_h100, on_a100 = (estimate.speed(made["big"], name, {}) for name in ("h100", "a100"))
    assert not on_h100.is_learned
    assert on_a100.uj_per_token / on_h100.uj_per_token == pytest.approx(1.81, abs=0.01)
    for name in ("plain", "e"):  # their stated values are those of the size that is assumed
        assert estimate.speed(made[name], "cpu", {}).uj_per_token == pytest.approx(made[name].uj_per_token, rel=0.02)
    measured = {("big", "h100"): Throughput("big", "h100", 90.0, 7, 3)}
    assert estimate.speed(made["big"], "h100", measured) == (90.0, 7, True)


SCRIPTS = [
    "规划器将每一部分工作放在预测值最低且仍能满足截止日期的窗口中。",
    "プランナーは、期限を守りながら予測が最も低い時間帯に作業の各部分を配置します。",
    "플래너는 마감일을 지키면서 예측이 가장 낮은 창에 작업의 각 부분을 배치합니다.",
    "😀😁😂🤣😃😄😅😆😉😊😋😎😍😘🥰😗😙😚🙂🤗",
    "Планировщик размещает каждую часть работы в окне с наименьшим прогнозом.",
    "Die Größe der Übertragung hängt vom Gerät ab, für jede Prüfung gelten Fristen.",
]


@pytest.mark.parametrize("text", SCRIPTS)
def test_scripts_outside_ascii_are_estimated_as_the_tokenizer_that_ships_counts_them(text: str) -> None:
    tokenizer = shipped()
    true = len(tokenizer.encode(text, add_special_tokens=False).ids)
    assert estimate.text_tokens(text, models.WORDLLAMA_256) == pytest.approx(true, rel=0.3)
    # A text at the limit is never refused for an estimate above it.
    assert not estimate.is_surely_over(estimate.text_tokens(text, models.WORDLLAMA_256), true)


@functools.cache
def shipped() -> Any:
    engine = WordLlamaEngine(models.WORDLLAMA_256)
    engine.load()
    return engine._tokenizer  # pyright: ignore[reportPrivateUsage]


def test_what_is_not_measured_is_estimated_by_bytes_and_what_is_ascii_by_characters() -> None:
    url = {"engine": "openai_http", "base_url": "http://h/v1"}
    own = {"engine": "llama_cpp", "path": "/m.gguf"}
    made = models.catalogue({"served": url, "file": own})
    for model in made.values():
        assert estimate.text_tokens("a" * 420, model) == round(420 / model.chars_per_token + 0.49)
    for name in ("served", "file"):
        assert estimate.text_tokens("规" * 42, made[name]) == 30  # 126 bytes by 4.2
    assert estimate.text_tokens("规" * 42, made["smollm2-135m-instruct"]) == 76


@given(st.text(max_size=200), st.text(max_size=50))
@settings(max_examples=40, deadline=None)
def test_more_text_is_never_estimated_at_less(text: str, more: str) -> None:
    for model in (models.WORDLLAMA_256, models.SMOLLM2_135M_INSTRUCT, CHAT):
        assert 1 <= estimate.text_tokens(text, model) <= estimate.text_tokens(text + more, model)
