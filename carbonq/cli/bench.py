"""``carbonq bench``: measure this machine beside a yardstick in the same run; figures as JSON on stdout."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from carbonq.cli.output import emit_json, say

app = typer.Typer(help="Measure this machine beside a yardstick in the same run.", no_args_is_help=True)


def _in_scratch(measure: Callable[[Path], dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory(prefix="carbonq-bench-") as folder:
        emit_json(measure(Path(folder)))


DatabaseUrl = Annotated[
    str | None, typer.Option(help="A PostgreSQL server's database, beside which scratch ones are made; none: SQLite.")
]
AsJson = Annotated[bool, typer.Option("--json", help="As it is anyhow: figures as JSON on stdout.")]
BrokerUrl = Annotated[str | None, typer.Option(help="redis://... or amqp://...; none: the embedded broker.")]


@app.command("run")
def run(  # noqa: PLR0917 (options, all named)
    items: Annotated[int, typer.Option(min=1, max=1_000_000, help="Documents to embed.")] = 20_000,
    words: Annotated[int, typer.Option(min=1, help="Words in a document.")] = 60,
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of runs; the median pair is reported.")] = 3,
    processes: Annotated[
        list[int] | None, typer.Option(min=1, max=16, help="API and control processes; give it again for more.")
    ] = None,
    per_task: Annotated[int, typer.Option(min=0, help="Items that also go as one Celery task each; 0: none.")] = 2_000,
    database_url: DatabaseUrl = None,
    broker_url: BrokerUrl = None,
    as_json: AsJson = True,
) -> None:
    """Items per second end to end beside the engine in a plain loop, and beside one Celery task for each item.

    Example: carbonq bench run --items 20000 --json
    """
    from carbonq.bench.backend import Backend
    from carbonq.bench.run import bench

    backend = Backend(database_url, broker_url)
    _in_scratch(
        lambda folder: bench(
            folder,
            backend,
            items=items,
            words=words,
            rounds=rounds,
            processes=processes or [1],
            per_task=per_task,
            report=say,
        )
    )


@app.command("store")
def store(  # noqa: PLR0917 (options, all named)
    chunks: Annotated[int, typer.Option(min=1, help="Chunks to claim and finish.")] = 24,
    items: Annotated[int, typer.Option(min=1, max=10_000, help="Items in a chunk, one checkpoint each.")] = 2_000,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each is measured; medians are reported.")] = 3,
    claimers: Annotated[
        list[int] | None, typer.Option(min=1, max=64, help="Claiming processes; give it again for more.")
    ] = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = True,
) -> None:
    """Claims and committed ledger entries per second, on SQLite and on a PostgreSQL server if one is given.

    Example: carbonq bench store --claimers 1 --claimers 4 --database-url postgresql://127.0.0.1/postgres
    """
    from carbonq.bench.backend import Backend
    from carbonq.bench.store import bench

    backends = [Backend(), *([] if database_url is None else [Backend(database_url)])]
    _in_scratch(
        lambda folder: bench(
            folder, backends, claimers=claimers or [1], chunks=chunks, items=items, rounds=rounds, report=say
        )
    )


@app.command("ledger")
def ledger(
    entries: Annotated[int, typer.Option(min=1, help="Entries of the filled ledger.")] = 1_000_000,
    part: Annotated[list[str] | None, typer.Option(help="Measure this part only; give it again for more.")] = None,
    batch_items: Annotated[int, typer.Option(min=1, help="Items in an engine batch.")] = 64,
    database_url: DatabaseUrl = None,
    as_json: AsJson = True,
) -> None:
    """Entries committed, exported, settled and sealed per second, beside what the database does alone.

    Example: carbonq bench ledger --entries 100000 --part export --json
    """
    from carbonq.bench.backend import Backend
    from carbonq.bench.ledger import PARTS, bench
    from carbonq.errors import InvalidRequest

    unknown = sorted(set(part or ()) - set(PARTS))
    if unknown:
        raise InvalidRequest(f"there is no part {unknown[0]!r}; parts are {', '.join(PARTS)}", param="part")
    backends = [Backend(), *([] if database_url is None else [Backend(database_url)])]
    _in_scratch(
        lambda folder: bench(
            folder, backends, parts=part or list(PARTS), entries=entries, batch_items=batch_items, report=say
        )
    )


@app.command("report")
def report(
    entries: Annotated[int, typer.Option(min=1, help="Entries of the month.")] = 1_000_000,
    settled: Annotated[bool, typer.Option("--settled/--provisional", help="Settle all of them first.")] = True,
    batch_items: Annotated[int, typer.Option(min=1, help="Items in an engine batch.")] = 64,
    database_url: DatabaseUrl = None,
    as_json: AsJson = True,
) -> None:
    """Seconds and memory that the report of a month takes, beside a bare statement and a loop over the export.

    Example: carbonq bench report --entries 100000 --provisional --json
    """
    from carbonq.bench.backend import Backend
    from carbonq.bench.report import bench

    _in_scratch(
        lambda folder: bench(
            folder,
            Backend(database_url),
            entries=entries,
            batch_items=batch_items,
            is_settled=settled,
            report=say,
        )
    )


@app.command("start")
def start(
    rounds: Annotated[int, typer.Option(min=1, help="Starts; the median is reported.")] = 3,
    database_url: DatabaseUrl = None,
    broker_url: BrokerUrl = None,
    as_json: AsJson = True,
) -> None:
    """Seconds from nothing to a ready stack, embedded and on the servers that are given.

    Example: carbonq bench start --rounds 3
    """
    from carbonq.bench.backend import Backend
    from carbonq.bench.start import bench

    given = [] if database_url is None and broker_url is None else [Backend(database_url, broker_url)]
    _in_scratch(lambda folder: bench(folder, [Backend(), *given], rounds=rounds, report=say))


@app.command("realtime")
def realtime(
    calls: Annotated[int, typer.Option(min=1, help="Requests to make, one after another.")] = 500,
    loaded: Annotated[bool, typer.Option("--loaded/--idle", help="Again beside flexible work on all slots.")] = False,
    as_json: AsJson = True,
) -> None:
    """Milliseconds a realtime call costs over its engine call, idle and beside flexible work.

    Example: carbonq bench realtime --calls 500 --loaded
    """
    from carbonq.bench.realtime import bench

    _in_scratch(lambda folder: bench(folder, calls=calls, is_loaded=loaded, report=say))


@app.command("tracing")
def tracing(
    jobs: Annotated[int, typer.Option(min=1, help="Jobs of one item.")] = 300,
    items: Annotated[int, typer.Option(min=1, help="Items of the one large job.")] = 10_000,
    calls: Annotated[int, typer.Option(min=1, help="Realtime calls.")] = 500,
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of runs; medians are reported.")] = 5,
    as_json: AsJson = True,
) -> None:
    """CPU of a job, an item and a realtime call with traces on, beside the same with traces off.

    Example: carbonq bench tracing --rounds 5 --json
    """
    from carbonq.bench.tracing import bench

    _in_scratch(lambda folder: bench(folder, jobs=jobs, items=items, calls=calls, rounds=rounds, report=say))


@app.command("api")
def api(  # noqa: PLR0917 (options, all named)
    part: Annotated[list[str] | None, typer.Option(help="Measure this part only; give it again for more.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each load lasts.")] = 5.0,
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of runs; the median pair is reported.")] = 3,
    connections: Annotated[int, typer.Option(min=1, max=1_000, help="Clients that submit at once.")] = 64,
    pollers: Annotated[int, typer.Option(min=1, max=1_000, help="Clients that look at one batch.")] = 200,
    items: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Lines of the large batch and of its results.")
    ] = 50_000,
    database_url: DatabaseUrl = None,
    broker_url: BrokerUrl = None,
    as_json: AsJson = True,
) -> None:
    """Jobs accepted, batches stored, polls and downloads of one API process, beside the plainest server of the kind.

    Example: carbonq bench api --part jobs --database-url postgresql://127.0.0.1/postgres --json
    """
    from carbonq.bench.api import PARTS, bench
    from carbonq.bench.backend import Backend
    from carbonq.errors import InvalidRequest

    unknown = sorted(set(part or ()) - set(PARTS))
    if unknown:
        raise InvalidRequest(f"there is no part {unknown[0]!r}; parts are {', '.join(PARTS)}", param="part")
    _in_scratch(
        lambda folder: bench(
            folder,
            Backend(database_url, broker_url),
            parts=part or PARTS,
            seconds=seconds,
            rounds=rounds,
            connections=connections,
            pollers=pollers,
            items=items,
            report=say,
        )
    )


@app.command("queue")
def queue(
    chunks: Annotated[int, typer.Option(min=1, max=10_000, help="Chunks that become due at once.")] = 1_000,
    waiting: Annotated[int, typer.Option(min=1, help="Items that wait while memory is measured.")] = 1_000_000,
    as_json: AsJson = True,
) -> None:
    """Seconds until due chunks have their tickets, and memory of each process beside a long queue.

    Example: carbonq bench queue --chunks 1000 --waiting 100000
    """
    from carbonq.bench.queue import bench

    _in_scratch(lambda folder: bench(folder, chunks=chunks, waiting=waiting, report=say))


@app.command("outlook")
def outlook(
    data: Annotated[Path, typer.Option(help="Folder of recorded forecasts and observations (CSV, known by columns).")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the JSON there instead of to stdout.")] = None,
    delay_min: Annotated[
        list[int] | None,
        typer.Option(help="Minutes from a window's end until its value is out; the first one is for savings."),
    ] = None,
    as_json: AsJson = True,
) -> None:
    """Errors and savings of the outlook beside the source's forecast and holding the last value.

    Example: carbonq bench outlook --data recorded -o outlook.json
    """
    import json

    from carbonq.bench.outlook import bench
    from carbonq.errors import InvalidRequest

    if not data.is_dir():
        raise InvalidRequest(f"{data} is no folder", param="data")
    if any(delay % 5 or not -5 <= delay <= 180 for delay in delay_min or ()):
        raise InvalidRequest("a delay is a multiple of 5 minutes from -5 to 180", param="delay-min")
    try:
        figures = bench(data, delays_min=delay_min or (0, -5, 10, 30), report=say)
    except ValueError as error:
        raise InvalidRequest(str(error), param="data") from error
    if out is None:
        emit_json(figures)
    else:
        out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        say(f"written to {out}")


@app.command("planner")
def planner(
    sizes: Annotated[
        list[str] | None,
        typer.Option("--size", help="1k, 10k, 100k or 1m chunks; repeat for more; none: all."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each is measured; the best is reported.")] = 3,
    lp_limit_s: Annotated[
        float, typer.Option(min=0.0, help="Seconds that each linear programme beside may take; 0: none.")
    ] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON, progress on stderr.")] = False,
) -> None:
    """Time, memory and gap of the planner beside a linear programme, on made loads.

    Example: carbonq bench planner --size 1k --size 10k --json
    """
    from carbonq.bench.planner import SIZES, bench
    from carbonq.errors import InvalidRequest

    chosen = sizes or list(SIZES)
    unknown = [size for size in chosen if size not in SIZES]
    if unknown:
        raise InvalidRequest(f"{unknown[0]} is no size; there are {', '.join(SIZES)}", param="size")
    figures = bench(chosen, rounds=rounds, lp_limit_s=lp_limit_s, report=say)
    if as_json:
        emit_json(figures)
