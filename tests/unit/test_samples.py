from __future__ import annotations

import json

from carbonq.demo import samples


def test_the_shipped_documents_are_what_the_generator_makes() -> None:
    shipped = [json.loads(line) for line in samples.read_documents()]
    assert shipped == list(samples.documents(samples.COUNT))


def test_documents_are_many_distinct_and_short() -> None:
    texts = [document["text"] for document in samples.documents(samples.COUNT)]
    assert len(set(texts)) == len(texts) >= 2_000
    assert all(25 <= len(text.split()) <= 80 for text in texts)
    assert not any("{" in text for text in texts)


def test_articles_are_120_to_200_words() -> None:
    articles = [json.loads(line) for line in samples.read_articles()]
    assert len({article["id"] for article in articles}) == len(articles) >= 5
    assert all(120 <= len(article["text"].split()) <= 200 for article in articles)
