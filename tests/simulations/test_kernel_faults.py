"""Faults of time, frames and processes that the kernel can make."""

from functools import partial
from random import Random

import pytest
from tests.simulations.test_simulated_network import Pair, Recorder

from gpupool.simulations.kernel.drifting_clock import EPOCH_MS, DriftingClock
from gpupool.simulations.kernel.process import Process
from gpupool.simulations.kernel.scheduler import NoProgressError, Scheduler
from gpupool.simulations.kernel.simulated_network import End, FrameChances, FrameFaults, Kind

FRAMES = [bytes([number]) * 8 for number in range(250)]


# --- the scheduler --------------------------------------------------------------------------------


def test_condition_is_met_at_the_event_that_meets_it_or_not_in_time() -> None:
    scheduler, seen = Scheduler(1), list[int]()
    for number in range(5):
        scheduler.at(float(number), partial(seen.append, number))
    assert scheduler.run_until_true(lambda: len(seen) == 3, 9.0)
    assert (seen, scheduler.now) == ([0, 1, 2], 2.0)
    assert not scheduler.run_until_true(lambda: len(seen) == 5, 3.5)
    assert seen == [0, 1, 2, 3]


def test_run_in_which_time_stands_still_ends() -> None:
    scheduler = Scheduler(1, burst_max=1000)

    def again() -> None:
        scheduler.after(0.0001, again)

    again()
    with pytest.raises(NoProgressError, match=r"no progress: .* 1,000 move time by a second"):
        scheduler.run_until(60.0)
    assert scheduler.event_count <= 2001
    assert scheduler.now < 1.0


def test_run_that_goes_on_for_ever_ends() -> None:
    scheduler = Scheduler(1, events_max=5000, burst_max=1000)

    def again() -> None:
        scheduler.after(1.0, again)

    again()
    with pytest.raises(NoProgressError, match=r"no progress: .* 5,000 end the run"):
        scheduler.run_until_true(lambda: False, float("inf"))
    assert scheduler.now == pytest.approx(5001)


def test_events_without_end_are_no_reason_to_stop_when_time_passes() -> None:
    scheduler = Scheduler(1, burst_max=1000)

    def again() -> None:
        scheduler.after(0.01, again)

    again()
    scheduler.run_until(200.0)
    assert scheduler.event_count == pytest.approx(20_000, abs=2)


# --- clocks ---------------------------------------------------------------------------------------


def clock_of(scheduler: Scheduler, *, rate: float = 1.0, error_ms: int = 0) -> DriftingClock:
    return DriftingClock(scheduler, origin_s=7.0, rate=rate, wall_error_ms=error_ms)


def test_wall_clock_does_not_jump_when_its_rate_changes() -> None:
    scheduler = Scheduler(1)
    clock = clock_of(scheduler)
    scheduler.run_until(100.0)
    clock.set_rate(1.5)
    assert clock.wall_ms() == EPOCH_MS + 100_000
    scheduler.run_until(110.0)
    assert clock.wall_error_ms() == 5_000
    clock.set_rate(1.0)
    scheduler.run_until(200.0)
    assert clock.wall_ms() == EPOCH_MS + 205_000


# --- frames ---------------------------------------------------------------------------------------


def send(end: End, frame: bytes) -> None:
    end.send(frame)


def sent_through(pair: Pair, chances: FrameChances) -> FrameFaults:
    """Send ``FRAMES`` through a network with faults, one each millisecond, and let all arrive."""
    end = pair.connect()
    faults = FrameFaults(pair.scheduler.random("frames"), chances)
    pair.network.frame_faults = faults
    for number, frame in enumerate(FRAMES):
        pair.scheduler.after(0.001 * number, partial(send, end, frame))
    pair.scheduler.run_until(5.0)
    return faults


@pytest.mark.parametrize("kind", ["lose", "truncate", "flip", "duplicate", "reorder", "reset"])
def test_frames_suffer_the_chosen_fault_alone(kind: Kind) -> None:
    pair = Pair()
    faults = sent_through(pair, FrameChances(**{kind: 0.1}))
    got = [frame for frame in pair.far.got if isinstance(frame, bytes)]
    count = faults.counts[kind]
    assert set(faults.counts) == {kind}
    if kind == "reset":
        assert count == 1, "what is sent on a broken connection is not even looked at"
        assert (pair.near.gone, pair.far.gone) == ("connection reset", "connection reset")
        assert got == FRAMES[: len(got)]
        return
    assert 10 < count < 50
    changed = [frame for frame in got if frame not in FRAMES]
    match kind:
        case "lose":
            assert len(got) == len(FRAMES) - count
            assert got == sorted(got)
        case "truncate":
            assert len(changed) == count
            assert all(frame == frame[:1] * len(frame) for frame in changed)
            assert all(len(frame) < 8 for frame in changed)
        case "flip":
            assert len(changed) == count
            assert all(len(frame) == 8 for frame in changed)
        case "duplicate":
            assert len(got) == len(FRAMES) + count
            assert sorted(set(got)) == FRAMES
        case _:
            assert sorted(got) == FRAMES
            assert got != FRAMES


def test_frames_may_be_tampered_with_by_hand() -> None:
    pair = Pair()
    end = pair.connect()
    seen: list[tuple[str, str]] = []

    def tamper(source: str, target: str, frame: bytes) -> bytes | None:
        seen.append((source, target))
        return None if frame == b"lost" else frame + b"!"

    pair.network.frame_faults = FrameFaults(Random(1), tamper=tamper)
    for frame in (b"lost", b"kept"):
        end.send(frame)
    assert pair.far.end is not None
    pair.far.end.send(b"back")
    end.send("no bytes: an object passes as it is")
    pair.scheduler.run_until(1.0)
    assert pair.far.got == [b"kept!", "no bytes: an object passes as it is"]
    assert pair.near.got == [b"back!"]
    assert seen == [("a", "b"), ("a", "b"), ("b", "a")]


def test_faults_of_frames_leave_the_network_s_own_chance_as_it_was() -> None:
    arrivals = list[list[float]]()
    for chances in (FrameChances(), FrameChances(flip=0.5)):
        pair = Pair()
        sent_through(pair, chances)
        arrivals.append(pair.far.at)
    assert arrivals[0] == arrivals[1]


def test_what_a_short_cut_had_queued_arrives_at_once() -> None:
    pair = Pair()
    end = pair.connect()
    pair.network.block("a", "b")
    end.send(b"1")
    pair.scheduler.run_until(3.5)  # the kernel would try next at 6.3 s
    pair.network.unblock("a", "b", within_s=0.01)
    pair.scheduler.run_until(3.6)
    assert pair.far.got == [b"1"]


# --- processes ------------------------------------------------------------------------------------


def test_stopped_process_finds_all_that_came_meanwhile_in_its_order() -> None:
    """SIGSTOP for half a minute: the sockets take frames, ends and new connections."""
    pair = Pair()
    end, before_timer = pair.connect(), list[int]()
    first = pair.far
    pair.b.after(5.0, lambda: before_timer.append(len(first.got)))
    pair.b.pause()
    for second in range(10):
        pair.scheduler.at(1.0 + second, partial(send, end, bytes([second])))
    pair.scheduler.at(20.0, end.close)
    pair.near, pair.far = Recorder(), Recorder()
    pair.scheduler.at(29.0, pair.dial)
    pair.scheduler.run_until(30.0)
    assert (first.got, first.gone, pair.near.end) == ([], "", None)
    pair.b.resume()
    assert first.got == [bytes([second]) for second in range(10)]
    assert set(first.at) == {30.0}, "a frame that waited is read late"
    assert first.gone == "closed by the other side"
    assert before_timer == [5], "a timer has its place between the frames"
    pair.scheduler.run_until(31.0)
    assert pair.near.end is not None, "who dialled it still waited"


def test_stopped_process_keeps_its_connections_however_long() -> None:
    pair = Pair()
    end = pair.connect()
    pair.b.pause()
    for second in range(60):
        pair.scheduler.at(1.0 + second, partial(send, end, b"x"))
    pair.scheduler.run_until(65.0)
    pair.b.resume()
    assert len(pair.far.got) == 60
    assert pair.near.gone == "", "its kernel has acknowledged everything"


def test_process_that_is_back_within_a_millisecond_meets_the_frames_of_the_one_before() -> None:
    """The peers may hear of the new one before they have read, or lost, the old one's frames."""
    ends = set[tuple[str, int]]()
    for seed in range(40):
        pair = Pair(seed)
        end, old = pair.connect(), pair.a
        end.send(b"old")
        old.kill()
        pair.network.process_died(old)
        before, pair.far = pair.far, Recorder()
        pair.near, pair.a = Recorder(), Process(pair.scheduler, "a")
        died_at = pair.scheduler.now
        pair.scheduler.after(0.0005, pair.dial)
        pair.scheduler.run_until(died_at + 1.0)
        assert pair.near.end is not None
        assert isinstance(pair.far.end, End)
        pair.near.end.send(b"new")
        pair.scheduler.run_until(died_at + 2.0)
        assert pair.far.got == [b"new"], "never on the new connection"
        ends.add((before.gone, len(before.got)))
    assert ends == {("closed by the other side", 1), ("connection reset", 0)}
