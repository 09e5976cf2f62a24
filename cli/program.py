"""Which door a program takes: whether it is Python, whose Python, and whether CuPy is real there.

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

PROBE_TIMEOUT_S = 10.0
SHEBANG_LENGTH_MAX = 512
PYTHON_NAME = re.compile(r"(?:python|pypy)[0-9.]*(?:\.exe)?")
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

    door: str  # "arrays", or "" for none
    why: str
    warning: str = ""


def dropin_dir() -> Path:
    """Return the folder that holds the drop-in ``cupy`` package; imports nothing of it."""
    spec = importlib.util.find_spec("gpupool.remoting.arrays")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))).resolve() / "dropin"


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
        wanted: "auto" or "arrays".
        program: the file that will be executed.
        arguments: its argument vector, with its name first.
        environment: as the program will get it.
    """
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
    return env
