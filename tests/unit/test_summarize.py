"""Summaries of any length: the rules of cutting and of rounds, and an engine that keeps to them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq import estimate, jsonl, summarize
from carbonq.engines.protocol import EngineRequest, EngineResult, ShouldStop, Stopped
from carbonq.engines.summarizing import SummarizingEngine
from carbonq.model import Endpoint
from carbonq.models import SMOLLM2_135M_INSTRUCT
from carbonq.testing import FakeEngine

MODEL = replace(SMOLLM2_135M_INSTRUCT, max_input_tokens=300, max_output_tokens=20, chars_per_token=4.0)


def count(text: str) -> int:
    return estimate.text_tokens(text, MODEL)


# --- rules ----------------------------------------------------------------------------------------------------------


@given(st.text(st.sampled_from("ab .!\n。é🙂"), max_size=300), st.integers(1, 30))
@settings(max_examples=150, deadline=None)
def test_pieces_are_the_whole_text_and_fit(text: str, limit: int) -> None:
    pieces = summarize.split(text, limit, count)
    assert "".join(pieces) == text
    assert all(count(piece) <= limit or len(piece) == 1 for piece in pieces)
    assert all(pieces)


def test_a_text_is_cut_at_its_paragraphs_then_its_sentences_then_its_words() -> None:
    paragraphs = "One two three. Four five.\n\nSix seven eight. Nine.\n\nTen."
    assert summarize.split(paragraphs, 8, count) == ["One two three. Four five.\n\n", "Six seven eight. Nine.\n\nTen."]
    sentences = ["One two three. ", "Four five.\n\n", "Six seven eight. ", "Nine.\n\n", "Ten."]
    assert summarize.split(paragraphs, 5, count) == sentences
    assert summarize.split("alpha beta gamma", 2, count) == ["alpha ", "beta ", "gamma"]


@pytest.mark.parametrize("text", ["." * 20_000 + "x", "?" + '"' * 20_000 + "x", ("\n" + " " * 999) * 20 + "x"])
def test_long_runs_are_cut_in_no_time(text: str) -> None:
    began = time.process_time()
    assert "".join(summarize.split(text, 1000, count)) == text
    assert time.process_time() - began < 1.0  # a run of 20,000 dots took 8 s, and four times that for twice as many


@given(st.integers(1, 4000), st.integers(1, 200), st.integers(40, 2000))
@settings(max_examples=60, deadline=None)
def test_rounds_end_whatever_the_lengths_are(words: int, answer: int, context: int) -> None:
    fits = summarize.room(context, answer)
    summary = summarize.Summary("word. " * words, "1", fits, count)
    while True:
        asks = summary.asks()
        # The longest answer that is allowed.
        limit = answer if summary.is_last else fits.answer
        if summary.take(["x" * (4 * limit)] * len(asks)):
            break
    assert summary.rounds <= summarize.MAX_ROUNDS
    assert (summary.pieces == 1) == (summary.rounds == 1)


@given(st.integers(1, 50_000), st.integers(1, 300))
@settings(max_examples=60, deadline=None)
def test_what_is_foretold_is_at_least_one_reading_and_never_over_the_limit(tokens: int, answer: int) -> None:
    foretold = summarize.foretell(tokens, summarize.room(2000, answer), answer)
    assert foretold.prompt > tokens
    assert foretold.completion >= answer
    assert foretold.longest <= 2000
    assert foretold.prompt <= 2 * (tokens + 2000)


# --- the engine -----------------------------------------------------------------------------------------------------


def document(name: str, text: str, **body: Any) -> EngineRequest:
    made = jsonl.document_body(text, endpoint=Endpoint.CHAT, model=MODEL.name, max_output_tokens=20)
    return EngineRequest(name, {**made, **body})


def never() -> bool:
    return False


def engine_of(inner: FakeEngine) -> SummarizingEngine:
    return SummarizingEngine(inner, MODEL)


class Recorded(FakeEngine):
    """A chat engine that keeps what it was asked and refuses prompts above a number of words."""

    def __init__(self, longest_words: int = 10**6, **values: Any) -> None:
        super().__init__(endpoint=Endpoint.CHAT, **values)
        self.prompts: list[dict[str, Any]] = []
        self.longest_words = longest_words

    def _answer(self, request: EngineRequest) -> EngineResult:
        self.prompts.append(dict(request.body))
        if len(request.body["messages"][0]["content"].split()) > self.longest_words:
            message = "This model's maximum context length is 300 tokens"
            return EngineResult(400, None, 0, error_code="BadRequestError", error_message=message)
        return super()._answer(request)


def test_a_document_that_fits_is_asked_about_once_by_the_documented_prompt() -> None:
    inner = Recorded()
    [result] = engine_of(inner).run([document("a", "A short {text}.")], never)
    [asked] = inner.prompts
    assert asked["messages"] == [
        {"role": "user", "content": summarize.PROMPTS["1"].whole.replace("{text}", "A short {text}.")}
    ]
    assert summarize.MEMBER not in asked
    body = orjson.loads(result.body_json or b"")
    assert body["summary"] == {"prompt_version": "1", "pieces": 1, "rounds": 1}
    assert body["choices"][0]["message"]["content"] == "answer to a"


def test_a_long_one_is_answered_in_rounds_within_its_item_with_all_its_tokens_counted() -> None:
    inner = Recorded()
    long = document("l", "The cat sat on the mat. " * 200)
    plain = EngineRequest("p", {"messages": [{"role": "user", "content": "hi"}]})
    summary, other = engine_of(inner).run([long, plain], never)
    # The parts of the first round and the other item go together.
    assert len(inner.calls) == 2
    assert inner.calls[0].count("l") == len(inner.calls[0]) - 1 > 4
    assert inner.calls[1] == ["l"]
    prompts = [one["messages"][0]["content"] for one in inner.prompts]
    asked = [words for words in prompts if words != "hi"]
    assert summary.prompt_tokens == sum(len(words.split()) for words in asked)
    assert summary.completion_tokens == 3 * len(asked)
    assert asked[-1].startswith("These are summaries of the parts")
    assert sum(words.count("cat sat") for words in asked) == 200
    facts = orjson.loads(summary.body_json or b"")["summary"]
    assert facts == {"prompt_version": "1", "pieces": len(asked) - 1, "rounds": 2}
    assert (other.prompt_tokens, other.completion_tokens) == (1, 3)
    assert "summary" not in orjson.loads(other.body_json or b"")


def test_what_is_too_long_after_all_is_cut_again_and_its_tokens_still_count() -> None:
    inner = Recorded(longest_words=60)
    [result] = engine_of(inner).run([document("l", "one two three. " * 90)], never)
    assert result.status_code == 200
    texts = [one["messages"][0]["content"] for one in inner.prompts]
    answered = [text for text in texts if len(text.split()) <= 60]
    assert sum(text.count("one two three.") for text in answered) == 90
    assert result.completion_tokens == 3 * len(answered)
    # A single word that does not fit is the item's own error.
    [stuck] = engine_of(Recorded(longest_words=3)).run([document("s", "word")], never)
    assert (stuck.status_code, stuck.error_code) in {(400, "no_summary")}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"summarize": True}, "summarize"),
        ({"summarize": {"prompt_version": "99"}}, "summarize"),
        ({"summarize": {"prompt_version": ["1"]}}, "summarize"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, "messages"),
    ],
)
def test_a_bad_one_fails_alone(body: dict[str, Any], param: str) -> None:
    bad, good = engine_of(Recorded()).run([document("b", "x", **body), document("g", "y")], never)
    assert (bad.status_code, bad.error_param, good.status_code) == (400, param, 200)


def test_an_error_in_a_part_is_the_item_s_and_a_stop_stops_all() -> None:
    inner = Recorded(bad_items={"l": "content_filter"})
    bad, good = engine_of(inner).run([document("l", "a b c. " * 400), document("g", "y")], never)
    assert (bad.error_code, good.status_code) == ("content_filter", 200)
    assert bad.prompt_tokens > 1000  # what its parts took
    with pytest.raises(Stopped):
        engine_of(inner).run([document("g", "y")], lambda: True)


def test_a_document_far_over_the_limit_is_accepted_as_a_summary_and_foretold_with_its_rounds() -> None:
    text = "The cat sat on the mat. " * 400
    body = document("a", text).body
    tokens = estimate.body_tokens(body, MODEL)
    assert not estimate.is_surely_over(tokens.longest, MODEL.max_input_tokens)
    plain = estimate.body_tokens({name: body[name] for name in ("messages", "max_tokens")}, MODEL)
    assert estimate.is_surely_over(plain.longest, MODEL.max_input_tokens)
    assert tokens.prompt > plain.prompt and tokens.completion > plain.completion
    inner = Recorded(tokens=lambda one: (count(one.body["messages"][0]["content"]), 0, 20))
    [result] = engine_of(inner).run([document("a", text)], never)
    assert result.prompt_tokens == pytest.approx(tokens.prompt, rel=0.4)


def test_a_pause_takes_effect_between_two_rounds_of_one_document() -> None:
    asked: list[int] = []
    is_paused = False

    class Deaf(Recorded):
        """An engine that never looks whether it should stop."""

        def run(self, requests: Sequence[EngineRequest], should_stop: ShouldStop) -> Sequence[EngineResult]:
            nonlocal is_paused
            asked.append(len(requests))
            is_paused = True
            return super().run(requests, never)

    with pytest.raises(Stopped):
        engine_of(Deaf()).run([document("l", "a b c. " * 400)], lambda: is_paused)
    assert len(asked) == 1 and asked[0] > 1
