"""Where the journal is synced, on idle and on busy machines, with quick and with slow disks."""

from gpupool.consensus.driver import SyncPlace


def run(place: SyncPlace, count: int, *, sync_s: float, change_s: float) -> int:
    """Sync so often; return how often that was on the loop's thread."""
    inline = 0
    for _ in range(count):
        if place.is_inline:
            inline += 1
            place.synced_inline(sync_s)
        else:
            place.synced_beside(sync_s, sync_s + change_s)
    return inline


def test_a_quick_disk_keeps_the_loop() -> None:
    assert run(SyncPlace(), 100, sync_s=0.0003, change_s=0.0002) == 100


def test_a_slow_disk_leaves_the_loop_alone() -> None:
    assert run(SyncPlace(), 100, sync_s=0.03, change_s=0.0002) == 1
    place = SyncPlace()
    run(place, 20, sync_s=0.03, change_s=0.5)
    assert run(place, 1000, sync_s=0.03, change_s=0.5) == 0, "nor on a busy machine"


def test_a_busy_machine_does_not_pay_for_the_change_of_threads() -> None:
    """A thread there measures the interpreter's lock, and its result waits for a turn."""
    place = SyncPlace()
    place.synced_inline(0.1)  # once, the disk was slow
    assert not place.is_inline
    changes = 0
    while not place.is_inline:
        place.synced_beside(0.006, 0.1)
        changes += 1
    assert changes < 20
    assert run(place, 1000, sync_s=0.0005, change_s=0.1) == 1000


def test_a_disk_that_stays_slow_is_left_again_once_the_machine_is_idle() -> None:
    place = SyncPlace()
    run(place, 50, sync_s=0.008, change_s=0.1)
    assert place.is_inline, "the change costs more"
    inline = run(place, 1000, sync_s=0.008, change_s=0.0002)
    assert inline < 100
    assert not place.is_inline
