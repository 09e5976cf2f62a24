"""The processes of a server in an attack's totals of memory and processor time."""

import subprocess
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import attack_pool


def test_a_child_that_another_thread_has_started_is_counted() -> None:
    """The exporter was not counted, with the TLS of unauthenticated peers that speak HTTPS."""
    started, counted = threading.Event(), threading.Event()
    children: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        children.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        started.set()
        counted.wait()  # the children of a thread that has ended become another one's

    thread = threading.Thread(target=start)
    thread.start()
    started.wait()
    try:
        pids = [path.name for path in attack_pool.family(Path("/proc/self").resolve())]
    finally:
        counted.set()
        thread.join()
        for child in children:
            child.communicate()
    assert str(children[0].pid) in pids
