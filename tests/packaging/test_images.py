"""packaging/Dockerfile: free of lint, and built without a registry and without a daemon."""

import os
import shutil
from pathlib import Path

import pytest
from tests.packaging.conftest import ROOT, Root, run
from tests.packaging.test_wheels import LOAD, LOADED

pytestmark = pytest.mark.slow

DOCKERFILE = ROOT / "packaging" / "Dockerfile"


def test_the_dockerfile_is_free_of_lint(tools: Path) -> None:
    assert run(tools.with_name("hadolint"), DOCKERFILE) == ""


def test_both_images_are_built_and_work(system_root: Root, tmp_path: Path) -> None:
    """Buildah's chroot isolation runs every step; the base is a bare Debian instead of Python's."""
    if not shutil.which("buildah"):
        pytest.skip("buildah is not installed")
    folders = ("--root", str(tmp_path / "storage"), "--runroot", str(tmp_path / "run"))
    buildah = ("buildah", *folders, "--storage-driver", "vfs")
    base = run(*buildah, "from", "scratch").strip()
    run(*buildah, "add", "--quiet", base, system_root("bookworm"), "/")
    run(*buildah, "commit", "--quiet", base, "localhost/base:bookworm")
    settings = tmp_path / "pip.conf"
    cert = os.environ.get("PIP_CERT", "")
    settings.write_text(f"[global]\ncert = {cert}\n" if cert else "", encoding="utf-8")
    volumes = [f"{settings}:/etc/pip.conf:ro", "/etc/ssl/certs:/etc/ssl/certs:ro"]
    for target in ("client", "server"):
        run(
            *(*buildah, "build", "--pull-never", "--isolation", "chroot", "--layers"),
            *("--build-arg", "BASE=localhost/base:bookworm"),
            *(word for volume in volumes for word in ("--volume", volume)),
            *("--file", DOCKERFILE, "--target", target, "--tag", f"localhost/{target}", ROOT),
        )
    client = run(*buildah, "from", "--pull-never", "localhost/client").strip()
    inside = (*buildah, "run", "--isolation", "chroot", client, "--")
    assert run(*inside, "id", "-u").strip() == "65532"
    assert run(*inside, "gpupool", "version").startswith("gpupool ")
    assert LOADED in run(*inside, "/opt/gpupool/bin/python", "-c", LOAD)
    run(*inside, "sh", "-c", "! command -v gcc")
    server = run(*buildah, "from", "--pull-never", "localhost/server").strip()
    inside = (*buildah, "run", "--isolation", "chroot", server, "--")
    assert "create a pool" in run(*inside, "gpupool", "join", "--help")
