"""What a new chunk is noted with for budgets: whose items it holds, what it is expected to emit, who holds it back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from carbonq.budget import Budget, Line, covering
from carbonq.chunking import Piece
from carbonq.model import Job, NewChunk


def line_of(job: Job) -> Line:
    """Return whose work a job is."""
    return Line(job.tenant, job.product_line, job.workload)


def noted(
    draft: NewChunk, pieces: Sequence[Piece], jobs: Mapping[str, Job], found: Sequence[Budget], now: datetime
) -> NewChunk:
    """Return a chunk of some pieces with what budgets need to know of it.

    Under a budget that holds work back it begins held: the next tick lets it go where there is room, in the order of
    deadlines, and reserves for it. Items of several lines share chunks only where their tenants have no budgets.
    """
    held = [jobs[job_id] for job_id in {piece.job_id for piece in pieces}]
    longest = max(piece.est_tokens for piece in pieces)
    # A smaller model than was asked for is expected to emit something else: the next tick says what.
    is_as_asked = all(job.model == draft.model for job in held)
    impact = _mean((piece.est_tokens, jobs[piece.job_id].impact_pg_per_token) for piece in pieces)
    inventory = _mean((piece.est_tokens, jobs[piece.job_id].inventory_pg_per_token) for piece in pieces)
    made = replace(
        draft,
        longest_item=longest,
        impact_pg_per_token=impact if is_as_asked else None,
        inventory_pg_per_token=inventory if is_as_asked else None,
    )
    lines = {line_of(job) for job in held}
    if len(lines) > 1:
        return made
    line = lines.pop()
    made = replace(made, for_tenant=line.tenant, product_line=line.product_line, workload=line.workload)
    holding = next((one for one in covering(found, line) if one.is_holding), None)
    if holding is None:
        return made
    period = holding.period_at(now)
    return replace(made, held_by=holding.budget_id, held_until=None if period is None else period[1])


def _mean(found: Iterable[tuple[int, int | None]]) -> int | None:
    """Return the mean picograms a token, rounded up; None where one is not known."""
    tokens = picograms = 0
    for count, rate in found:
        if rate is None:
            return None
        tokens += count
        picograms += count * rate
    return -(-picograms // tokens) if tokens else None
