"""A counter that trails: short engine batches share an interval; none is said to have used 0, nobody waits long."""

import threading

import pytest

from carbonq.clock import GridClock
from carbonq.meters.hub import Hub
from carbonq.meters.protocol import (
    COUNTER_RESET,
    DEVICE_LOST,
    MERGED,
    METER_OUTAGE,
    SHARED_DEVICE,
    Component,
    MeterKind,
    MeterLost,
)
from carbonq.model import EntryKind, Quality
from carbonq.testing import FakeClock, FakeMeter
from carbonq.units import WINDOW_S

LAG_S = 0.1


def card(lag_s: float = LAG_S) -> FakeMeter:
    return FakeMeter(
        Component.GPU, kind=MeterKind.NVML_COUNTER, quality=Quality.MEASURED, device_ids=["GPU-1"], lag_s=lag_s
    )


class World:
    """A hub over a card whose counter moves only when told, on a clock that moves only when told."""

    def __init__(self, *meters: FakeMeter) -> None:
        self.clock = FakeClock()
        self.meter = card()
        self.hub = Hub([self.meter, *meters], self.clock, self.clock.machine, self.clock.advance_machine)
        self.wait(1.0)
        self.hub.tick()

    def wait(self, machine_s: float, uj: int = 0) -> None:
        self.clock.advance_machine(machine_s)
        self.meter.burn(uj)

    def idle_uj(self) -> int:
        return sum(one.part.gpu_uj or 0 for one in self.hub.flush())


def test_short_batches_share_the_interval_by_time_and_are_marked() -> None:
    world = World()
    world.hub.flush()
    first = world.hub.start()
    world.wait(0.02)
    one = world.hub.finish(first)
    second = world.hub.start()
    world.wait(0.03)
    two = world.hub.finish(second)
    assert not one.is_known
    assert one.so_far()[0][0].gpu_uj is None, "not read is unknown, not 0"
    world.wait(0.05, uj=1_000)  # the counter moves long after both have ended
    parts, info = one.result()
    assert two.is_known
    assert (parts[0].gpu_uj, two.result()[0][0].gpu_uj, world.idle_uj()) == (200, 300, 500)
    assert (parts[0].duration_s, info.quality, info.device_ids) == (
        pytest.approx(0.02),
        Quality.ESTIMATED,
        ("GPU-1", MERGED),
    )


def test_batches_that_overlap_within_a_lag_divide_their_common_time_by_token_rate() -> None:
    world = World()
    world.hub.flush()
    first = world.hub.start(300.0)
    world.wait(0.05)
    second = world.hub.start(100.0)
    world.wait(0.05, uj=8_000)
    world.hub.tick()
    a, b = world.hub.end(first)[0][0], world.hub.end(second)[0][0]
    assert (a.gpu_uj, b.gpu_uj) == (4_000 + 3_000, 1_000)


def test_the_end_waits_only_where_it_must() -> None:
    world = World()
    handle = world.hub.start()
    world.wait(LAG_S, uj=10)
    before = world.clock.machine()
    [part], info = world.hub.end(handle)
    assert (part.gpu_uj, info.quality, world.clock.machine() - before) == (10, Quality.MEASURED, 0.0)
    handle = world.hub.start()
    world.wait(0.04)
    [part], _ = world.hub.end(handle)
    assert world.clock.machine() - before == pytest.approx(LAG_S)


def test_a_wait_that_is_too_short_says_so() -> None:
    world = World()
    closing = world.hub.finish(world.hub.start())
    assert not closing.wait(0.01)
    assert closing.wait(1.0)
    assert closing.wait(0.0)


def test_a_meter_without_lag_is_exact_beside_one_that_trails() -> None:
    cpu = FakeMeter()
    world = World(cpu)
    handle = world.hub.start()
    cpu.burn(5)
    world.wait(0.02)
    closing = world.hub.finish(handle)
    cpu.burn(7)
    world.wait(0.08, uj=100)
    [part], _ = closing.result()
    assert (part.gpu_uj, part.cpu_uj) == (20, 5)


def test_an_interval_over_a_window_edge_is_cut_at_the_edge_and_idle_waits_for_its_reading() -> None:
    world = World()
    world.clock.advance(WINDOW_S - 1.0 - 0.02)
    world.hub.tick()
    world.hub.flush()
    handle = world.hub.start()
    world.wait(0.02)
    world.hub.tick()
    assert list(world.hub.drain_idle()) == []
    world.wait(0.03)
    closing = world.hub.finish(handle)
    world.wait(0.05, uj=1_000)
    assert [part.gpu_uj for part in closing.result()[0]] == [200, 300]


def test_a_window_is_drained_once_and_only_when_its_last_moments_were_read_for() -> None:
    world = World()
    world.hub.flush()
    world.clock.advance(WINDOW_S - 1.0 - 0.02)
    world.hub.tick()
    world.wait(0.02)
    world.hub.tick()
    assert list(world.hub.drain_idle()) == []
    world.wait(0.08, uj=50)
    world.hub.tick()
    [idle] = world.hub.drain_idle()
    assert (idle.part.gpu_uj, idle.part.duration_s) == (10, pytest.approx(WINDOW_S - 1.0))


def test_a_batch_whose_interval_was_never_read_is_unknown_when_the_device_is_lost() -> None:
    world = World()
    handle = world.hub.start()
    world.wait(0.02)
    closing = world.hub.finish(handle)
    world.meter.lose()
    [part], info = closing.result()
    assert (part.gpu_uj, info.quality) == (None, Quality.ESTIMATED)
    assert DEVICE_LOST in info.device_ids


def test_marks_make_the_figures_of_their_interval_estimates_and_no_others() -> None:
    world = World()
    handle = world.hub.start()
    world.wait(1.0, uj=10)
    world.hub.tick()
    world.wait(1.0, uj=10)
    world.meter.next_marks = (COUNTER_RESET,)
    _, info = world.hub.end(handle)
    assert (info.quality, info.device_ids) == (Quality.ESTIMATED, ("GPU-1", COUNTER_RESET))
    handle = world.hub.start()
    world.wait(1.0, uj=10)
    _, info = world.hub.end(handle)
    assert (info.quality, info.device_ids) == (Quality.MEASURED, ("GPU-1",))


def test_what_was_counted_around_an_outage_is_charged_to_nobody() -> None:
    world = World()
    world.hub.flush()
    during = world.hub.start()
    world.wait(1.0)
    world.meter.next_marks = (METER_OUTAGE,)
    [part], info = world.hub.end(during)
    assert (part.gpu_uj, info.quality, info.device_ids) == (None, Quality.ESTIMATED, ("GPU-1", METER_OUTAGE))
    after = world.hub.start()
    world.wait(1.0, uj=90)  # what the one before used, too, and the meter shows only now
    world.meter.next_marks = (METER_OUTAGE,)
    world.hub.tick()
    world.wait(1.0, uj=50)
    [part], info = world.hub.end(after)
    assert (part.gpu_uj, info.quality) == (50, Quality.ESTIMATED)
    [idle] = world.hub.flush()
    assert (idle.kind, idle.part.gpu_uj) == (EntryKind.IDLE, 90)
    assert METER_OUTAGE in idle.info.device_ids


def test_what_others_use_while_we_are_idle_is_theirs() -> None:
    world = World()
    world.hub.flush()
    world.wait(1.0, uj=10)
    world.hub.tick()
    world.wait(1.0, uj=70)
    world.meter.next_marks = (SHARED_DEVICE,)
    world.hub.tick()
    handle = world.hub.start()
    world.wait(1.0, uj=5)
    world.meter.next_marks = (SHARED_DEVICE,)
    [part], info = world.hub.end(handle)
    idle, other = world.hub.flush()
    assert (idle.kind, idle.part.gpu_uj, idle.part.duration_s) == (EntryKind.IDLE, 10, 2.0)
    assert (other.kind, other.part.gpu_uj, other.part.duration_s) == (EntryKind.HOST_OTHER, 70, 0.0)
    assert SHARED_DEVICE in other.info.device_ids and SHARED_DEVICE not in idle.info.device_ids
    assert (part.gpu_uj, info.quality) == (5, Quality.ESTIMATED)


class SlowMeter(FakeMeter):
    """A card whose counter takes until it is let go, as a real one takes milliseconds."""

    def __init__(self) -> None:
        super().__init__(Component.GPU, kind=MeterKind.NVML_COUNTER, quality=Quality.MEASURED, lag_s=0.001)
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_broken = False

    def read_uj(self) -> int:
        self.may_answer.wait(20)
        if self.is_broken:
            raise RuntimeError("what no meter should raise")
        return super().read_uj()


@pytest.fixture
def slow() -> SlowMeter:
    return SlowMeter()


def test_nobody_waits_for_a_slow_meter_but_who_asks_for_the_figure(slow: SlowMeter) -> None:
    hub = Hub([slow], GridClock.real())
    hub.watch()
    slow.may_answer.clear()
    closing = hub.finish(hub.start())
    other = hub.start()
    assert not closing.wait(0.05)
    assert hub.peek(other)
    slow.burn(1_000)
    slow.may_answer.set()
    assert closing.wait(20)
    parts, _ = hub.end(other)
    hub.tick()
    idle = sum(one.part.gpu_uj or 0 for one in hub.flush())
    used = [part.gpu_uj or 0 for part in (*closing.result()[0], *parts)]
    assert sum(used) + idle == 1_000
    hub.close()
    assert slow.is_closed


def test_a_reading_comes_as_soon_as_the_lag_is_over_not_with_the_next_event(slow: SlowMeter) -> None:
    hub = Hub([slow], GridClock.real())
    hub.watch()
    reads = slow.reads
    closing = hub.finish(hub.start())
    assert closing.wait(20)
    assert slow.reads > reads
    hub.close()


@pytest.mark.parametrize("error", [MeterLost, RuntimeError])
def test_a_meter_that_fails_in_the_thread_leaves_nobody_waiting(slow: SlowMeter, error: type[Exception]) -> None:
    hub = Hub([slow], GridClock.real())
    hub.watch()
    if error is MeterLost:
        slow.lose()
    else:
        slow.is_broken = True
    parts, info = hub.end(hub.start())
    assert (parts[0].gpu_uj, info.quality) == (None, Quality.ESTIMATED)
    assert hub.info().gpu_meter is MeterKind.NONE
    hub.close()


def test_a_hub_that_is_closed_leaves_nobody_waiting() -> None:
    meter = card(lag_s=1_000.0)
    hub = Hub([meter], GridClock.real())
    hub.watch()
    closing = hub.finish(hub.start())
    done = threading.Event()
    threading.Thread(target=lambda: (closing.result(), done.set()), daemon=True).start()
    hub.close()
    assert done.wait(20)


def test_threads_over_a_meter_that_trails_lose_nothing() -> None:
    meter = card(lag_s=0.002)
    hub = Hub([meter, FakeMeter()], GridClock.real())
    hub.watch()
    totals: list[int] = []

    def work(seed: int) -> None:
        for step in range(40):
            handle = hub.start(float(seed))
            meter.burn(step * 7 + seed)
            totals.append(sum(part.gpu_uj or 0 for part in hub.end(handle)[0]))
            meter.burn(3)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    idle = sum(window.part.gpu_uj or 0 for window in hub.flush())
    assert sum(totals) + idle == meter.uj
    hub.close()
