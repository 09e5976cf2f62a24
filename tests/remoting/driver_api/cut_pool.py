"""A pool of two real servers in separate networks, and programs during a cut of these.

    unshare -rn python tests/remoting/driver_api/cut_pool.py PROGRAM IMAGE CASE...

For each case one line: what it is, the seconds from the cut to the end of the program's wait, the
exit code of ``gpupool run``, what the program printed, and the last line of errors.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # whose tests fake_pool imports

from fake_pool import DEADLINE_S, FakeGpuPool

ADDRESSES = ("10.9.0.2", "10.9.0.3")
CLIENT = "10.9.0.1"
NOBODY = "02:00:00:00:00:99"
"""Frames to an address that nobody has are lost without a word, as in a switch that fails."""

Cut = Callable[["Net"], None]


def ip(words: str, *, inside: int = 0) -> None:
    enter = ["nsenter", "--net", f"--target={inside}"] if inside else []
    subprocess.run([*enter, "ip", *words.split()], check=True)


class Net:
    """The client's network with a bridge, and one for each server."""

    def __init__(self, pool: FakeGpuPool) -> None:
        self.pool = pool
        self.places: list[subprocess.Popen[bytes]] = []
        ip("link set lo up")
        ip("link add name bridge0 type bridge")
        ip(f"addr add {CLIENT}/24 dev bridge0")
        ip("link set bridge0 up")
        for at, server in enumerate(pool.servers):
            place = subprocess.Popen(["unshare", "-n", "sleep", "1000"])
            self.places.append(place)
            while os.readlink(f"/proc/{place.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
                time.sleep(0.01)
            ip(f"link add name port{at} type veth peer name wire{at}")
            ip(f"link set wire{at} netns {place.pid}")
            ip(f"link set port{at} master bridge0 up")
            ip("link set lo up", inside=place.pid)
            ip(f"addr add {ADDRESSES[at]}/24 dev wire{at}", inside=place.pid)
            ip(f"link set wire{at} up", inside=place.pid)
            server.prefix = ["nsenter", "--net", f"--target={place.pid}"]
            server.listen = f"{ADDRESSES[at]}:7470"

    def lose(self, at: int, address: str) -> None:
        """Drop the packets of server ``at`` to an address; -1: those of the client."""
        inside = self.places[at].pid if at >= 0 else 0
        device = f"wire{at}" if at >= 0 else "bridge0"
        ip(f"neigh replace {address} lladdr {NOBODY} dev {device} nud permanent", inside=inside)

    def pids(self, at: int) -> list[int]:
        """Return all processes of one server."""
        process = self.pool.servers[at].process
        assert process is not None
        found = [process.pid]
        for pid in found:
            for path in Path(f"/proc/{pid}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    found += [int(word) for word in path.read_text().split()]
        return found

    def heal(self) -> None:
        for at, address in enumerate(ADDRESSES):
            inside = self.places[at].pid
            for other in (CLIENT, *ADDRESSES):
                words = ["ip", "neigh", "del", other, "dev", f"wire{at}"]
                enter = ["nsenter", "--net", f"--target={inside}"]
                subprocess.run([*enter, *words], check=False, stderr=subprocess.DEVNULL)
            words = ["ip", "neigh", "del", address, "dev", "bridge0"]
            subprocess.run(words, check=False, stderr=subprocess.DEVNULL)
            ip(f"link set port{at} up")
            for pid in self.pids(at):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        for place in self.places:
            place.kill()
            place.wait()


# --- cuts -----------------------------------------------------------------------------------------


def to_server(net: Net) -> None:
    net.lose(-1, ADDRESSES[0])


def from_server(net: Net) -> None:
    net.lose(0, CLIENT)


def both(net: Net) -> None:
    to_server(net)
    from_server(net)


def unplugged(net: Net) -> None:
    ip("link set port0 down")


def frozen(net: Net) -> None:
    for pid in net.pids(0):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)


def second_frozen(net: Net) -> None:
    for pid in net.pids(1):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)


def second(net: Net) -> None:
    net.lose(-1, ADDRESSES[1])
    net.lose(1, CLIENT)


def between(net: Net) -> None:
    net.lose(0, ADDRESSES[1])
    net.lose(1, ADDRESSES[0])


TLS = ("-n", "1", "--server", "a", "--env", "GPUPOOL_LIBSSL=libssl.so.3")
RELAY = ("-n", "1", "--server", "a", "--env", "GPUPOOL_LIBSSL=none.so")
ACROSS = ("-n", "2", "--across", "--env", "GPUPOOL_LIBSSL=libssl.so.3")

CASES: dict[str, tuple[Cut, tuple[str, ...], str]] = {
    "tls, both ways": (both, TLS, "context"),
    "tls, to the server": (to_server, TLS, "context"),
    "tls, from the server": (from_server, TLS, "context"),
    "tls, unplugged": (unplugged, TLS, "context"),
    "tls, server frozen": (frozen, TLS, "context"),
    "relay, both ways": (both, RELAY, "stream"),
    "relay, to the server": (to_server, RELAY, "stream"),
    "relay, from the server": (from_server, RELAY, "stream"),
    "relay, server frozen": (frozen, RELAY, "stream"),
    "across, one server cut": (second, ACROSS, "event"),
    "across, one server frozen": (second_frozen, ACROSS, "event"),
    "tls, full": (both, TLS, "upload"),
    "relay, full": (both, RELAY, "upload"),
    "between": (between, ACROSS, "copies"),
    "between, one busy": (between, ACROSS, "copies-busy"),
}


def run(net: Net, words: list[str], case: str) -> None:
    cut, options, mode = CASES[case]
    program = net.pool.spawn("run", *options, "--", *words, mode)
    assert program.stdout is not None
    try:
        while (line := program.stdout.readline()) != "waiting\n":
            if not line:
                errors = program.communicate(timeout=DEADLINE_S)[1]
                raise AssertionError(errors + net.pool.logs())
        time.sleep(1.3)
        started = time.monotonic()
        cut(net)
        said = program.stdout.readline().strip()
        seconds = time.monotonic() - started
        _, errors = program.communicate(timeout=DEADLINE_S)
        last = (errors.splitlines() or [""])[-1]
        print(case, f"{seconds:.2f} s", program.returncode, said, last, sep=" | ", flush=True)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        net.heal()
    net.pool.until(lambda: net.pool.idle_servers() == len(net.pool.servers))


@contextlib.contextmanager
def networked_pool() -> Generator[Net]:
    folder = Path(tempfile.mkdtemp(prefix="gpupool-test-"))
    pool = FakeGpuPool(folder, servers=2)
    net = Net(pool)
    try:
        pool.start()
        yield net
    finally:
        for server in pool.servers:
            server.kill()
        net.close()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    program, image, *cases = sys.argv[1:]
    with networked_pool() as net:
        for case in cases or CASES:
            run(net, [program, image], case)


if __name__ == "__main__":
    main()
