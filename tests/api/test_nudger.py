"""Nudges are passed on at once, and many for the same tick are few."""

from __future__ import annotations

import threading

from carbonq.api.nudger import Nudger
from tests.api.harness import until


class Broker:
    """A broker that takes its time with the first nudge."""

    def __init__(self) -> None:
        self.nudged: list[str] = []
        self.may_answer = threading.Event()

    def nudge(self, tick: str) -> None:
        self.nudged.append(tick)
        assert self.may_answer.wait(30)


def test_nudges_that_come_while_one_is_on_its_way_are_one() -> None:
    broker = Broker()
    nudger = Nudger(broker)
    nudger.nudge("plan")
    until(lambda: broker.nudged == ["plan"], "the first nudge")
    for _ in range(100):
        nudger.nudge("plan")
        nudger.nudge("validate")
    broker.may_answer.set()
    until(lambda: broker.nudged == ["plan", "plan", "validate"], "the others")
    nudger.close()
    until(lambda: nudger._thread is not None and not nudger._thread.is_alive(), "the thread's end")
    assert broker.nudged == ["plan", "plan", "validate"]
