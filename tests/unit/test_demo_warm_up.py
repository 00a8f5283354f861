"""The demonstration's warm-up is taken by a machine that nothing is known of yet."""

from __future__ import annotations

from datetime import timedelta

import orjson

from carbonq import estimate, models
from carbonq.api.schemas import parse_deadline
from carbonq.demo import samples, story
from carbonq.demo.setting import FACTOR
from carbonq.model import Endpoint
from carbonq.plan import policy
from tests.store.rows import T0


def test_the_first_article_is_in_time_at_the_speed_that_is_stated_of_the_model() -> None:
    (line,) = story._documents(samples.read_articles()[:1], Endpoint.CHAT)
    request = orjson.loads(line)
    model = models.BUILTIN[request["body"]["model"]]
    tokens = estimate.body_tokens(request["body"], model).total
    took_s = estimate.duration_s(tokens, model.tokens_per_s)
    left = parse_deadline(story.WARM_UP_DEADLINE, T0) - T0
    assert left < timedelta(minutes=15)  # it is to run at once
    found = policy.feasibility(
        now=T0, deadline_at=T0 + left, work_s=took_s, longest_chunk_s=took_s, slots=2, factor=FACTOR
    )
    assert found is None
