"""Cut a chunk's items into engine batches by estimated tokens and the engine's pace. Pure: no clock, no I/O.

Padding counts: a batch weighs its longest item times its size. Seconds are machine seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from carbonq.engines.protocol import EngineResult
from carbonq.model import Item, Model

#: Machine seconds that one engine batch may take by estimate, however long the lease: a meter's interval.
MAX_BATCH_S = 60.0

#: Part of the lease that one engine batch may take: two renewals may fail before it is lost.
LEASE_SHARE = 1 / 3

#: Weight of the newest engine batch in the pace.
NEWEST_WEIGHT = 0.3


def longest_s(lease_s: float) -> float:
    """Return the machine seconds that one engine batch may take by estimate."""
    return min(MAX_BATCH_S, lease_s * LEASE_SHARE)


class Pace:
    """Estimated tokens (``Item.est_tokens``) a second of the engine, as its last engine batches were measured."""

    def __init__(self, tokens_per_s: float) -> None:
        """Start with what is foretold."""
        self.tokens_per_s = tokens_per_s

    def learn(self, tokens: int, seconds: float) -> None:
        """Take in one engine batch; one without tokens or time says nothing."""
        if tokens > 0 and seconds > 0:
            self.tokens_per_s += NEWEST_WEIGHT * (tokens / seconds - self.tokens_per_s)


class Cutter:
    """Items of one chunk, shortest first; ``take`` cuts off the next engine batch by the pace of the moment."""

    def __init__(self, items: Sequence[Item], model: Model, *, longest_s: float) -> None:
        """``longest_s`` is how long an engine batch may take by estimate."""
        self._items = sorted(items, key=lambda one: (one.est_tokens, one.item_id))
        self._model = model
        self._longest_s = longest_s
        self._next = 0

    def limit(self, tokens_per_s: float) -> int:
        """Return the tokens of an engine batch with padding: the model's limit, or what the pace makes in time."""
        return max(1, int(min(self._model.batch_tokens, tokens_per_s * self._longest_s)))

    def take(self, tokens_per_s: float) -> list[Item]:
        """Return the next engine batch, empty when all items were taken. An item above the limit stands alone."""
        limit, first = self.limit(tokens_per_s), self._next
        last = first + 1
        # Ascending order, so each item is the longest of the batch it would join.
        while (
            last < len(self._items)
            and last - first < self._model.batch_items
            and (last - first + 1) * self._items[last].est_tokens <= limit
        ):
            last += 1
        self._next = min(last, len(self._items))
        return list(self._items[first : self._next])


#: What is recorded of an engine batch beside its energy; NULL where it is not known. Columns of ``engine_batches``.
FIGURES = (
    "capacity_items",
    "tokens",
    "padded_tokens",
    "estimated_items",
    "ttft_us",
    "output_token_us",
    "speculative",
)

NO_FIGURES: Mapping[str, Any] = dict.fromkeys(FIGURES)


def figures(results: Sequence[EngineResult], model: Model) -> Mapping[str, Any]:
    """Return what an engine batch shows of its fill and speed, in whole numbers.

    ``tokens`` were computed (prompt without cached, and completion); ``padded_tokens`` is the longest item's times the
    items, what an engine that pads computes: their ratio is the fill by length, ``items / capacity_items`` that by
    number. ``estimated_items`` is how many items' tokens are estimates. ``ttft_us`` is the median time to the first
    token, ``output_token_us`` the mean time of a further one, both of the items whose engine could tell.
    """
    computed = [one.prompt_tokens - one.cached_tokens + one.completion_tokens for one in results]
    first = [one.ttft_s for one in results if one.ttft_s is not None]
    decoded = [(one.decode_s, one.completion_tokens - 1) for one in results if one.decode_s is not None]
    further = sum(count for _, count in decoded if count > 0)
    decode_s = sum(seconds for seconds, count in decoded if count > 0)
    return {
        "capacity_items": model.batch_items,
        "tokens": sum(computed),
        "padded_tokens": max(computed, default=0) * len(computed),
        "estimated_items": sum(one.is_estimated for one in results),
        "ttft_us": round(median(first) * 1e6) if first else None,
        "output_token_us": round(decode_s / further * 1e6) if further else None,
        "speculative": model.options.get("speculative"),
    }
