"""Operations denied to a worker process, tried from inside of it."""

import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from echo_door import name_thread
from host_kit import EchoClient, MakeHost, nest_directories, unix_address
from kernel_probes import landlock_version

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import LeaseId
from gpupool.remoting.host import orphan_reaper, spawn
from gpupool.remoting.host.isolation import confinement, users
from gpupool.remoting.host.kernel_cache import KernelCache
from gpupool.remoting.worker import namespaces, sandbox

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its uid")


SEEN = frozenset(confinement.PROPERTIES) - {"folders"}
"""Else the worker would not see the files of a test, which are in ``/tmp``."""

with_landlock = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")


async def process_facts(client: EchoClient) -> dict[str, str]:
    lines = (await client.ask(b"i")).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.fixture
def secret() -> Iterator[Path]:
    """Make a file like those of the state directory: its owner's alone, and out of the way."""
    directory = Path(tempfile.mkdtemp(prefix="gpupool-test-state-"))
    path = directory / "server.key"
    path.touch(mode=0o600)
    path.write_text("secret")
    yield path
    shutil.rmtree(directory)


def test_no_worker_may_read_the_whole_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the unit for systemd it might: the helper's path had "/", where the service ran."""
    monkeypatch.setattr(sys, "path", ["/", *sys.path])
    assert Path("/") not in spawn.installation_paths()
    unit = Path(__file__).resolve().parents[3] / "packaging" / "gpupool-keeper@.service"
    assert "/opt/gpupool/bin/python -P -m " in unit.read_text()


@as_root
async def test_workers_of_a_lease_have_a_powerless_uid_of_their_own(
    make_host: MakeHost, secret: Path
) -> None:
    kit = await make_host(landlock=False, confine=SEEN)
    client, worker = await kit.connect(kit.lease())
    other, other_worker = await kit.connect(kit.lease(2))
    _, sibling = await kit.connect(kit.lease())
    facts = await process_facts(client)
    uid = str(worker.session.uid)
    assert sibling.session.uid == worker.session.uid
    assert worker.session.uid >= users.UID_BASE
    assert worker.session.uid != other_worker.session.uid
    assert facts["Uid"] == " ".join([uid] * 4)
    assert facts["Groups"] == ""
    assert facts["NoNewPrivs"] == "1"
    assert {int(text, 16) for text in facts["CapEff of threads"].split()} == {0}
    assert facts["cwd"] == "/"
    assert await client.ask(b"o", str(secret).encode()) == b"PermissionError"
    memory = f"/proc/{other_worker.process.pid}/mem".encode()
    assert await client.ask(b"o", memory) == b"PermissionError"
    for pid in (os.getpid(), other_worker.process.pid):
        assert await client.ask(b"k", str(pid).encode()) == b"PermissionError"
    assert await other.ask(b"e", b"x") == b"x"
    assert {"own-uid", "no-new-privileges", "not-dumpable"} <= set(kit.host.confinement())


@pytest.fixture
def stranger() -> Iterator[int]:
    """Run a process of another user; return its pid."""
    with subprocess.Popen(["/bin/sleep", "300"], user=52_998) as process:
        yield process.pid
        process.kill()


@as_root
async def test_worker_that_stays_root_keeps_no_power(make_host: MakeHost, stranger: int) -> None:
    kit = await make_host(own_uids=False, landlock=False)
    client, _ = await kit.connect(kit.lease())
    facts = await process_facts(client)
    # To read files, and nothing else, in all of its threads: NumPy's and CUDA's as well.
    assert {int(text, 16) for text in facts["CapEff of threads"].split()} in ({1 << 2}, {0})
    assert await client.ask(b"k", str(stranger).encode()) == b"PermissionError"
    assert "few-capabilities" in kit.host.confinement()


@with_landlock
async def test_worker_of_the_same_user_is_kept_off_files_and_signals(
    make_host: MakeHost, secret: Path
) -> None:
    kit = await make_host(own_uids=False, confine=SEEN)
    client, worker = await kit.connect(kit.lease())
    assert worker.session.uid == -1
    assert await client.ask(b"o", str(secret).encode()) == b"PermissionError"
    assert await client.ask(b"o", b"/etc/hostname") not in (b"PermissionError", b"")
    if landlock_version() >= 6:
        assert await client.ask(b"k", str(os.getpid()).encode()) == b"PermissionError"
    await kit.logged("as configured")
    assert "own-uid" not in kit.host.confinement()
    assert "landlock" in kit.host.confinement()


@pytest.mark.parametrize("cuda", [True, False])
@with_landlock
def test_confined_worker_may_name_its_threads(*, cuda: bool) -> None:
    """The CUDA driver does, and fails to initialise where it may not."""

    def inside() -> bytes:
        assert sandbox.forbid_new_privileges()
        assert "landlock" in sandbox.restrict_files((), (), cuda=cuda)
        return name_thread(b"cuda-like")

    assert in_child(inside) == (b"cuda-like" if cuda else b"PermissionError")


@with_landlock
def test_a_worker_reads_nothing_of_its_server_wherever_that_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the folder in which "python -m" ran, it read the state directory below it."""
    home, packages = tmp_path / "home", tmp_path / "home" / "venv" / "lib"
    state = home / "venv" / "state"
    for folder in (packages, state, home / ".config"):
        folder.mkdir(parents=True)
    for secret in (state / "server.pem", home / ".config" / "secret"):
        secret.write_text("secret")
    (packages / "module.py").write_text("x = 1")
    (home / "venv" / "link").symlink_to(state)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.setenv("PYTHONPATH", f"{home}:{tmp_path}:{packages}")
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(home / ".config"), *sys.path])
    private = spawn.private_paths(state)
    readable = spawn.installation_paths(private)
    assert packages in readable
    assert not {home, tmp_path, home / ".config"} & set(readable)

    def inside() -> bytes:
        sandbox.forbid_new_privileges()
        seen = (*map(str, readable), str(home / "venv"))
        assert "landlock" in sandbox.restrict_files(seen, (), private=[*map(str, private)])
        assert (packages / "module.py").read_text() == "x = 1"
        for path in ("venv/state/server.pem", "venv/link/server.pem", ".config/secret"):
            with pytest.raises(PermissionError):
                (home / path).read_text()
        return b"kept"

    assert in_child(inside) == b"kept"


async def test_worker_inherits_no_secret(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPOOL_CREDENTIALS", "/root/credentials.json")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")
    opened = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(opened, True)
    try:
        kit = await make_host()
        client, _ = await kit.connect(kit.lease())
        facts = await process_facts(client)
    finally:
        os.close(opened)
    names = set(facts["environment"].split())
    assert not names & {"GPUPOOL_CREDENTIALS", "AWS_SECRET_ACCESS_KEY"}
    assert {"CUPY_CACHE_DIR", "CUDA_CACHE_PATH", "TMPDIR", "HOME"} <= names
    # Standard streams, control, budget, client, and the directory being listed.
    assert len(facts["fds"].split()) <= 7


@pytest.mark.long
async def test_a_worker_has_the_cuda_settings_of_its_client(make_host: MakeHost) -> None:
    kit = await make_host()
    lease = kit.lease()
    settings = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "CUDA_MODULE_DATA_LOADING": "LAZY"}
    info = await kit.open(lease, settings=settings)
    client, (other, _) = await kit.dial(unix_address(info)), await kit.connect(lease)
    for name, value in settings.items():
        assert (await client.ask(b"v", name.encode())).decode() == value
        assert await other.ask(b"v", name.encode()) == b"unset"
    assert await client.ask(b"v", b"CUDA_VISIBLE_DEVICES") == b""


@as_root
async def test_children_of_a_worker_die_with_it(make_host: MakeHost) -> None:
    kit = await make_host()
    client, worker = await kit.connect(kit.lease())
    child = int(await client.ask(b"c"))
    assert orphan_reaper.start_time_of(child) is not None
    os.kill(worker.process.pid, signal.SIGKILL)
    with trio.fail_after(10):
        await worker.ended.wait()
    assert orphan_reaper.start_time_of(child) is None


@pytest.mark.long
@as_root
async def test_what_other_workers_of_the_lease_run_outlives_one(make_host: MakeHost) -> None:
    kit = await make_host()
    client, worker = await kit.connect(kit.lease())
    other, other_worker = await kit.connect(kit.lease())
    (kept_child, kept_orphan), (child, orphan) = [
        (int(await one.ask(b"c")), int(await one.ask(b"O"))) for one in (other, client)
    ]
    in_memory = [
        users.SHARED_MEMORY / f"cuda.shm.{worker.session.uid:x}.{one.process.pid:x}.1"
        for one in (worker, other_worker)
    ]
    for path in in_memory:
        path.touch(0o600)
        os.chown(path, worker.session.uid, worker.session.uid)
    os.kill(worker.process.pid, signal.SIGKILL)
    with trio.fail_after(10):
        await worker.ended.wait()
    assert [orphan_reaper.start_time_of(pid) for pid in (child, orphan)] == [None, None]
    assert None not in [orphan_reaper.start_time_of(pid) for pid in (kept_child, kept_orphan)]
    assert [path.exists() for path in in_memory] == [False, True]
    # The next worker of the lease shares with those that are left, and the last one tidies up.
    _, third_worker = await kit.connect(kit.lease())
    assert third_worker.session.uid == other_worker.session.uid == worker.session.uid
    await kit.host.kill_lease(kit.lease().id, "the test ends")
    assert [orphan_reaper.start_time_of(pid) for pid in (kept_child, kept_orphan)] == [None, None]
    assert not in_memory[1].exists()


def found_none(_uid: int) -> dict[int, int]:
    return {}


@as_root
def test_all_processes_of_a_user_are_killed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    uid = users.UID_BASE + users.UID_COUNT - 1
    sleepers = [subprocess.Popen(["/bin/sleep", "300"], user=uid) for _ in range(3)]
    with subprocess.Popen(["/bin/sleep", "300"], user=uid - 1) as other:
        monkeypatch.setattr(users, "processes_of", found_none)
        assert users.kill_processes_of(uid)
        assert [each.wait(10) for each in sleepers] == [-signal.SIGKILL] * 3
        assert other.poll() is None
        other.kill()


def test_strays_are_told_from_what_workers_run() -> None:
    me, init = os.getpid(), 1
    found = {10: init, 11: 10, 20: me, 21: 20, 22: 21, 30: me}
    strays, sure = users.without_worker(found, {20})
    assert (sorted(strays), sure) == ([10, 11, 30], True)
    # Its parent ended while the processes were listed: it may be a worker's by now.
    assert users.without_worker({22: 2**22 - 7}, {20}) == ([], False)


def test_a_lease_gets_another_user_once_its_workers_have_ended(tmp_path: Path) -> None:
    """The cleanup after the last worker kills all processes of its user."""
    left = {60_002}
    leases = users.LeaseUsers(users.UidPool(60_000, 3, tmp_path), lambda uid: uid not in left)
    one = leases.take(LeaseId(1), 10)
    assert leases.take(LeaseId(1), 11) is one
    assert leases.take(LeaseId(2), 12).uid == 60_001
    leases.ended(one, 10)
    assert one.running == {11}
    leases.ended(one, 11)
    other = leases.take(LeaseId(1), 13)
    assert other.uid == 60_002
    leases.give_back(one, gone=True)
    with pytest.raises(GpupoolError, match="in use"):
        leases.take(LeaseId(3), 14)  # one of its workers is not buried yet
    leases.give_back(one, gone=True)
    assert leases.take(LeaseId(3), 14).uid == 60_000
    leases.ended(other, 13)
    leases.give_back(other, gone=False)  # nobody gets what something is left of
    with pytest.raises(GpupoolError, match="in use"):
        leases.take(LeaseId(4), 15)
    left.clear()  # what was killed has ended at last
    assert leases.take(LeaseId(4), 15).uid == 60_002


async def test_private_directory_is_removed(make_host: MakeHost) -> None:
    kit = await make_host()
    client, worker = await kit.connect(kit.lease())
    assert worker.directory.stat().st_mode & 0o777 == 0o700
    (worker.directory / "cupy").mkdir()
    (worker.directory / "cupy" / "kernel.cubin").write_bytes(b"x")
    (worker.directory / "link").symlink_to(kit.directory)
    client.stream.close()
    with trio.fail_after(10):
        await worker.ended.wait()
    assert not worker.directory.exists()
    assert kit.directory.exists()


def test_environment_is_a_short_list(tmp_path: Path) -> None:
    inherited = {"PATH": "/bin", "SECRET": "x", "LD_PRELOAD": "y.so", "OMP_NUM_THREADS": "3"}
    inherited["PYTHONPATH"] = "src::/opt/site"
    environment = spawn.clean_environment(inherited, tmp_path)
    assert "SECRET" not in environment
    assert "LD_PRELOAD" not in environment
    assert environment["PATH"] == "/bin"
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["PYTHONPATH"] == f"{Path.cwd() / 'src'}:/opt/site"
    assert environment["TMPDIR"] == str(tmp_path)


def test_uids_are_shared_by_no_two_servers(tmp_path: Path) -> None:
    one = users.UidPool(60_000, 3, tmp_path)
    two = users.UidPool(60_000, 3, tmp_path)
    assert one.take() == 60_000
    assert two.take() == 60_001
    assert one.take() == 60_002
    with pytest.raises(GpupoolError, match="in use"):
        two.take()
    one.give_back(60_000)
    assert two.take() == 60_000
    two.give_back(60_000)
    two.give_back(60_001)
    one.give_back(60_002)


@as_root
def test_what_a_killed_server_left_in_shared_memory_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of its leases stayed there until somebody got their uid, or for good."""
    shared = tmp_path / "shm"
    monkeypatch.setattr(users, "SHARED_MEMORY", shared)
    ours, theirs = (users.UidPool(60_000, 3, tmp_path / "locks") for _ in range(2))
    in_use = theirs.take()
    for uid in (in_use, 60_001, 60_007):
        folder = shared / f"gpupool-{uid}"
        folder.mkdir(parents=True)
        (folder / "file").touch()
        os.chown(folder, uid, uid)
    ours.sweep(users.clear_user)
    assert [each.name for each in sorted(shared.iterdir())] == ["gpupool-60000", "gpupool-60007"]
    assert ours.take() == 60_001


def test_isolation_says_what_keeps_workers_from_their_own_uid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "does not run as root" in spawn.choose_isolation(cuda=False).reason
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert spawn.choose_isolation(cuda=False).own_uid
    closed = tmp_path / "venv"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr(spawn, "installation_paths", lambda: (closed,))
    isolation = spawn.choose_isolation(cuda=True)
    assert not isolation.own_uid
    assert str(closed) in isolation.reason or str(tmp_path) in isolation.reason
    monkeypatch.setattr(spawn, "installation_paths", lambda: (Path("/usr"),))
    assert spawn.choose_isolation(cuda=True).own_uid


@pytest.mark.parametrize(
    ("id_map", "has_them"),
    [
        ("         0          0 4294967295\n", True),  # no container
        ("0 1000 1\n1 100000 65536\n", True),  # rootless, with subordinate ids
        ("0 1000 1\n", False),  # rootless, without
        ("0 100000 54000\n", False),
        ("", False),
    ],
)
def test_a_container_without_the_workers_users_is_recognised(id_map: str, has_them: bool) -> None:
    assert spawn.covers(id_map) is has_them


def test_directories_out_of_reach_are_found_and_not_more(tmp_path: Path) -> None:
    base = tmp_path / "open"
    inner = base / "home" / "venv"
    (inner / "lib").mkdir(parents=True)
    for path in (base, inner, inner / "lib"):
        path.chmod(0o755)
    (base / "home").chmod(0o700)
    # pytest's own directory may be closed as well; what counts is the topmost.
    cover = spawn.closed_above(inner)
    assert cover is not None
    assert cover == base / "home" or cover in base.parents
    assert spawn.out_of_reach([inner, inner / "lib", Path("/usr")], []) == (inner,)
    link = base / "home" / "link"
    link.symlink_to("/usr")
    with pytest.raises(PermissionError, match="link"):
        spawn.out_of_reach([link], [])
    package = inner / "package"  # as in a checkout; both are shown at their places
    package.symlink_to("lib")
    assert spawn.out_of_reach([inner, package], []) == (inner,)
    with pytest.raises(PermissionError, match="package"):
        spawn.out_of_reach([package], [])
    with pytest.raises(PermissionError, match="home"):
        spawn.out_of_reach([base / "home"], [])
    closed = inner / "module.py"
    closed.touch(mode=0o600)
    with pytest.raises(PermissionError, match=r"module\.py"):
        spawn.out_of_reach([], [closed])


@as_root
def test_expose_opens_a_closed_directory_for_this_process_only(tmp_path: Path) -> None:
    inner = tmp_path / "closed" / "packages"
    inner.mkdir(parents=True)
    (inner / "module.py").write_text("x = 1")
    (tmp_path / "closed" / "secret").write_text("s")
    for path in (inner, inner / "module.py"):
        path.chmod(0o755)
    (tmp_path / "closed").chmod(0o700)

    def inside() -> bytes:
        if not namespaces.expose([str(inner)]):
            return b"not exposed"
        sandbox.become(52_999, 52_999, ())
        assert (inner / "module.py").read_text() == "x = 1"
        assert not (tmp_path / "closed" / "secret").exists()
        with pytest.raises(OSError, match=r"Read-only|Permission"):
            (inner / "module.py").write_text("y")
        return b"exposed"

    assert in_child(inside) == b"exposed"
    assert (tmp_path / "closed" / "secret").read_text() == "s"


@as_root
def test_expose_without_the_right_to_mount_changes_nothing(tmp_path: Path) -> None:
    def inside() -> bytes:
        sandbox.become(52_999, 52_999, ())
        return str(namespaces.expose([str(tmp_path)])).encode()

    assert in_child(inside) == b"False"


def test_installation_is_found() -> None:
    paths = [path.resolve() for path in spawn.installation_paths()]
    assert Path(sys.prefix).resolve() in paths
    assert Path(__file__).parents[3] / "remoting" in paths


@as_root
def test_become_cannot_be_taken_back() -> None:
    def inside() -> bytes:
        sandbox.become(52_999, 52_999, ())
        try:
            os.setuid(0)
        except PermissionError:
            return struct.pack(">II", os.getuid(), os.getgid())
        return b"root again"

    assert in_child(inside) == struct.pack(">II", 52_999, 52_999)


def in_child(function: Callable[[], bytes]) -> bytes:
    """Return the result of ``function`` in a forked process: this one has to keep its identity."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of threads, such as trio's idle ones; the child starts none and ends.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            os.write(write, function())
        except BaseException as error:  # noqa: BLE001 - the parent asserts on it
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read, "rb") as pipe:
        return pipe.read()


@pytest.mark.long
@as_root
@pytest.mark.parametrize("place", ["home", "shared memory"])
async def test_deep_directories_of_a_dead_worker_end_nothing(
    make_host: MakeHost, place: str
) -> None:
    """One recursive removal of 1,000 levels ended the whole server, and kept it from starting."""
    kit = await make_host()
    client, worker = await kit.connect(kit.lease())
    other, _ = await kit.connect(kit.lease(2))
    top = worker.directory / "deep"
    if place == "shared memory":
        top = users.SHARED_MEMORY / f"gpupool-test-{os.getpid()}"
    top.mkdir()
    os.chown(top, worker.session.uid, worker.session.uid)
    nest_directories(top)
    client.stream.close()
    await worker.ended.wait()
    assert await other.ask(b"e", b"x") == b"x"
    assert not worker.directory.exists()
    assert not top.exists()


@as_root
async def test_root_writes_nothing_into_a_directory_of_the_leases_uid(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker of the lease has that uid, and could put a link where root writes."""
    owners: list[tuple[int, int]] = []

    def give(_cache: KernelCache, _user: str, target: Path, uid: int) -> None:
        found = target.parent.stat()
        owners.append((found.st_uid, found.st_mode & 0o777))
        assert uid >= users.UID_BASE

    monkeypatch.setattr(KernelCache, "give", give)
    kit = await make_host()
    _, worker = await kit.connect(kit.lease())
    assert owners
    assert set(owners) == {(0, 0o700)}
    assert worker.directory.stat().st_uid == worker.session.uid
