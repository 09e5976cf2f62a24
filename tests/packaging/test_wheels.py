"""Releases: the same commit gives the same files, which install without a compiler."""

import json
import os
import re
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.packaging.conftest import ROOT, Root, build_release, chroot, run
from tests.remoting.driver_api.test_hardening import GUARDED, weaknesses

pytestmark = pytest.mark.slow

LIBRARIES = (
    "gpupool_launch.so",
    "libcuda.so",
    "libcuda.so.1",
    "libnccl.so.2",
    "libnvcuvid.so.1",
    "libnvidia-encode.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-opticalflow.so.1",
)
LOAD = """
import ctypes, pathlib, gpupool.remoting.driver_api.build as build
folder = build.library_dir()
cuda = ctypes.CDLL(str(folder / "libcuda.so.1"))
version = ctypes.c_int()
assert cuda.cuDriverGetVersion(ctypes.byref(version)) == 0 and version.value >= 12000, version
for path in folder.iterdir():
    if path.name not in ("libcuda.so", "libcuda.so.1", "libnccl.so.2"):
        ctypes.CDLL(str(path))
print("libraries load", *sorted(path.name for path in folder.iterdir()))
"""
LOADED = " ".join(("libraries load", *sorted(LIBRARIES)))


def test_the_same_commit_gives_the_same_files(
    tools: Path, release: list[Path], tmp_path: Path
) -> None:
    clone = tmp_path / "a folder of another name" / "clone"
    run("git", "clone", "--quiet", "--no-hardlinks", ROOT, clone)
    run("git", "-C", clone, "checkout", "--quiet", run("git", "rev-parse", "HEAD").strip())
    before = os.umask(0o077)
    try:
        again = build_release(clone, tmp_path / "again", tools)
    finally:
        os.umask(before)
    assert [path.name for path in again] == [path.name for path in release]
    assert len(again) == 4
    for one, other in zip(release, again, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_the_libraries_of_both_wheels_are_hardened(release: list[Path]) -> None:
    for path in release[:2]:
        with zipfile.ZipFile(path) as opened:
            for name in LIBRARIES:
                data = opened.read(f"gpupool/remoting/driver_api/library/{name}")
                assert weaknesses(data, guarded=name in GUARDED) == set(), (path.name, name)


def test_the_sdist_is_complete(release: list[Path]) -> None:
    with tarfile.open(release[3]) as opened:
        inside = {name.partition("/")[2] for name in opened.getnames()}
        assert {member.mtime for member in opened.getmembers()} == {
            int(run("git", "log", "-1", "--format=%ct"))
        }
    # Files of tools for development, and links that setuptools does not need.
    outside = (".", "src/gpupool/")
    tracked = run("git", "ls-files").splitlines()
    assert {name for name in tracked if not name.startswith(outside)} - inside == set()


def test_the_bill_of_materials_names_what_a_server_installs(release: list[Path]) -> None:
    bill = json.loads(release[2].read_text(encoding="utf-8"))
    assert bill["bomFormat"] == "CycloneDX"
    about = bill["metadata"]["component"]
    assert f"gpupool-{about['version']}.cdx.json" == release[2].name
    locked = (ROOT / "requirements" / "server.txt").read_text(encoding="utf-8")
    wanted = set(re.findall(r"(?m)^([\w.-]+)==(\S+)", locked))
    assert {(each["name"], each["version"]) for each in bill["components"]} == wanted
    assert all(each["externalReferences"] for each in bill["components"])  # with their hashes


def test_twine_and_auditwheel_accept_them(tools: Path, release: list[Path]) -> None:
    run(tools, "-m", "twine", "check", "--strict", *release[:2], release[3])
    for path in release[:2]:
        said = run(tools, "-m", "auditwheel", "show", path).replace("\n", " ")
        assert 'constrains the platform tag to "manylinux_2_2' in said, said


def test_it_installs_where_there_is_no_compiler(wheel: Path, tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    env = {"PATH": str(empty), "CC": "/bin/false"}
    pip = (python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:")
    run(*pip, "--no-binary", "pysyncobj", wheel, env=env)  # which is pure Python
    assert run(python, "-c", LOAD, cwd=tmp_path).strip() == LOADED
    assert run(python.with_name("gpupool"), "version", cwd=tmp_path).startswith("gpupool ")


@pytest.mark.parametrize(("suite", "version"), [("bookworm", "3.11"), ("trixie", "3.13")])
def test_it_installs_in_a_bare_system(
    suite: str, version: str, wheel: Path, system_root: Root, downloaded: Callable[[str], Path]
) -> None:
    root = system_root(suite)
    target = root / "srv" / "wheels"
    target.mkdir(parents=True)
    for path in downloaded(version).iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    said = chroot(
        root,
        "! command -v cc gcc clang\n"
        "python3 -m venv /opt/gpupool\n"
        "/opt/gpupool/bin/pip install --quiet --no-index --find-links /srv/wheels gpupool\n"
        f"/opt/gpupool/bin/python -c '{LOAD}'\n"
        "/opt/gpupool/bin/python --version\n"
        "/opt/gpupool/bin/gpupool version\n"
        "/opt/gpupool/bin/gpupool simulate --seed 1 --duration 3s",
    )
    assert LOADED in said
    assert f"Python {version}" in said


def test_no_library_asks_for_a_glibc_after_2_28(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        for name in LIBRARIES:
            data = opened.read(f"gpupool/remoting/driver_api/library/{name}")
            for minor in range(29, 60):
                assert f"GLIBC_2.{minor}\0".encode() not in data, (name, minor)
