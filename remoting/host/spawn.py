"""Starting worker processes: whether they get uids (``users``), their environment and directory."""

import contextlib
import importlib.util
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gpupool
from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import GpuId
from gpupool.remoting.host import host_memory, orphan_reaper
from gpupool.remoting.host.isolation.lease_cgroups import WorkerGroup
from gpupool.remoting.host.isolation.users import UID_BASE, UID_COUNT, LeaseUser, UidPool
from gpupool.remoting.host.measuring.unnamed_files import unnamed_files
from gpupool.remoting.host.measuring.worker_files import Place, family_of
from gpupool.remoting.host.remove_tree import remove_tree
from gpupool.remoting.host.suspension.spilled_memory import SpilledMemory
from gpupool.remoting.protocol import worker_messages

ENVIRONMENT_PASSED = (
    *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "PYTHONPATH", "LD_LIBRARY_PATH"),
    *("CUDA_PATH", "CUDA_HOME", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
    *("NCCL_NVLS_ENABLE", "NVSHMEM_DISABLE_NVLS", "TORCH_SYMM_MEM_DISABLE_MULTICAST"),
    *("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE"),
    *("NCCL_DEBUG", "NCCL_SOCKET_FAMILY", "NCCL_IB_HCA", "GPUPOOL_NCCL"),
)
"""All variables that a worker inherits; any other one of the operator's may be a secret."""

PRIVATE_VARIABLES = (
    *("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "GPUPOOL_CREDENTIALS"),
)
"""Variables with paths that workers must not read, beside the home and the state directory."""

BLAS_THREAD_COUNT_MAX = 8
"""Threads of NumPy's BLAS in one worker; by default each idle worker has one for each core."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """The Unix user that workers run as."""

    own_uid: bool
    reason: str  # why not, for the log; empty when they have uids of their leases'
    groups: tuple[int, ...] = ()
    #: Directories of the installation that a worker must bring within its own uid's reach.
    expose: tuple[Path, ...] = ()


@dataclass(slots=True, eq=False)
class KeptWorker:
    """A worker process and all that it has of this machine."""

    number: int
    process: "subprocess.Popen[bytes]"
    line: socket.socket
    directory: Path
    start_time: int
    doors: frozenset[str] = frozenset()  # that it may serve; all if none is named
    holds: tuple[str, ...] = ()  # what confines it
    ready: bool = False
    assigned: bool = False
    user: LeaseUser | None = None  # that it runs as, once it is assigned; None: the host's
    group: WorkerGroup | None = None  # of control, with all that it starts
    #: Where its GPU memory would be restored, by its GPUs, after a move that was not done.
    saved_on: Mapping[GpuId, GpuId] = field(default_factory=dict[GpuId, GpuId])
    spilled: SpilledMemory | None = None  # what it has on a disk while it is suspended
    user_name: str = ""  # whose lease it is, once it may have that user's kernels

    def serves(self, doors: Mapping[str, str]) -> dict[str, str]:
        """Return those of the server's doors that it may serve, with their functions."""
        return {name: path for name, path in doors.items() if name in self.doors or not self.doors}

    @property
    def uid(self) -> int:
        """Return its lease's uid; -1 when it has the host's."""
        return -1 if self.user is None else self.user.uid

    @property
    def label(self) -> str:
        """The worker's name in logs."""
        return f"worker {self.process.pid}"

    def place(self) -> Place:
        """Return where it can leave files."""
        user = self.user
        # What a lease's workers have in shared memory is counted once, for the first of them. It
        # is the lease's own, or the machine's, where the owner of a file tells whose it is.
        is_first = user is not None and self.process.pid == min(user.running, default=-1)
        own = self.uid if is_first else -1
        return Place(self.number, (self.directory,), own, self.uid, self.user_name)


def held_besides(
    workers: Iterable[KeptWorker], device: int
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the bytes of each worker that neither its process nor a directory shows.

    First those of memory: of processes that it has started, and of files in memory without a name.
    What a child shares with its parent until one of them writes there counts for both. Then those
    of files on the disk without a name.

    Args:
        workers: on this host.
        device: of the file system of their directories.
    """
    memory: dict[int, int] = {}
    disk: dict[int, int] = {}
    families: dict[int, dict[int, list[int]]] = {}
    for worker in workers:
        family = family_of(worker.process.pid)
        memory[worker.number] = sum(host_memory.resident(pid) for pid in family[1:])
        families.setdefault(worker.uid, {})[worker.number] = family
    for uid, of_lease in families.items():
        unnamed = unnamed_files(of_lease, os.geteuid() if uid < 0 else uid, device)
        for number, found in unnamed.items():
            memory[number] += found.memory
            disk[number] = found.disk
    return {number: size for number, size in memory.items() if size}, disk


def isolation_for(*, cuda: bool, wanted: bool, uids: UidPool) -> Isolation:
    """Return how workers of this process are isolated, and why not better.

    Args:
        cuda: whether they use real GPUs.
        wanted: whether they are to have uids of their own where that is possible.
        uids: where uids come from.
    """
    if not wanted:
        return Isolation(False, "workers run as the server's own user, as configured")
    isolation = choose_isolation(cuda=cuda)
    if isolation.own_uid:
        try:
            uids.give_back(uids.take())
        except OSError as error:
            return Isolation(False, f"workers run as root: no uid can be had: {error}")
    return isolation


def choose_isolation(*, cuda: bool) -> Isolation:
    """Return how workers of this process can be isolated.

    Python and CuPy read modules, headers and libraries long after their start, so a uid of its
    own is of use to a worker only if that uid can read the installation.

    Args:
        cuda: whether they use real GPUs.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        return Isolation(False, "the server does not run as root, so workers run as its own user")
    if not all(covers(Path(f"/proc/self/{kind}_map").read_text()) for kind in ("uid", "gid")):
        return Isolation(
            False,
            f"workers run as root because this container has no users {UID_BASE} to "
            f"{UID_BASE + UID_COUNT - 1}; give it more subordinate ids",
        )
    try:
        expose = out_of_reach(installation_paths(), installation_files())
    except PermissionError as error:
        return Isolation(
            False,
            f"workers run as root because {error} cannot be read by other users; "
            "install gpupool where all may read it",
        )
    return Isolation(True, "", device_groups() if cuda else (), expose)


def covers(id_map: str, first: int = UID_BASE, count: int = UID_COUNT) -> bool:
    """Return whether a user namespace has these ids, by its map (user_namespaces(7)).

    A rootless container often has its own root and nobody else.
    """
    rows = [[int(word) for word in line.split()] for line in id_map.splitlines()]
    return any(start <= first and first + count <= start + size for start, _, size in rows)


def out_of_reach(directories: Iterable[Path], files: Iterable[Path]) -> tuple[Path, ...]:
    """Return those directories that others could read, but for a closed directory above them.

    None of them lies inside another. Packages below a home directory of mode 0700 are the usual
    case: what root installs with uv or pipx.

    Raises:
        PermissionError: with the path of what is itself closed to others, or is reached through
            a link in a closed directory, unless that link lies in a directory that is returned.
    """
    for file in files:
        if not file.stat().st_mode & stat.S_IROTH:
            raise PermissionError(file)
    found: set[Path] = set()
    links: list[Path] = []
    readable = stat.S_IROTH | stat.S_IXOTH
    for directory in directories:
        resolved = directory.resolve()
        if resolved.stat().st_mode & readable != readable:
            raise PermissionError(resolved)
        if closed_above(resolved) is not None:
            found.add(resolved)
        if directory != resolved and closed_above(directory) is not None:
            links.append(directory)
    for link in links:
        # A checkout's packages are links in a folder of Python's path, which is shown with them.
        parent = link.parent
        if parent != parent.resolve() or found.isdisjoint((parent, *parent.parents)):
            raise PermissionError(link)
    return tuple(sorted(path for path in found if not found.intersection(path.parents)))


def closed_above(path: Path) -> Path | None:
    """Return the topmost directory above ``path`` that others cannot pass, or None."""
    closed = [part for part in path.parents if not part.stat().st_mode & stat.S_IXOTH]
    return closed[-1] if closed else None


def private_paths(state_dir: Path | None = None) -> tuple[Path, ...]:
    """Return the private paths of a server and its user; some may not exist."""
    home = os.path.expanduser("~")
    with contextlib.suppress(OSError):
        if os.stat(home).st_uid != os.geteuid():
            home = ""  # Users of services have some folder of the system, such as /bin.
    named = (os.environ.get(name, "") for name in PRIVATE_VARIABLES)
    found = {os.path.realpath(each) for each in (*named, home, state_dir or "") if each}
    return tuple(map(Path, sorted(found)))


def installation_paths(private: Collection[Path] | None = None) -> tuple[Path, ...]:
    """Return the directories that hold Python, its packages and gpupool, as they are named.

    Python with ``-m`` has its current folder on its path. A service's is the whole machine, which
    no worker is to read. A folder of Python's path is left out if what is private lies in it.
    """
    hidden = private_paths() if private is None else private
    above = {each for path in hidden for each in (path, *path.parents)}
    # In a checkout, the packages are links to folders elsewhere.
    packages = (each for part in gpupool.__path__ for each in Path(part).iterdir())
    own = sys.path if sys.flags.safe_path else sys.path[1:]
    on_path = (*own, *os.environ.get("PYTHONPATH", "").split(os.pathsep))
    names = [
        *(name for name in on_path if name and Path(name).resolve() not in above),
        *(sys.prefix, sys.base_prefix, *gpupool.__path__),
        *(str(each) for each in packages if each.name != "__pycache__"),
    ]
    found = {Path(name).absolute() for name in names if Path(name).is_dir()}
    return tuple(sorted(found - {Path("/")}))


def installation_files() -> tuple[Path, ...]:
    """Return some installation files as samples: their modes stand for those of all others."""
    names = [module.__file__ for module in (os, gpupool, orphan_reaper)]
    numpy = importlib.util.find_spec("numpy")
    return tuple(Path(name) for name in (*names, numpy.origin if numpy else None) if name)


def device_groups() -> tuple[int, ...]:
    """Return the groups that an unrelated user needs to open the GPUs' device nodes."""
    groups: set[int] = set()
    for path in Path("/dev").glob("nvidia*"):
        status = path.stat()
        closed = stat.S_ISCHR(status.st_mode) and not status.st_mode & stat.S_IWOTH
        if closed and status.st_mode & stat.S_IWGRP and status.st_gid != 0:
            groups.add(status.st_gid)
    return tuple(sorted(groups))


def clean_environment(
    inherited: Mapping[str, str], directory: Path, blas_threads: int = BLAS_THREAD_COUNT_MAX
) -> dict[str, str]:
    """Return a worker's environment: a few inherited variables, and separate caches.

    Compiled kernels are code. A cache that workers of different users share would let one run
    code in the other; what workers of one user share, the host carries between them (`kernels`).
    """
    kept = {name: inherited[name] for name in ENVIRONMENT_PASSED if name in inherited}
    if "PYTHONPATH" in kept:  # Workers start in another directory.
        parts = kept["PYTHONPATH"].split(os.pathsep)
        kept["PYTHONPATH"] = os.pathsep.join(str(Path(part).absolute()) for part in parts if part)
    threads = str(min(blas_threads, os.cpu_count() or 1))
    private = {
        "HOME": str(directory),
        "TMPDIR": str(directory),
        "CUPY_CACHE_DIR": str(kernel_directory(directory)),
        "CUDA_CACHE_PATH": str(directory / "cuda"),
        "GPUPOOL_IMAGES": str(image_directory(directory)),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, **kept, **private}


def kernel_directory(directory: Path) -> Path:
    """Return where a worker with this private directory keeps the kernels that it compiles."""
    return directory / "cupy"


def image_directory(directory: Path) -> Path:
    """Return where a worker with this private directory keeps the images that clients sent."""
    return directory / "images"


def start_process(
    control: int,
    helper: int,
    errors: int,
    directory: Path,
    blas_threads: int = BLAS_THREAD_COUNT_MAX,
) -> subprocess.Popen[bytes]:
    """Start a worker process that inherits its two sockets; returns at once.

    Must be called on a thread that lives as long as the host: the kernel kills the worker when
    the thread that started it ends.

    Args:
        control: descriptor of its socket to the server; the caller closes its copy.
        helper: descriptor of its socket to its privileged helper, likewise.
        errors: descriptor of a pipe that takes the worker's stderr.
        directory: the worker's private directory.
        blas_threads: of NumPy, at most.
    """
    return subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "gpupool.remoting.worker.worker_main"),
            *(str(control), str(helper), str(os.getpid())),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        cwd="/",
        env=clean_environment(os.environ, directory, blas_threads),
        pass_fds=(control, helper),
        close_fds=True,
        start_new_session=True,
    )


def make_worker_directories(
    base: Path | None, log: Callable[[str], None], *, own_uid: bool
) -> Path:
    """Return a new directory for the workers' directories, where their own uids get through.

    Args:
        base: what it lies in, where only this user may write; None: where everybody may.
        log: takes one line.
        own_uid: whether workers get uids of their own.
    """
    base = None if base is None else base.resolve()
    closed = base is not None and closed_above(base / orphan_reaper.DIRECTORY_NAME) is not None
    if base is None or (own_uid and closed):
        directory = Path(tempfile.mkdtemp(prefix=orphan_reaper.TEMPORARY_PREFIX))
    else:
        directory = base / orphan_reaper.DIRECTORY_NAME
        remove_tree(directory, log)  # of a former run
        directory.mkdir(exist_ok=True)
    directory.chmod(0o711 if own_uid else 0o700)
    return directory


def make_directory(parent: Path, number: int) -> Path:
    """Return a new private directory for worker ``number``."""
    path = parent / str(number)
    remove_tree(path)
    path.mkdir(mode=0o700, parents=True)
    return path


def give_contents(directory: Path, uid: int) -> None:
    """Let ``uid`` have all in a worker's directory: CuPy makes its cache when imported.

    The directory itself stays root's until ``give_directory``, so that no process of that uid can
    put a link where root is about to write.
    """
    for path in directory.rglob("*"):
        os.chown(path, uid, uid, follow_symlinks=False)


def give_directory(directory: Path, uid: int) -> None:
    """Let ``uid`` enter and change a worker's directory; root writes nothing there from now on."""
    os.chown(directory, uid, uid, follow_symlinks=False)


# --- the line between a worker and who started it ------------------------------------------------


class WorkerFailedError(GpupoolError):
    """A worker died, or broke its protocol."""

    code = "worker"


def send(
    line: socket.socket, message: worker_messages.HostMessage, descriptor: int | None = None
) -> None:
    """Send one message over a worker's line; its buffer holds all messages ever sent there.

    Raises:
        WorkerFailedError: when it takes none.
    """
    data = worker_messages.WORKER.encode(message)
    descriptors = [] if descriptor is None else [descriptor]
    line.setblocking(False)
    try:
        sent = socket.send_fds(line, [data], descriptors)
    except OSError as error:
        raise WorkerFailedError("the worker takes no messages", why=str(error)) from error
    if sent != len(data):
        raise WorkerFailedError("the worker takes no messages", why="its socket is full")


def ready_of(line: socket.socket, timeout_s: float) -> worker_messages.Ready:
    """Wait for a worker to say over its line that it is ready.

    Raises:
        GpupoolError: when it does not.
    """
    reader = worker_messages.WORKER.reader()
    line.settimeout(timeout_s)
    try:
        while (frame := reader.next()) is None:
            data = line.recv(worker_messages.WORKER.size_max)
            if not data:
                raise GpupoolError("a worker is not ready", why="it has ended")
            reader.feed(data)
    except OSError as error:
        raise GpupoolError("a worker is not ready", why=str(error)) from error
    message = worker_messages.WORKER.decode(worker_messages.WorkerMessage, frame)
    if not isinstance(message, worker_messages.Ready):
        raise GpupoolError("a worker is not ready", why=f"it said {type(message).__name__}")
    return message
