"""Runs as a process that has imported all of ``gpupool``, and forks one for each command.

``tests/commands.py`` starts it. Each request is a datagram with what a new process gets: its words,
environment, folder, session, and three open files. The answer is the process's number.

A command's process is forked twice, so that the first of the two ends at once and leaves the second
to the nearest ancestor that adopts: to the tests, who can wait for it as for any child of theirs.
"""

import gc
import importlib
import io
import json
import os
import pkgutil
import socket
import sys
import threading
from typing import Any, TextIO

REQUEST_MAX = 1 << 20
ALSO = ("gpupool.remoting.client", "gpupool.remoting.server", "gpupool.remoting.host")


def import_all() -> None:
    """Import the modules that commands import on use."""
    for name in ("gpupool.cli", *ALSO):
        package = importlib.import_module(name)
        for each in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not each.name.endswith("__main__") and ".tools" not in each.name:
                importlib.import_module(each.name)
    assert threading.active_count() == 1, "a process with threads does not fork"
    gc.collect()
    gc.freeze()  # whatever is looked at by the collector would be copied


def serve(sock: socket.socket) -> list[str] | None:
    """Fork until nobody asks any more; return the words in the process that is to use them."""
    while True:
        data, files, _flags, _address = socket.recv_fds(sock, REQUEST_MAX, 3)
        if not data:
            return None
        reader, writer = os.pipe()
        first = os.fork()
        if not first:
            second = os.fork()
            if second:
                os.write(writer, str(second).encode())
                os._exit(0)
            sock.close()
            os.close(reader)
            os.close(writer)
            return become(json.loads(data), files)
        os.waitpid(first, 0)
        for each in (*files, writer):
            os.close(each)
        sock.send(os.read(reader, 32))
        os.close(reader)


def output(number: int, old: TextIO) -> io.TextIOWrapper:
    """Open a standard output as Python does when it starts."""
    assert isinstance(old, io.TextIOWrapper)
    size = 0 if old.write_through else -1
    lines = number == 2 or os.isatty(number)
    return io.TextIOWrapper(
        open(number, "wb", buffering=size, closefd=False),
        encoding=old.encoding,
        errors=old.errors,
        line_buffering=lines,
        write_through=old.write_through,
    )


def become(request: dict[str, Any], files: list[int]) -> list[str]:
    """Make this process as a new one of that request would be, and return its words."""
    if request["session"]:
        os.setsid()
    for at, file in enumerate(files):
        os.dup2(file, at)
        os.close(file)
    if request["folder"]:
        os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.stdin = open(0, encoding=sys.stdin.encoding, closefd=False)  # noqa: SIM115
    sys.stdout = output(1, sys.stdout)
    sys.stderr = output(2, sys.stderr)
    words: list[str] = request["words"]
    return words


if __name__ == "__main__":
    import_all()
    from gpupool.cli.main import main

    if (given := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        sys.argv[1:] = given
        main(given)
