"""Divide an engine batch's energy among its items by token weights, exactly. Pure: integers in, integers out.

Energies are whole microjoules. A share is a fraction ``weight / sum of weights``; it is never written as a float.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Below this many items plain Python is faster than numpy's set-up.
_SMALL = 48

#: Products below this fit numpy's int64.
_INT64 = 2**63


def token_weight(  # noqa: PLR0917 - two triples in one order; called for every item
    prompt: int, cached: int, completion: int, w_prompt: int, w_cached: int, w_completion: int
) -> int:
    """Return an item's token weight; cached tokens are part of the prompt's and weigh ``w_cached`` instead.

    Raises ValueError for a negative count or weight, or more cached than prompt tokens.
    """
    if min(prompt, cached, completion, w_prompt, w_cached, w_completion) < 0 or cached > prompt:
        raise ValueError(
            f"impossible token counts: prompt {prompt}, cached {cached}, completion {completion} "
            f"(weights {w_prompt}, {w_cached}, {w_completion})"
        )
    return w_prompt * (prompt - cached) + w_cached * cached + w_completion * completion


def fractions(weights: Sequence[int]) -> tuple[Sequence[int], int]:
    """Return (numerators, denominator) of the shares; where nothing weighs anything all items share equally."""
    total = sum(weights)
    return (weights, total) if total else ([1] * len(weights), len(weights))


def apportion(total_uj: int, weights: Sequence[int]) -> list[int]:
    """Divide ``total_uj`` by weights so that the parts sum to it exactly.

    Largest remainder: each part is its exact quota rounded down, and the microjoules left over go one each to the
    largest remainders, earlier items first where remainders are equal. So a part is less than 1 uJ from its quota.
    All weights zero: equally. Exact for integers of any size. Raises ValueError for negative input or no items.
    """
    if not weights:
        raise ValueError("energy cannot be divided among no items")
    if total_uj < 0 or min(weights) < 0:
        raise ValueError(f"negative energy or weight: {total_uj} uJ, least weight {min(weights)}")
    numerators, denominator = fractions(weights)
    if len(numerators) > _SMALL and total_uj * max(numerators) < _INT64 and denominator < _INT64:
        return _apportion_int64(total_uj, numerators, denominator)
    pairs = [divmod(total_uj * weight, denominator) for weight in numerators]
    parts = [quotient for quotient, _ in pairs]
    left = total_uj - sum(parts)
    # sorted() is stable, so equal remainders keep the items' order.
    for index in sorted(range(len(parts)), key=lambda i: -pairs[i][1])[:left]:
        parts[index] += 1
    return parts


def _apportion_int64(total_uj: int, numerators: Sequence[int], denominator: int) -> list[int]:
    quotients, remainders = np.divmod(total_uj * np.asarray(numerators, dtype=np.int64), denominator)
    left = total_uj - int(quotients.sum())
    quotients[np.argsort(-remainders, kind="stable")[:left]] += 1
    parts: list[int] = quotients.tolist()
    return parts
