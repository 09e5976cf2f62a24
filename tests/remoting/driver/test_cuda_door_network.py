"""Pools whose servers have networks of their own, which are cut under a program that waits."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cut_pool import CASES
from test_cuda_door import KERNELS, compiled

HERE = Path(__file__).resolve().parent


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tls", "relay", "across"])
def test_a_cut_network_and_a_server_that_stands_still_end_a_wait(
    way: str, library: Path, tmp_path: Path
) -> None:
    """Both ways and each, by the library's own TLS and by gpupool run's, on one server and two."""
    alone = ["unshare", "-rn"]
    try:
        probe = [*alone, "ip", "link", "add", "name", "bridge0", "type", "bridge"]
        subprocess.run(probe, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no network namespace can be made here")
    program = compiled("leased", tmp_path, library)
    command = [*alone, sys.executable, str(HERE / "cut_pool.py"), str(program)]
    cases = [case for case in CASES if case.startswith(way)]
    command += [str(KERNELS / "test_kernels.sm_90.cubin"), *cases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(" | ")[0] for line in lines] == cases
    for line in lines:
        _, _, code, said, last = line.split(" | ")
        assert (code, said) == ("125", "error 46, then 46"), line
        assert re.search("does not answer any more|lost server [ab]: no answer for 4 s", last), line
