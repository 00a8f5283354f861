"""Messages, databases, disks, regions and clocks that go away or go wrong, and an item that takes workers down."""

from __future__ import annotations

import json
import re
import resource
import shutil
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta

import httpx
from sqlalchemy import ColumnElement, func, select, update

from carbonq.errors import Unavailable
from carbonq.store import deaf
from carbonq.store.dialect import machine_now
from carbonq.store.tables import attempts, chunks, clocks, items, jobs, workers
from carbonq.tickets import flexible_queue, make_celery
from tests.system.chaos import Run, scenario
from tests.system.flawed import REGIONS
from tests.system.scenarios import ON_POSTGRESQL, other

# --- tickets and brokers ----------------------------------------------------------------------------------------------


@scenario()
def every_ticket_comes_twice(run: Run) -> None:
    run.stack.flaws.arm("ticket-out", "control", act="again")
    job_id = run.submit()
    run.when(lambda: run.is_final(job_id), "finished job")
    with run.on.db.read() as tx:
        doubled = [
            (region, chunk_id)
            for chunk_id in tx.execute(select(items.c.chunk_id).where(items.c.job_id == job_id).distinct()).scalars()
            for region in REGIONS
        ]
    assert set(run.outcomes()) == {"committed"}
    run.on.tickets.flexible(doubled * 3)  # and of chunks that are done, in both regions
    before = len(run.outcomes())
    second = run.submit()
    run.when(lambda: run.is_final(second), "finished job")
    with run.on.db.read() as tx:
        mine = select(items.c.chunk_id).where(items.c.job_id == job_id)
        tries = select(func.count()).select_from(attempts).where(attempts.c.chunk_id.in_(mine))
        assert tx.execute(tries).scalar() == before


@contextmanager
def tickets_in_their_queues(run: Run) -> Generator[str]:
    """A job whose tickets are out and cannot be taken: the workers are frozen, and have not yet been missed."""

    def has(condition: ColumnElement[bool]) -> bool:
        with run.on.db.read() as tx:
            mine = select(items.c.chunk_id).where(items.c.job_id == job_id)
            found = select(chunks.c.chunk_id).where(chunks.c.chunk_id.in_(mine), condition)
            return tx.execute(found.limit(1)).one_or_none() is not None

    with ExitStack() as stack:
        with run.frozen("control"):
            job_id = run.submit()
            run.when(lambda: has(chunks.c.state == "placed"), "placed chunk")
            for region in REGIONS:
                stack.enter_context(run.frozen(region))
        run.when(lambda: has(chunks.c.dispatched_at.is_not(None)), "ticket")
        yield job_id


@scenario()
def the_broker_loses_every_message(run: Run) -> None:
    with tickets_in_their_queues(run):
        run.stack.services.lose_messages()
        fault = run.fault()
    run.recovered(fault)


@scenario(says="celery.worker.|Traceback")
def the_broker_comes_back_empty(run: Run) -> None:
    with tickets_in_their_queues(run):
        run.stack.services.broker.restart_empty()
        fault = run.fault()
    run.recovered(fault)
    second = run.submit()  # all of them take messages again
    run.when(lambda: run.is_final(second), "job after the restart")

    def is_answered() -> bool:
        with suppress(Unavailable):  # one that was on its way when the broker ended is lost
            return run.on.realtime("north")["status_code"] == 200
        return False

    run.when(is_answered, "answer to a realtime call")


@scenario()
def two_beats_and_two_of_each_control(run: Run) -> None:
    for name in ("beat", "control", "control-slow"):
        run.restart(f"{name}-2")
    run.submit()
    run.submit()
    run.finished()
    assert set(run.outcomes()) == {"committed"}


@scenario(says="says that it lives and has taken none")
def a_worker_lives_and_hears_nothing(run: Run) -> None:
    """Its consumer ends, its heartbeat does not: nobody would notice before the deadlines."""
    app = make_celery(run.stack.services.backend.broker_url)
    try:
        told = app.control.cancel_consumer(flexible_queue("north"), reply=True, timeout=10, limit=4)
    finally:
        app.close()
    assert any("no longer consuming" in str(one) for one in told), told
    fault = run.fault()
    job_id = run.submit(regions=("north",))

    def is_sent_often() -> bool:
        with run.on.db.read() as tx:
            sent = select(func.max(chunks.c.tickets_sent)).where(chunks.c.dispatched_at.is_not(None))
            return (tx.execute(sent).scalar() or 0) >= deaf.SENDS

    run.when(is_sent_often, "ticket that was sent again and again")
    with run.on.db.write() as tx:  # as if all of it had happened a while ago
        then = machine_now(tx) - timedelta(seconds=deaf.DEAF_AFTER_S + 30)
        tx.execute(update(chunks).where(chunks.c.dispatched_at.is_not(None)).values(ticket_at=then))
        tx.execute(update(workers).values(started_at=then, last_claimed_at=None))
        worker_id = tx.execute(
            select(workers.c.worker_id).where(workers.c.pid == run.on.processes["north"].pid)
        ).scalar_one()
    log = run.on.root / "control.log"
    run.when(lambda: "ERROR" in log.read_text() and worker_id in log.read_text(), "alarm")

    def is_counted() -> bool:  # the API looks for itself now and then
        lines = httpx.get(f"http://127.0.0.1:{run.stack.api_port}/metrics").text.splitlines()
        return {'carbonq_deaf_workers{region="north"} 1.0', 'carbonq_deaf_workers{region="south"} 0.0'} <= set(lines)

    run.when(is_counted, "deaf worker in the metrics")
    status, said = run.on.run("doctor", "--json")
    findings, _ = json.JSONDecoder().raw_decode(said[said.index("[\n") :])
    [found] = [one for one in findings if one["check"] == "workers"]
    assert (status, found["state"]) == (1, "fail")
    assert worker_id in found["finding"]
    run.kill("north")
    run.restart("north")
    run.when(lambda: run.is_final(job_id), "finished job")
    run.recovered(fault)


# --- databases --------------------------------------------------------------------------------------------------------


@scenario(*ON_POSTGRESQL)
def the_database_is_restarted(run: Run) -> None:
    _, region = run.caught()
    fault = run.fault()
    with run.no_database():
        run.release(region)
    run.recovered(run.over(fault))


@scenario()
def the_database_is_away_while_a_worker_finishes(run: Run) -> None:
    _, region = run.caught()
    fault = run.fault(region)
    with run.frozen("control"):  # nobody reaps: the spooled work is still its own
        with run.no_database():
            run.release(region)
            run.when(lambda: run.spooled("checkpoint"), "spooled checkpoint", 90)
        fault = run.over(fault)  # on SQLite it lasts as long as a writer waits for the lock
        run.when(lambda: not run.spooled(), "replayed spool")
        assert run.outcomes().count("yielded") >= 1
        with run.on.db.read() as tx:
            assert tx.execute(select(func.sum(jobs.c.items_succeeded)).where(jobs.c.job_id.in_(run.job_ids))).scalar()
    run.recovered(fault)
    assert "lost" not in run.outcomes()


@scenario(*ON_POSTGRESQL)
def a_spool_comes_too_late(run: Run) -> None:
    _, region = run.caught()
    fault = run.fault(region)
    run.stack.flaws.arm("spooled", region, act="die")
    with run.no_database():
        run.release(region)
        run.when(lambda: run.on.processes[region].poll() is not None, "worker killed when it had spooled")
    run.recovered(fault)
    assert run.spooled("checkpoint")
    run.restart(region)
    run.when(lambda: not run.spooled(), "replayed spool")
    assert "fenced" in run.outcomes()


@scenario(says="cannot spool to")
def a_disk_refuses_the_spool(run: Run) -> None:
    _, region = run.caught()
    fault = run.fault(region)
    folder, log = run.on.settings.data_dir / "spool" / region, run.on.root / f"{region}.log"
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file where a folder should be")
    with run.frozen("control"):
        with run.no_database():
            run.release(region)
            # Bookings of idle windows go there too, and may be first.
            run.when(lambda: re.search("checkpoint of .* spooled", log.read_text()), "spooled checkpoint", 90)
        assert "are in memory" in log.read_text()
        fault = run.over(fault)
        folder.unlink()
        run.when(lambda: "yielded" in run.outcomes(), "record that is stored from memory")
    run.recovered(fault)


# --- disks ------------------------------------------------------------------------------------------------------------


@contextmanager
def full_disk(run: Run, name: str, at_bytes: int) -> Generator[None]:
    """No file of a process may grow beyond a size, as if the disk were full then."""
    pid = run.on.processes[name].pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (at_bytes, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@scenario(says="run of .* dropped|bookings are lost")
def the_disk_of_a_worker_is_full(run: Run) -> None:
    _, region = run.caught()
    fault = run.fault(region)
    log = run.on.root / f"{region}.log"
    with full_disk(run, region, 150_000):
        run.release(region)
        run.when(lambda: "dropped" in log.read_text(), "refused segment")
    run.recovered(run.over(fault))


@scenario("sqlite-redis", "postgresql-redis")
def the_disk_is_full_where_jobs_are_finished(run: Run) -> None:
    log = run.on.root / "control.log"
    with full_disk(run, "control", 150_000):
        job_id = run.submit()
        run.when(lambda: "WARNING" in log.read_text(), "file that cannot be written")
        assert not run.is_final(job_id)
    run.finished()


# --- clocks, regions, poison ------------------------------------------------------------------------------------------


@scenario(all_succeed=False, is_alone=True)
def the_grid_clock_jumps(run: Run) -> None:
    def jump(by: timedelta) -> None:
        with run.on.db.write() as tx:
            now = tx.execute(select(clocks.c.grid_epoch)).scalar_one()
            tx.execute(update(clocks).values(grid_epoch=now + by))

    for by in (timedelta(minutes=20), timedelta(minutes=-10)):
        job_id, region = run.caught()
        jump(by)
        for name in ("control", other(region)):  # they run by the new clock, the others by the old one
            run.kill(name)
            run.restart(name)
        run.release(region)
        run.when(lambda job_id=job_id: run.is_final(job_id), "finished job", 120)
        jump(-by)
        for name in ("control", other(region)):
            run.kill(name)
            run.restart(name)


@scenario()
def a_region_has_no_workers(run: Run) -> None:
    run.kill("south")
    fault = run.fault()
    run.submit()
    run.finished()
    run.recovered(fault)
    with run.on.db.read() as tx:
        mine = select(items.c.chunk_id).where(items.c.job_id.in_(run.job_ids))
        done = tx.execute(select(chunks.c.region).where(chunks.c.chunk_id.in_(mine)).distinct()).scalars().all()
    assert done == ["north"]


@scenario("sqlite-redis", "postgresql-redis", all_succeed=False, max_attempts=2)
def an_item_kills_every_worker_that_runs_it(run: Run) -> None:
    run.stack.flaws.arm("engine", *REGIONS, act="die POISON")
    job_id = run.submit(8, poison=5)

    def is_final() -> bool:
        for region in REGIONS:
            if run.on.processes[region].poll() is not None:
                run.restart(region)
        return run.is_final(job_id)

    run.when(is_final, "finished job", 240)
    job = run.on.job(job_id)
    assert (job.items_succeeded, job.items_failed) == (7, 1)
    with run.on.db.read() as tx:
        failed = tx.execute(select(items).where(items.c.job_id == job_id, items.c.state == "failed")).one()
        alone = tx.execute(select(func.count()).select_from(items).where(items.c.chunk_id == failed.chunk_id)).scalar()
    assert (failed.custom_id, failed.error_code, alone) == ("c5", "attempts_exhausted", 1)
    [line] = [json.loads(one) for one in run.on.lines_of(job.error_blob)]
    assert (line["custom_id"], line["error"]["code"]) == ("c5", "attempts_exhausted")
    with run.on.db.read() as tx:
        lost = tx.execute(select(func.count()).select_from(attempts).where(attempts.c.outcome == "lost")).scalar()
    # The whole chunk twice, then each half that holds it once: 2 + log2(8).
    assert lost == 5
