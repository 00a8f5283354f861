"""Which work may go to a smaller model, what is checked of the settings, and what an engine is asked then."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq import config, tiers, wiring
from carbonq.errors import ConfigError
from carbonq.estimate import completion_tokens
from carbonq.model import Endpoint, Model, Region, Treatment
from carbonq.tiers import OFF, TierPolicy
from tests.docs import pages

BIG = Model("big", "x", Endpoint.CHAT, 100, 4.0, 10.0, 200, 1000, 10, tier=2, max_output_tokens=8, smaller="small")
SMALL = replace(BIG, name="small", tier=1, smaller=None)
VECTORS = replace(BIG, name="vectors", endpoint=Endpoint.EMBEDDINGS, max_output_tokens=0, smaller="short")
SHORT = replace(VECTORS, name="short", tier=1, smaller=None)
EVERYWHERE = Region("north", "zn", 1, Decimal("1.1"), "stated", "cpu")


def models(*found: Model) -> dict[str, Model]:
    return {model.name: model for model in found}


def test_what_is_right_is_taken() -> None:
    middle = replace(BIG, name="middle", tier=2)
    tiers.check(models(replace(BIG, tier=3, smaller="middle"), middle, SMALL), [EVERYWHERE])
    tiers.check(models(VECTORS, SHORT), [EVERYWHERE])
    tiers.check(models(replace(VECTORS, same_space=True), SHORT), [replace(EVERYWHERE, models=("short",))])
    tiers.check(models(BIG, replace(SMALL, max_input_tokens=5)), [])  # items are looked at one by one


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([BIG], "models.big.smaller 'small' is no model; there are big"),
        ([replace(BIG, smaller="big")], "leads in a circle: big -> big"),
        ([BIG, replace(SMALL, smaller="big")], "leads in a circle: big -> small -> big"),
        ([BIG, replace(SMALL, endpoint=Endpoint.EMBEDDINGS)], "both must answer the same"),
        ([BIG, replace(SMALL, tier=2)], "'small' is of tier 2 and 'big' of tier 2"),
        ([BIG, replace(SMALL, tier=3)], "give 'big' the higher one"),
        ([BIG, replace(SMALL, max_output_tokens=7)], "answers would be cut off"),
        ([replace(BIG, same_space=True), SMALL], "models.big.same_space is for embeddings"),
        ([replace(SHORT, same_space=True)], "models.short.same_space is said of no smaller model"),
    ],
)
def test_what_is_wrong_is_named(found: list[Model], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        tiers.check(models(*found), [EVERYWHERE])
    assert words in error.value.message


def test_a_smaller_model_must_be_served_somewhere() -> None:
    with pytest.raises(ConfigError, match="'small' is served by no region"):
        tiers.check(models(BIG, SMALL), [replace(EVERYWHERE, models=("big",))])


def test_settings_are_checked_at_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pair = (
        '[models.words]\nengine = "wordllama"\ntier = 2\nsmaller = "words-64"\nsame_space = true\n'
        '[models.words-64]\nengine = "wordllama"\ndimensions = 64\n'
    )
    found = _loaded(monkeypatch, tmp_path, pair + "[tiers]\neasy_tokens = 50\nabove_g_per_kwh = 300.5\n")
    model = wiring.make_models(found)["words"]
    assert (model.smaller, model.same_space, model.tier) == ("words-64", True, 2)
    assert wiring.make_tiers(found) == TierPolicy(50, 300.5)
    assert wiring.make_tiers(_loaded(monkeypatch, tmp_path, "")) == OFF
    with pytest.raises(ConfigError, match="no model names a smaller one"):
        wiring.make_tiers(_loaded(monkeypatch, tmp_path, "[tiers]\neasy_tokens = 50\n"))
    with pytest.raises(ConfigError, match=r"models\.words\.smaller 'words-6' is no model"):
        wiring.make_models(_loaded(monkeypatch, tmp_path, pair.replace('"words-64"', '"words-6"')))


def test_the_page_shows_settings_that_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (text,) = pages.blocks(pages.ROOT / "docs/howto/model-tiers.md", frozenset({"toml"}))
    found = _loaded(monkeypatch, tmp_path, text)
    assert wiring.make_models(found)["talk"].smaller == "talk-small"
    assert wiring.make_tiers(found) == TierPolicy(200, 450.0)


def _loaded(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> config.Settings:
    path = folder / "carbonq.toml"
    path.write_text(text)
    monkeypatch.setenv("CARBONQ_CONFIG", str(path))
    return config.load()


@pytest.mark.parametrize(
    ("model", "asked", "may"),
    [
        (BIG, None, True),
        (BIG, True, True),
        (BIG, False, False),
        (SMALL, True, False),
        (VECTORS, None, False),  # its vectors would be of another space, and nobody has said that this is wanted
        (VECTORS, True, True),
        (replace(VECTORS, same_space=True), None, True),
        (replace(VECTORS, same_space=True), False, False),
    ],
)
def test_who_may_be_downgraded(model: Model, asked: bool | None, may: bool) -> None:
    found = tiers.smaller_of(model, models(BIG, SMALL, VECTORS, SHORT), asked=asked)
    assert found == ({"big": SMALL, "vectors": SHORT}[model.name] if may else None)


def test_work_as_without_carbonq_is_never_downgraded() -> None:
    for treatment in (Treatment.OBSERVED, Treatment.HELD_OUT):
        assert tiers.smaller_of(BIG, models(BIG, SMALL), asked=True, treatment=treatment) is None
    assert tiers.smaller_of(None, models(BIG, SMALL), asked=True) is None


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.floats(1.0, 8.0))
def test_what_fits_is_within_the_limit_by_a_margin(tokens: int, limit: int, chars: float) -> None:
    small = replace(SMALL, max_input_tokens=limit, chars_per_token=chars)
    big = replace(BIG, max_input_tokens=20_000)
    assert tiers.fits(tokens, big, small) == (tokens * 1.5 * 4.0 / chars <= limit)
    assert tiers.fits(tokens, big, replace(small, max_input_tokens=20_000))


def test_easy_is_short() -> None:
    assert [tiers.is_easy(tokens, TierPolicy(easy_tokens=10)) for tokens in (1, 10, 11)] == [True, True, False]
    assert not tiers.is_easy(1, OFF)


@pytest.mark.parametrize(
    ("body", "limits"),
    [
        ({}, {"max_tokens": 8}),
        ({"max_tokens": 3}, {"max_tokens": 3}),
        ({"max_tokens": 50}, {"max_tokens": 8}),
        ({"max_completion_tokens": 50, "max_tokens": 3}, {"max_completion_tokens": 8, "max_tokens": 3}),
        ({"max_tokens": "many"}, {"max_tokens": "many"}),  # the engine's to refuse
        ({"max_tokens": True}, {"max_tokens": True}),
    ],
)
def test_an_answer_is_no_longer_than_that_of_the_model_asked_for(body: dict[str, Any], limits: dict[str, Any]) -> None:
    given_ = {"model": "big", "messages": [{"role": "user", "content": "hi"}], **body}
    small = replace(SMALL, max_output_tokens=100)
    asked = tiers.body_for(given_, small, BIG)
    assert asked == {"model": "small", "messages": given_["messages"], **limits}
    if all(type(limit) is int for limit in limits.values()):
        assert completion_tokens(asked, small) <= completion_tokens(given_, BIG)


def test_an_embedding_is_asked_as_it_stands() -> None:
    body = {"model": "vectors", "input": "a", "dimensions": 64}
    assert tiers.body_for(body, SHORT, VECTORS) == body | {"model": "short"}
    assert tiers.body_for({"model": "gone"}, SMALL, None) == {"model": "small"}
