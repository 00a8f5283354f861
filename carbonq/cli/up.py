"""``carbonq up``: the whole installation on this machine, until Ctrl-C."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Annotated

import typer

from carbonq.cli.output import AsJson, emit_json, say


def up(
    flower: Annotated[bool, typer.Option(help="Start Flower, the view of workers and queues.")] = True,
    as_json: AsJson = False,
) -> None:
    """Start broker, API, beat, control and region workers and Flower; Ctrl-C stops them in order, twice at once.

    A second start resumes: jobs, plan and leases are in the database. `carbonq config show` prints the settings.

    Example: carbonq up
    """
    from carbonq import config, wiring
    from carbonq.embedded.stack import Stack

    stack = Stack(wiring.settle(config.given()), report=say, flower=flower)
    asked = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        if asked.is_set():
            say("stopping at once")
            stack.stop_hard()
        else:
            say("stopping; once more to kill everything at once")
            asked.set()
            stack.interrupt()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        stack.start()
        if as_json:
            emit_json(
                {"api_url": stack.api_url, "flower_url": stack.flower_url if flower else None, "pids": stack.pids}
            )
        say(f"API     {stack.api_url}   (key: {stack.data_dir / 'api-key'})")
        link = stack.login_url()
        say(f"dashboard {stack.api_url}/" + (f"   (opens once, within 15 minutes: {link})" if link else ""))
        if flower:
            say(f"Flower  {stack.flower_url}   (user carbonq, password: {stack.data_dir / 'flower-password'})")
        say(f"regions {', '.join(stack.settings.regions)}; logs: {stack.data_dir / 'logs'}; Ctrl-C stops")
        say("next: carbonq submit embeddings docs.jsonl --deadline 6h --wait -o out.jsonl")
        asked.wait()
    finally:
        stack.stop()
    say("stopped; `carbonq up` goes on where it was")
