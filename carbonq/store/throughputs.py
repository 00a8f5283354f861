"""Rows of ``throughputs``: what one slot of a hardware was seen to do with a model, and how far estimates were off.

Speed and energy are running means. The overrun is a quantile of actual over foretold duration, learned chunk by
chunk: it grows by ``OVERRUN_UP`` when a chunk took longer than foretold times the overrun, else it shrinks by
``OVERRUN_DOWN``. It comes to rest where ``-ln DOWN / (ln UP - ln DOWN)`` = 5 % of the chunks are above (Robbins and
Monro 1951, on a logarithmic scale). A chunk moves it by one step, however absurd its duration is, and never out of its
bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import bindparam, select, text, update

from carbonq.model import Throughput
from carbonq.store.database import Tx
from carbonq.store.dialect import UtcDateTime, machine_now
from carbonq.store.tables import throughputs

#: Weight of a new sample once there are many; the first ones are averaged evenly.
NEWEST_WEIGHT = 0.2

#: Where the overrun begins: nothing was learned yet (``policy.DURATION_MARGIN``).
FIRST_OVERRUN = 1.25

#: What a chunk above and one below it make of the overrun.
OVERRUN_UP, OVERRUN_DOWN = 1.10, 0.995

#: Machine seconds of fixed cost that no chunk is blamed for: tiny ones would speak for large ones else.
FORGIVEN_S = 1.0

#: The overrun never leaves these: some doubt stays, and an estimate that is off fourfold is for the mean to mend.
LEAST_OVERRUN, MOST_OVERRUN = 1.05, 4.0

_COLUMNS = tuple(throughputs.c[name] for name in Throughput.__dataclass_fields__)

# Both are moved inside the statement, so that two workers that learn at once both count. What was foretold is what the
# mean said before this chunk.
_LEARN = text(
    """
    INSERT INTO throughputs (model, hardware, tokens_per_s, uj_per_token, samples, updated_at)
    VALUES (:model, :hardware, :tokens_per_s, :uj_per_token, 1, :updated_at)
    ON CONFLICT (model, hardware) DO UPDATE SET
      tokens_per_s = throughputs.tokens_per_s + (excluded.tokens_per_s - throughputs.tokens_per_s)
        * CASE WHEN throughputs.samples < :settled THEN 1.0 / (throughputs.samples + 1) ELSE :weight END,
      uj_per_token = CAST(ROUND(throughputs.uj_per_token
        + (excluded.uj_per_token - throughputs.uj_per_token)
        * CASE WHEN throughputs.samples < :settled THEN 1.0 / (throughputs.samples + 1) ELSE :weight END) AS BIGINT),
      samples = throughputs.samples + 1,
      overrun = CASE
        WHEN :is_whole = 0 THEN throughputs.overrun
        WHEN throughputs.tokens_per_s * (:seconds - :forgiven_s) > :tokens * COALESCE(throughputs.overrun, :first) THEN
          CASE WHEN COALESCE(throughputs.overrun, :first) * :up > :most THEN :most
            ELSE COALESCE(throughputs.overrun, :first) * :up END
        WHEN COALESCE(throughputs.overrun, :first) * :down < :least THEN :least
        ELSE COALESCE(throughputs.overrun, :first) * :down END,
      updated_at = excluded.updated_at
    """
).bindparams(bindparam("updated_at", type_=UtcDateTime()))


def token_weights(tx: Tx, model: str, hardware: str) -> Mapping[str, Any] | None:
    """Return what is known of a model's token weights; None: nothing."""
    mine = (throughputs.c.model == model, throughputs.c.hardware == hardware)
    found: Mapping[str, Any] | None = tx.execute(select(throughputs.c.token_weights).where(*mine)).scalar()
    return found


def save_token_weights(tx: Tx, model: str, hardware: str, values: Mapping[str, Any]) -> None:
    """Keep what is known of a model's token weights; nothing where the model was never learned."""
    mine = (throughputs.c.model == model, throughputs.c.hardware == hardware)
    tx.execute(update(throughputs).where(*mine).values(token_weights=values))


def get_all(tx: Tx) -> dict[tuple[str, str], Throughput]:
    """Return everything learned, by (model, hardware)."""
    return {(row.model, row.hardware): Throughput(*row) for row in tx.execute(select(*_COLUMNS))}


def learn(  # noqa: PLR0917 (the seam)
    tx: Tx, model: str, hardware: str, tokens: int, seconds: float, uj: int, *, is_whole: bool = True
) -> None:
    """Move the means by one sample: ``tokens`` done in ``seconds`` machine seconds on one slot for ``uj`` microjoules.

    Give the items' *estimated* tokens (``Item.est_tokens``): durations are later foretold from estimates, so that
    whatever bias the estimate has cancels. The overrun learns from chunks that ran to their end (``is_whole``), and not
    from the first, of which nothing was foretold. A sample without tokens or time teaches nothing and is ignored.
    """
    if tokens <= 0 or seconds <= 0:
        return
    tx.execute(
        _LEARN,
        {
            "model": model,
            "hardware": hardware,
            "tokens_per_s": tokens / seconds,
            "uj_per_token": round(uj / tokens),
            "updated_at": machine_now(tx),
            "settled": round(1 / NEWEST_WEIGHT),
            "weight": NEWEST_WEIGHT,
            "tokens": tokens,
            "seconds": seconds,
            "forgiven_s": FORGIVEN_S,
            "is_whole": int(is_whole),
            "first": FIRST_OVERRUN,
            "up": OVERRUN_UP,
            "down": OVERRUN_DOWN,
            "least": LEAST_OVERRUN,
            "most": MOST_OVERRUN,
        },
    )
