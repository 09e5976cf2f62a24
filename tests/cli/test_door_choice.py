"""The choice of a program's door: the program's Python is asked; a real CuPy is never shadowed."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpupool.cli.commands.doctor import door_finding
from gpupool.pool.errors import UsageError
from gpupool.remoting.program import door_choice
from gpupool.remoting.program.door_choice import (
    DoorChoice,
    choose_door,
    cuda_dir,
    door_lines,
    dropin_dir,
    ignored_path,
    interpreter_of,
    parse_answer,
    program_environment,
    tools_dir,
    without_own,
)


def script(path: Path, first: str) -> str:
    path.write_text(f"{first}\npass\n")
    path.chmod(0o755)
    return str(path)


def test_what_is_python(tmp_path: Path) -> None:
    assert interpreter_of("/usr/bin/python3.11") == "/usr/bin/python3.11"
    assert interpreter_of("python") == "python"
    assert interpreter_of("/usr/bin/pythonic") == ""
    assert interpreter_of(script(tmp_path / "a", "#!/opt/v/bin/python3 -u")) == "/opt/v/bin/python3"
    assert interpreter_of(script(tmp_path / "b", "#!/bin/sh")) == ""
    assert interpreter_of(script(tmp_path / "c", "no shebang")) == ""
    assert interpreter_of(str(tmp_path / "missing")) == ""
    (tmp_path / "python3").symlink_to(sys.executable)
    path = str(tmp_path)
    for first in (
        "#!/usr/bin/env python3",
        "#!/usr/bin/env -S python3 -u",
        "#!/usr/bin/env A=1 python3",
    ):
        assert interpreter_of(script(tmp_path / "d", first), path) == str(tmp_path / "python3")


@pytest.mark.parametrize("text", ["", "nonsense", "cupy:/x\npython:three", "python:3"])
def test_an_answer_that_is_none(text: str) -> None:
    assert parse_answer("python", text) is None


@pytest.fixture(autouse=True)
def unbuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the CUDA door's library is not there, unless a test asks for ``built``."""
    monkeypatch.setattr(door_choice, "cuda_library", lambda: tmp_path / "no library")


def test_our_own_python_gets_the_drop_in() -> None:
    choice = choose_door("auto", sys.executable, [sys.executable], dict(os.environ))
    assert choice.door == "arrays"
    assert choice.warning == ""


def test_a_nested_run_is_not_taken_for_a_real_cupy() -> None:
    env = dict(os.environ) | {"PYTHONPATH": str(dropin_dir())}
    assert choose_door("auto", sys.executable, [sys.executable], env).door == "arrays"


def test_a_real_cupy_wins_unless_asked(tmp_path: Path) -> None:
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy" / "__init__.py").write_text("")
    env = dict(os.environ) | {"PYTHONPATH": str(tmp_path)}
    choice = choose_door("auto", sys.executable, [sys.executable], env)
    assert choice.door == ""
    assert str(tmp_path) in choice.why
    assert choose_door("arrays", sys.executable, [sys.executable], env).door == "arrays"


def test_a_shell_gets_the_answer_of_the_first_python_on_its_path(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    choice = choose_door("auto", "/bin/sh", ["sh"], {"PATH": str(tmp_path)})
    assert choice.door == "arrays"
    assert "the first on the PATH" in choice.why
    assert choose_door("auto", "/bin/sh", ["sh"], {"PATH": "/nowhere"}).door == "arrays"


def test_something_that_only_calls_itself_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = script(tmp_path / "python3", "#!/bin/sh")
    monkeypatch.setattr(door_choice, "cuda_library", lambda: tmp_path / "none")
    choice = choose_door("auto", fake, [fake], dict(os.environ))
    assert choice.door == ""
    assert "does not answer" in choice.why


def test_a_python_that_does_not_answer_gets_the_cuda_door(built: Path, tmp_path: Path) -> None:
    """As Python 2 does not, or one on a slow network disk: CUDA asks nothing of it."""
    fake = script(tmp_path / "python2.7", "#!/bin/sh")
    choice = choose_door("auto", fake, [fake], dict(os.environ))
    assert choice.door == "cuda"
    assert "does not answer like a Python; CUDA programs run" in choice.warning


def test_the_doctor_says_that_the_cuda_door_is_not_built() -> None:
    choice = DoorChoice("arrays", "the program's Python has no CuPy")
    said = "python3 on the PATH: arrays door, the program's Python has no CuPy"
    assert door_finding(choice, built=True).text == said
    missing = door_finding(choice, built=False)
    if sys.platform == "linux":
        assert missing.text == f"{said}; the CUDA door is not built"
        assert "gcc" in missing.hint


def test_that_a_program_has_no_door_is_said_even_by_a_quiet_run() -> None:
    none = DoorChoice("", "this installation has no drop-in package")
    said = "train.py will see no GPU: this installation has no drop-in package"
    assert door_lines(none, "/srv/train.py", quiet=True) == [said]
    warned = DoorChoice("cuda", "asked for", "there is no CuPy")
    assert door_lines(warned, "python", quiet=False) == ["there is no CuPy"]
    assert door_lines(warned, "python", quiet=True) == []


@pytest.mark.parametrize(
    ("arguments", "warns"),
    [
        (["python", "-I", "x.py"], True),
        (["python", "-uE", "x.py"], True),
        (["python", "x.py", "-E"], False),
        (["python", "-c", "-E"], False),
        (["python", "--version"], False),
        (["python"], False),
    ],
)
def test_flags_that_hide_the_drop_in(arguments: list[str], warns: bool) -> None:
    assert bool(ignored_path(arguments)) is warns


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pretend that the CUDA door's library is there."""
    library = tmp_path / "library" / "libcuda.so.1"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setattr(door_choice, "cuda_library", lambda: library)
    return library


def test_the_cuda_door_is_taken_when_asked_for(built: Path) -> None:
    for name in (sys.executable, "/bin/sh"):
        choice = choose_door("cuda", name, [name], dict(os.environ))
        assert (choice.door, choice.why) == ("cuda", "asked for")
    built.unlink()
    with pytest.raises(UsageError, match="not built") as caught:
        choose_door("cuda", "/bin/sh", ["sh"], {})
    assert "compiler" in caught.value.hint


def test_only_binaries_that_are_no_python_get_the_cuda_door_by_themselves(
    built: Path, tmp_path: Path
) -> None:
    binary = tmp_path / "nbody"
    binary.write_bytes(b"\x7fELF and so on")
    choice = choose_door("auto", str(binary), ["nbody"], dict(os.environ))
    assert choice.door == "cuda"
    assert "nbody is a binary" in choice.why
    assert choose_door("auto", sys.executable, [sys.executable], dict(os.environ)).door == "arrays"
    for other in ("/bin/sh", script(tmp_path / "train", "#!/bin/sh")):
        # Whatever it starts finds its door.
        assert choose_door("auto", other, [other], dict(os.environ)).door == "both"
    assert choose_door("arrays", str(binary), ["nbody"], dict(os.environ)).door == "arrays"
    built.unlink()
    assert choose_door("auto", str(binary), ["nbody"], dict(os.environ)).door == "arrays"


def test_a_python_with_a_cuda_package_gets_the_cuda_door_unless_it_imports_cupy(
    built: Path, tmp_path: Path
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    env = dict(os.environ) | {"PYTHONPATH": str(tmp_path)}
    train, solve = tmp_path / "train.py", tmp_path / "solve.py"
    train.write_text("import torch\n# import cupy\n")
    solve.write_text("import numpy as np\nif np:\n    import cupy as cp\n")
    python = sys.executable

    def choose(*arguments: str) -> str:
        return choose_door("auto", python, [python, *arguments], env).door

    assert choose("-u", str(train), "--epochs", "3") == "cuda"
    assert choose(str(solve)) == "arrays"
    assert choose("-c", "import torch") == "cuda"
    assert choose("-c", "from cupy import ones") == "arrays"
    assert choose("-m", "train") == choose() == choose("missing.py") == "cuda"
    assert "has torch" in choose_door("auto", python, [python, str(train)], env).why
    built.unlink()
    assert choose(str(train)) == "arrays"


def test_a_python_with_cupy_gets_the_cuda_door(built: Path, tmp_path: Path) -> None:
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy" / "__init__.py").write_text("")
    env = dict(os.environ) | {"PYTHONPATH": str(tmp_path)}
    assert choose_door("auto", sys.executable, [sys.executable], env).door == "cuda"


def old_python(folder: Path, version: str) -> str:
    """Make a Python that answers the probe as one of that version would."""
    answer = f"cupy:\\ncuda:\\npython:{version}"
    return script(folder / "python3", f"#!/bin/sh\nprintf '{answer}\\n'; exit")


def test_the_drop_in_runs_in_python_3_9(tmp_path: Path) -> None:
    old = old_python(tmp_path, "3.9")
    assert choose_door("auto", old, [old], {}) == DoorChoice(
        "arrays", "the program's Python has no CuPy"
    )
    older = old_python(tmp_path, "3.8")
    choice = choose_door("auto", older, [older], {})
    assert choice.door == ""
    assert choice.why == "the program's Python is 3.8, the drop-in cupy needs 3.9"


def test_a_python_that_is_too_old_gets_the_cuda_door(built: Path, tmp_path: Path) -> None:
    older = old_python(tmp_path, "3.8")
    choice = choose_door("auto", older, [older], {})
    assert choice.door == "cuda"
    assert "3.8" in choice.warning


def test_what_is_missing_is_said_with_its_remedy(built: Path, tmp_path: Path) -> None:
    python = old_python(tmp_path, "3.12")
    solve = tmp_path / "solve.py"
    solve.write_text("import cupy\n")
    choice = choose_door("cuda", python, [python, str(solve)], {})
    assert "pip install cupy-cuda12x" in choice.warning
    assert choose_door("cuda", python, [python, "-c", "import torch"], {}).warning == ""


def test_environment_of_both_doors(built: Path) -> None:
    env = program_environment({}, door="both", agent="/run/x", lease="7f3a", servers=["a"])
    assert env["LD_LIBRARY_PATH"] == str(built.parent)
    assert env["PYTHONPATH"] == os.pathsep.join((str(dropin_dir()), str(cuda_dir() / "python")))


def test_nccl_is_ours_between_servers_alone(built: Path) -> None:
    ours = built.with_name("libnccl.so.2")
    ours.touch()

    def preloads(base: dict[str, str], servers: list[str], door: str = "cuda") -> str:
        made = program_environment(base, door=door, agent="", lease="1", servers=servers)
        return made.get("LD_PRELOAD", "")

    several = preloads({"LD_PRELOAD": "other.so"}, ["a", "b"])
    assert several == os.pathsep.join((str(ours), "other.so"))
    assert preloads({"LD_PRELOAD": several}, ["a", "b"]) == several  # once
    assert preloads({}, ["a"]) == ""
    # In a run around this one there were several.
    assert preloads({"LD_PRELOAD": several}, ["a"]) == "other.so"
    assert preloads({"LD_PRELOAD": str(ours)}, ["a", "b"], "arrays") == ""
    ours.unlink()
    assert preloads({}, ["a", "b"]) == ""


def test_environment_of_the_cuda_door(built: Path) -> None:
    library = str(built.parent)
    base = {"LD_LIBRARY_PATH": f"/a{os.pathsep}{library}", "PYTHONPATH": str(dropin_dir())}
    env = program_environment(base, door="cuda", agent="/run/x", lease="7f3a", servers=["a"])
    assert env["LD_LIBRARY_PATH"] == os.pathsep.join((library, "/a"))
    assert env["JAX_PLATFORMS"] == "cuda,cpu"
    assert env["NCCL_P2P_LEVEL"] == "SYS"
    assert env["TRITON_LIBCUDA_PATH"] == library
    assert "NCCL_SHM_DISABLE" not in env
    far = program_environment(base, door="cuda", agent="", lease="1", servers=["a", "b"])
    assert (far["NCCL_SHM_DISABLE"], far["NCCL_NET_DISABLE_INTRA"]) == ("1", "1")
    assert env["PYTHONPATH"] == str(cuda_dir() / "python")
    # A run inside a run, by another door, must not find the library of the outer one.
    none = program_environment(env, door="arrays", agent="", lease="1", servers=[])
    assert none["LD_LIBRARY_PATH"] == "/a"
    assert none["PYTHONPATH"] == str(dropin_dir())


def test_jax_looks_for_devices_in_a_lease_alone(tmp_path: Path) -> None:
    """A JAX stand-in: the module with its device check, and plugins in a namespace package."""
    asks = tmp_path / "jax" / "_src" / "hardware_utils.py"
    asks.parent.mkdir(parents=True)
    asks.write_text("def has_visible_nvidia_gpu(): return False")
    (tmp_path / "jax_plugins" / "xla_cuda").mkdir(parents=True)
    (tmp_path / "jax_plugins" / "xla_cuda" / "__init__.py").write_text("def initialize(): pass")
    text = """
import importlib, jax_plugins, pkgutil
from jax._src import hardware_utils
names = sorted(found.name for found in pkgutil.iter_modules(jax_plugins.__path__))
for name in names:
    importlib.import_module("jax_plugins." + name).initialize()
print(*names, hardware_utils.has_visible_nvidia_gpu())
"""
    base = {"PYTHONPATH": str(tmp_path)}
    env = program_environment(base, door="cuda", agent="/run/x", lease="7f3a", servers=["a"])
    for wanted in ("gpupool xla_cuda True\n", "gpupool xla_cuda False\n"):
        done = subprocess.run(
            [sys.executable, "-c", text], env=env, capture_output=True, text=True, check=False
        )
        assert done.stdout == wanted, done.stderr
        env.pop("GPUPOOL_AGENT", None)


def test_environment() -> None:
    base = {"PYTHONPATH": f"/a{os.pathsep}{dropin_dir()}", "KEEP": "1"}
    env = program_environment(
        base, door="arrays", agent="/run/x", lease="7f3a", servers=["a", "b"], extra=[("E", "2")]
    )
    assert env["PYTHONPATH"] == os.pathsep.join((str(dropin_dir()), "/a"))
    assert env["GPUPOOL_SERVERS"] == "a,b"
    assert (env["KEEP"], env["E"]) == ("1", "2")
    none = program_environment(base, door="", agent="", lease="1", servers=[])
    assert none["PYTHONPATH"] == "/a"
    assert "PYTHONPATH" not in program_environment({}, door="", agent="", lease="1", servers=[])
    assert without_own("") == ""


def test_programs_find_our_nvidia_smi_first_and_once() -> None:
    outer = program_environment({"PATH": "/a:/b"}, door="", agent="/run/x", lease="", servers=[])
    assert outer["PATH"] == os.pathsep.join((str(tools_dir()), "/a", "/b"))
    assert shutil.which("nvidia-smi", path=outer["PATH"]) == str(tools_dir() / "nvidia-smi")
    inner = program_environment(outer, door="", agent="/run/x", lease="", servers=[])
    assert inner["PATH"] == outer["PATH"]


def test_a_jupyter_kernel_is_told_who_its_parent_is() -> None:
    """It ends itself when its parent is another process than Jupyter said."""
    env = program_environment({"JPY_PARENT_PID": "1"}, door="", agent="", lease="", servers=[])
    assert env["JPY_PARENT_PID"] == str(os.getpid())


def test_a_run_without_a_lease_yet_names_none() -> None:
    outer = {"GPUPOOL_LEASE": "7f3a", "GPUPOOL_SERVERS": "a"}
    env = program_environment(outer, door="", agent="/run/x", lease="", servers=[])
    assert "GPUPOOL_LEASE" not in env
    assert "GPUPOOL_SERVERS" not in env


def test_the_drop_in_imports_without_us() -> None:
    """With no site-packages of ours but NumPy's, and with an agent that is not there."""
    code = "import cupy, sys; assert 'gpupool' not in sys.modules; print(cupy.pi)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(dropin_dir())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("3.14"), done.stderr


def run_dropin(code: str, *flags: str) -> str:
    done = subprocess.run(
        [sys.executable, *flags, "-c", code],
        env={"PYTHONPATH": str(dropin_dir())},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_names_that_the_drop_in_lacks_come_with_advice() -> None:
    said = run_dropin("""
import importlib.util
import cupy
assert importlib.util.find_spec("cupyx.distributed") is None
assert not hasattr(cupy, "disp") and not hasattr(cupy.linalg, "nothing")
try:
    import cupyx.distributed.array
except ModuleNotFoundError as error:
    print(error)
cupy.disp
""")
    assert "No module named 'cupyx.distributed': gpupool's drop-in cupy lacks it" in said
    assert "module 'cupy' has no attribute 'disp': gpupool's drop-in cupy lacks it" in said
    assert said.count("gpupool door --missing") == 2


def test_a_program_without_numpy_is_told_how_to_get_it() -> None:
    """The system's own Python takes no packages."""
    assert "pip install numpy" in run_dropin("import cupy", "-S")


def test_programs_import_what_python_3_9_understands() -> None:
    for folder in (dropin_dir(), cuda_dir() / "python"):
        for path in folder.rglob("*.py"):
            ast.parse(path.read_text(), str(path), feature_version=(3, 9))


OLD_PYTHONS = "GPUPOOL_TEST_OLD_PYTHONS"


@pytest.mark.slow
def test_older_pythons_compute(live_pool: Any) -> None:
    """``GPUPOOL_TEST_OLD_PYTHONS`` names Pythons from 3.9 on that have NumPy."""
    pythons = os.environ.get(OLD_PYTHONS, "").split()
    if not pythons:
        pytest.skip(f"{OLD_PYTHONS} names no Python")
    code = (
        "import cupy as cp\n"
        "a = cp.arange(12.0).reshape(3, 4)\n"
        "print(float((a @ a.T).sum()), cp.split(a, 2, axis=1)[0].shape)\n"
        "cp.linalg.cholesky(-cp.eye(2))\n"
        "cp.cuda.Device().synchronize()\n"
    )
    for python in pythons:
        done = live_pool.run("run", "-p", "0.5", "--", python, "-c", code)
        assert done.stdout == "1134.0 (3, 2)\n", done.stderr
        assert "by the call at <string>:4" in done.stderr
