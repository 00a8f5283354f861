"""Invariant 2 under any order of starts, ends, ticks, lags, resets, losses and exchanges: nothing lost or doubled."""

from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from carbonq.meters.hub import Closing, Handle, Hub
from carbonq.meters.protocol import (
    COUNTER_RESET,
    MERGED,
    METER_OUTAGE,
    SHARED_DEVICE,
    Component,
    IdleWindow,
    MeteredPart,
)
from carbonq.model import EntryKind, Quality
from carbonq.testing import FAKE_EPOCH, FakeClock, FakeMeter
from carbonq.units import WINDOW

COMPONENTS = (Component.GPU, Component.CPU, Component.DRAM)
LAGS_S = st.sampled_from([0.0, 0.001, 0.11, 30.0])


class LateBalance(RuleBasedStateMachine):
    """Looked at only at the end, so that intervals and idle windows grow long."""

    handles: Bundle[Handle] = Bundle("handles")
    closings: Bundle[Closing] = Bundle("closings")

    @initialize(lags=st.tuples(LAGS_S, LAGS_S, LAGS_S))
    def begin(self, lags: tuple[float, float, float]) -> None:
        self.clock = FakeClock(FAKE_EPOCH + timedelta(seconds=123), factor=7.5)
        self.meters = {
            component: FakeMeter(component, quality=Quality.MEASURED, start_uj=10**9, lag_s=lag)
            for component, lag in zip(COMPONENTS, lags, strict=True)
        }
        self.all = list(self.meters.values())
        self.hub = Hub(self.all, self.clock, self.clock.machine, self.clock.advance_machine)
        self.open: set[Handle] = set()
        self.unresolved: list[Closing] = []
        self.booked = dict.fromkeys(COMPONENTS, 0)

    def book(self, part: MeteredPart) -> None:
        assert part.window_at <= part.started_at <= part.ended_at <= part.window_at + WINDOW
        for component, uj in zip(COMPONENTS, (part.gpu_uj, part.cpu_uj, part.dram_uj), strict=True):
            assert uj is None or uj >= 0
            self.booked[component] += uj or 0

    def book_idle(self, windows: list[IdleWindow]) -> None:
        for window in windows:
            self.book(window.part)
            assert (window.kind is EntryKind.HOST_OTHER) <= (SHARED_DEVICE in window.info.device_ids)

    def resolve(self, closing: Closing) -> None:
        parts, info = closing.result()
        assert closing.is_known
        assert len({part.window_at for part in parts}) == len(parts) >= 1
        if MERGED in info.device_ids:
            assert info.quality is Quality.ESTIMATED
        for part in parts:
            self.book(part)
        self.unresolved.remove(closing)

    @rule(target=handles, rate=st.none() | st.floats(0, 1e6))
    def start(self, rate: float | None) -> Handle:
        handle = self.hub.start(rate)
        self.open.add(handle)
        return handle

    @rule(target=closings, handle=consumes(handles))
    def finish(self, handle: Handle) -> Closing:
        closing = self.hub.finish(handle)
        self.open.remove(handle)
        self.unresolved.append(closing)
        return closing

    @rule(closing=consumes(closings))
    def wait_for_result(self, closing: Closing) -> None:
        if closing in self.unresolved:
            self.resolve(closing)

    @rule(component=st.sampled_from(COMPONENTS), uj=st.integers(0, 10**9))
    def burn(self, component: Component, uj: int) -> None:
        self.meters[component].burn(uj)

    @rule(machine_s=st.one_of(st.floats(0, 0.2), st.floats(0, 200)))
    def wait(self, machine_s: float) -> None:
        self.clock.advance_machine(machine_s)

    @rule(component=st.sampled_from(COMPONENTS), mark=st.sampled_from([COUNTER_RESET, METER_OUTAGE, SHARED_DEVICE]))
    def mark(self, component: Component, mark: str) -> None:
        self.meters[component].next_marks = (mark,)

    @rule(component=st.sampled_from(COMPONENTS))
    def lose(self, component: Component) -> None:
        self.meters[component].lose()

    @rule(component=st.sampled_from(COMPONENTS), lag_s=LAGS_S)
    def exchange(self, component: Component, lag_s: float) -> None:
        self.meters[component] = FakeMeter(component, start_uj=77, lag_s=lag_s)
        self.all.append(self.meters[component])
        self.hub.exchange(component, self.meters[component])

    @rule()
    def tick(self) -> None:
        self.hub.tick()

    @rule()
    def drain(self) -> None:
        self.book_idle(list(self.hub.drain_idle()))

    @rule()
    def flush(self) -> None:
        self.book_idle(list(self.hub.flush()))

    def counted(self, component: Component) -> int:
        return sum(one.last_read_uj - one.start_uj for one in self.all if one.component is component)

    def held(self, component: Component) -> int:
        parts = [part for handle in self.open for part in self.hub.peek(handle)]
        parts += [part for closing in self.unresolved for part in closing.so_far()[0]]
        energies = [(part.gpu_uj, part.cpu_uj, part.dram_uj)[COMPONENTS.index(component)] for part in parts]
        return sum(uj or 0 for uj in energies)

    def teardown(self) -> None:
        if not hasattr(self, "hub"):
            return
        for handle in list(self.open):
            self.finish(handle)
        for closing in list(self.unresolved):
            self.resolve(closing)
        self.book_idle(list(self.hub.flush()))
        assert self.booked == {component: self.counted(component) for component in COMPONENTS}


class Balance(LateBalance):
    """Looked at after every step."""

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        self.book_idle(list(self.hub.flush()))
        for component in COMPONENTS:
            held = self.held(component)  # a look is an event, and may read a meter that is exact
            self.book_idle(list(self.hub.flush()))
            assert self.booked[component] + held == self.counted(component)


Balance.TestCase.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
LateBalance.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestBalance = Balance.TestCase
TestLateBalance = LateBalance.TestCase
