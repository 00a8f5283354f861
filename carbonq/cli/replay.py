"""``carbonq replay``: what planning would have saved on recorded grids beside honest baselines. All is simulated."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carbonq.cli.output import AsJson, bar, complain, emit_json, emit_table, say
from carbonq.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from carbonq.replay.asked import Asked, Ready
    from carbonq.replay.figures import Blocks

app = typer.Typer(
    help="Replay work on recorded grids: what planning would have saved (simulated).", invoke_without_command=True
)


class SignalName(StrEnum):
    """The two signals, which are never mixed."""

    MOER = "moer"
    AER = "aer"


class Block(StrEnum):
    """Lengths of a bootstrap's blocks."""

    DAY = "day"
    WEEK = "week"


#: What is replayed where nothing is said.
_DEFAULT = ("at-once", "round-robin", "best-time", "best-region", "carbonq", "perfect")

Files = Annotated[
    list[str] | None, typer.Option("--intensity", help="Observed g/kWh: FILE or FILE:COLUMN; CSV, gzip too. Repeat it.")
]
Which = Annotated[
    SignalName | None, typer.Option("--signal", help="What the files hold: marginal (moer) or average (aer).")
]


@app.callback()
def replay(  # noqa: PLR0917 (options, all named)
    ctx: typer.Context,
    intensity: Files = None,
    signal: Which = None,
    forecast: Annotated[list[str] | None, typer.Option(help="Forecasts as issued: FILE or FILE:COLUMN.")] = None,
    jobs: Annotated[str | None, typer.Option(help="Arrivals of a trace (CSV).")] = None,
    arrivals: Annotated[str | None, typer.Option(help="Arrivals in words: '1000 jobs of 2h with slack 24h'.")] = None,
    slack: Annotated[str | None, typer.Option(help="How much later than at once a trace's jobs may end: 24h.")] = None,
    piece: Annotated[str, typer.Option(help="Longest piece of a job that can be interrupted; or whole.")] = "5m",
    policy: Annotated[list[str] | None, typer.Option(help="Policies to run; default: all but carbonq-home.")] = None,
    home: Annotated[str | None, typer.Option(help="Where work runs without a plan; default: the first region.")] = None,
    region: Annotated[list[str] | None, typer.Option(help="Only these regions.")] = None,
    slots: Annotated[
        list[str] | None, typer.Option(help="N, REGION=N, or REGION=1..8 for a curve; default: unlimited.")
    ] = None,
    pue: Annotated[list[str] | None, typer.Option(help="X or REGION=X; default 1.")] = None,
    price: Annotated[list[str] | None, typer.Option(help="Price of a kWh: X or REGION=X.")] = None,
    slot_price: Annotated[list[str] | None, typer.Option(help="Price of a slot for an hour: X or REGION=X.")] = None,
    start: Annotated[str | None, typer.Option("--from", help="Begin there (UTC): 2021-04-01.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="End there (UTC).")] = None,
    every: Annotated[str, typer.Option(help="How often everything that waits is planned anew.")] = "15m",
    published_after: Annotated[
        str | None, typer.Option(help="How long after its end a value is out; default: 0m, for longer steps one step.")
    ] = None,
    margin: Annotated[
        list[float] | None, typer.Option(help="Per cent a move must gain; give it again to compare. Default 3.")
    ] = None,
    displacement: Annotated[
        float, typer.Option(help="Weight of the expected cost of taking scarce clean slots from later work.")
    ] = 0.0,
    power_w: Annotated[float, typer.Option(help="Watts of a working slot.")] = 1000.0,
    prompt_tokens_per_s: Annotated[float, typer.Option(help="For token traces: taken in by a slot.", min=1.0)] = 8000.0,
    output_tokens_per_s: Annotated[float, typer.Option(help="For token traces: given out by a slot.", min=1.0)] = 800.0,
    only_foretold: Annotated[
        bool,
        typer.Option("--only-foretold", help="Leave out jobs that come while there is no fresh forecast as issued."),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of arrivals and intervals.")] = 0,
    block: Annotated[Block, typer.Option(help="Blocks that intervals resample.")] = Block.DAY,
    resamples: Annotated[int, typer.Option(min=100, max=100_000, help="Draws of the intervals.")] = 2000,
    plot: Annotated[Path | None, typer.Option(help="Draw it: a .png or .svg file (extra: plot).")] = None,
    as_json: AsJson = False,
) -> None:
    """Run arrivals against recorded grids with forecasts as issued, and compare policies that use the same energy.

    Example: carbonq replay --intensity moer.csv.gz --forecast issued.csv.gz --signal moer
    --arrivals "1000 jobs of 1h with slack 3h" --slots 8
    """
    if ctx.invoked_subcommand is not None:
        return
    from carbonq.model import Signal
    from carbonq.replay.asked import Asked
    from carbonq.replay.traces import Assumed

    with refused():
        if not intensity or signal is None:
            missing = "--intensity FILE" if not intensity else "--signal moer (marginal) or --signal aer (average)"
            raise InvalidRequest(f"say {missing}; carbonq replay --help shows the rest", param="signal")
        asked = Asked(
            intensity=intensity,
            signal=Signal(signal.value),
            forecast=forecast or (),
            jobs=jobs,
            arrivals=arrivals,
            slack=slack,
            piece=piece,
            home=home,
            regions=region or (),
            slots=slots or (),
            pue=pue or (),
            price=price or (),
            slot_price=slot_price or (),
            start=start,
            end=end,
            every=every,
            published_after=published_after,
            margins=margin or (),
            displacement=displacement,
            power_w=power_w,
            seed=seed,
            only_foretold=only_foretold,
            assumed=Assumed(prompt_tokens_per_s, output_tokens_per_s),
        )
        _replay(asked, policy or _DEFAULT, block.value, resamples, plot, as_json=as_json)


@contextmanager
def refused() -> Generator[None]:
    """Turn bad input into one sentence and exit status 2."""
    from carbonq.cli.main import sentence

    try:
        yield
    except (InvalidRequest, ConfigError) as error:
        complain(f"carbonq: {sentence(error)}")
        raise typer.Exit(2) from error


def _replay(
    asked: Asked, policies: Sequence[str], block: str, resamples: int, plot: Path | None, *, as_json: bool
) -> None:
    from carbonq.replay import plot as plotting
    from carbonq.replay.asked import ready
    from carbonq.replay.figures import Blocks

    if plot is not None:
        plotting.check(plot)
    found = ready(asked)
    blocks = Blocks.of(found.work.release, length=block, resamples=resamples, seed=asked.seed)
    begin, days = int(found.work.release.min()), (int(found.work.due.max()) - int(found.work.release.min())) / 288
    say(
        f"simulated: {found.work.count:,} pieces of {len(set(found.work.job.tolist())):,} jobs, "
        f"{found.work.energy_kwh:,.1f} kWh, {days:.1f} days in {len(found.site.regions)} regions"
    )
    with bar("replaying", total=int(found.work.due.max()) - begin) as advance:
        if found.ranges:
            _curve(found, blocks, plot, lambda at: advance(at - begin), as_json=as_json)
        else:
            _policies(found, asked, policies, blocks, plot, lambda at: advance(at - begin), as_json=as_json)


def _policies(  # noqa: PLR0917 (one caller)
    found: Ready,
    asked: Asked,
    policies: Sequence[str],
    blocks: Blocks,
    plot: Path | None,
    progress: Callable[[int], None],
    *,
    as_json: bool,
) -> None:
    from carbonq.replay import plot as plotting
    from carbonq.replay.figures import outcomes, past_the_data
    from carbonq.replay.policies import run
    from carbonq.replay.report import SIGNALS, Context, table, to_json

    ran = run(found.site, found.work, policies, found.rules, report=say, progress=progress)
    made, left_out = outcomes(found.site, found.work, ran, blocks)
    past = past_the_data(found.site, found.work, list(ran.values()))
    kind = SIGNALS[asked.signal.value]
    if as_json:
        context = Context(asked.intensity, asked.forecast, found.said, asked.power_w, found.notes)
        emit_json(to_json(found.site, found.work, made, blocks, context, left_out=left_out, past=past))
    else:
        emit_table(*table(made, blocks))
        for line in _beside(found, kind, blocks, left_out, past):
            say(line)
    if plot is not None:
        plotting.draw(plot, made, blocks, title=f"Simulated replay, {kind}: {found.said}")
        say(f"drawn to {plot}")


def _curve(found: Ready, blocks: Blocks, plot: Path | None, progress: Callable[[int], None], *, as_json: bool) -> None:
    from carbonq.replay import plot as plotting
    from carbonq.replay.capacity import curve, limit
    from carbonq.replay.report import SIGNALS, curve_json, curve_table

    points, left_out, past = curve(found.site, found.work, found.ranges, found.rules, blocks, progress=progress)
    least = limit(found.site, found.work)
    kind = SIGNALS[found.site.grid.signal.value]
    if as_json:
        emit_json(
            curve_json(found.site, points, blocks, least_g=least, notes=found.notes, left_out=left_out, past=past)
        )
    else:
        emit_table(*curve_table(points, blocks))
        for line in _beside(found, kind, blocks, left_out, past):
            say(line)
        say(f"no number of slots brings this work below {least / 1000:.2f} kgCO2e, even with hindsight")
    if plot is not None:
        plotting.draw_curve(plot, points, title=f"Simulated replay of planned work, {kind}: {found.said}")
        say(f"drawn to {plot}")


def _beside(found: Ready, kind: str, blocks: Blocks, left_out: int, past: int) -> list[str]:
    from carbonq.replay.figures import MIN_BLOCKS

    lines = [f"simulated; {kind}; {found.said}"]
    if 0 < blocks.count < MIN_BLOCKS:
        lines.append(f"no intervals: {blocks.count} {blocks.length}s are too few to resample; {MIN_BLOCKS} are needed")
    elif blocks.count:
        lines.append(f"[95 % intervals: bootstrap of {len(blocks.draws):,} draws over {blocks.count} {blocks.length}s]")
    if left_out:
        lines.append(f"{left_out:,} pieces are in no row's grams: in some row they ran where no value was observed")
    if past:
        lines.append(
            f"{past:,} of them would have run past the end of the data: their jobs count as late, not finished"
        )
    return lines + found.notes


@app.command("scenario")
def scenario(
    name: Annotated[str | None, typer.Argument(help="Which one; none: list them.")] = None,
    intensity: Files = None,
    jobs: Annotated[str | None, typer.Option(help="Jobs of the scenario (gaia-8).")] = None,
    first_row: Annotated[int, typer.Option(min=0, help="Row (from 0) the scenario's hours begin with (gaia-8).")] = 0,
    as_json: AsJson = False,
) -> None:
    """Rebuild a published table from your own copy of its data, beside what was published.

    Example: carbonq replay scenario lwa-nightly --intensity "gb_ci.csv:Carbon Intensity=GB"
    """
    from carbonq.replay.published import Given, read_clocked
    from carbonq.replay.rows import Source
    from carbonq.replay.scenarios import SCENARIOS
    from carbonq.replay.scenarios import scenario as find

    if name is None:
        emit_table(
            ["SCENARIO", "WHAT", "PUBLISHED IN"], [[one.name, one.what, one.source] for one in SCENARIOS.values()]
        )
        return
    with refused():
        chosen = find(name)
        if not intensity:
            raise InvalidRequest("say --intensity FILE, your own copy of the data", param="intensity")
        series = [one for text in intensity for one in read_clocked(Source.parse(text))]
        lines = chosen.run(Given(series, None if jobs is None else Source.parse(jobs), first_row))
    if as_json:
        emit_json(
            {
                "simulated": True,
                "scenario": chosen.name,
                "published_in": chosen.source,
                "lines": [
                    {"what": one.what, "value": one.value, "unit": one.unit, "published": one.published}
                    for one in lines
                ],
            }
        )
        return
    rows = [
        [one.what, f"{one.value:.4g}", "" if one.published is None else f"{one.published:g}", one.unit] for one in lines
    ]
    emit_table(["WHAT", "HERE", "PUBLISHED", "UNIT"], rows)
    say(f"simulated; {chosen.source}")
