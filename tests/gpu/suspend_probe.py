"""Facts on the driver's checkpoint functions, printed, on one or two real GPUs, as root.

Usage: PYTHONPATH=src python tests/gpu/suspend_probe.py PART [--budget SECONDS] [--only NAMES]
with a part of ``who``, ``kinds``, ``trouble``, ``speed``, ``two`` and ``nccl`` (two GPUs),
``caps``, or ``all``.
Each call to the driver is made by a process of its own with a deadline; a line has the function,
its result (0: success; 1 invalid value, 3 not initialized, 401 illegal state, 600 not ready,
801 not supported, "hangs") and its seconds.
"""

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from suspend_kit import (
    BEGAN,
    HERE,
    Caller,
    Lines,
    largest,
    memory,
    round_trip,
    say,
    target,
    used,
)

GIB = 1 << 30
MIB = 1 << 20
BUDGET = [95.0]


def part_who() -> None:
    """Try the same user, another and root, on targets that hide their memory or are confined."""
    root, same, other = Caller(), Caller(52001), Caller(52002)
    say("init: root", root.first, "same user", same.first, "other user", other.first)
    say("no init at all:", Caller(0, "noinit").first)
    with target("plain", uid=52001) as lines:
        pid = lines.process.pid
        for name, caller in (("other user", other), ("same user", same), ("root", root)):
            say(
                name, "|", caller.call("GetState", pid), "|", caller.call("GetRestoreThreadId", pid)
            )
            say(name, "|", caller.out(pid), "|", caller.back(pid), "|", lines.ask("sum"))
        tids = sorted(int(each) for each in os.listdir(f"/proc/{pid}/task"))
        names = {t: Path(f"/proc/{pid}/task/{t}/comm").read_text().strip() for t in tids}
        say("threads of the target:", names)
    with target("plain", uid=52001, dumpable=0) as lines:
        say("same user, not dumpable |", same.out(lines.process.pid))
        say("same user, not dumpable, back |", same.back(lines.process.pid), lines.ask("sum"))
        say("root, not dumpable |", root.out(lines.process.pid), "|", root.back(lines.process.pid))
    with target("plain", uid=52001, confined=1) as lines:
        say("same user, confined |", same.out(lines.process.pid))
        say("same user, confined, back |", same.back(lines.process.pid), lines.ask("sum"))
        round_trip(root, lines, "root, confined")
    group = Path("/sys/fs/cgroup/gpupool-probe")
    try:
        group.mkdir()
        (group / "memory.max").write_text(str(GIB))
        with target("plain", mib=3072) as lines:
            (group / "cgroup.procs").write_text(str(lines.process.pid))
            say("cgroup of 1 GiB, 3 GiB on the GPU |", root.out(lines.process.pid))
            say("cgroup |", root.call("GetState", lines.process.pid), lines.process.poll())
            say("cgroup |", root.back(lines.process.pid), lines.ask("sum"))
    except OSError as error:
        say("no cgroup of ours:", error)
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()
    for caller in (root, same, other):
        caller.end()


def part_kinds() -> None:
    """Try one kind of memory or object after another."""
    caller = Caller()
    shared = Path(tempfile.mkdtemp(dir="/dev/shm"), "shared")
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        ("plain", {"pieces": 100}),
        ("graph", {}),
        ("pinned", {}),
        ("registered", {"path": shared}),
        ("vmm", {}),
        ("vmm", {"export": 1}),
        ("vmm", {"export": 2}),
        ("managed", {}),
        ("launches", {"mib": 16}),
    )
    for kind, options in kinds:
        shared.write_bytes(b"\1" * (256 * MIB) if kind == "registered" else b"")
        name = f"{kind} {options.get('export', '')}"
        try:
            with target(kind, **options) as lines:
                round_trip(caller, lines, name)
                if kind == "registered":
                    say("seen in the file:", shared.read_bytes()[:4].hex())
        except Exception as error:  # noqa: BLE001 - the next kind is asked all the same
            say(name, "| broken:", error)
    shared.unlink()
    two_of_them(caller, "ipc")
    two_of_them(caller, "vmm")
    caller.end()


def two_of_them(caller: Caller, kind: str) -> None:
    """Memory that one process exports and another imports: each alone, and both."""
    path = f"/tmp/suspend-probe-{os.getpid()}-{kind}"
    first = "ipc_export" if kind == "ipc" else "vmm"
    options = {} if kind == "ipc" else {"export": 2, "socket": path}
    words = [f"{name}={value}" for name, value in options.items()]
    exporter = Lines(str(HERE / "suspend_target.py"), first, *words)
    importer: Lines | None = None
    try:
        if kind == "ipc":
            handle = exporter.wait_for("handle").split()[1]
            importer = Lines(str(HERE / "suspend_target.py"), "ipc_import", f"handle={handle}")
        else:
            exporter.wait_for("listens")
            importer = Lines(str(HERE / "suspend_target.py"), "vmm_import", f"socket={path}")
        exporter.wait_for("ready")
        importer.wait_for("ready")
        one, other = exporter.process.pid, importer.process.pid
        for name, pid, lines in (("exporter", one, exporter), ("importer", other, importer)):
            say(kind, name, "alone |", caller.out(pid, 8), "|", caller.call("GetState", pid))
            say(kind, name, "alone |", caller.back(pid, 8), "|", lines.ask("sum", 4))
        say(kind, "both |", caller.call("Lock", one), "|", caller.call("Lock", other))
        say(kind, "both |", caller.call("Checkpoint", one), "|", caller.call("Checkpoint", other))
        say(kind, "both |", caller.back(other, 8), "|", caller.back(one, 8))
        say(kind, "both |", exporter.ask("sum", 4), importer.ask("sum", 4))
    except Exception as error:  # noqa: BLE001 - a fact like the others
        say(kind, "between two | broken:", error)
    finally:
        for lines in (exporter, importer):
            if lines is not None:
                lines.end()
        Path(path).unlink(missing_ok=True)


def part_trouble() -> None:
    """Endless kernels, deaths and kills in the middle, no room, stopped targets, short memory."""
    caller = Caller()
    with target("spin") as lines:
        pid = lines.process.pid
        say("endless kernel |", caller.call("Lock", pid, "2000"), "|", caller.call("GetState", pid))
        say("endless kernel |", caller.call("Checkpoint", pid), "|", caller.call("Unlock", pid))
    with target("plain", mib=4096) as lines:
        pid = lines.process.pid
        say("to be killed when checkpointed |", caller.out(pid), "| used", used())
        started = time.monotonic()
        lines.end()
        say(f"killed: gone after {time.monotonic() - started:.2f} s | used", used())
        say("of a dead process |", caller.call("GetState", pid), caller.call("Restore", pid))
    with target("plain", mib=8192) as lines:
        pid = lines.process.pid
        say("dies while it is checkpointed |", caller.call("Lock", pid))
        caller.lines.write(f"Checkpoint {pid}")
        time.sleep(0.7)
        lines.process.kill()
        say("dies meanwhile | the caller hears:", caller.lines.read(8))
        caller.end()
        caller = Caller()
    with target("plain", mib=8192) as lines:
        pid = lines.process.pid
        before = lines.ask("sum")
        say("the caller dies |", caller.call("Lock", pid))
        caller.lines.write(f"Checkpoint {pid}")
        time.sleep(0.7)
        caller.end()
        caller = Caller()
        for _ in range(3):
            say("the caller died |", caller.call("GetState", pid), "| used", used())
            time.sleep(1.5)
        say("the caller died |", caller.back(pid), "|", before, lines.ask("sum"))
        say("the caller died |", caller.call("Unlock", pid), lines.ask("sum"))
    with target("plain", mib=1024) as lines:
        pid = lines.process.pid
        os.kill(pid, 19)
        say("SIGSTOPped target |", caller.call("Lock", pid, seconds=4))
        say("SIGSTOPped target |", caller.call("Checkpoint", pid, seconds=4))
        os.kill(pid, 18)
        say("continued |", caller.call("GetState", pid), caller.call("Restore", pid))
        say("continued |", caller.call("Unlock", pid), lines.ask("sum"))
        say("stop once it is checkpointed |", caller.out(pid))
        os.kill(pid, 19)
        say("stopped |", caller.call("GetState", pid, seconds=4))
        os.kill(pid, 18)
        say("continued |", caller.back(pid), lines.ask("sum"))
    no_room(caller)
    short_of_memory(caller)
    caller.end()


def no_room(caller: Caller) -> None:
    """Restore when another process has taken the memory."""
    free = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()[0]
    with target("plain", mib=4096) as lines:
        pid = lines.process.pid
        say("no room |", caller.out(pid))
        with target("plain", mib=(int(free) - 3000) // 2 * 2):
            say("no room | used", used(), "|", caller.call("Restore", pid))
            say("no room |", caller.call("GetState", pid))
        say("room again |", caller.back(pid), lines.ask("sum"))


def short_of_memory(caller: Caller) -> None:
    """Checkpoint when the target may have no more addresses."""
    with target("plain", mib=4096) as lines:
        pid = lines.process.pid
        status = Path(f"/proc/{pid}/status").read_text()
        size = int(status.split("VmSize:")[1].split()[0]) * 1024
        resource.prlimit(pid, resource.RLIMIT_AS, (size + GIB, resource.RLIM_INFINITY))
        say("RLIMIT_AS 1 GiB above |", caller.out(pid), "|", caller.call("GetState", pid))
        resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        say("lifted |", caller.call("Checkpoint", pid), "|", caller.back(pid), lines.ask("sum"))
        say("lifted |", caller.call("Unlock", pid), lines.ask("sum", 3), lines.process.poll())


def part_speed() -> None:
    """Gigabytes a second out and back, with huge pages and filled pages."""
    for name in ("enabled", "defrag"):
        text = Path(f"/sys/kernel/mm/transparent_hugepage/{name}").read_text().strip()
        say("transparent huge pages:", name, text)
    caller = Caller()
    malloc = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    cases: list[tuple[str, dict[str, str] | None, dict[str, object]]] = [
        ("plain", None, {"mib": 4096}),
        ("100 pieces", None, {"mib": 4096, "pieces": 100}),
        ("huge malloc", malloc, {"mib": 4096}),
        ("8 threads fill", None, {"mib": 4096, "prefault": 8}),
        ("2 threads fill", None, {"mib": 4096, "prefault": 2}),
        ("100 pieces, 8 fill", None, {"mib": 4096, "pieces": 100, "prefault": 8}),
        ("8 threads fill", None, {"mib": 16384, "prefault": 8}),
        ("plain", None, {"mib": 16384}),
    ]
    for name, env, options in cases:
        if time.monotonic() - BEGAN > BUDGET[0] - 22:
            say("no time for", name, options)
            continue
        with target("plain", env, **options) as lines:
            pid = lines.process.pid
            before = lines.ask("sum")
            for _ in range(2):
                size = int(str(options["mib"])) / 1024
                say(name, f"{size:.0f} GiB |", caller.out(pid, 40), "| used", used(), memory(pid))
                for line in largest(pid, 2):
                    say("   ", line)
                say(name, f"{size:.0f} GiB |", caller.back(pid, 40), before == lines.ask("sum"))
    caller.end()


def part_two() -> None:
    """Two GPUs: restore on the other, peer access, NCCL."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    uuids = [
        line.split("UUID: GPU-")[1].strip(")\n ").replace("-", "")
        for line in listed.split("\n")
        if line
    ]
    caller = Caller()
    there, back = uuids[0] + uuids[1], uuids[1] + uuids[0]
    moves = {"the pair alone": (there, back), "both pairs": (there + back, back + there)}
    for env, title in ((None, "sees both"), ({"CUDA_VISIBLE_DEVICES": "0"}, "sees one")):
        for name, pairs in moves.items():
            with target("plain", env, mib=2048) as lines:
                pid = lines.process.pid
                for pair in pairs:
                    say(title, name, "|", caller.out(pid), "| used", used(0), used(1))
                    say(title, name, "|", caller.call("Restore", pid, pair), used(0), used(1))
                    say(title, name, "|", caller.call("GetState", pid), caller.call("Unlock", pid))
                    say(title, name, "|", lines.ask("sum"), lines.ask("more"))
    try:
        with target("peer") as lines:
            round_trip(caller, lines, "peer access")
    except Exception as error:  # noqa: BLE001 - a fact like the others
        say("peer access | broken:", error)
    caller.end()


def nccl(caller: Caller, title: str, env: dict[str, str]) -> None:
    port = str(21000 + os.getpid() % 20000 + len(title))
    ranks = [
        Lines(str(HERE / "suspend_target.py"), "nccl", f"device={i}", f"port={port}", env=env)
        for i in (0, 1)
    ]
    try:
        for each in ranks:
            each.wait_for("ready", 60)
        pids = [each.process.pid for each in ranks]
        for name in ("Lock", "Checkpoint", "Restore", "Unlock"):
            say(title, "|", *[caller.call(name, pid, seconds=6) for pid in pids], used(0), used(1))
        for each in ranks:
            each.write("sum")
        say(title, "|", *[each.read(8) for each in ranks])
    except Exception as error:  # noqa: BLE001 - a fact like the others
        say(title, "| broken:", error)
    finally:
        for each in ranks:
            each.end()


def part_caps() -> None:
    """Try root with few capabilities, and the same user where any may trace."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    say("ptrace_scope", scope.read_text().strip() if scope.exists() else "no Yama")
    sets = {"none": [], "sys_ptrace": [19], "sys_admin": [21], "checkpoint_restore": [40]}
    sets |= {"ptrace, admin": [19, 21], "ptrace, dac_override": [19, 1], "kill": [5]}
    sets["a privileged helper's"] = [7, 6, 0, 3, 1, 5, 21, 18, 19]
    with target("plain", uid=52001, dumpable=0) as lines:
        for name, numbers in sets.items():
            caller = Caller(0, f"caps={sum(1 << number for number in numbers):x}")
            pid = lines.process.pid
            say(f"root with {name} |", caller.first, caller.out(pid), "|", caller.back(pid))
            caller.end()
    same = Caller(52001)
    with target("plain", uid=52001, tracer=1) as lines:
        say("same user, any may trace |", same.out(lines.process.pid))
        say("same user, any may trace |", same.back(lines.process.pid), lines.ask("sum"))
    same.end()
    script = "import sys; sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.read()"
    bare = Lines("-c", script)
    bare.wait_for("ready")
    root = Caller()
    say("without CUDA |", root.call("GetState", bare.process.pid), root.out(bare.process.pid))
    bare.end()
    root.end()


def part_nccl() -> None:
    """Try NCCL between two processes with a GPU each."""
    caller = Caller()
    sockets = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    for title, env in (("sockets", sockets), ("shm", {"NCCL_P2P_DISABLE": "1"}), ("default", {})):
        nccl(caller, f"NCCL, {title}", env)
    caller.end()


PARTS: dict[str, Callable[[], None]] = {
    "who": part_who,
    "kinds": part_kinds,
    "trouble": part_trouble,
    "speed": part_speed,
    "two": part_two,
    "caps": part_caps,
    "nccl": part_nccl,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="+", choices=[*PARTS, "all"])
    parser.add_argument("--budget", type=float, default=95.0)
    arguments = parser.parse_args()
    BUDGET[0] = arguments.budget
    say("memory of the machine:", Path("/proc/meminfo").read_text().split("\n")[0])
    for name in PARTS if "all" in arguments.part else arguments.part:
        say("=====", name, PARTS[name].__doc__)
        try:
            PARTS[name]()
        except Exception:  # noqa: BLE001 - the next part is asked all the same
            traceback.print_exc(file=sys.stdout)


if __name__ == "__main__":
    main()
