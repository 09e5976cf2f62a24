"""Which door a program takes: whether it is Python, whose Python, and whether CuPy is real there.

The array door is a drop-in ``cupy``; the CUDA door is a ``libcuda.so.1`` that comes first on the
loader's path, for programs that are not Python or when it is asked for.

The program's environment need not be ours: gpupool may live in a pipx of its own. So its own
interpreter is asked, while the pool is being asked for GPUs, and nothing of ours is imported there.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpupool.pool.errors import UsageError

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
    "n = u.find_spec('numpy')\n"
    "print('cupy:' + (str(s.origin) if s else ''))\n"
    "print('numpy:' + (str(n.origin) if n else ''))\n"
    "print('python:%d.%d' % sys.version_info[:2])\n"
)


@dataclass(frozen=True, slots=True)
class Environment:
    """What the program's interpreter said of itself."""

    interpreter: str
    cupy: str  # where the real CuPy lies; empty when there is none
    numpy: str
    version: tuple[int, int]


@dataclass(frozen=True, slots=True)
class DoorChoice:
    """How the program will reach its GPUs, and why."""

    door: str  # "arrays", "cuda", or "" for none
    why: str
    warning: str = ""


def dropin_dir() -> Path:
    """Return the folder that holds the drop-in ``cupy`` package; imports nothing of it."""
    spec = importlib.util.find_spec("gpupool.remoting.arrays")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))).resolve() / "dropin"


def cuda_library() -> Path:
    """Return where the CUDA door's library is, if it was built; imports nothing of it."""
    spec = importlib.util.find_spec("gpupool.remoting.driver")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(next(iter(spec.submodule_search_locations))).resolve()
    return folder / "library" / "libcuda.so.1"


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


def without_dropin(pythonpath: str, dropin: Path) -> str:
    """Return ``pythonpath`` without our own drop-in, which a nested run inherits."""
    parts = [p for p in pythonpath.split(os.pathsep) if p]
    return os.pathsep.join(p for p in parts if Path(p).resolve() != dropin)


def ask_interpreter(interpreter: str, environment: Mapping[str, str]) -> Environment | None:
    """Ask a Python where its CuPy and NumPy are; None when it does not answer. Blocks."""
    env = dict(environment)
    env["PYTHONPATH"] = without_dropin(env.get("PYTHONPATH", ""), dropin_dir())
    try:
        done = subprocess.run(
            [interpreter, "-c", PROBE],
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
    """Return what the probe printed, or None when it is not ours."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        found[name] = value
    match = re.fullmatch(r"(\d+)\.(\d+)", found.get("python", ""))
    if match is None:
        return None
    version = (int(match[1]), int(match[2]))
    return Environment(interpreter, found.get("cupy", ""), found.get("numpy", ""), version)


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
    if wanted == "cuda":
        if not cuda_library().exists():
            raise UsageError(
                "the CUDA door is not built",
                why=f"{cuda_library()} does not exist",
                hint="it needs Linux; install a C compiler and gpupool again, or run "
                "python -m gpupool.remoting.driver.build",
            )
        return DoorChoice("cuda", "asked for")
    if wanted == "auto" and is_binary(program) and cuda_library().exists():
        return DoorChoice("cuda", f"{os.path.basename(program)} is a binary, and not Python")
    if not dropin_dir().is_dir():
        return DoorChoice("", "this installation has no drop-in package")
    path = environment.get("PATH")
    interpreter = interpreter_of(program, path)
    own = bool(interpreter)
    if not own:
        # A shell or another launcher: the Python that it would find is the best guess.
        interpreter = shutil.which("python3", path=path) or shutil.which("python", path=path) or ""
    if wanted == "arrays":
        return DoorChoice("arrays", "asked for", ignored_path(arguments) if own else "")
    if not interpreter:
        return DoorChoice("arrays", "no Python was found to ask; its programs get the drop-in")
    answer = ask_interpreter(interpreter, environment)
    whose = "the program's Python" if own else f"{interpreter}, the first on the PATH,"
    if answer is None:
        return DoorChoice("", f"{interpreter} does not answer like a Python")
    if answer.cupy:
        return DoorChoice("", f"{whose} has CuPy itself ({answer.cupy}); --door arrays overrides")
    if answer.version < (3, 11):
        why = f"{whose} is {answer.version[0]}.{answer.version[1]}, the drop-in needs 3.11"
        return DoorChoice("", why, why)
    warning = "" if answer.numpy or not own else f"{interpreter} has no NumPy, which cupy needs"
    warning = warning or (ignored_path(arguments) if own else "")
    return DoorChoice("arrays", f"{whose} has no CuPy", warning)


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
    env["GPUPOOL_LEASE"] = lease
    env["GPUPOOL_SERVERS"] = ",".join(servers)
    env.update(extra)
    dropin = dropin_dir()
    rest = without_dropin(env.get("PYTHONPATH", ""), dropin)
    if door == "arrays":
        env["PYTHONPATH"] = os.pathsep.join(part for part in (str(dropin), rest) if part)
    elif rest:
        env["PYTHONPATH"] = rest
    else:
        env.pop("PYTHONPATH", None)
    library = str(cuda_library().parent)
    paths = [p for p in env.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p and p != library]
    if door == "cuda":
        paths.insert(0, library)
        # JAX looks for /dev/nvidia0 before it tries CUDA; naming the platforms skips that.
        env.setdefault("JAX_PLATFORMS", "cuda,cpu")
    if paths:
        env["LD_LIBRARY_PATH"] = os.pathsep.join(paths)
    else:
        env.pop("LD_LIBRARY_PATH", None)
    return env
