"""Rows of ``throughputs``: what one slot of a hardware was seen to do with a model, as a running mean."""

from __future__ import annotations

from sqlalchemy import bindparam, select, text

from carbonq.model import Throughput
from carbonq.store.database import Tx
from carbonq.store.dialect import UtcDateTime, machine_now
from carbonq.store.tables import throughputs

#: Weight of a new sample once there are many; the first ones are averaged evenly.
NEWEST_WEIGHT = 0.2

_COLUMNS = tuple(throughputs.c[name] for name in Throughput.__dataclass_fields__)

# The mean is moved inside the statement, so that two workers that learn at once both count.
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
      updated_at = excluded.updated_at
    """
).bindparams(bindparam("updated_at", type_=UtcDateTime()))


def get_all(tx: Tx) -> dict[tuple[str, str], Throughput]:
    """Return everything learned, by (model, hardware)."""
    return {(row.model, row.hardware): Throughput(*row) for row in tx.execute(select(*_COLUMNS))}


def learn(tx: Tx, model: str, hardware: str, tokens: int, seconds: float, uj: int) -> None:  # noqa: PLR0917 (the seam)
    """Move the mean by one sample: ``tokens`` done in ``seconds`` machine seconds on one slot for ``uj`` microjoules.

    Give the items' *estimated* tokens (``Item.est_tokens``): durations are later foretold from estimates, so that
    whatever bias the estimate has cancels. A sample without tokens or time teaches nothing and is ignored.
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
        },
    )
