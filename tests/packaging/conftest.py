"""Common parts of the tests of releases: tools, one build of the release, and roots of systems."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Root = Callable[[str], Path]


def run(*argv: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Run a program and return its output; a failure shows the output."""
    done = subprocess.run(
        [str(word) for word in argv],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, (
        f"{argv}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    )
    return done.stdout


def build_release(checkout: Path, out: Path, tools: Path) -> list[Path]:
    """Build sdist and wheels of the checkout's commit."""
    run(tools, checkout / "packaging" / "wheels.py", "--out", out)
    return sorted(out.iterdir())


@pytest.fixture(scope="session")
def tools() -> Path:
    """Return the Python that has the tools of requirements/release.txt."""
    python = os.environ.get("GPUPOOL_RELEASE_PYTHON", "")
    if not python:
        pytest.skip('the tools of a release are installed by "make test-packages"')
    return Path(python)


@pytest.fixture(scope="session")
def release(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the sdist and the wheels of this commit."""
    return build_release(ROOT, tmp_path_factory.mktemp("release"), tools)


@pytest.fixture(scope="session")
def wheel(release: list[Path]) -> Path:
    """Return the wheel for x86_64."""
    return next(path for path in release if path.name.endswith("_x86_64.whl"))


@pytest.fixture(scope="session")
def downloaded(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that downloads gpupool's dependencies as wheels for one Python version."""
    made: dict[str, Path] = {}

    def fetch(version: str) -> Path:
        if version not in made:
            folder = tmp_path_factory.mktemp(f"wheels-{version}")
            # The one dependency that has no wheel is pure Python.
            pip = (sys.executable, "-m", "pip")
            run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, "pysyncobj==0.3.17")
            platforms = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
            options: Sequence[str] = [
                *("--only-binary", ":all:", "--python-version", version, "--quiet"),
                *("--find-links", str(folder)),
                *(word for name in platforms for word in ("--platform", name)),
            ]
            run(*pip, "download", *options, "--dest", folder, wheel)
            made[version] = folder
        return made[version]

    return fetch


@pytest.fixture(scope="session")
def system_root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """Return a function that makes the root of a Debian release, or skips."""
    made: dict[str, Path] = {}

    def make(suite: str) -> Path:
        if os.geteuid() != 0 or not shutil.which("debootstrap"):
            pytest.skip("a system's root needs root and debootstrap")
        if suite not in made:
            root = tmp_path_factory.mktemp(f"root-{suite}")
            include = "--include=python3,python3-venv,adduser,systemd,ca-certificates,rpm"
            argv = ["debootstrap", "--variant=minbase", include, suite, str(root)]
            done = subprocess.run(argv, text=True, capture_output=True, check=False)
            if done.returncode:
                pytest.skip(f"no {suite}: {(done.stdout + done.stderr)[-300:]}")
            made[suite] = root
        return made[suite]

    return make


def chroot(root: Path, script: str) -> str:
    """Run a shell script in the root, with separate mounts of /proc and a small /dev."""
    mounts = f"mount -t proc proc {root}/proc; mount --bind /dev/null {root}/dev/null; "
    inside = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8"]
    quoted = ["chroot", str(root), *inside, "bash", "-euc", script]
    program = mounts + 'exec "$@"'
    return run("unshare", "--mount", "--pid", "--fork", "bash", "-c", program, "-", *quoted)
