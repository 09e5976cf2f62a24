"""Cut the route between two GPU servers, and nothing else, while a program copies between them.

    unshare -rn python tests/remoting/array_api/cut_route.py PROGRAM

Each server has a network namespace; the program reaches both over Unix sockets. When the program
has said "copying", frames go to an address that nobody has: silence, as when a switch fails.
"""

import ctypes
import os
import socket
import subprocess
import sys
import time

import door_kit

FIRST, SECOND = "10.9.0.1", "10.9.0.2"
NOBODY = "02:00:00:00:00:99"
CLONE_NEWNET = 0x40000000
SETTLE_S = 1.0
"""So long the program copies before the cut: sockets are full by then."""


def ip(words: str, *, inside: int = 0) -> None:
    enter = ["nsenter", "--net", f"--target={inside}"] if inside else []
    subprocess.run([*enter, "ip", *words.split()], check=True)


def namespace(pid: int | str) -> str:
    return f"/proc/{pid}/ns/net"


def enter(descriptor: int) -> None:
    """Move this thread, with the sockets it makes from now on, to another network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def main() -> None:
    other = subprocess.Popen(["unshare", "-n", "sleep", "600"])
    while os.readlink(namespace(other.pid)) == os.readlink(namespace("self")):
        time.sleep(0.01)
    places = [os.open(namespace(each), os.O_RDONLY) for each in ("self", other.pid)]
    try:
        ip("link add first type veth peer name second")
        ip(f"link set second netns {other.pid}")
        for name, address, pid in (("first", FIRST, 0), ("second", SECOND, other.pid)):
            ip(f"addr add {address}/24 dev {name}", inside=pid)
            ip(f"link set {name} up", inside=pid)

        def listen(at: int) -> socket.socket:
            enter(places[at])
            try:
                return socket.create_server(((FIRST, SECOND)[at], 0))
            finally:
                enter(places[0])

        with door_kit.pool(1, 1, linked=True, listen=listen) as agent:
            copy_and_cut(agent, other.pid)
    finally:
        other.kill()
        other.wait()


def copy_and_cut(agent: door_kit.Agent, other: int) -> None:
    variables = {**os.environ, "PYTHONPATH": str(door_kit.DROPIN), "GPUPOOL_AGENT": agent.path}
    argv = [sys.executable, "-c", sys.argv[1]]
    with subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "copying\n"
        time.sleep(SETTLE_S)
        ip(f"neigh replace {SECOND} lladdr {NOBODY} dev first nud permanent")
        ip(f"neigh replace {FIRST} lladdr {NOBODY} dev second nud permanent", inside=other)
        started = time.monotonic()
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stderr.write(f"after {time.monotonic() - started:.1f} s: {line}")
            sys.stderr.flush()


if __name__ == "__main__":
    main()
