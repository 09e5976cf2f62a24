"""Resources that code in a worker can use up: memory, processes, files."""

import errno
import os
import resource
import signal
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from host_kit import MakeHost
from test_worker_confinement import as_root
from test_worker_reach import ALL, attack

from gpupool.pool.model.ids import LeaseId
from gpupool.remoting.host import host_memory, orphan_reaper
from gpupool.remoting.host.host_parts import HostLimits, HostParts
from gpupool.remoting.host.isolation import lease_cgroups, users
from gpupool.remoting.host.isolation.lease_cgroups import LeaseCgroups, own_group
from gpupool.remoting.host.measuring import worker_files
from gpupool.remoting.host.memory_watchdog import MemoryWatchdog
from gpupool.remoting.host.worker_handle import WorkerSession
from gpupool.remoting.host.worker_helper import HelperSettings, WorkerHelper
from gpupool.remoting.protocol import helper_messages
from gpupool.remoting.worker import sandbox

pytestmark = pytest.mark.long  # CI runs these as root

MIB, GIB = 1 << 20, 1 << 30
MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "41 31 0:38 {root} /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n"
)
MADE_UP = "41 31 0:38 / {place} rw,relatime shared:9 - cgroup2 cgroup2 rw\n"


# --- memory -------------------------------------------------------------------------------------


async def test_a_call_cannot_make_far_more_than_the_partition_has(make_host: MakeHost) -> None:
    """A session of a lease of 64 MiB took 2.3 GiB, none of which was charged."""
    kit = await make_host()
    client, _ = await kit.connect(kit.lease(memory=64 * MIB))
    make = (
        "import numpy\n"
        "try:\n    answer = {call}.size\n"
        "except MemoryError:\n    answer = 'no memory'"
    )
    assert await attack(client, make.format(call="numpy.arange(8 << 20)")) == str(8 << 20)
    for call in (
        "numpy.arange(300_000_000)",
        "numpy.outer(numpy.arange(20_000), numpy.arange(20_000))",
        "numpy.kron(numpy.ones(20_000), numpy.ones(20_000))",
        "numpy.tile(numpy.ones(1000), 400_000)",
    ):
        assert await attack(client, make.format(call=call)) == "no memory", call
    peak = await attack(
        client,
        "answer = next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1]",
    )
    assert int(peak) * 1024 < GIB


def test_memory_in_swap_is_memory_of_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with swap, swapped memory was counted by nobody."""
    fields = {"VmRSS": 99, "RssAnon": 10, "RssFile": 80, "RssShmem": 9, "VmSwap": 500}

    def read(_path: Path, **_how: object) -> str:
        return "".join(f"{name}:\t{size:8} kB\n" for name, size in fields.items())

    monkeypatch.setattr(Path, "read_text", read)
    assert host_memory.resident(7) == 519 * 1024


def test_no_lease_has_more_of_a_small_machine_than_a_quarter() -> None:
    assert host_memory.floor(1 << 40, 16 * GIB, 2 * GIB) == 18 * GIB
    assert host_memory.floor(24 * GIB, 16 * GIB, GIB) == 7 * GIB


async def test_a_worker_writes_no_endless_file(make_host: MakeHost) -> None:
    kit = await make_host()
    client, _ = await kit.connect(kit.lease())
    code = "os.truncate(os.memfd_create('x'), {size})\nanswer = 'made'"
    assert await attack(client, code.format(size=1 << 30)) == "made"
    assert await attack(client, code.format(size=1 << 40)) == "EFBIG"


async def test_a_worker_has_bounds_of_its_own(make_host: MakeHost) -> None:
    kit = await make_host()
    client, _ = await kit.connect(kit.lease())
    code = "import resource as r\nanswer = str(r.getrlimit(r.RLIMIT_{})[1])"
    most = min(sandbox.DESCRIPTOR_COUNT_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    assert await attack(client, code.format("CORE")) == "0"
    assert await attack(client, code.format("NOFILE")) == str(most)
    if os.geteuid() == 0:  # with a uid of its own
        assert await attack(client, code.format("NPROC")) == str(sandbox.PROCESS_COUNT_MAX)


@pytest.mark.parametrize("own_uids", [True, False])
async def test_the_kernel_kills_a_worker_before_its_server_when_memory_runs_out(
    make_host: MakeHost, *, own_uids: bool
) -> None:
    kit = await make_host(own_uids=own_uids)
    client, worker = await kit.connect(kit.lease())
    score = trio.Path(f"/proc/{worker.process.pid}/oom_score_adj")
    assert await score.read_text() == "500\n"
    if "landlock" not in kit.host.confinement():
        pytest.skip("an ordinary user's worker may take it back without Landlock")
    back = (
        "ctypes.CDLL(None).prctl(4, 1)\nfile = os.open('/proc/self/oom_score_adj', os.O_WRONLY)\n"
        "answer = os.write(file, b'0')"
    )
    assert await attack(client, back) == "EACCES"


FILL = "os.chdir(os.environ['TMPDIR'])\nwith open('f', 'wb') as out: out.write(bytes({size}))\n"


async def test_a_worker_is_killed_whose_files_take_too_much(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could fill the file system of the workers' directories, which ends all other workers."""
    deletes = os.geteuid() == 0  # who else cannot see what a worker holds open
    monkeypatch.setattr(worker_files, "GROWTH_MIN", 0)
    kit = await make_host(limits=HostLimits(files=8 * MIB, sample_interval_s=0.05))
    client, _ = await kit.connect(kit.lease())
    assert await attack(client, FILL.format(size=4 * MIB) + "answer = 'written'") == "written"
    for _ in range(3):  # it is measured and lives
        await trio.sleep(0.05)
        assert await client.ask(b"e", b"here") == b"here"
    code = (
        "import os\nkept = os.open('g', os.O_RDWR | os.O_CREAT)\n"
        f"os.write(kept, bytes({6 * MIB}))\n" + "os.unlink('g')\n" * deletes + "answer = ''"
    )
    await client.send(b"x", code.encode())
    # It may be seen while it writes.
    await kit.logged("on this server, and may take 8 MiB")


def test_the_worker_with_the_most_files_is_killed_when_the_disk_is_nearly_full() -> None:
    """The disk's free space did not count, nor did the files of several leases together."""
    killed: list[tuple[int, str]] = []

    def worker(number: int) -> SimpleNamespace:
        def kill(reason: str) -> None:
            killed.append((number, reason))

        return SimpleNamespace(session=WorkerSession(lease=LeaseId(number)), kill=kill)

    parts: Any = {1: worker(1), 2: worker(2)}
    nothing: Any = None
    host = HostParts(nothing, nothing, nothing, HostLimits(), nothing, nothing)
    watchdog: Any = MemoryWatchdog(host, parts, note_use=nothing)

    def seen(left: int, **sizes: int) -> list[tuple[int, str]]:
        found = {int(name[1:]): size * MIB for name, size in sizes.items()}
        watchdog._watch_files(helper_messages.Files(found, 700 * MIB, {}, left * MIB))
        return killed

    assert seen(9, w1=2, w2=2) == []  # 5 MiB are lacking, which others have filled
    assert [number for number, _ in seen(9, w1=2, w2=4)] == [2]
    assert "the most on this server, whose disk has 9 MiB left" in killed[0][1]
    assert len(seen(9, w1=6, w2=4)) == 1  # until the files of that one are gone
    assert len(seen(9, w1=2)) == 1
    assert [number for number, _ in seen(13, w1=2)] == [2, 1]


def test_a_small_file_system_has_a_smaller_part_that_is_kept_free() -> None:
    assert worker_files.lacking(100 << 30, 1 << 30) == 0
    assert worker_files.lacking(100 << 30, 1 << 29) == 1 << 29
    assert worker_files.lacking(700 * MIB, 0) == 14 * MIB
    assert worker_files.lacking(700 * MIB, 20 * MIB) == 0


def test_what_is_nested_or_numerous_beyond_all_use_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "large").write_bytes(bytes(MIB))
    plain = tmp_path / "plain"
    for number in range(40):
        (plain / f"d{number}").mkdir(parents=True)
    (plain / "file").write_bytes(bytes(MIB))
    (plain / "link").symlink_to(tmp_path / "elsewhere")
    (plain / "same").hardlink_to(plain / "file")
    assert MIB <= worker_files.looked(plain)[0] <= MIB + 50 * worker_files.ENTRY_SIZE
    assert worker_files.looked(tmp_path / "missing")[0] == 0
    monkeypatch.setattr(worker_files, "ENTRY_COUNT_MAX", 41)
    assert worker_files.looked(plain)[0] >= worker_files.UNSEEN_SIZE
    deep = tmp_path / "deep"
    deep.joinpath(*["d"] * (worker_files.DEPTH_MAX + 1)).mkdir(parents=True)
    assert worker_files.looked(deep)[0] >= worker_files.UNSEEN_SIZE


def test_nothing_is_walked_while_the_disk_hardly_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[Path] = []

    def looked(path: Path) -> tuple[int, int]:
        walked.append(path)
        return 5, 1

    used = 100

    def statvfs(_path: Path) -> SimpleNamespace:
        return SimpleNamespace(
            f_blocks=10_000,
            f_bfree=10_000 - used,
            f_bavail=9_000,
            f_frsize=MIB,
            f_files=9,
            f_ffree=9,
        )

    monkeypatch.setattr(worker_files, "looked", looked)
    monkeypatch.setattr(os, "statvfs", statvfs)
    files = worker_files.WorkerFiles(tmp_path)
    place = worker_files.Place(3, (tmp_path,))
    for used, walks in ((100, 1), (163, 1), (164, 2), (10, 2), (73, 2), (74, 3)):
        assert files.measure([place], {}) == ({3: 5}, 10_000 * MIB, 9_000 * MIB)
        assert len(walked) == walks, used
    # What was deleted since had a name at the walk.
    assert files.measure([place], {3: 4})[0] == {3: 5}
    assert files.measure([place], {3: 7})[0] == {3: 7}
    for _ in range(worker_files.WALKS_SKIPPED_MAX - 1):
        files.measure([place], {3: 4})
    assert files.measure([place], {})[0] == {3: 9}
    assert len(walked) == 4


def test_walks_take_turns_and_no_more_than_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight workers with many files kept a helper busy, and everybody's sessions waited for it."""
    now, walked = 0.0, list[str]()

    def looked(path: Path) -> tuple[int, int]:
        nonlocal now
        walked.append(path.name)
        now += 0.25 if path.name.startswith("m") else 0.001
        return 7, 3

    monkeypatch.setattr(worker_files, "looked", looked)
    monkeypatch.setattr(worker_files.time, "thread_time", lambda: now)

    def has_grown(_self: object) -> bool:
        return True

    monkeypatch.setattr(worker_files._FileSystem, "has_grown", has_grown)  # pyright: ignore[reportPrivateUsage]
    files = worker_files.WorkerFiles(tmp_path)
    places = [
        worker_files.Place(number, (tmp_path / f"m{number}",), -1, 1, "mallory")
        for number in range(8)
    ]
    places.append(worker_files.Place(8, (tmp_path / "ada",), -1, 2, "ada"))
    for _ in range(60):
        files.measure(places, {})
    # Each second all of them have grown; a tenth of each measurement is what walks may take.
    assert now <= 60 * worker_files.WALK_S + 0.25
    assert {f"m{number}" for number in range(8)} < set(walked)
    first, *later = [at for at, name in enumerate(walked) if name == "ada"]
    assert first <= 1, "a user waits for one walk of each other user, and not for each worker"
    assert max(b - a for a, b in zip([first, *later], later, strict=False)) <= 2
    assert files.measure(places, {})[0] == dict.fromkeys(range(9), 7)


def test_the_workers_of_a_lease_have_so_many_files_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        for name in range(3):
            (tmp_path / str(number) / str(name)).touch()
    places = [
        worker_files.Place(number, (tmp_path / str(number),), -1, lease, "ada")
        for number, lease in enumerate((7, 7, 8))
    ]
    monkeypatch.setattr(worker_files, "LEASE_ENTRY_COUNT_MAX", 6)
    sizes, *_ = worker_files.WorkerFiles(tmp_path).measure(places, {})
    assert max(sizes.values()) < worker_files.UNSEEN_SIZE
    monkeypatch.setattr(worker_files, "LEASE_ENTRY_COUNT_MAX", 5)
    sizes, *_ = worker_files.WorkerFiles(tmp_path).measure(places, {})
    assert [sizes[number] >= worker_files.UNSEEN_SIZE for number in range(3)] == [True, True, False]


IN_SHARED_MEMORY = """
name = f'/dev/shm/gpupool-test-{os.getpid()}'
kept = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
for _ in range(20):
    os.write(kept, bytes(4 << 20))
os.close(kept)
answer = 'written'
"""


@as_root
@pytest.mark.parametrize("left_out", [{"cgroup"}, {"cgroup", "shared-memory"}])
async def test_files_in_shared_memory_count_for_their_lease(
    make_host: MakeHost, left_out: set[str]
) -> None:
    """In the machine's own they counted nowhere, and in a lease's own only twice a minute."""
    limits = HostLimits(files=8 * MIB, sample_interval_s=1.0)
    kit = await make_host(limits=limits, confine=ALL - left_out)
    client, worker = await kit.connect(kit.lease())
    await trio.sleep(2.5)  # the first measurement walks in any case
    await client.send(b"x", f"import os{IN_SHARED_MEMORY}".encode())
    with trio.fail_after(10):
        await kit.logged("on this server, and may take 8 MiB")
        await worker.ended.wait()


@as_root
def test_files_in_shared_memory_count_for_who_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other, nobody = 52_001, 52_002, 52_003
    users_here = {mine, other, 52_004}
    places = {mine: tmp_path / "file", other: tmp_path / "folder" / "file"}
    places[other].parent.mkdir()
    for user, path in places.items():
        path.write_bytes(bytes(MIB))
        os.chown(path, user, user)
    (tmp_path / "link").symlink_to("/usr")
    os.chown(tmp_path / "link", mine, mine, follow_symlinks=False)
    found = worker_files.sizes_by_user(tmp_path, users_here)
    assert MIB <= found[mine] <= MIB + 2 * worker_files.ENTRY_SIZE
    assert MIB <= found[other] <= MIB + worker_files.ENTRY_SIZE
    assert found[52_004] == 0
    # The folder of one that nests too deep, or has too much; others are not to suffer.
    deep = tmp_path.joinpath("folder", *["d"] * (worker_files.DEPTH_MAX + 1))
    deep.mkdir(parents=True)
    for path in (tmp_path / "folder").rglob("d"):
        os.chown(path, other, other)
    found = worker_files.sizes_by_user(tmp_path, users_here)
    assert found[mine] < worker_files.UNSEEN_SIZE <= found[other] < 2 * worker_files.UNSEEN_SIZE
    for number in range(60):
        (tmp_path / f"of-nobody-{number}").touch()
        os.chown(tmp_path / f"of-nobody-{number}", nobody, nobody)
    monkeypatch.setattr(worker_files, "SHARED_ENTRY_COUNT_MAX", 50)
    assert worker_files.sizes_by_user(tmp_path, {mine})[mine] < worker_files.UNSEEN_SIZE
    assert worker_files.sizes_by_user(tmp_path, {mine, nobody})[nobody] >= worker_files.UNSEEN_SIZE


# --- control groups -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("root", "membership", "found"),
    [
        ("/", "0::/system.slice/gpupool.service\n", "system.slice/gpupool.service"),
        ("/", "9:name=systemd:/\n0::/\n", ""),
        ("/box", "0::/box/inner\n", "inner"),
        ("/box", "0::/other\n", None),
        ("/", "0::/../..\n", None),
        ("/", "4:memory:/x\n", None),
    ],
)
def test_the_own_control_group_is_found(root: str, membership: str, found: str | None) -> None:
    expected = None if found is None else Path("/sys/fs/cgroup/unified") / found
    assert own_group(MOUNTS.format(root=root), membership) == expected
    assert own_group("", membership) is None


def test_a_lease_is_bounded_where_the_controllers_are_ours(tmp_path: Path) -> None:
    groups = LeaseCgroups(tmp_path, frozenset({"memory", "pids"}))
    first, second, other = [groups.hold(pid) for pid in (11, 12, 13)]
    assert first is not None
    assert second is not None
    assert other is not None
    assert (first.path / "cgroup.procs").read_text() == "11"
    groups.join(LeaseId(7), first, 5 * GIB)
    lease = first.path.parent
    assert (lease / "memory.max").read_text() == str(5 * GIB)
    assert (lease / "pids.max").read_text() == str(lease_cgroups.TASK_COUNT_MAX)
    # What goes to the disk of a machine with swap is bounded, too.
    assert (lease / "memory.swap.max").read_text() == str(5 * GIB)
    # The second worker of the lease goes where the first one is, and that of another does not.
    groups.join(LeaseId(7), second, 6 * GIB)
    assert second.path.parent == lease
    assert (second.path / "cgroup.procs").read_text() == "12"
    assert (lease / "memory.max").read_text() == str(6 * GIB)
    groups.join(LeaseId(8), other, GIB)
    assert other.path.parent != lease
    assert not first.ran_out_of_memory()
    (lease / "memory.events").write_text("low 0\nmax 4\noom 1\noom_kill 1\n")
    assert first.ran_out_of_memory()


def test_a_controller_that_is_refused_keeps_no_other_from_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses that of the processors where a real-time process runs."""
    own = tmp_path / "unit"
    own.mkdir()
    (own / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    handed: list[tuple[Path, str]] = []

    def write(path: Path, word: str) -> None:
        if word == "+cpu":
            raise OSError(errno.EINVAL, "Invalid argument")
        handed.append((path.parent, word))

    monkeypatch.setattr(Path, "write_text", write)
    groups = make_groups(own)
    assert groups.controllers == {"memory", "pids"}
    (base,) = own.glob("gpupool-[0-9]*")
    assert handed == [(group, word) for group in (own, base) for word in ("+memory", "+pids")]


def make_groups(own: Path) -> LeaseCgroups:
    """Make the groups of a server with this folder as its group."""
    mounts, membership = own.with_name("mounts"), own.with_name("membership")
    with mounts.open("w") as out:
        out.write(MADE_UP.format(place=own.parent))
    with membership.open("w") as out:
        out.write(f"0::/{own.name}\n")
    made = LeaseCgroups.make(mounts, membership)
    assert made is not None
    return made


def test_leases_have_groups_beside_that_of_a_server_which_shares_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a terminal's session the shell is in the server's group: root's leases had no bounds."""
    own = tmp_path / "user.slice" / "session-1.scope"
    own.mkdir(parents=True)
    for group, names in ((own, "memory pids"), (own.parent, "cpu memory pids")):
        (group / "cgroup.controllers").write_text(names + "\n")
        (group / "cgroup.type").write_text("domain\n")
        (group / "cgroup.procs").touch()
    (own / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
    handed: list[tuple[Path, str]] = []

    def write(path: Path, word: str) -> None:
        if path.parent == own:
            raise OSError(errno.EBUSY, "Device or resource busy")
        handed.append((path.parent, word))

    monkeypatch.setattr(Path, "write_text", write)
    groups = make_groups(own)
    assert groups.controllers == {"memory", "pids"}
    (base,) = own.parent.glob("gpupool-[0-9]*")
    # The others there go on sharing the processors as they did.
    wanted = [(group, word) for group in (own.parent, base) for word in ("+memory", "+pids")]
    assert handed == wanted
    groups.close()
    assert not base.exists()


def test_a_group_hands_controllers_down_once_it_has_no_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel let it hand down two of them at once, and then no worker could be moved there."""
    own = tmp_path / "unit"
    own.mkdir()
    procs = own / "cgroup.procs"
    (own / "cgroup.controllers").write_text("cpu memory pids\n")
    (own / "cgroup.type").write_text("domain\n")
    procs.write_text(f"{os.getpid()}\n")
    handed: list[Path] = []

    def write(path: Path, word: str) -> None:
        if path.name == "cgroup.procs":
            assert word == str(os.getpid())
            procs.open("w").close()
        else:
            assert not procs.read_text()
            handed.append(path.parent)

    monkeypatch.setattr(Path, "write_text", write)
    assert make_groups(own).controllers == {"cpu", "memory", "pids"}
    assert handed[:3] == [own] * 3
    assert (own / "gpupool-server").is_dir()


def test_leases_have_groups_without_bounds_where_the_one_above_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "user.slice" / "session-1.scope"
    own.mkdir(parents=True)
    for group in (own, own.parent):
        (group / "cgroup.controllers").write_text("memory pids\n")
    (own / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")

    make = tempfile.mkdtemp

    def write(path: Path, _word: str) -> None:
        if path.parent == own:
            raise OSError(errno.EBUSY, "Device or resource busy")

    def make_where_allowed(*, prefix: str, dir: Path) -> str:  # noqa: A002 - as it is called
        if dir == own.parent:
            raise PermissionError
        return make(prefix=prefix, dir=dir)

    monkeypatch.setattr(Path, "write_text", write)
    monkeypatch.setattr(tempfile, "mkdtemp", make_where_allowed)
    assert not make_groups(own).controllers
    assert len(list(own.glob("gpupool-[0-9]*"))) == 1
    assert not list(own.parent.glob("gpupool-[0-9]*"))


def test_controllers_are_not_taken_from_a_group_with_others_processes(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
    with pytest.raises(OSError, match="others"):
        lease_cgroups._move_down(tmp_path)  # pyright: ignore[reportPrivateUsage]
    # A privileged helper's server is no other.
    lease_cgroups._move_down(tmp_path, {1})  # pyright: ignore[reportPrivateUsage]
    moved = (tmp_path / "gpupool-server" / "cgroup.procs").read_text()
    assert moved in {"1", str(os.getpid())}


def test_what_a_helper_has_started_is_moved_with_it(tmp_path: Path) -> None:
    """Under systemd its signer was taken for another program, so no lease had bounds."""
    words = ["/bin/sh", "-c", "sleep 300 & echo $!; wait"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, process_group=0) as signer:
        assert signer.stdout is not None
        below = int(signer.stdout.readline())
        procs = tmp_path / "cgroup.procs"
        procs.write_text(f"{os.getpid()}\n{signer.pid}\n{below}\n")
        lease_cgroups._move_down(tmp_path)  # pyright: ignore[reportPrivateUsage]
        os.killpg(signer.pid, signal.SIGKILL)
    moved = int((tmp_path / "gpupool-server" / "cgroup.procs").read_text())
    assert moved in {os.getpid(), signer.pid, below}


@pytest.fixture
def groups() -> LeaseCgroups:
    made = LeaseCgroups.make()
    if made is None:
        pytest.skip("no control group of version 2 can be made here")
    return made


def test_killing_a_group_kills_all_in_it_and_no_sibling(groups: LeaseCgroups) -> None:
    words = ["/bin/sh", "-c", "read go; sleep 300 >/dev/null & echo $!; sleep 300"]
    with (
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        subprocess.Popen(["/bin/sleep", "300"]) as other,
    ):
        group, sibling = groups.hold(process.pid), groups.hold(other.pid)
        assert group is not None
        assert sibling is not None
        for each in (group, sibling):
            groups.join(LeaseId(1), each, GIB)
        assert group.path.parent == sibling.path.parent
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
        child = int(process.stdout.readline())
        process.kill()  # before its child
        killed = group.kill()
        if not killed and not (group.path / "cgroup.kill").exists():
            os.kill(child, signal.SIGKILL)
            other.kill()
            pytest.skip("this kernel kills no groups")
        assert killed
        assert not group.path.exists()
        assert orphan_reaper.start_time_of(child) is None
        assert other.poll() is None
        assert sibling.kill()
        groups.close()
        assert not sibling.path.parents[1].exists()


TAKE = """
import os
while True: os.write(os.memfd_create("x"), bytes(16 << 20))
"""


async def test_the_kernel_kills_a_worker_that_takes_more_than_its_lease_may_have(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "machine_memory", lambda: GIB)
    limits = HostLimits(host_memory=64 * MIB, host_memory_each=128 * MIB, sample_interval_s=600)
    kit = await make_host(limits=limits)
    client, worker = await kit.connect(kit.lease(memory=64 * MIB))
    other, _ = await kit.connect(kit.lease(2))
    if "memory-limit" not in kit.host.confinement():
        pytest.skip("no control group that bounds memory can be made here")
    group = kit.kept(worker).group
    assert group is not None
    most = int((group.path.parent / "memory.max").read_text())
    assert 3 * 64 * MIB < most < GIB
    await client.send(b"x", TAKE.encode())
    await kit.logged("its lease used all of this server's memory that it may have")
    assert not group.path.parent.exists()
    assert await other.ask(b"e", b"x") == b"x"


async def test_a_lease_has_no_more_processes_than_its_group_may_have(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_cgroups, "TASK_COUNT_MAX", 64)
    kit = await make_host()
    client, worker = await kit.connect(kit.lease())
    other, _ = await kit.connect(kit.lease(2))
    if "pids-limit" not in kit.host.confinement():
        pytest.skip("no control group that bounds processes can be made here")
    code = (
        "import subprocess\n"
        "for answer in range(100): subprocess.Popen(['/bin/sleep', '300'], process_group=0)"
    )
    # Where vfork(2) fails, Python tries fork(2), which the filter forbids.
    assert await attack(client, code) in {"EAGAIN", "EPERM"}
    group = kit.kept(worker).group
    assert group is not None
    assert "max 0" not in (group.path.parent / "pids.events").read_text()
    assert int(await other.ask(b"c")) > 0


@as_root
async def test_what_a_worker_started_dies_with_it_by_its_group(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans: list[int] = []

    def scan(uid: int, _running: object = ()) -> bool:
        scans.append(uid)
        return False

    kit = await make_host()
    client, worker = await kit.connect(kit.lease())
    other, _ = await kit.connect(kit.lease())
    if "control-group" not in kit.host.confinement():
        pytest.skip("no control group of version 2 can be made here")
    monkeypatch.setattr(users, "kill_processes_of", scan)
    child, orphan = int(await client.ask(b"c")), int(await client.ask(b"O"))
    group = kit.kept(worker).group
    assert group is not None
    inside = {int(pid) for pid in (group.path / "cgroup.procs").read_text().split()}
    assert inside == {worker.process.pid, child, orphan}
    os.kill(worker.process.pid, signal.SIGKILL)
    with trio.fail_after(10):
        await worker.ended.wait()
    assert [orphan_reaper.start_time_of(pid) for pid in (child, orphan)] == [None, None]
    assert not scans
    assert not group.path.exists()
    assert await other.ask(b"e", b"x") == b"x"
    # No worker gets out of its group.
    top = group.path.parents[2] / "cgroup.procs"
    assert await attack(other, f"open({str(top)!r}, 'w').write('0')") == "EACCES"


def test_files_are_measured_no_more_once_the_helper_has_closed(tmp_path: Path) -> None:
    """A measurement that began while a server stopped ended the server with a traceback."""
    said: list[str] = []
    helper = WorkerHelper(HelperSettings(tmp_path, None, own_uids=False), said.append)
    helper.carry_out(helper_messages.Open(False, None), ())
    files, _ = helper.carry_out(helper_messages.MeasureFiles(), ())
    assert isinstance(files, helper_messages.Files)
    assert files.whole > 0
    helper.close()
    files, _ = helper.carry_out(helper_messages.MeasureFiles(), ())
    assert files == helper_messages.Files({}, 0)
