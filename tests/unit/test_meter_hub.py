import threading
from datetime import timedelta

import pytest

from carbonq.meters.hub import Hub
from carbonq.meters.protocol import DEVICE_BACK, Component, MeteredPart, MeterKind
from carbonq.model import Quality
from carbonq.testing import FAKE_EPOCH, FakeClock, FakeMeter
from carbonq.units import WINDOW


def gpu() -> FakeMeter:
    return FakeMeter(Component.GPU, kind=MeterKind.NVML_COUNTER, quality=Quality.MEASURED, device_ids=["GPU-1"])


class World:
    def __init__(self, *meters: FakeMeter, factor: float = 1.0) -> None:
        self.clock = FakeClock(factor=factor)
        self.meters = meters or (FakeMeter(start_uj=1_000),)
        self.hub = Hub(self.meters, self.clock, self.clock.machine)

    def run(self, uj: int, grid_s: float) -> None:
        for meter in self.meters:
            meter.burn(uj)
        self.clock.advance(grid_s)


def test_one_engine_batch_gets_what_was_counted_while_it_ran_and_idle_the_rest() -> None:
    world = World()
    world.run(7, 10)
    handle = world.hub.start()
    world.run(100, 20)
    [part], info = world.hub.end(handle)
    world.run(11, 30)
    [idle] = world.hub.flush()
    assert part == MeteredPart(
        FAKE_EPOCH, FAKE_EPOCH + timedelta(seconds=10), FAKE_EPOCH + timedelta(seconds=30), 20.0, None, 100, None
    )
    assert (info.cpu_meter, info.gpu_meter, info.quality) == (MeterKind.CPU_TIME, MeterKind.NONE, Quality.ESTIMATED)
    assert (idle.part.cpu_uj, idle.part.duration_s) == (18, 40.0)
    assert (idle.part.started_at, idle.part.ended_at) == (FAKE_EPOCH, FAKE_EPOCH + timedelta(seconds=60))


def test_overlapping_engine_batches_divide_by_token_rate() -> None:
    world = World()
    first = world.hub.start(token_rate=300.0)
    world.run(100, 1)
    second = world.hub.start(token_rate=100.0)
    world.run(100, 1)
    [a], _ = world.hub.end(first)
    world.run(50, 1)
    [b], _ = world.hub.end(second)
    assert (a.cpu_uj, b.cpu_uj) == (175, 75)
    assert (a.duration_s, b.duration_s) == (2.0, 2.0)
    assert list(world.hub.flush()) == []


def test_a_batch_over_an_edge_has_one_part_a_window_exact_where_a_tick_came_in_time() -> None:
    world = World(factor=75)
    world.clock.advance(250)
    handle = world.hub.start()
    world.run(30, 50)
    world.hub.tick()
    world.run(70, 100)
    parts, _ = world.hub.end(handle)
    assert [(p.window_at, p.cpu_uj, p.ended_at - p.started_at) for p in parts] == [
        (FAKE_EPOCH, 30, timedelta(seconds=50)),
        (FAKE_EPOCH + WINDOW, 70, timedelta(seconds=100)),
    ]
    # Durations are machine seconds: 75 times shorter than grid time.
    assert [p.duration_s for p in parts] == pytest.approx([50 / 75, 100 / 75])


def test_without_a_tick_the_edge_is_split_by_time() -> None:
    world = World()
    handle = world.hub.start()
    world.run(900, 900)
    parts, _ = world.hub.end(handle)
    assert [p.cpu_uj for p in parts] == [300, 300, 300]


def test_an_instant_still_has_a_part_and_an_untouched_window_has_none() -> None:
    world = World()
    [part], _ = world.hub.end(world.hub.start())
    assert (part.cpu_uj, part.duration_s) == (0, 0.0)
    world.clock.advance(299)
    handle = world.hub.start()
    [seen] = world.hub.peek(handle)
    assert seen.window_at == FAKE_EPOCH
    world.clock.advance(1)
    world.run(5, 10)
    assert [p.window_at for p in world.hub.peek(handle)] == [FAKE_EPOCH, FAKE_EPOCH + WINDOW]


def test_peek_shows_what_was_used_so_far_and_end_has_all() -> None:
    world = World()
    handle = world.hub.start()
    world.run(10, 1)
    assert world.hub.peek(handle)[0].cpu_uj == 10
    world.run(10, 1)
    assert world.hub.end(handle)[0][0].cpu_uj == 20
    with pytest.raises(KeyError):
        world.hub.end(handle)


def test_idle_windows_are_drained_once_and_only_when_over() -> None:
    world = World()
    world.run(10, 100)
    world.hub.tick()
    assert list(world.hub.drain_idle()) == []
    world.run(20, 200)
    world.hub.tick()
    assert [idle.part.cpu_uj for idle in world.hub.drain_idle()] == [30]
    assert list(world.hub.drain_idle()) == []
    world.run(5, 1)
    assert [idle.part.cpu_uj for idle in world.hub.flush()] == [5]


def test_a_lost_meter_is_unknown_never_zero() -> None:
    card, cpu = gpu(), FakeMeter()
    world = World(card, cpu)
    assert world.hub.info().quality is Quality.MIXED
    handle = world.hub.start()
    world.run(10, 200)
    world.hub.tick()
    card.lose()
    world.run(10, 200)
    parts, info = world.hub.end(handle)
    assert [(p.gpu_uj, p.cpu_uj) for p in parts] == [(10, 15), (None, 5)]
    assert (info.gpu_meter, info.quality) == (MeterKind.NVML_COUNTER, Quality.ESTIMATED)
    later, info = world.hub.end(world.hub.start())
    assert (later[0].gpu_uj, later[0].cpu_uj) == (None, 0)
    assert (info.gpu_meter, info.device_ids) == (MeterKind.NONE, ("fake-0",))


def test_a_meter_that_answers_again_is_taken_up_at_a_tick_and_what_it_missed_is_nobodys() -> None:
    card = FakeMeter(Component.GPU, kind=MeterKind.NVML_COUNTER, quality=Quality.MEASURED, device_ids=["GPU-1"])
    clock = FakeClock()
    hub = Hub([card], clock, clock.machine, clock.advance_machine)
    card.lose()
    hub.tick()
    assert hub.info().gpu_meter is MeterKind.NONE
    during = hub.start()
    card.burn(70)
    clock.advance_machine(1.0)
    hub.tick()
    assert hub.peek(during)[0].gpu_uj is None
    card.find()
    hub.tick()
    clock.advance_machine(1.0)
    card.burn(5)
    [part], info = hub.end(during)
    assert (part.gpu_uj, info.gpu_meter, info.quality) == (5, MeterKind.NVML_COUNTER, Quality.ESTIMATED)
    assert info.device_ids == ("GPU-1", DEVICE_BACK)
    after = hub.start()
    card.burn(9)
    clock.advance_machine(1.0)
    [part], info = hub.end(after)
    assert (part.gpu_uj, info.quality, info.device_ids) == (9, Quality.MEASURED, ("GPU-1",))
    assert sum(one.part.gpu_uj or 0 for one in hub.flush()) == 0


def test_a_meter_that_is_lost_from_the_start_is_not_used() -> None:
    card = gpu()
    card.lose()
    assert World(card, FakeMeter()).hub.info().gpu_meter is MeterKind.NONE


def test_without_meters_nothing_is_claimed() -> None:
    clock = FakeClock()
    hub = Hub([], clock, clock.machine)
    handle = hub.start()
    clock.advance(10)
    [part], info = hub.end(handle)
    assert (part.gpu_uj, part.cpu_uj, part.dram_uj, part.duration_s) == (None, None, None, 10.0)
    assert info.cpu_meter is MeterKind.NONE
    clock.advance(10)
    assert list(hub.flush()) == []


def test_a_clock_set_back_makes_no_window_twice_and_loses_nothing() -> None:
    world = World()
    world.run(0, 310)
    handle = world.hub.start()
    world.run(40, -200)
    [part], _ = world.hub.end(handle)
    assert (part.window_at, part.cpu_uj, part.duration_s) == (FAKE_EPOCH + WINDOW, 40, 0.0)


def test_two_meters_of_one_component_are_refused_and_close_reaches_all() -> None:
    with pytest.raises(ValueError, match="one meter for each component"):
        Hub([FakeMeter(), FakeMeter()], FakeClock())
    world = World(gpu(), FakeMeter())
    world.hub.close()
    assert all(meter.is_closed for meter in world.meters)


def test_threads_may_come_and_go_at_any_time() -> None:
    meter = FakeMeter()
    clock = FakeClock()
    hub = Hub([meter], clock, clock.machine)
    totals: list[int] = []

    def work(seed: int) -> None:
        for step in range(200):
            handle = hub.start(float(seed))
            meter.burn(step * 7 + seed)
            clock.advance(0.5)
            hub.peek(handle)
            totals.append(sum(part.cpu_uj or 0 for part in hub.end(handle)[0]))
            meter.burn(3)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    idle = sum(window.part.cpu_uj or 0 for window in hub.flush())
    assert sum(totals) + idle == meter.uj


def test_a_meter_can_be_exchanged_and_no_joule_is_lost() -> None:
    rapl = FakeMeter(kind=MeterKind.RAPL, quality=Quality.MEASURED)
    dram = FakeMeter(Component.DRAM, kind=MeterKind.RAPL, quality=Quality.MEASURED)
    world = World(rapl, dram)
    handle = world.hub.start()
    world.run(100, 10)
    estimate = FakeMeter(start_uj=5_000)
    world.hub.exchange(Component.CPU, estimate)
    world.hub.exchange(Component.DRAM, None)
    world.run(1_000, 10)  # what the first meters count from now on is others'
    estimate.burn(7)
    [part], info = world.hub.end(handle)
    assert (part.cpu_uj, part.dram_uj) == (107, 100)
    assert info.quality is Quality.ESTIMATED
    later = world.hub.info()
    assert (later.cpu_meter, later.dram_meter, later.quality) == (
        MeterKind.CPU_TIME,
        MeterKind.NONE,
        Quality.ESTIMATED,
    )
    world.hub.close()
    assert rapl.is_closed and dram.is_closed and estimate.is_closed
