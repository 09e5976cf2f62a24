"""The .deb and .rpm install in a bare system, without the network, and leave nothing behind."""

import sys
from pathlib import Path

import pytest
from tests.packaging.conftest import ROOT, Root, chroot, run
from tests.packaging.test_wheels import LOAD, LOADED

pytestmark = pytest.mark.slow

INSTALLED = f"""
gpupool version
/opt/gpupool/bin/python -c '{LOAD}'
getent passwd gpupool
stat --format '%a %n' /etc/gpupool /etc/gpupool/environment
systemd-analyze verify --man=no /usr/lib/systemd/system/gpupool.service 2>&1
systemd-analyze verify --man=no /usr/lib/systemd/system/gpupool-keeper.socket 2>&1
head -c 11 /usr/share/man/man1/gpupool-run.1
for name in $(gpupool --help | sed -n '/^Commands:/,/^$/s/^  \\([a-z][a-z]*\\) .*/\\1/p')
do test -s /usr/share/man/man1/gpupool-$name.1; done
ls /usr/share/bash-completion/completions/gpupool /usr/share/zsh/site-functions/_gpupool
ls /usr/share/fish/vendor_completions.d/gpupool.fish
gpupool simulate --seed 1 --duration 3s
"""


@pytest.fixture(scope="module")
def package(wheel: Path, tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the .deb for Python 3.11 and the .rpm for 3.13."""
    out = tmp_path_factory.mktemp("packages")
    for kind, version in (("deb", "3.11"), ("rpm", "3.13")):
        run(
            *(sys.executable, ROOT / "packaging" / "packages.py", "--out", out, "--tools", tools),
            *("--wheels", wheel.parent, "--kind", kind, "--python", version),
        )
    return out


def check(said: str) -> None:
    assert LOADED in said
    assert "gpupool 0." in said
    assert "/var/lib/gpupool:" in said
    assert "755 /etc/gpupool\n600 /etc/gpupool/environment\n" in said
    assert "Unknown" not in said, said
    assert "gpupool" in said.partition(".TH")[2]


def test_the_deb_installs_and_is_removed(package: Path, system_root: Root) -> None:
    root = system_root("bookworm")
    deb = next(package.glob("*.deb"))
    assert deb.stat().st_size < 40_000_000
    (root / "srv" / deb.name).write_bytes(deb.read_bytes())
    check(chroot(root, f"dpkg -i /srv/{deb.name}\n{INSTALLED}"))
    chroot(root, "dpkg -r gpupool; ! test -e /opt/gpupool; ! command -v gpupool")
    chroot(root, "test -e /etc/gpupool/environment; dpkg -P gpupool; ! test -e /etc/gpupool")
    assert "gpupool" not in chroot(root, "find / -xdev -name '*gpupool*' -not -path '/srv/*'")


def test_the_rpm_installs_and_is_removed(package: Path, system_root: Root) -> None:
    root = system_root("trixie")
    rpm = next(package.glob("*.rpm"))
    (root / "srv" / rpm.name).write_bytes(rpm.read_bytes())
    asked = chroot(root, f"rpm -qp --requires /srv/{rpm.name}")
    assert "/usr/bin/python3.13" in asked
    # This root's packages are Debian's, of which rpm knows nothing, and it is no mount point.
    check(chroot(root, f"rpm -i --nodeps --noplugins /srv/{rpm.name}\n{INSTALLED}"))
    chroot(root, "rpm -e --noplugins gpupool; ! test -e /opt/gpupool; ! command -v gpupool")
    left = chroot(root, "find / -xdev -name '*gpupool*' -not -path '/srv/*'").split()
    assert not left
