"""Simulated connections: in order, whole, held back by a cut, lost by a reset."""

from dataclasses import dataclass, field

from gpupool.simulations.kernel.process import Process
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.simulated_network import End, Endpoint, Network
from gpupool.simulations.kernel.trace import Trace


@dataclass(eq=False)
class Recorder:
    """An endpoint that records its events."""

    end: End | None = None
    got: list[object] = field(default_factory=list[object])
    at: list[float] = field(default_factory=list[float])
    gone: str = ""
    error: str = ""

    def opened(self, end: End) -> None:
        self.end = end

    def failed(self, reason: str) -> None:
        self.error = reason

    def received(self, end: End, payload: object) -> None:
        self.got.append(payload)
        self.at.append(end.process.scheduler.now)

    def closed(self, end: End, reason: str) -> None:
        self.gone = reason


class Pair:
    """Two machines, and a connection between them."""

    def __init__(self, seed: int = 1) -> None:
        self.scheduler = Scheduler(seed)
        random = self.scheduler.random("network")
        self.network = Network(
            self.scheduler, Trace(self.scheduler), random, delay_s=0.001, jitter_s=0.001
        )
        self.network.timeout_s = {"test": 10.0}
        self.a, self.b = Process(self.scheduler, "a"), Process(self.scheduler, "b")
        self.near, self.far = Recorder(), Recorder()
        self.network.listen(self.b, self.accept)

    def accept(self, machine: str, kind: str) -> Endpoint:
        assert (machine, kind) == ("a", "test")
        return self.far

    def dial(self) -> None:
        self.network.dial(self.a, "b", "test", self.near, timeout_s=3.0)

    def connect(self) -> End:
        self.dial()
        self.scheduler.run_until(self.scheduler.now + 0.1)
        assert self.near.end is not None
        return self.near.end


def test_frames_arrive_once_and_in_order() -> None:
    pair = Pair()
    end = pair.connect()
    for number in range(200):
        end.send(bytes([number]))
    pair.scheduler.run_until(1.0)
    assert pair.far.got == [bytes([number]) for number in range(200)]
    assert pair.far.at == sorted(pair.far.at)


def test_cut_holds_back_and_resends_after_healing() -> None:
    pair = Pair()
    end = pair.connect()
    end.send(b"1")
    pair.network.block("a", "b")
    end.send(b"2")
    pair.scheduler.run_until(2.0)
    assert pair.far.got == [], "even what was under way does not get through"
    assert pair.far.end is not None
    pair.far.end.send(b"back")
    pair.scheduler.run_until(2.5)
    assert pair.near.got == [b"back"], "the other direction works"
    pair.network.unblock("a", "b")
    end.send(b"3")
    pair.scheduler.run_until(6.0)
    assert pair.far.got == [b"1", b"2", b"3"]


def test_long_cut_ends_the_connection_on_both_sides() -> None:
    pair = Pair()
    end = pair.connect()
    pair.network.block("a", "b")
    end.send(b"1")
    pair.scheduler.run_until(12.0)
    assert (pair.near.gone, pair.far.gone) == ("timed out", "timed out")
    assert not end.send(b"2")


def test_cut_healed_too_late_for_another_try_ends_the_connection() -> None:
    pair = Pair()
    end = pair.connect()
    pair.network.block("a", "b")
    end.send(b"1")
    pair.scheduler.run_until(7.1)  # the kernel tried at 6.3 s and will not before 12.7 s
    pair.network.unblock("a", "b")
    pair.scheduler.run_until(9.5)
    assert pair.far.got == []
    assert pair.near.gone == "timed out"


def test_reset_loses_what_is_in_flight() -> None:
    pair = Pair()
    end = pair.connect()
    end.send(b"1")
    pair.network.reset("a", "b")
    pair.scheduler.run_until(1.0)
    assert pair.far.got == []
    assert (pair.near.gone, pair.far.gone) == ("connection reset", "connection reset")


def test_close_lets_arrive_what_was_sent_before() -> None:
    pair = Pair()
    end = pair.connect()
    end.send(b"1")
    end.close()
    pair.scheduler.run_until(1.0)
    assert pair.far.got == [b"1"]
    assert pair.far.gone == "closed by the other side"
    assert pair.near.gone == "", "whoever closes is not told"


def test_dead_process_refuses_and_dark_machine_is_silent() -> None:
    pair = Pair()
    pair.b.kill()
    pair.dial()
    pair.scheduler.run_until(0.5)
    assert pair.near.error == "connection refused"
    pair.network.machine_went_dark("b")
    pair.near = Recorder()
    pair.dial()
    pair.scheduler.run_until(2.0)
    assert pair.near.error == ""
    pair.scheduler.run_until(4.0)
    assert pair.near.error == "timed out"


def test_dark_machine_is_noticed_by_time_or_by_its_return() -> None:
    pair = Pair()
    pair.connect()
    pair.b.kill()
    pair.network.machine_went_dark("b")
    pair.scheduler.run_until(5.0)
    assert pair.near.gone == ""
    pair.network.machine_came_back("b")
    pair.scheduler.run_until(6.5)
    assert pair.near.gone == "connection reset"


def test_stopped_process_takes_its_frames_when_it_goes_on() -> None:
    pair = Pair()
    end = pair.connect()
    pair.b.pause()
    end.send(b"1")
    pair.scheduler.run_until(5.0)
    assert pair.far.got == []
    pair.b.resume()
    assert pair.far.got == [b"1"]
