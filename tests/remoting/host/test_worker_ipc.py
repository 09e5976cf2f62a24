"""Means of code in a worker to share data with other programs, beside its connection.

Each attack is tried in a worker without the property as well, where it must succeed.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_kit import MakeHost
from test_worker_confinement import as_root, in_child
from test_worker_reach import ALL, SOCKETS, attack, having, with_filter

from gpupool.remoting.host.host_parts import HostLimits
from gpupool.remoting.host.isolation import confinement
from gpupool.remoting.host.measuring import unnamed_files as measuring
from gpupool.remoting.host.measuring.unnamed_files import unnamed_files
from gpupool.remoting.host.measuring.worker_files import UNSEEN_SIZE
from gpupool.remoting.worker import namespaces, sandbox, syscall_filter
from gpupool.remoting.worker.syscall_table import FORBIDDEN

pytestmark = pytest.mark.long  # CI runs these as root

# --- System V and queues of messages ------------------------------------------------------------

MAKERS = ("shmget", "msgget", "semget")
OF_SYSTEM_V = (
    *("shmget", "shmat", "shmctl", "shmdt", "msgget", "msgsnd", "msgrcv", "msgctl"),
    *("semget", "semop", "semtimedop", "semctl"),
)
OF_QUEUES = (
    *("mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr"),
)
MAKE = """
libc = ctypes.CDLL(None, use_errno=True)
made = libc.{call}(0, *{arguments})
answer = made if made >= 0 else errno.errorcode[ctypes.get_errno()]
"""
OWN_AND_NEW = 0o1600


def arguments_of(call: str) -> tuple[int, ...]:
    """Return arguments for a private System V object: of a page, or of one place."""
    return (OWN_AND_NEW,) if call == "msgget" else (1, OWN_AND_NEW)


@with_filter
async def test_a_worker_leaves_nothing_of_system_v_to_the_next_lease(make_host: MakeHost) -> None:
    """A segment outlived its lease, and a later lease with the same uid read it."""
    kit = await make_host()
    client, _ = await kit.connect(kit.lease())
    for call in MAKERS:
        made = MAKE.format(call=call, arguments=arguments_of(call))
        assert await attack(client, made) == "EPERM", call
    queue = "libc = ctypes.CDLL(None, use_errno=True)\nlibc.mq_open(b'/x', 0o102, 0o600, None)"
    assert await attack(client, queue + "\nanswer = ctypes.get_errno()") == str(errno.EPERM)


async def test_without_the_filter_a_worker_makes_them_all(make_host: MakeHost) -> None:
    kit = await make_host(confine=ALL - {"system-calls"})
    client, _ = await kit.connect(kit.lease())
    libc = ctypes.CDLL(None)
    for call, remove in zip(MAKERS, ("shmctl", "msgctl", "semctl"), strict=True):
        made = await attack(client, MAKE.format(call=call, arguments=arguments_of(call)))
        assert made.isdigit(), (call, made)
        place = (int(made), 0, 0, None) if remove == "semctl" else (int(made), 0, None)
        assert getattr(libc, remove)(*place) == 0  # what a worker left there stayed


def test_all_calls_of_system_v_and_of_queues_are_forbidden() -> None:
    for name in (*OF_SYSTEM_V, *OF_QUEUES):
        assert name in FORBIDDEN, name
        for architecture in syscall_filter.ARCHITECTURES:
            assert FORBIDDEN[name][architecture.column] is not None


# --- files without a name -----------------------------------------------------------------------

MIB = 1 << 20
FEW = HostLimits(sample_interval_s=0.01, host_memory=0, host_memory_each=128 * MIB, files=8 * MIB)
FILL = "for _ in range(48): os.write(kept, bytes(4 << 20))\n"
# Python's own keeps a copy of the descriptor.
MAP = (
    "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\n"
    "place = libc.mmap(None, ctypes.c_size_t({size}), 3, 1, kept, ctypes.c_long(0))\n"
)
DELETED = (
    "kept = os.open({folder} + '/x', os.O_CREAT | os.O_EXCL | os.O_RDWR)\n"
    "os.unlink({folder} + '/x')\n" + FILL
)
# The first thread of a process shows nothing once it has ended, while others go on.
ENDED = (
    "import ctypes, os, sys, threading, time\n"
    "def hold():\n"
    "    time.sleep(0.5)\n"
    "    " + "{fill}"
    "    time.sleep(300)\n"
    "threading.Thread(target=hold).start()\n"
    "ctypes.CDLL(None).syscall({exit}, 0)\n"
)
IN_SHARED_MEMORY, ON_DISK = "'/dev/shm'", "os.environ['TMPDIR']"
HOLDERS = {
    "memfd": "kept = os.memfd_create('x')\n" + FILL,
    "deleted": DELETED.format(folder=IN_SHARED_MEMORY),
    "mapping": "kept = os.memfd_create('x')\n" + FILL + MAP.format(size=4096) + "os.close(kept)\n",
    "anonymous": (
        "os.memory = mmap.mmap(-1, 192 << 20)\n"
        "for _ in range(48):\n"
        "    os.memory.write(bytes(4 << 20))\n"
        "    os.memory.madvise(mmap.MADV_DONTNEED)\n"
    ),
}
DISK_HOLDERS = {
    "unnamed": f"kept = os.open({ON_DISK}, os.O_TMPFILE | os.O_RDWR)\n" + FILL,
    "deleted": DELETED.format(folder=ON_DISK),
    # It is written to once nothing but a mapping holds it.
    "mapping": (
        f"kept = os.open({ON_DISK}, os.O_TMPFILE | os.O_RDWR)\n"
        "os.truncate(kept, 192 << 20)\n" + MAP.format(size="192 << 20") + "os.close(kept)\n"
        "for n in range(48): ctypes.memset(place + (n << 22), 1, 4 << 20)\n"
    ),
}


@as_root
@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("confine", [ALL - {"cgroup"}, ALL - {"cgroup", "shared-memory"}])
async def test_memory_without_a_name_counts_for_its_lease(
    make_host: MakeHost, holder: str, confine: frozenset[str]
) -> None:
    """Bytes that were written into a memfd and never mapped were nobody's."""
    kit = await make_host(limits=FEW, confine=confine)
    client, _ = await kit.connect(kit.lease(memory=MIB))
    await client.send(b"x", ("import mmap, os\n" + HOLDERS[holder] + "answer = 1").encode())
    await kit.logged("of this server's memory, and may have 129 MiB")


@as_root
@pytest.mark.parametrize("holder", DISK_HOLDERS)
async def test_files_without_a_name_count_for_their_lease(make_host: MakeHost, holder: str) -> None:
    """A file that was mapped, deleted and closed took the disk, and was nobody's."""
    kit = await make_host(limits=FEW)
    client, _ = await kit.connect(kit.lease(memory=MIB))
    await client.send(b"x", ("import mmap, os\n" + DISK_HOLDERS[holder] + "answer = 1").encode())
    await kit.logged("on this server, and may take 8 MiB")


@as_root
@pytest.mark.parametrize(
    "fill",
    [
        "kept = bytearray(192 << 20)\n",
        "kept = os.memfd_create('x')\n    [os.write(kept, bytes(4 << 20)) for _ in range(48)]\n",
    ],
    ids=["memory", "memfd"],
)
async def test_a_process_whose_first_thread_has_ended_hides_nothing(
    make_host: MakeHost, fill: str
) -> None:
    """The kernel tells of neither memory nor descriptors by the number of the process then."""
    kit = await make_host(limits=FEW, confine=ALL - {"cgroup"})
    client, _ = await kit.connect(kit.lease(memory=MIB))
    number = 60 if os.uname().machine == "x86_64" else 93  # of exit(2)
    code = ENDED.format(fill=fill, exit=number)
    start = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-ISc', {code!r}])\n"
    await client.send(b"x", (start + "answer = 1").encode())
    await kit.logged("of this server's memory, and may have 129 MiB")


@as_root
def test_each_file_without_a_name_counts_once_and_what_is_mapped_not_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measuring, "EXACT_MIN", 0)  # for what this process held before, too
    size, uid, me = 32 * MIB, os.geteuid(), os.getpid()
    device = tmp_path.stat().st_dev

    def found(families: dict[int, list[int]], owner: int = uid) -> tuple[int, int]:
        each = unnamed_files(families, owner, device).values()
        return sum(one.memory for one in each), sum(one.disk for one in each)

    memory_before, disk_before = found({1: [me]})

    def added(families: dict[int, list[int]]) -> int:
        return found(families)[0] - memory_before

    file = os.memfd_create("x")
    other = os.dup(file)
    try:
        os.truncate(file, size)
        assert added({1: [me]}) == 0  # no page of it is there
        os.write(file, bytes(size))
        assert added({1: [me, me], 2: [me]}) == size
        with mmap.mmap(file, size) as memory:
            assert added({1: [me]}) == size
            assert sum(memory[:: mmap.PAGESIZE]) == 0  # touches each page
            assert added({1: [me]}) == 0  # host_memory.resident has it
            with monkeypatch.context() as patch:
                patch.setattr(measuring, "DETAILS_SIZE_MAX", 0)
                assert added({1: [me]}) >= size  # more than can be told apart counts twice
        os.fchown(file, uid + 1, -1)
        assert added({1: [me]}) == 0  # as a client's, which it shares with its worker
    finally:
        os.close(file)
        os.close(other)
    with (tmp_path / "x").open("w+b") as on_disk:
        on_disk.write(bytes(size))
        on_disk.flush()
        with mmap.mmap(on_disk.fileno(), size) as memory:
            on_disk.close()
            assert found({1: [me]})[1] == disk_before  # a directory shows it
            (tmp_path / "x").unlink()
            assert sum(memory[:: mmap.PAGESIZE]) == 0
            sizes = found({1: [me, me], 2: [me]})
            assert size <= sizes[1] - disk_before <= size + MIB
            assert sizes[0] == memory_before


@as_root
@pytest.mark.parametrize("bound", ["DESCRIPTOR_COUNT_MAX", "MAPS_SIZE_MAX"])
def test_more_files_or_mappings_than_can_be_looked_at_are_more_than_any_bound(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(measuring, bound, 2)
    found = unnamed_files({1: [os.getpid()]}, os.geteuid(), 0)[1]
    assert found.memory >= UNSEEN_SIZE
    assert found.disk >= UNSEEN_SIZE


# --- Unix sockets with paths --------------------------------------------------------------------

FOLDERS = [folder for folder in namespaces.FOLDERS if os.access(folder, os.W_OK)]
CONNECT = "s = socket.socket(socket.AF_UNIX)\ns.connect({path!r})\nanswer = 'connected'"


@pytest.fixture
def open_sockets() -> Iterator[list[str]]:
    """Listen where any user of the machine may connect."""
    with contextlib.ExitStack() as stack:
        paths: list[str] = []
        for folder in FOLDERS:
            place = Path(tempfile.mkdtemp(prefix="gpupool-test-socket-", dir=folder))
            stack.callback(shutil.rmtree, place)
            place.chmod(0o755)
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(place / "s"))
            (place / "s").chmod(0o777)
            listener.listen()
            paths.append(str(place / "s"))
        yield paths


@as_root
async def test_a_worker_reaches_no_unix_sockets_of_other_programs(
    make_host: MakeHost, open_sockets: list[str]
) -> None:
    """It could talk to D-Bus, to the journal, and to all that listens in ``/tmp``."""
    kit = await make_host(confine=SOCKETS)
    client, worker = await kit.connect(kit.lease())
    having(kit, "private-folders")
    for path in open_sockets:
        assert await attack(client, CONNECT.format(path=path)) == "ENOENT", path
    for folder in FOLDERS:
        write = f"open({folder!r} + '/x', 'w')\nanswer = 'written'"
        assert await attack(client, write) in {"EACCES", "EROFS"}
    # What it needs is there: its own directory, and its libraries.
    own = "open(os.environ['TMPDIR'] + '/x', 'w').write('x')\nanswer = 'written'"
    assert await attack(client, own) == "written"
    assert (worker.directory / "x").read_text() == "x"
    late = "import json.tool, gpupool.pool.view\nanswer = 'imported'"
    assert await attack(client, late) == "imported"


@as_root
async def test_without_the_property_a_worker_reaches_them(
    make_host: MakeHost, open_sockets: list[str]
) -> None:
    kit = await make_host(confine=SOCKETS - {"folders"})
    client, _ = await kit.connect(kit.lease())
    for path in open_sockets:
        assert await attack(client, CONNECT.format(path=path)) == "connected", path
    assert "private-folders" not in kit.host.confinement()
    await kit.logged("that hide other programs' Unix sockets (left out by GPUPOOL_UNCONFINED)")


def test_a_server_that_is_not_root_says_that_its_workers_reach_them() -> None:
    lines = confinement.Confinement(root=False).lacking(())
    assert "a /run and a /tmp that hide other programs' Unix sockets (that needs root)" in lines


@as_root
async def test_a_worker_keeps_the_sockets_of_nvidias_daemons(
    make_host: MakeHost, open_sockets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(Path(open_sockets[0]).parent))
    kit = await make_host(confine=SOCKETS)
    client, _ = await kit.connect(kit.lease())
    having(kit, "private-folders")
    first, *others = [await attack(client, CONNECT.format(path=each)) for each in open_sockets]
    assert first == "connected"
    assert set(others) <= {"ENOENT"}


@as_root
def test_folders_show_what_is_needed_by_each_of_its_names(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    for path in (folder / "kept" / "inner", folder / "gone", elsewhere / "venv"):
        path.mkdir(parents=True)
    (folder / "file").write_text("x")
    (folder / "other").write_text("y")
    (folder / "link").symlink_to(elsewhere)
    (tmp_path / "second").symlink_to(folder)
    kept = ["kept", "kept/inner", "file", "link/venv", "not-there"]

    def inside() -> bytes:
        names = [str(tmp_path / "second" / "file"), *(str(folder / name) for name in kept)]
        hides = namespaces.hide_folders(names, [str(folder), str(tmp_path / "not-there")])
        (folder / "kept" / "new").write_text("z")
        with pytest.raises(OSError, match="Read-only"):
            (folder / "new").write_text("z")
        found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
        return f"{hides} {found}".encode()

    seen = ["file", "kept", "kept/inner", "kept/new", "link", "link/venv"]
    assert in_child(inside).decode() == f"True {seen}"
    assert (folder / "other").read_text() == "y"


@as_root
def test_what_lies_above_a_kept_folder_is_open_to_a_worker_whatever_the_umask(
    tmp_path: Path,
) -> None:
    """As that of the privileged helper's service, which is 0077."""
    kept = tmp_path / "folder" / "above" / "kept"
    kept.mkdir(parents=True)

    def inside() -> bytes:
        os.umask(0o077)
        hides = namespaces.hide_folders([str(kept)], [str(tmp_path / "folder")])
        return f"{hides} {kept.parent.stat().st_mode & 0o777:o} {os.umask(0):o}".encode()

    assert in_child(inside) == b"True 755 77"


@as_root
def test_folders_that_are_needed_whole_or_cannot_be_covered_are_as_they_were(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()

    def inside() -> bytes:
        whole = [namespaces.hide_folders([kept], [str(tmp_path)]) for kept in ("/", str(tmp_path))]
        sandbox.become(52_999, 52_999, ())
        return f"{whole} {namespaces.hide_folders([], [str(tmp_path)])}".encode()

    assert in_child(inside) == b"[False, False] False"
    assert (tmp_path / "file").exists()
