"""Weigh what is known of a window ahead by how well it told the past of that zone: ridge regression by lead. Pure.

A skill holds, for each lead bucket and each kind of base (fresh or old forecast, none), sums over past pairs of (what
was known, what came): enough to solve for the weights at any time, to forget old pairs by halves, to add two skills.
Before any pair is added, it is used to judge the weights that were there: in a bucket where they did worse than the
plain base, the base is used. Values are g/kWh, leads 5-minute windows.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from carbonq.plan.evidence import FEATURES, Evidence, IntArray, Kind
from carbonq.plan.forecaster import FloatArray
from carbonq.plan.prior import WEIGHTS

#: First lead of each bucket; a bucket ends where the next begins, the last one never.
BUCKETS = np.array(
    [0, 1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 16, 19, 22, 25, 29, 33, 37, 49, 73, 97, 145, 217, 289, 433, 577, 865]
)

#: A skill of another version or with other features is not used: it is learned anew.
VERSION = 1

#: Windows after which a pair counts half: sixty days.
HALF_LIFE = 60 * 288.0

#: The prior's weight in pairs.
PRIOR_PAIRS = 200.0

#: Pairs before weights, and a spread, are believed at all.
ENOUGH = 200.0

#: Errors below this (g/kWh) are none.
_TINY = 1e-6

#: The longest lead that is learned: four days. Longer ones are taken to be like it.
MAX_LEAD = 1152

#: Leads from which only some moments are learned from (windows apart): far ahead, neighbours say the same.
_FAR, _FAR_APART = 37, 12

_KINDS = len(Kind)
_SIZE = len(FEATURES)
_PRIOR = np.zeros((_KINDS, len(BUCKETS), _SIZE))
for _first, _weights in WEIGHTS.items():
    _PRIOR[Kind.FRESH, BUCKETS.tolist().index(_first)] = _weights
#: What is kept of each bucket's judged pairs: pairs, and sums of |error| and error^2 of base and blend.
_JUDGED = 5


@dataclass(frozen=True, eq=False)
class Skill:
    """What was learned of one zone, signal and source. ``until`` is the window up to which pairs were learned."""

    until: int = 0
    pairs: FloatArray = field(default_factory=lambda: np.zeros((_KINDS, len(BUCKETS))))
    gram: FloatArray = field(default_factory=lambda: np.zeros((_KINDS, len(BUCKETS), _SIZE, _SIZE)))
    moment: FloatArray = field(default_factory=lambda: np.zeros((_KINDS, len(BUCKETS), _SIZE)))
    judged: FloatArray = field(default_factory=lambda: np.zeros((_KINDS, len(BUCKETS), _JUDGED)))
    has_prior: bool = True

    @cached_property
    def weights(self) -> FloatArray:
        """The weight of each difference, by kind of base and bucket; the prior's where too few pairs are known."""
        weights = _PRIOR.copy() if self.has_prior else np.zeros_like(self.moment)
        there = self.pairs >= ENOUGH
        if there.any():
            gram, pairs = self.gram[there], self.pairs[there]
            size = np.einsum("bii->bi", gram)
            # Scaled to ones on the diagonal: differences that never occurred keep the prior's weight, not a random one.
            scale = np.sqrt(np.where(size > 0, size, 1.0))
            system = gram / scale[:, :, None] / scale[:, None, :]
            system = system + np.eye(_SIZE) * (PRIOR_PAIRS / pairs + 1e-9)[:, None, None]
            beyond = self.moment[there] - np.einsum("bij,bj->bi", gram, weights[there])
            solved = np.linalg.solve(system, (beyond / scale)[:, :, None])[:, :, 0]
            weights[there] += solved / scale
        return weights

    @cached_property
    def is_trusted(self) -> npt.NDArray[np.bool_]:
        """By kind and bucket: whether the weights did no worse than the plain base on pairs they had not seen."""
        pairs, base_abs, base_sq, blend_abs, blend_sq = np.moveaxis(self.judged, -1, 0)
        return (pairs >= ENOUGH) & (blend_sq <= base_sq) & (blend_abs <= base_abs)

    @cached_property
    def spread(self) -> FloatArray:
        """By kind and bucket: the root mean square error of what is used there; NaN where too few were judged."""
        pairs = self.judged[:, :, 0]
        squares = np.where(self.is_trusted, self.judged[:, :, 4], self.judged[:, :, 2])
        return np.where(pairs >= ENOUGH, np.sqrt(squares / np.maximum(pairs, 1.0)), np.nan)

    def aged(self, until: int) -> Skill:
        """Return the same skill as it counts at a later window."""
        if until <= self.until or self.until == 0:
            return replace(self, until=max(until, self.until))
        rate = math.exp2(-(until - self.until) / HALF_LIFE)
        return Skill(until, rate * self.pairs, rate * self.gram, rate * self.moment, rate * self.judged, self.has_prior)

    def plus(self, other: Skill) -> Skill:
        """Return what both learned together, from different pairs."""
        until = max(self.until, other.until)
        mine, theirs = self.aged(until), other.aged(until)
        return Skill(
            until,
            mine.pairs + theirs.pairs,
            mine.gram + theirs.gram,
            mine.moment + theirs.moment,
            mine.judged + theirs.judged,
            self.has_prior,
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values; buckets without pairs take no room."""
        upper = np.triu_indices(_SIZE)
        buckets: list[dict[str, Any]] = []
        for kind, bucket in np.argwhere(self.pairs > 0).tolist():
            numbers = np.concatenate(
                (self.gram[kind, bucket][upper], self.moment[kind, bucket], self.judged[kind, bucket])
            )
            packed = base64.b64encode(numbers.astype("<f8").tobytes()).decode("ascii")
            place = {"kind": kind, "first_lead": int(BUCKETS[bucket])}
            buckets.append({**place, "pairs": float(self.pairs[kind, bucket]), "sums": packed})
        return {"version": VERSION, "features": len(FEATURES), "until": self.until, "buckets": buckets}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Skill:
        """Read it back; one of another version is a new skill. Raises ValueError for what is none at all."""
        if state.get("version") != VERSION or state.get("features") != len(FEATURES):
            return cls()
        made = cls(until=int(state["until"]))
        upper = np.triu_indices(_SIZE)
        count = len(upper[0])
        firsts = BUCKETS.tolist()
        for one in state["buckets"]:
            numbers = np.frombuffer(base64.b64decode(one["sums"]), dtype="<f8")
            if len(numbers) != count + _SIZE + _JUDGED or one["first_lead"] not in firsts:
                raise ValueError("a stored outlook skill is damaged: a bucket has the wrong size")
            place = int(one["kind"]), firsts.index(one["first_lead"])
            half = np.zeros((_SIZE, _SIZE))
            half[upper] = numbers[:count]
            made.gram[place] = half + np.triu(half, 1).T
            made.moment[place] = numbers[count : count + _SIZE]
            made.judged[place] = numbers[count + _SIZE :]
            made.pairs[place] = float(one["pairs"])
        return made


#: What is known of a zone of which nothing was learned.
NO_SKILL = Skill()


@dataclass(frozen=True, slots=True)
class Blend:
    """By window: value, spread (standard error; NaN unknown) and whether learned weights made the value."""

    values: FloatArray
    spread: FloatArray
    is_blended: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Pairs:
    """What was known of some windows, and what came. Rows with a missing base or truth are left out of account."""

    lead: IntArray
    kind: IntArray
    base: FloatArray
    differences: FloatArray
    truth: FloatArray

    @classmethod
    def of(cls, known: Evidence, truth: FloatArray) -> Pairs:
        """Pair evidence with the truth of its windows."""
        return cls(known.lead, known.kind, known.base, known.differences, truth)

    @classmethod
    def joined(cls, parts: list[Pairs]) -> Pairs:
        """Put several together."""
        return cls(
            np.concatenate([one.lead for one in parts]),
            np.concatenate([one.kind for one in parts]),
            np.concatenate([one.base for one in parts]),
            np.concatenate([one.differences for one in parts]),
            np.concatenate([one.truth for one in parts]),
        )


def bucket_of(lead: IntArray) -> IntArray:
    """Return the number of the bucket each lead belongs to."""
    return np.maximum(np.searchsorted(BUCKETS, lead, side="right") - 1, 0)


def origins_of(window: int, max_lead: int = MAX_LEAD) -> list[int]:
    """Return the moments (windows) to learn from when a window has been observed: about one for each bucket of leads.

    The lead goes round within each bucket from window to window, so that all are learned.
    """
    ends = [*BUCKETS[1:].tolist(), MAX_LEAD + 1]
    found: list[int] = []
    for first, end in zip(BUCKETS.tolist(), ends, strict=True):
        lead = first + window % (end - first)
        origin = window - lead
        if lead >= _FAR:
            origin -= origin % _FAR_APART
        if window - origin <= max_lead:
            found.append(origin)
    return found


def blend(skill: Skill, known: Evidence) -> Blend:
    """Return the value of each window: the base where the skill is none or not trusted, else base plus what it adds.

    Never below 0 nor above the largest value ever seen; NaN where the base is.
    """
    kind, bucket = known.kind, bucket_of(known.lead)
    is_blended = skill.is_trusted[kind, bucket] & (known.lead >= 0) & ~np.isnan(known.base)
    added = np.einsum("nk,nk->n", known.differences, skill.weights[kind, bucket])
    blended = np.clip(known.base + added, 0.0, known.cap)
    return Blend(
        values=np.where(is_blended, blended, known.base),
        spread=np.where(np.isnan(known.base), np.nan, skill.spread[kind, bucket]),
        is_blended=is_blended,
    )


def learn(skill: Skill, pairs: Pairs, until: int) -> Skill:
    """Return the skill after some pairs whose windows all end by window ``until``; ``skill`` itself is unchanged.

    The pairs first judge the weights that were there before them, then change them.
    """
    aged = skill.aged(until)
    is_known = ~np.isnan(pairs.base) & ~np.isnan(pairs.truth) & (pairs.lead >= 0)
    kind, bucket = pairs.kind, bucket_of(pairs.lead)
    counts, gram, moment, judged = (one.copy() for one in (aged.pairs, aged.gram, aged.moment, aged.judged))
    for place in np.unique(np.stack((kind, bucket))[:, is_known], axis=1).T.tolist():
        rows = is_known & (kind == place[0]) & (bucket == place[1])
        at = place[0], place[1]
        x, base, truth = pairs.differences[rows], pairs.base[rows], pairs.truth[rows]
        missed = truth - base
        # As it would have been used, but for the cap, which is not known here.
        left = np.abs(truth - np.maximum(base + x @ skill.weights[at], 0.0))
        if skill.weights[at].any():
            judged[at] += (len(x), np.abs(missed).sum(), (missed**2).sum(), left.sum(), (left**2).sum())
        usual = judged[at][3] / judged[at][0] if judged[at][0] >= ENOUGH else left.mean()
        # What misses by more than is usual counts in proportion, not by its square: single hours that nobody foretold
        # must not bend the weights of all the others (docs/adr/0007).
        weighted = x * np.minimum(1.0, usual / np.maximum(left, _TINY))[:, None]
        counts[at] += len(x)
        total = weighted.T @ x
        gram[at] += (total + total.T) / 2
        moment[at] += weighted.T @ missed
    return Skill(until, counts, gram, moment, judged, skill.has_prior)
