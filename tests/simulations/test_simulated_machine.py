"""The parts of the simulated world: time, chance, clocks, disks, processes."""

import errno
from contextlib import suppress
from random import Random

import pytest

from gpupool.consensus.storage.store import Storage
from gpupool.pool.errors import StorageError
from gpupool.pool.model.ids import Incarnation, LeaseId, ServerId
from gpupool.simulations.kernel.drifting_clock import DriftingClock
from gpupool.simulations.kernel.machines import Machine, Worker
from gpupool.simulations.kernel.process import Process
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.simulated_disk import PowerLostError, SimulatedDisk
from gpupool.simulations.kernel.trace import Trace


def test_events_happen_in_order_of_time_then_of_scheduling() -> None:
    scheduler, seen = Scheduler(1), list[str]()
    scheduler.at(2.0, lambda: seen.append("c"))
    scheduler.at(1.0, lambda: seen.append("a"))
    scheduler.at(1.0, lambda: seen.append("b"))
    scheduler.run_until(1.5)
    assert (seen, scheduler.now) == (["a", "b"], 1.5)
    scheduler.run_until(3.0)
    assert seen == ["a", "b", "c"]


def test_random_source_of_one_subsystem_does_not_depend_on_another() -> None:
    one, other = Scheduler(7), Scheduler(7)
    other.random("disk").random()
    assert one.random("network").random() == other.random("network").random()
    assert Scheduler(8).random("network").random() != one.random("network").random()


def test_clock_drifts_jumps_and_never_goes_back() -> None:
    scheduler = Scheduler(1)
    clock = DriftingClock(scheduler, origin_s=50.0, rate=2.0, wall_error_ms=7)
    wall_ms = clock.wall_ms()
    scheduler.run_until(3.0)
    assert clock.monotonic() == pytest.approx(56.0)
    assert clock.world_time(60.0) == pytest.approx(5.0)
    clock.set_rate(0.5)
    clock.jump_wall(-10_000)
    scheduler.run_until(5.0)
    assert clock.monotonic() == pytest.approx(57.0)
    assert clock.wall_ms() < wall_ms


def test_stopped_process_does_later_what_happened_meanwhile() -> None:
    scheduler, seen = Scheduler(1), list[str]()
    process = Process(scheduler, "s1")
    process.after(1.0, lambda: seen.append("first"))
    process.after(2.0, lambda: seen.append("second"))
    process.pause()
    scheduler.run_until(5.0)
    assert seen == []
    process.resume()
    assert seen == ["first", "second"]
    process.after(1.0, lambda: seen.append("never"))
    process.kill()
    scheduler.run_until(9.0)
    assert len(seen) == 2


def disk_with(content: bytes, seed: int = 1) -> SimulatedDisk:
    disk = SimulatedDisk(Random(seed))
    disk.write("file", content)
    disk.sync("file")
    disk.sync_directory()
    return disk


def test_synced_data_survives_a_power_loss() -> None:
    disk = disk_with(b"kept")
    disk.lose_power()
    assert disk.read("file") == b"kept"


def test_unsynced_data_is_lost_kept_or_torn() -> None:
    outcomes = set[bytes]()
    for seed in range(200):
        disk = disk_with(b"kept", seed)
        disk.append("file", b"-new")
        disk.lose_power()
        found = disk.read("file")
        assert found[:4] == b"kept"
        outcomes.add(found)
    assert {b"kept", b"kept-new"} < outcomes
    assert any(len(found) not in (4, 8) or b"\0" in found for found in outcomes)


def test_pages_survive_apart_from_each_other() -> None:
    outcomes = set[bytes]()
    for seed in range(100):
        disk = disk_with(b"", seed)
        disk.append("file", b"a" * 4096 + b"b" * 4096)
        disk.lose_power()
        found = disk.read("file")
        outcomes.add(bytes(sorted(set(found))))
    assert b"\0b" in outcomes, "a later page may survive without an earlier one"


def test_rename_is_atomic_and_durable_only_with_its_directory() -> None:
    outcomes = set[tuple[str, ...]]()
    for seed in range(50):
        disk = disk_with(b"kept", seed)
        disk.rename("file", "renamed")
        disk.lose_power()
        outcomes.add(tuple(disk.names()))
    assert outcomes == {("file",), ("renamed",)}
    disk = disk_with(b"kept")
    disk.rename("file", "renamed")
    disk.sync_directory()
    disk.lose_power()
    assert disk.names() == ["renamed"]


def test_full_and_broken_disks_raise() -> None:
    disk = disk_with(b"kept")
    disk.full = True
    with pytest.raises(OSError, match="No space") as full:
        disk.append("file", b"more")
    assert full.value.errno == errno.ENOSPC
    disk.repair()
    disk.broken = True
    with pytest.raises(OSError, match="Input/output") as broken:
        disk.sync("file")
    assert broken.value.errno == errno.EIO


def test_failed_sync_may_forget_what_it_did_not_write() -> None:
    outcomes = set[bytes]()
    for seed in range(50):
        disk = disk_with(b"kept", seed)
        disk.append("file", b"-new")
        disk.broken = True
        with pytest.raises(OSError, match="Input/output"):
            disk.sync("file")
        disk.repair()
        disk.sync("file")  # succeeds, and proves nothing
        assert disk.read("file") == b"kept-new"
        disk.lose_power()
        outcomes.add(disk.read("file"))
    assert outcomes == {b"kept", b"kept-new"}


def test_power_fails_in_the_middle_of_an_operation() -> None:
    disk = disk_with(b"kept")
    disk.power_fails_after = 2
    disk.append("file", b"1")
    with pytest.raises(PowerLostError):
        disk.append("file", b"2")


def test_slow_disk_says_how_long_it_took() -> None:
    disk = disk_with(b"kept")
    disk.take_latency()
    disk.sync_latency_s = 0.25
    disk.sync("file")
    assert disk.take_latency() == 0.25
    assert disk.take_latency() == 0.0


@pytest.mark.parametrize("seed", range(25))
def test_storage_opens_whatever_a_power_loss_left(seed: int) -> None:
    random = Random(seed)
    disk = SimulatedDisk(random)
    storage = Storage(disk, create=True)
    for index in range(2, 2 + random.randint(1, 30)):
        storage.journal.append(b"\0" + random.randbytes(random.randint(1, 3000)), index, 1)
        if random.random() < 0.5:
            storage.journal.sync()
    kept = storage.journal.last_index
    storage.journal.sync()
    storage.journal.append(b"\0unsynced", kept + 1, 1)
    disk.lose_power()
    assert Storage(disk, create=False).journal.last_index == kept


@pytest.mark.parametrize("seed", range(20))
def test_storage_trusts_no_page_cache_after_a_failed_sync(seed: int) -> None:
    disk = SimulatedDisk(Random(seed))
    storage = Storage(disk, create=True)
    storage.journal.append(b"\0one", 2, 1)
    storage.journal.sync()
    storage.journal.append(b"\0two", 3, 1)
    disk.broken = True
    with pytest.raises(StorageError):
        storage.journal.sync()
    disk.repair()
    # The server starts again on the same boot, finds what was written, and goes on from there.
    storage = Storage(disk, create=False)
    kept = storage.journal.last_index
    storage.journal.append(b"\0three", kept + 1, 1)
    storage.journal.sync()
    disk.lose_power()
    assert Storage(disk, create=False).journal.last_index == kept + 1


@pytest.mark.parametrize("seed", range(20))
def test_storage_trusts_no_page_cache_after_a_torn_tail_could_not_be_cut(seed: int) -> None:
    """Swarm seed 10905: a seal lived in the page cache only, and more was written behind it."""
    disk = SimulatedDisk(Random(seed))
    storage = Storage(disk, create=True)
    storage.journal.append(b"\0one", 2, 1)
    storage.journal.sync()
    storage.journal.seal()
    storage.journal.sync()
    disk.full = True
    storage.journal.append(b"\0two", 3, 1)
    with pytest.raises(StorageError, match="No space left"):
        storage.journal.sync()  # writes a part of it behind the seal
    disk.repair()
    disk.broken = True
    with pytest.raises(StorageError, match="Input/output"):
        Storage(disk, create=False)
    disk.repair()
    storage = Storage(disk, create=False)
    kept = storage.journal.last_index
    for index in (kept + 1, kept + 2):
        storage.journal.append(b"\0more", index, 1)
        storage.journal.sync()
    disk.lose_power()
    assert Storage(disk, create=False).journal.last_index == kept + 2


@pytest.mark.parametrize("seed", range(24))
def test_power_loss_around_a_seal_costs_nothing_and_is_no_damage(seed: int) -> None:
    disk = SimulatedDisk(Random(seed))
    storage = Storage(disk, create=True)
    # The seal and what follows it fall on different pages.
    free = 4096 - len(disk.read("journal")) % 4096
    storage.journal.append(bytes(free - 60), 2, 1)
    storage.journal.sync()
    disk.power_fails_after = 1 + seed % 6  # each batch is appended, synced, and noted
    with suppress(PowerLostError):
        for index in (3, 4):
            storage.journal.seal()
            storage.journal.sync()
            storage.journal.append(b"\0more", index, 1)
            storage.journal.sync()
    disk.lose_power()
    again = Storage(disk, create=False)
    assert again.journal.last_index >= (2 if seed % 6 < 5 else 3)
    assert again.superblock.floor is None


def test_seal_that_is_broken_in_front_of_a_batch_is_damage() -> None:
    disk = SimulatedDisk(Random(1))
    storage = Storage(disk, create=True)
    storage.journal.append(b"\0one", 2, 1)
    storage.journal.sync()
    seal_at = len(disk.read("journal"))
    storage.journal.seal()
    storage.journal.sync()
    storage.journal.append(b"\0two", 3, 1)
    storage.journal.sync()
    data = bytearray(disk.read("journal"))
    data[seal_at + 3] ^= 1
    disk.write("journal", bytes(data))
    with pytest.raises(StorageError, match=f"damaged at byte {seal_at}"):
        Storage(disk, create=False)


@pytest.mark.parametrize("seed", range(20))
def test_storage_trusts_no_seal_whose_own_sync_failed(seed: int) -> None:
    disk = SimulatedDisk(Random(seed))
    storage = Storage(disk, create=True)
    storage.journal.append(b"\0one", 2, 1)
    storage.journal.sync()
    disk.broken = True
    storage.journal.seal()
    with pytest.raises(StorageError, match="Input/output"):
        storage.journal.sync()
    disk.repair()
    storage = Storage(disk, create=False)
    for index in (3, 4):
        storage.journal.append(b"\0more", index, 1)
        storage.journal.sync()
    disk.lose_power()
    assert Storage(disk, create=False).journal.last_index == 4


def test_slow_deaths_of_workers_end_with_the_fault() -> None:
    """Swarm seed 30412: a worker took so long to die that its server was not up in time."""
    scheduler = Scheduler(1)
    machine = Machine(
        "s1",
        ServerId("one"),
        scheduler=scheduler,
        trace=Trace(scheduler),
        random=Random(1),
        clock=DriftingClock(scheduler, origin_s=0.0, rate=1.0, wall_error_ms=0),
        gpus_gib=[16],
        idle=0.0,
        kill_s=1000.0,
        workers_changed=lambda _machine: None,
    )
    gone: list[float] = []
    worker = Worker(LeaseId(7), (), machine.server, Incarnation(1))
    machine.workers.append(worker)
    machine.kill(worker, lambda: gone.append(scheduler.now))
    scheduler.run_until(1.0)
    machine.kill_s = 0.05
    machine.hurry()
    scheduler.run_until(9999.0)
    assert gone == [1.05]
    assert not machine.workers
