"""Whether a confined process moves to another GPU by the driver: facts, printed, as root, 2 GPUs.

Usage: PYTHONPATH=src python tests/gpu/move_probe.py [PART ...] [--budget SECONDS]
with parts of ``confined``, ``failures``, ``training``, ``kinds``, ``speed`` and ``peers``. A
process is locked, checkpointed, restored with pairs of GPUs (old, new) and unlocked. Confined ones
have a private ``/dev`` as a worker has, which shows the node of one GPU alone. Results as in
``suspend_probe.py``.
"""

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suspend_kit import BEGAN, HERE, Caller, Lines, say, used

from gpupool.remoting.host.isolation import worker_mounts

UID = 52001
STEPS = 400
BUDGET = [190.0]
KINDS: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("graph", {}), ("pinned", {}), ("launches", {"mib": 16}), ("vmm", {"export": 1})),
    *(("registered", {"path": "/dev/shm/move-probe"}), ("plain", {"pieces": 100})),
    *(("managed", {}), ("ipc_export", {})),
)


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine."""

    index: int
    uuid: str  # as nvidia-smi writes it
    node: str

    @property
    def bytes(self) -> str:
        return self.uuid.removeprefix("GPU-").replace("-", "")


def gpus() -> list[Gpu]:
    text = subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"GPU UUID\s*: (GPU-\S+)", text)
    minors = re.findall(r"Minor Number\s*: (\d+)", text)
    pairs = zip(found, minors, strict=True)
    return [Gpu(i, uuid, f"/dev/nvidia{minor}") for i, (uuid, minor) in enumerate(pairs)]


GPUS = gpus()
FIRST, OTHER = GPUS[0], GPUS[1]
ALL_NODES = [each.node for each in GPUS]


def pairs(moves: dict[Gpu, Gpu], *, whole: bool = True) -> str:
    """Return GPU pairs for the driver from the moves; ``whole`` completes the permutation."""
    goes = dict(moves)
    if whole:
        left = [gpu for gpu in GPUS if gpu not in goes]
        free = [gpu for gpu in GPUS if gpu not in goes.values()]
        goes |= {gpu: gpu for gpu in left if gpu in free}
        rest = [gpu for gpu in left if gpu not in goes]
        goes |= dict(zip(rest, [gpu for gpu in free if gpu not in goes.values()], strict=True))
    return "".join(old.bytes + new.bytes for old, new in goes.items())


def apps(pid: int) -> list[str]:
    """Return a process's memory by GPU, as NVML counts it."""
    fields = "--query-compute-apps=pid,gpu_uuid,used_memory"
    command = ["nvidia-smi", fields, "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    rows = [line.split(", ") for line in text.splitlines() if line.startswith(f"{pid},")]
    names = {gpu.uuid: f"GPU {gpu.index}" for gpu in GPUS}
    return [f"{names.get(uuid, uuid)}: {size} MiB" for _, uuid, size in rows] or ["nothing"]


def opened(pid: int) -> dict[str, int]:
    """Return the GPUs' device nodes that a process holds open, and how often."""
    found: dict[str, int] = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            name = os.readlink(path)
            if name.startswith("/dev/nvidia"):
                found[name] = found.get(name, 0) + 1
    return found


@contextlib.contextmanager
def process(
    kind: str, hidden: list[str] | None, visible: str = FIRST.uuid, **options: object
) -> Generator[Lines]:
    """Start a target; with ``hidden`` nodes it is confined, and does not see these."""
    words = {f"{name}={value}" for name, value in options.items()}
    if hidden is not None:
        words |= {f"uid={UID}", "confined=1", "waits=1"}
    env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": visible}
    env |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUDA_CACHE_DISABLE": "1"}
    env |= {"HOME": "/dev/shm", "TMPDIR": "/dev/shm", "USER": "probe"}
    lines = Lines(str(HERE / "suspend_target.py"), kind, *sorted(words), env=env)
    try:
        if hidden is not None:
            lines.wait_for("waits")
            worker_mounts.narrow(lines.process.pid, hidden, None)
            lines.write("go")
        lines.wait_for("ready", 60)
        yield lines
    finally:
        lines.end()


def restore(caller: Caller, pid: int, tries: dict[str, str], title: str) -> str:
    """Try to restore in several ways, one after another; return the way that worked."""
    for name, each in tries.items():
        more = (each,) if each else ()
        answer = caller.call("Restore", pid, *more, seconds=30)
        say(title, "| restore,", name, "|", answer, "|", caller.call("GetState", pid))
        if answer.startswith("Restore: 0 "):
            return name
    return ""


def facts(title: str, caller: Caller, lines: Lines) -> None:
    pid = lines.process.pid
    say(title, "|", caller.call("Unlock", pid), "|", lines.ask("sum"), "|", lines.ask("more"))
    say(title, "|", lines.ask("who"), "| NVML", apps(pid), "| open", opened(pid))


def confined(
    caller: Caller, title: str, at_start: list[str] | None, add: str, later: list[str]
) -> None:
    """Move one confined process to the other GPU and back."""
    with process("plain", at_start, mib=1024) as lines:
        pid = lines.process.pid
        say(title, "| before", lines.ask("sum"), lines.ask("who"), apps(pid), opened(pid))
        if later:
            worker_mounts.narrow(pid, later, None)
        if add == "lock":
            worker_mounts.widen(pid, [OTHER.node])
        say(title, "|", caller.out(pid), "| NVML", apps(pid), "| open", opened(pid))
        if add == "restore":
            worker_mounts.widen(pid, [OTHER.node])
        tries = {
            "all pairs": pairs({FIRST: OTHER}),
            "the pair alone": pairs({FIRST: OTHER}, whole=False),
            "its own, as it was": pairs({FIRST: FIRST}),
            "no pairs": "",
        }
        way = restore(caller, pid, tries, title)
        facts(f"{title}, by {way}", caller, lines)
        if way not in ("all pairs", "the pair alone"):
            return
        if add or later:
            worker_mounts.narrow(pid, [FIRST.node], None)
        facts(f"{title}, old node hidden", caller, lines)
        say(title, "again |", caller.out(pid), "|", caller.back(pid), lines.ask("sum"), apps(pid))
        if add or later:
            worker_mounts.widen(pid, [FIRST.node])
        say(title, "home |", caller.out(pid))
        whole = way == "all pairs"
        home = {way: pairs({OTHER: FIRST}, whole=whole)}
        if restore(caller, pid, home, f"{title} home"):
            facts(f"{title} home", caller, lines)


def part_confined() -> None:
    """Try a private /dev with one GPU's node, with both, and with the other's node added."""
    caller = Caller()
    other = [each.node for each in GPUS if each is not FIRST]
    none: list[str] = []
    cases: tuple[tuple[str, list[str] | None, str, list[str]], ...] = (
        ("not confined", None, "", none),
        ("all nodes", none, "", none),
        ("one node, the other's added before the restore", other, "restore", none),
        ("one node, the other's added before the lock", other, "lock", none),
        ("one node, nothing added", other, "", none),
        ("all nodes, later hidden, added before the restore", none, "restore", other),
        ("all nodes, later hidden, nothing added", none, "", other),
    )
    for title, at_start, add, later in cases:
        try:
            confined(caller, title, at_start, add, later)
        except Exception as error:  # noqa: BLE001 - the next case is asked all the same
            say(title, "| broken:", error)
    caller.end()


def part_failures() -> None:
    """Try GPUs that do not exist, and one without room; then the old one."""
    caller = Caller()
    home = {"no pairs": ""}
    back = home | {"its own, as it was": pairs({FIRST: FIRST})}
    unknown = Gpu(9, "GPU-" + "1" * 32, "")
    with process("plain", None, mib=512) as lines:
        say("unknown GPU |", caller.out(lines.process.pid))
        tries = {"to an unknown GPU": pairs({FIRST: unknown}, whole=False)} | back
        restore(caller, lines.process.pid, tries, "unknown GPU")
        facts("unknown GPU", caller, lines)
    with process("plain", None, mib=4096) as lines:
        pid = lines.process.pid
        say("no room there |", caller.out(pid))
        fields = ["--query-gpu=memory.free", "--format=csv,noheader,nounits"]
        text = subprocess.run(["nvidia-smi", *fields], capture_output=True, text=True, check=False)
        free = int(text.stdout.split()[OTHER.index])
        with process("plain", None, OTHER.uuid, mib=(free - 3000) // 2 * 2):
            tries = {"all pairs": pairs({FIRST: OTHER})} | back
            say("no room there | used", used(0), used(1))
            restore(caller, pid, tries, "no room there")
            facts("no room there", caller, lines)
    caller.end()


def part_training() -> None:
    """Move a training of PyTorch three times in mid-run; compare it with an undisturbed one."""
    caller = Caller()
    other = [each.node for each in GPUS if each is not FIRST]
    options: dict[str, Any] = {"mib": 512, "steps": STEPS}
    with (
        process("training", None, **options) as quiet,
        process("training", other, **options) as run,
    ):
        pid, at = run.process.pid, FIRST
        for turn in range(3):
            time.sleep(1.5)
            to = OTHER if at is FIRST else FIRST
            worker_mounts.widen(pid, [to.node])
            say("training |", caller.out(pid), apps(pid))
            tries = {"all pairs": pairs({at: to}), "no pairs": ""}
            way = restore(caller, pid, tries, f"training, move {turn + 1}")
            say("training |", caller.call("Unlock", pid), apps(pid))
            if way == "all pairs":
                worker_mounts.narrow(pid, [at.node], None)
                at = to
        native, moved = quiet.ask("sum", 60), run.ask("sum", 60)
        say("training | undisturbed", native, "| moved", moved, "| the same:", native == moved)
    caller.end()


def part_kinds() -> None:
    """Move one kind of memory or object after another, there and back, not confined."""
    caller = Caller()
    for kind, options in KINDS:
        if "path" in options:
            Path(str(options["path"])).write_bytes(b"\1" * (64 << 20))
        try:
            words: dict[str, Any] = {"mib": 64} | options
            with process(kind, None, **words) as lines:
                pid = lines.process.pid
                say(kind, "| before", lines.ask("sum"))
                for moves in ({FIRST: OTHER}, {OTHER: FIRST}):
                    say(kind, "|", caller.out(pid))
                    restore(caller, pid, {"all pairs": pairs(moves), "no pairs": ""}, kind)
                    say(kind, "|", caller.call("Unlock", pid), lines.ask("sum"), apps(pid))
        except Exception as error:  # noqa: BLE001 - the next kind is asked all the same
            say(kind, "| broken:", error)
    Path("/dev/shm/move-probe").unlink(missing_ok=True)
    caller.end()


def part_speed() -> None:
    """Move 16 GiB there and back."""
    caller = Caller()
    size = 16384 if BUDGET[0] - (time.monotonic() - BEGAN) > 50 else 8192
    with process("plain", None, mib=size) as lines:
        pid = lines.process.pid
        for moves in ({FIRST: OTHER}, {OTHER: FIRST}):
            began = time.monotonic()
            say("speed |", caller.out(pid, 40))
            middle = time.monotonic()
            restore(caller, pid, {"all pairs": pairs(moves), "no pairs": ""}, "speed")
            rates = [(size << 20) / 1e9 / s for s in (middle - began, time.monotonic() - middle)]
            say(f"speed | {size >> 10} GiB: out {rates[0]:.2f} GB/s, back {rates[1]:.2f} GB/s")
            say("speed |", caller.call("Unlock", pid), lines.ask("sum"), apps(pid))
    caller.end()


def part_peers() -> None:
    """Exchange the two GPUs of one process that has access between them; turn round three."""
    caller = Caller()
    with process("peer", None, ",".join(each.uuid for each in GPUS), mib=256) as lines:
        pid = lines.process.pid
        say("two GPUs | before", lines.ask("sum"), apps(pid), caller.out(pid))
        tries = {"exchanged": pairs({FIRST: OTHER, OTHER: FIRST}), "no pairs": ""}
        restore(caller, pid, tries, "two GPUs")
        facts("two GPUs", caller, lines)
    if len(GPUS) > 2:
        with process("plain", None, mib=512) as lines:
            pid = lines.process.pid
            for old, new in ((0, 1), (1, 2), (2, 0)):
                say("three GPUs |", caller.out(pid))
                moves = {GPUS[old]: GPUS[new]}
                restore(caller, pid, {"all pairs": pairs(moves)}, f"three GPUs, {old} to {new}")
                facts("three GPUs", caller, lines)
    caller.end()


PARTS: dict[str, tuple[float, Callable[[], None]]] = {
    "confined": (0, part_confined),
    "failures": (20, part_failures),
    "training": (40, part_training),
    "kinds": (35, part_kinds),
    "speed": (30, part_speed),
    "peers": (12, part_peers),
}
"""Each with the seconds that it needs at least."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--budget", type=float, default=BUDGET[0])
    arguments = parser.parse_args()
    BUDGET[0] = arguments.budget
    say(*GPUS, "kernel", os.uname().release)
    for name in arguments.part or PARTS:
        needs, part = PARTS[name]
        if time.monotonic() - BEGAN > BUDGET[0] - needs:
            say("no time for", name)
            continue
        say("=====", name, part.__doc__)
        try:
            part()
        except Exception:  # noqa: BLE001 - the next part is asked all the same
            traceback.print_exc(file=sys.stdout)


if __name__ == "__main__":
    main()
