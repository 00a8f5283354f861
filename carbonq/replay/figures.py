"""What a replay found: grams, cost and lateness of each policy, savings against each baseline, and how sure they are.

Every figure is simulated. All policies are compared on the same pieces: one whose observed rate is missing where any
policy ran it is left out of all of them. Intervals are percentile bootstrap over whole blocks of time (Efron and
Tibshirani 1993, chapter 13; blocks because neighbouring hours are alike): days or weeks of release, drawn with
replacement, each with all its pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from carbonq.plan.evidence import IntArray
from carbonq.plan.forecaster import WINDOWS_A_DAY, FloatArray
from carbonq.replay.rolling import Ran
from carbonq.replay.site import Site
from carbonq.replay.work import Work

#: Share of the resamples that an interval holds.
CONFIDENCE = 0.95

#: A week begins on Monday; the epoch was a Thursday.
_MONDAY = 3 * WINDOWS_A_DAY


@dataclass(frozen=True, slots=True)
class Share:
    """A figure in per cent with the ends of its interval; None where there are too few blocks, or no base to share."""

    pct: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy's figures, over the pieces that are compared.

    ``missed`` counts jobs of which some piece ended after the deadline, ``late_h`` by how much they were late on the
    mean, ``delay_h`` is the mean time from release to the piece's start. ``unfinished`` counts those of the missed jobs
    that had not ended when the data did. ``cost`` is None where no price was given.
    """

    name: str
    grams: float
    g_per_kwh: float
    cost: float | None
    missed: int
    unfinished: int
    late_h: float
    delay_h: float
    moves_per_piece: float
    by_block: FloatArray
    is_exact: bool


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of time by number of piece, and the draws of the bootstrap as counts by ``[draw, block]``."""

    of_piece: IntArray
    count: int
    draws: FloatArray
    length: str

    @classmethod
    def of(cls, release: IntArray, *, length: str, resamples: int, seed: int) -> Blocks:
        """Cut time into ``day`` or ``week`` blocks by release."""
        number = release // WINDOWS_A_DAY if length == "day" else (release + _MONDAY) // (7 * WINDOWS_A_DAY)
        found, index = np.unique(number, return_inverse=True)
        random = np.random.default_rng(seed)
        count = len(found)
        draws = random.multinomial(count, np.full(count, 1.0 / count), size=resamples) if count else np.zeros((0, 0))
        return cls(index.astype(np.int64), count, draws.astype(np.float64), length)

    def sums(self, values: FloatArray) -> FloatArray:
        """Return the sum of the pieces' values in each block."""
        summed: FloatArray = np.bincount(self.of_piece, weights=values, minlength=self.count).astype(np.float64)
        return summed


#: A share of perfect foresight's saving is told where that is at least this much of the baseline: of next to nothing a
#: share says nothing.
MIN_POSSIBLE = 0.01

#: Below this many blocks an interval would pretend to know what it cannot.
MIN_BLOCKS = 8


def outcomes(
    site: Site, work: Work, ran: dict[str, Ran], blocks: Blocks, slots: dict[str, IntArray] | None = None
) -> tuple[list[Outcome], int]:
    """Return the figures of each policy, and how many pieces are left out because their rate is not known."""
    grams = {name: site.grams(work, one.region, one.start) for name, one in ran.items()}
    known = np.all([~np.isnan(one) for one in grams.values()], axis=0)
    kwh = float(work.energy_uj[known].sum(dtype=np.float64)) / 3.6e12
    made: list[Outcome] = []
    for name, one in ran.items():
        end = one.start + work.windows
        late = np.maximum(end - work.due, 0)
        late[one.start < 0] = 0
        is_late = (late > 0) | (one.start < 0)
        by_block = blocks.sums(np.where(known, grams[name], 0.0))
        total = float(by_block.sum())
        made.append(
            Outcome(
                name=name,
                grams=total,
                g_per_kwh=total / kwh if kwh else float("nan"),
                cost=_cost(site, work, one, known, (slots or {}).get(name, site.slots)),
                missed=len(np.unique(work.job[is_late])),
                unfinished=len(np.unique(work.job[_is_past(site, work, one)])),
                late_h=float(late[is_late].mean()) / 12 if is_late.any() else 0.0,
                delay_h=float((one.start - work.release)[known].mean()) / 12 if known.any() else 0.0,
                moves_per_piece=one.moves / max(1, work.count),
                by_block=by_block,
                is_exact=one.is_exact,
            )
        )
    return made, int((~known).sum())


def past_the_data(site: Site, work: Work, ran: Sequence[Ran]) -> int:
    """Count the pieces that some policy had not finished when the data ended."""
    return int(np.any([_is_past(site, work, one) for one in ran], axis=0).sum())


def _is_past(site: Site, work: Work, ran: Ran) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return (ran.start < 0) | (ran.start + work.windows > site.end)


def _cost(
    site: Site, work: Work, ran: Ran, known: np.ndarray[tuple[int], np.dtype[np.bool_]], slots: IntArray
) -> float | None:
    if not site.price_per_kwh.any() and not site.slot_price_per_h.any():
        return None
    energy = float(site.cost(work, ran.region)[known].sum())
    hours = (int(work.due.max()) - int(work.release.min())) / 12
    return energy + float((slots * site.slot_price_per_h).sum()) * hours


def saving(of: Outcome, base: Outcome, blocks: Blocks) -> Share:
    """Return what a policy saves against a baseline, in per cent of the baseline's grams."""
    if base.grams <= 0:
        return Share(None)
    said = 100 * (1 - of.grams / base.grams)
    if blocks.count < MIN_BLOCKS:
        return Share(said)
    return _interval(said, 100 * (1 - _ratio(blocks.draws @ of.by_block, blocks.draws @ base.by_block)))


def share_of(of: Outcome, base: Outcome, best: Outcome, blocks: Blocks) -> Share:
    """Return a policy's saving against a baseline as a share of perfect foresight's, in per cent."""
    if base.grams - best.grams < MIN_POSSIBLE * base.grams or not base.grams:
        return Share(None)
    said = 100 * (base.grams - of.grams) / (base.grams - best.grams)
    if blocks.count < MIN_BLOCKS:
        return Share(said)
    gained, possible = base.by_block - of.by_block, base.by_block - best.by_block
    return _interval(said, 100 * _ratio(blocks.draws @ gained, blocks.draws @ possible))


def _ratio(above: FloatArray, below: FloatArray) -> FloatArray:
    return np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0)


def _interval(said: float, drawn: FloatArray) -> Share:
    drawn = drawn[~np.isnan(drawn)]
    if not len(drawn):
        return Share(said)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    return Share(said, low, high)


def find(made: Sequence[Outcome], name: str) -> Outcome | None:
    """Return the figures of a policy by its name."""
    return next((one for one in made if one.name == name), None)
