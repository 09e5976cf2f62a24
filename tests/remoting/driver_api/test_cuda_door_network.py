"""Pools of servers with separate networks, which are cut under a program that waits."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cut_pool import CASES
from test_cuda_door import KERNELS, compiled

HERE = Path(__file__).resolve().parent


def cut(way: str, library: Path, tmp_path: Path) -> list[list[str]]:
    """Run the cases of ``cut_pool.py`` with this prefix; return the output of each."""
    alone = ["unshare", "-rn"]
    try:
        probe = [*alone, "ip", "link", "add", "name", "bridge0", "type", "bridge"]
        subprocess.run(probe, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no network namespace can be made here")
    program = compiled("endings", tmp_path, library)
    command = [*alone, sys.executable, str(HERE / "cut_pool.py"), str(program)]
    cases = [case for case in CASES if case.startswith(way)]
    command += [str(KERNELS / "test_kernels.sm_90.cubin"), *cases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split(" | ") for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == cases
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tls", "relay", "across"])
def test_a_cut_network_and_a_server_that_stands_still_end_a_wait(
    way: str, library: Path, tmp_path: Path
) -> None:
    """Both ways and each, by the library's own TLS and by gpupool run's, on one server and two."""
    for _, _, code, said, last in cut(way, library, tmp_path):
        assert (code, said) == ("125", "over")
        assert re.search("does not answer any more|lost server [ab]: no answer for 4 s", last)


@pytest.mark.slow
def test_two_servers_that_lose_each_other_end_a_copy_alone(library: Path, tmp_path: Path) -> None:
    """Also where the sender could learn of it minutes later only."""
    for _, _, code, said, last in cut("between", library, tmp_path):
        assert (code, said, last) == ("1", "copies: 46, then 46; downloads: 0, 0", "")
