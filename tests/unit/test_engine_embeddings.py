"""What embedding engines share is tested with them; here what none of their models shows."""

from __future__ import annotations

from typing import Any

import pytest

from carbonq.engines.embeddings import Reader
from carbonq.engines.protocol import EngineRequest
from carbonq.errors import InvalidRequest


@pytest.mark.parametrize(
    ("dimensions", "is_taken"), [(1, True), (True, False), (2.0, True), ("2", False), ([2], False)]
)
def test_dimensions_is_a_number_of_the_list(dimensions: Any, is_taken: bool) -> None:
    reader = Reader("m", lengths=(1, 2), max_tokens=5)
    _, [wanted] = reader.read([EngineRequest("a", {"input": "x", "dimensions": dimensions})])
    assert isinstance(wanted, InvalidRequest) is not is_taken
