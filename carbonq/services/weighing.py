"""Learn token weights from engine batches: what each kind of token costs of a model on a hardware, beside the prompt's.

Non-negative least squares of energy (uJ) on the counts of prompt, cached and generated tokens; of active machine
seconds where energy is only estimated from time. Kept are exponentially forgetting sums (the normal equations), not the
batches. Each batch is divided by the root of its tokens, as its error grows with them. There is no constant term: what
a call costs whatever its tokens is spread over its tokens. Nothing is taken for learned before it is identified.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain, combinations
from typing import Any

import numpy as np

from carbonq.meters.protocol import WEIGHTS_LEARNED, MeterInfo, MeterKind
from carbonq.model import Model, Quality
from carbonq.services.burnt import Burnt
from carbonq.store import throughputs
from carbonq.store.database import Tx
from carbonq.store.dialect import machine_now
from carbonq.units import iso, parse_iso

#: Of the sums, what is left after each further engine batch: the last thousand count.
KEPT = 0.999

#: Engine batches (those forgotten do not count) without which nothing is taken for learned.
LEAST_BATCHES = 100.0

#: A kind of token below this part of all tokens, squared, was hardly seen; its weight stays as stated.
HARDLY_SEEN = 1e-4

#: Least eigenvalue of the correlations of the counts: below, the mixes were too much alike to tell kinds apart.
LEAST_EIGENVALUE = 0.02

#: Largest standard error of what a token costs beside a prompt token, as a part of it or of the prompt token's.
MOST_ERROR = 0.05

#: A learned prompt token weighs this, so that weights are hundredths of it.
PROMPT_WEIGHT = 100

#: The largest weight, as in the settings.
MOST_WEIGHT = 1_000_000

#: Machine time for which weights are held, unless one moves by more than ``MOVED`` of it (or of half a prompt token).
HELD_FOR = timedelta(days=1)
MOVED = 0.1

Weights = tuple[int, int, int]

#: Meters that only multiply time by watts: their energy says nothing that the time does not.
_BY_TIME = frozenset({MeterKind.CPU_TIME, MeterKind.TDP, MeterKind.NAMEPLATE, MeterKind.NONE})

_KINDS = 3
_UPPER = tuple((row, column) for row in range(_KINDS) for column in range(row, _KINDS))


@dataclass(frozen=True, slots=True)
class Sums:
    """The normal equations of some engine batches. ``basis`` is what was weighed: ``energy`` or ``time``, or nothing.

    ``values``: how many, the sum of squares of what was weighed, six products of counts, three with what was weighed.
    """

    basis: str = ""
    values: tuple[float, ...] = (0.0,) * (2 + len(_UPPER) + _KINDS)

    @staticmethod
    def of(counts: Sequence[int], burnt: Burnt) -> Sums:
        """Return one engine batch's; none where it has no tokens, or its energy is not what a meter alone counted.

        ``counts`` are prompt tokens that were not cached, cached ones, and generated ones.
        """
        basis = _basis(burnt.info)
        weighed = burnt.energy_uj if basis == "energy" else sum(part.duration_s for part in burnt.parts)
        tokens = sum(counts)
        if not basis or tokens <= 0 or weighed <= 0:
            return NO_SUMS
        products = (counts[row] * counts[column] / tokens for row, column in _UPPER)
        return Sums(basis, (1.0, weighed**2 / tokens, *products, *(count * weighed / tokens for count in counts)))

    def plus(self, newer: Sums, kept: float = 1.0) -> Sums:
        """Return both together, of these only what is left after each of the newer; another basis begins anew."""
        if self.basis != newer.basis:
            return newer if newer.basis else self
        left = kept ** newer.values[0]
        return replace(self, values=tuple(a * left + b for a, b in zip(self.values, newer.values, strict=True)))

    def solve(self, stated: Weights) -> Weights | None:
        """Return the weights, a prompt token's ``PROMPT_WEIGHT``; None while they are not identified.

        A kind of token that was hardly seen keeps what is stated of it beside the prompt token.
        """
        batches, squares = self.values[:2]
        matrix = np.zeros((_KINDS, _KINDS))
        for (row, column), value in zip(_UPPER, self.values[2:], strict=False):
            matrix[row, column] = matrix[column, row] = value
        target = np.array(self.values[-_KINDS:])
        seen = [kind for kind in range(_KINDS) if matrix[kind, kind] > HARDLY_SEEN * np.trace(matrix)]
        if batches < LEAST_BATCHES or 0 not in seen or len(seen) == 1:
            return None
        inner, aim = matrix[np.ix_(seen, seen)], target[seen]
        scale = np.sqrt(np.diag(inner))
        if np.linalg.eigvalsh(inner / np.outer(scale, scale))[0] < LEAST_EIGENVALUE:
            return None
        costs = _non_negative(inner, aim)
        noise = max(0.0, squares - 2 * costs @ aim + costs @ inner @ costs) / (batches - len(seen))
        if costs[0] <= 0 or _is_unsure(costs, noise * np.linalg.inv(inner)):
            return None
        return _whole(dict(zip(seen, costs / costs[0], strict=True)), stated)


NO_SUMS = Sums()


def _basis(info: MeterInfo) -> str:
    if info.quality in {Quality.MEASURED, Quality.MIXED}:
        return "energy"
    # An estimate by a meter that counts is one for a reason (merged, shared, reset): it would teach what is wrong.
    return "time" if {info.gpu_meter, info.cpu_meter, info.dram_meter} <= _BY_TIME else ""


def _non_negative(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the least squares solution without negative members: the best of those with some members 0."""
    kinds = range(len(target))
    best, least = np.zeros(len(target)), 0.0
    for chosen in map(list, chain.from_iterable(combinations(kinds, count) for count in range(1, len(target) + 1))):
        found = np.linalg.solve(matrix[np.ix_(chosen, chosen)], target[chosen])
        height = -float(found @ target[chosen])
        if (found >= 0).all() and height < least:
            best, least = np.zeros(len(target)), height
            best[chosen] = found
    return best


def _is_unsure(costs: np.ndarray, covariance: np.ndarray) -> bool:
    """Say whether a ratio to the first cost has too large a standard error, to first order."""
    ratios = costs / costs[0]
    slopes = np.eye(len(costs)) / costs[0]
    slopes[:, 0] -= ratios / costs[0]
    errors = np.sqrt(np.einsum("ij,jk,ik->i", slopes, covariance, slopes))
    return bool((errors > MOST_ERROR * np.maximum(ratios, 1.0)).any())


def _whole(ratios: Mapping[int, float], stated: Weights) -> Weights | None:
    found: list[int] = []
    for kind, weight in enumerate(stated):
        if kind not in ratios and not stated[0] and weight:
            return None  # it weighs something, but nothing says what beside a prompt token
        ratio = ratios[kind] if kind in ratios else weight / stated[0] if weight else 0.0
        found.append(round(PROMPT_WEIGHT * ratio))
    # What a model generates is never free.
    is_possible = max(found) <= MOST_WEIGHT and (found[2] > 0 or not stated[2])
    return (found[0], found[1], found[2]) if is_possible else None


@dataclass(frozen=True, slots=True)
class Known:
    """What was learned of a model on a hardware; ``since`` is machine time."""

    sums: Sums = NO_SUMS
    weights: Weights | None = None
    since: datetime | None = None

    def after(self, newer: Sums, stated: Weights, now: datetime) -> Known:
        """Return it with some engine batches more; the weights move only once they may."""
        sums = self.sums.plus(newer, KEPT)
        if self.sums.basis and sums.basis != self.sums.basis:
            return Known(sums)  # what time said is no measure of what energy says
        found = sums.solve(stated)
        is_held = self.weights is not None and self.since is not None and now < self.since + HELD_FOR
        if found is None or found == self.weights or (is_held and not _has_moved(self.weights or found, found)):
            return replace(self, sums=sums)
        return Known(sums, found, now)

    def to_json(self) -> dict[str, Any]:
        """Write it."""
        since = None if self.since is None else iso(self.since)
        return {"basis": self.sums.basis, "sums": self.sums.values, "weights": self.weights, "since": since}

    @staticmethod
    def from_json(values: Mapping[str, Any] | None) -> Known:
        """Read it; nothing is nothing learned."""
        if values is None:
            return Known()
        weights, since = values["weights"], values["since"]
        return Known(
            Sums(values["basis"], tuple(values["sums"])),
            None if weights is None else (weights[0], weights[1], weights[2]),
            None if since is None else parse_iso(since),
        )


def _has_moved(held: Weights, found: Weights) -> bool:
    return any(abs(new - old) > MOVED * max(old, PROMPT_WEIGHT / 2) for old, new in zip(held, found, strict=True))


def stated_of(model: Model) -> Weights:
    """Return the weights that stand until others are learned."""
    return model.w_prompt, model.w_cached, model.w_completion


def learn(tx: Tx, model: str, hardware: str, newer: Sums, stated: Weights) -> None:
    """Add engine batches to what is known of (model, hardware), whose speed has just been learned in this transaction.

    That wrote the row, so that no other worker changes it meanwhile.
    """
    if math.isclose(newer.values[0], 0):
        return
    known = Known.from_json(throughputs.token_weights(tx, model, hardware))
    throughputs.save_token_weights(tx, model, hardware, known.after(newer, stated, machine_now(tx)).to_json())


def in_force(tx: Tx, models: Mapping[str, Model], hardware: str) -> dict[str, Model]:
    """Return the models that learn their weights, with those that are in force on a hardware."""
    learning = [model for model in models.values() if model.learns_weights]
    return {model.name: _weighed(model, throughputs.token_weights(tx, model.name, hardware)) for model in learning}


def marked(info: MeterInfo, model: Model) -> MeterInfo:
    """Return how items were metered; where their token weights were learned, with that and when."""
    if model.weights_learned_at is None:
        return info
    return replace(info, device_ids=(*info.device_ids, f"{WEIGHTS_LEARNED} {iso(model.weights_learned_at)}"))


def _weighed(model: Model, values: Mapping[str, Any] | None) -> Model:
    known = Known.from_json(values)
    if known.weights is None:
        return model
    prompt, cached, completion = known.weights
    return replace(model, w_prompt=prompt, w_cached=cached, w_completion=completion, weights_learned_at=known.since)
