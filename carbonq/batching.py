"""Cut a chunk's items into engine batches by estimated tokens. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Sequence

from carbonq.model import Item, Model

#: Machine seconds that one engine batch may take by estimate (the meter's interval is at most 60 s).
MAX_BATCH_S = 30.0


def cut(items: Sequence[Item], model: Model) -> list[list[Item]]:
    """Return engine batches of items of similar length, each within the model's limits on tokens and items.

    An item above the token limit stands alone. Padding counts: a batch weighs its longest item times its size.
    """
    limit = max(1, min(model.batch_tokens, int(model.tokens_per_s * MAX_BATCH_S)))
    batches: list[list[Item]] = []
    batch: list[Item] = []
    for item in sorted(items, key=lambda one: (one.est_tokens, one.item_id)):
        # Ascending order, so this item is the longest of the batch it would join.
        if batch and (len(batch) >= model.batch_items or (len(batch) + 1) * item.est_tokens > limit):
            batches.append(batch)
            batch = []
        batch.append(item)
    if batch:
        batches.append(batch)
    return batches
