"""Chooses a program's door: whether it is Python, its interpreter, and whether CuPy is real there.

The array door is a drop-in ``cupy``, for Python programs without the real one. The CUDA door is a
``libcuda.so.1`` that comes first on the loader's path, for everything else. A shell gets both.

The program's environment need not be ours: gpupool may live in a pipx of its own. So its own
interpreter is asked, while the pool is being asked for GPUs, and nothing of ours is imported there.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpupool.pool.errors import ExitCode, GpupoolError, UsageError

PROBE_TIMEOUT_S = 10.0
SHEBANG_LENGTH_MAX = 512
PYTHON_NAME = re.compile(r"(?:python|pypy)[0-9.]*(?:\.exe)?")
SHELLS = ("sh", "bash", "dash", "zsh", "fish", "ksh", "busybox")
WRAPPERS = ("env", "time", "timeout", "nice", "nohup", "stdbuf", "xargs", "make", "tmux", "screen")
LAUNCHERS = frozenset((*SHELLS, *WRAPPERS, "srun", "mpirun", "uv"))
"""Binaries that only start other programs, most often Python ones."""

PROBE = (
    "import importlib.util as u, sys\n"
    "s = u.find_spec('cupy')\n"
    "print('cupy:' + (str(s.origin) if s else ''))\n"
    "print('cuda:' + ' '.join(x for x in sys.argv[1].split(',') if u.find_spec(x)))\n"
    "print('python:%d.%d' % sys.version_info[:2])\n"
)

DROPIN_PYTHON_MIN = (3, 9)

CUDA_PACKAGES = ("torch", "jax", "tensorflow", "triton", "numba_cuda", "numba", "pycuda")
"""Packages that reach a GPU through the CUDA driver, and not through ``cupy``."""

IMPORTS_CUPY = re.compile(r"^[ \t]*(?:import|from)[ \t]+cupyx?\b", re.MULTILINE)
SCRIPT_LENGTH_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Environment:
    """The answer of the program's interpreter about itself."""

    interpreter: str
    cupy: str  # where the real CuPy lies; empty when there is none
    cuda: tuple[str, ...]  # those of CUDA_PACKAGES that it has
    version: tuple[int, int]


@dataclass(frozen=True, slots=True)
class DoorChoice:
    """How the program will reach its GPUs, and why."""

    door: str  # "arrays", "cuda", "both", or "" for none
    why: str
    warning: str = ""


def dropin_dir() -> Path:
    """Return the folder that holds the drop-in ``cupy`` package; imports nothing of it."""
    spec = importlib.util.find_spec("gpupool.remoting.array_api")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))).resolve() / "dropin"


def cuda_dir() -> Path:
    """Return the folder of the CUDA door; imports nothing of it."""
    spec = importlib.util.find_spec("gpupool.remoting.driver_api")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))).resolve()


def cuda_library() -> Path:
    """Return where the CUDA door's library is, if it was built."""
    return cuda_dir() / "library" / "libcuda.so.1"


def nccl_library() -> Path:
    """Return where the library is that stands for NCCL between servers, if it was built."""
    return cuda_library().with_name("libnccl.so.2")


def tools_dir() -> Path:
    """Return the folder of tools that replace NVIDIA's for programs of a lease."""
    return Path(__file__).resolve().parent / "tools"


def with_tools(path: str) -> str:
    """Return a ``PATH`` with our folder first, once."""
    own = str(tools_dir())
    return os.pathsep.join([own, *(part for part in path.split(os.pathsep) if part != own)])


def own_paths() -> dict[str, Path]:
    """Return the first package folder of Python programs by door: replacements, or additions."""
    return {"arrays": dropin_dir(), "cuda": cuda_dir() / "python"}


class NotFoundError(GpupoolError):
    """The program does not exist."""

    exit_code = ExitCode.NOT_FOUND
    code = "not-found"


class NotExecutableError(GpupoolError):
    """The program exists and cannot be started."""

    exit_code = ExitCode.NOT_EXECUTABLE
    code = "not-executable"


def find_program(name: str, path: str | None = None) -> str:
    """Return the file that ``name`` stands for, before any GPU is asked for.

    Raises:
        NotFoundError: when there is none (exit code 127).
        NotExecutableError: when it may not be executed (126).
    """
    if found := shutil.which(name, path=path):
        return found
    there = os.path.exists(name) if os.sep in name else shutil.which(name, os.F_OK, path)
    if not there:
        hint = "" if os.sep in name else "is it on the PATH? A file here is written ./NAME"
        if name == "python" and shutil.which("python3", path=path):
            hint = "this machine has python3"
        raise NotFoundError(f"cannot find the program {name!r}", hint=hint)
    if os.path.isdir(name):
        hint = "name a program in it, with its arguments"
        raise NotExecutableError(f"cannot run {name!r}", why="it is a folder", hint=hint)
    hint = _how_to_run(name)
    raise NotExecutableError(f"cannot run {name!r}", why="it is not executable", hint=hint)


def _how_to_run(name: str) -> str:
    return f"python {name}" if name.endswith(".py") else f"chmod +x {name}"


def is_binary(program: str) -> bool:
    """Say whether a program itself can load the CUDA driver: no script, no Python, no launcher."""
    name = os.path.basename(program)
    if PYTHON_NAME.fullmatch(name) or name in LAUNCHERS:
        return False
    try:
        with open(program, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def interpreter_of(program: str, path: str | None = None) -> str:
    """Return the Python that ``program`` is or names in its first line; empty when not Python."""
    if PYTHON_NAME.fullmatch(os.path.basename(program)):
        return program
    try:
        with open(program, "rb") as file:
            first = file.readline(SHEBANG_LENGTH_MAX).decode("utf-8", "replace")
    except OSError:
        return ""
    if not first.startswith("#!"):
        return ""
    words = first[2:].split()
    if words and os.path.basename(words[0]) == "env":
        words = [w for w in words[1:] if not w.startswith("-") and "=" not in w]
        if words and PYTHON_NAME.fullmatch(os.path.basename(words[0])):
            return shutil.which(words[0], path=path) or ""
        return ""
    if words and PYTHON_NAME.fullmatch(os.path.basename(words[0])):
        return words[0]
    return ""


def without_own(pythonpath: str) -> str:
    """Return ``pythonpath`` without our own folders, which a nested run inherits."""
    own = own_paths().values()
    parts = [p for p in pythonpath.split(os.pathsep) if p]
    return os.pathsep.join(p for p in parts if Path(p).resolve() not in own)


def ask_interpreter(interpreter: str, environment: Mapping[str, str]) -> Environment | None:
    """Ask a Python where its CuPy is; None when it does not answer. Blocks."""
    env = dict(environment)
    env["PYTHONPATH"] = without_own(env.get("PYTHONPATH", ""))
    try:
        done = subprocess.run(
            [interpreter, "-c", PROBE, ",".join(CUDA_PACKAGES)],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_answer(interpreter, done.stdout)


def parse_answer(interpreter: str, text: str) -> Environment | None:
    """Return the environment that the probe printed, or None for other output."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        found[name] = value
    match = re.fullmatch(r"(\d+)\.(\d+)", found.get("python", ""))
    if match is None:
        return None
    version = (int(match[1]), int(match[2]))
    cuda = tuple(found.get("cuda", "").split())
    return Environment(interpreter, found.get("cupy", ""), cuda, version)


def choose_door(
    wanted: str,
    program: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
) -> DoorChoice:
    """Return the door for a program. Blocks while its interpreter is asked.

    Args:
        wanted: "auto", "arrays" or "cuda".
        program: the file that will be executed.
        arguments: its argument vector, with its name first.
        environment: as the program will get it.

    Raises:
        UsageError: when the CUDA door is wanted and its library is not there.
    """
    built = cuda_library().exists()
    if wanted == "cuda":
        if not built:
            raise UsageError(
                "the CUDA door is not built",
                why=f"{cuda_library()} does not exist",
                hint="it needs Linux; install a C compiler and gpupool again, or run "
                "python -m gpupool.remoting.driver_api.build",
            )
        return DoorChoice("cuda", "asked for", _without_cupy(program, arguments, environment))
    name = os.path.basename(program)
    if wanted == "auto" and built and is_binary(program):
        return DoorChoice("cuda", f"{name} is a binary, and not Python")
    if not dropin_dir().is_dir():
        return DoorChoice("", "this installation has no drop-in package")
    path = environment.get("PATH")
    interpreter = interpreter_of(program, path)
    own = bool(interpreter)
    if wanted == "arrays":
        return DoorChoice("arrays", "asked for", ignored_path(arguments) if own else "")
    if not own:
        # A shell or another launcher: the Python that it would find is the best guess.
        interpreter = shutil.which("python3", path=path) or shutil.which("python", path=path) or ""
    if not interpreter:
        door = "both" if built else "arrays"
        return DoorChoice(door, "no Python was found to ask; its programs get the drop-in")
    answer = ask_interpreter(interpreter, environment)
    choice = _choose_for_python(answer, interpreter, arguments, own=own, built=built)
    if own or not built or choice.door == "cuda":
        return choice
    return DoorChoice("both" if choice.door else "cuda", f"{name} may start anything; {choice.why}")


def _choose_for_python(
    answer: Environment | None,
    interpreter: str,
    arguments: Sequence[str],
    *,
    own: bool,
    built: bool,
) -> DoorChoice:
    """Return the door for programs of a Python; ``own``: it is the program itself."""
    whose = "the program's Python" if own else f"{interpreter}, the first on the PATH,"
    if answer is None:
        why = f"{interpreter} does not answer like a Python"
        return _cuda_alone(why, own=own, built=built)
    if answer.cupy:
        if built:
            return DoorChoice("cuda", f"{whose} has CuPy itself; --door arrays overrides")
        return DoorChoice("", f"{whose} has CuPy itself ({answer.cupy}); --door arrays overrides")
    if own and built and answer.cuda and not imports_cupy(arguments):
        return DoorChoice("cuda", f"{whose} has {answer.cuda[0]}; --door arrays overrides")
    if answer.version < DROPIN_PYTHON_MIN:
        needed = ".".join(map(str, DROPIN_PYTHON_MIN))
        why = f"{whose} is {answer.version[0]}.{answer.version[1]}, the drop-in cupy needs {needed}"
        return _cuda_alone(why, own=own, built=built)
    warning = ignored_path(arguments) if own else ""
    return DoorChoice("arrays", f"{whose} has no CuPy", warning)


def _cuda_alone(why: str, *, own: bool, built: bool) -> DoorChoice:
    """Return the door of a Python that cannot have the drop-in: that of CUDA asks nothing of it."""
    return (
        DoorChoice("cuda", why, f"{why}; CUDA programs run")
        if own and built
        else DoorChoice("", why)
    )


def door_lines(door: DoorChoice, program: str, *, quiet: bool) -> list[str]:
    """Return the messages about a door before the program starts.

    That there is none is as bad as an error, and so is not hidden by ``-q``.
    """
    none = [] if door.door else [f"{os.path.basename(program)} will see no GPU: {door.why}"]
    return none + ([door.warning] if door.warning and not quiet else [])


def _without_cupy(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return a warning when a program for the CUDA door imports CuPy, which its Python lacks."""
    interpreter = interpreter_of(program, environment.get("PATH"))
    if not interpreter or not imports_cupy(arguments):
        return ""
    answer = ask_interpreter(interpreter, environment)
    if answer is None or answer.cupy:
        return ""
    return (
        f"{interpreter} has no CuPy: {interpreter} -m pip install cupy-cuda12x, "
        "or take the drop-in by --door arrays"
    )


def imports_cupy(arguments: Sequence[str]) -> bool:
    """Say whether a Python program's own text imports cupy; blocks while it is read."""
    for at, argument in enumerate(arguments[1:], 1):
        if argument == "-c":
            return IMPORTS_CUPY.search("\n".join(arguments[at + 1 : at + 2])) is not None
        if argument in ("-m", "-"):
            return False
        if not argument.startswith("-") or at == len(arguments) - 1:
            try:
                with open(argument, encoding="utf-8", errors="replace") as file:
                    return IMPORTS_CUPY.search(file.read(SCRIPT_LENGTH_MAX)) is not None
            except OSError:
                return False
    return False


def ignored_path(arguments: Sequence[str]) -> str:
    """Return a warning when Python's own flags make it ignore PYTHONPATH."""
    for argument in arguments[1:]:
        if not argument.startswith("-") or argument in ("-c", "-m", "-"):
            break
        if not argument.startswith("--") and set(argument[1:]) & {"I", "E"}:
            return f"{argument} makes Python ignore PYTHONPATH: the drop-in cupy is not found"
    return ""


def program_environment(
    base: Mapping[str, str],
    *,
    door: str,
    agent: str,
    lease: str,
    servers: Sequence[str],
    extra: Sequence[tuple[str, str]] = (),
) -> dict[str, str]:
    """Return the environment of the program: all of ours, the way to the agent, the door."""
    env = dict(base)
    env["GPUPOOL_AGENT"] = agent
    env["GPUPOOL_PYTHON"] = sys.executable
    env["PATH"] = with_tools(env.get("PATH", os.defpath))
    for name, value in (("GPUPOOL_LEASE", lease), ("GPUPOOL_SERVERS", ",".join(servers))):
        env.pop(name, None)  # those of a run around this one
        if value:
            env[name] = value
    if "JPY_PARENT_PID" in env:
        env["JPY_PARENT_PID"] = str(os.getpid())  # a kernel ends when this is not its parent
    env.update(extra)
    parts = [str(path) for name, path in own_paths().items() if door in (name, "both")]
    parts.append(without_own(env.get("PYTHONPATH", "")))
    env["PYTHONPATH"] = os.pathsep.join(part for part in parts if part)
    if not env["PYTHONPATH"]:
        del env["PYTHONPATH"]
    library = str(cuda_library().parent)
    paths = [p for p in env.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p and p != library]
    ours = str(nccl_library())
    preloads = [p for p in env.pop("LD_PRELOAD", "").split(os.pathsep) if p not in ("", ours)]
    if door in ("cuda", "both"):
        paths.insert(0, library)
        # Without CUDA devices JAX falls back to the CPU, and says so where CUDA was named.
        env.setdefault("JAX_PLATFORMS", "cuda,cpu")
        # NCCL goes through the host's memory where GPUs seem far apart, as they do from a machine
        # that lacks them, and its kernels would wait there for what cannot come in time.
        env.setdefault("NCCL_P2P_LEVEL", "SYS")
        # Triton links with the driver that ldconfig lists, which may be what an image without a
        # driver has in its place.
        env.setdefault("TRITON_LIBCUDA_PATH", library)
        if len(servers) > 1:
            # A copy of NCCL's own that is linked into a program has no way between servers, so it
            # had better say so; all others are ours by their name, wherever they would be found.
            if nccl_library().exists():
                preloads.insert(0, ours)
            env.setdefault("NCCL_SHM_DISABLE", "1")
            env.setdefault("NCCL_NET_DISABLE_INTRA", "1")
    if preloads:
        env["LD_PRELOAD"] = os.pathsep.join(preloads)
    if paths:
        env["LD_LIBRARY_PATH"] = os.pathsep.join(paths)
    else:
        env.pop("LD_LIBRARY_PATH", None)
    return env
