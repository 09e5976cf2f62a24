"""The installed kernel under a real Jupyter client; ``GPUPOOL_TEST_JUPYTER`` names its Python.

::

    python -m venv /somewhere && /somewhere/bin/pip install jupyter_client ipykernel numpy
    GPUPOOL_TEST_JUPYTER=/somewhere/bin/python pytest -m slow tests/cli/test_jupyter_kernel.py
"""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = """
import json, os, sys, time
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="gpupool")

def run(code):
    said = []
    def hook(message):
        content = message["content"]
        if message["msg_type"] == "stream":
            said.append(content["text"])
        elif message["msg_type"] == "error":
            said.append(content["ename"] + ": " + content["evalue"])
    client.execute_interactive(code, output_hook=hook, timeout=60)
    return "".join(said)

print("ready", flush=True)
for line in sys.stdin:
    word, _, code = json.loads(line).partition(" ")
    if word == "run":
        answer = run(code)
    elif word == "interrupt":
        client.execute("import time\\ntry: time.sleep(60)\\nexcept KeyboardInterrupt: seen += 1")
        time.sleep(1)
        manager.interrupt_kernel()
        time.sleep(1)
        answer = run("print(seen)")
    elif word == "restart":
        manager.restart_kernel(now=False)
        client.wait_for_ready(timeout=60)
        answer = "restarted"
    elif word == "kill":
        manager.shutdown_kernel(now=True)
        answer = "killed"
    print(json.dumps(answer), flush=True)
"""
SUM = "import cupy; print(float(cupy.ones(8).sum()))"


def no_lease(pool: dict[str, Any]) -> bool:
    return pool["leases"] == []


def some_lease(pool: dict[str, Any]) -> bool:
    return pool["leases"] != []


def one_waits_long(pool: dict[str, Any]) -> bool:
    return any(each["waited_s"] > 2 for each in pool["waiting"])


class Notebook:
    """A Jupyter client with one kernel, in a separate Python process."""

    def __init__(self, python: str, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [python, "-c", NOTEBOOK], env=env, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def do(self, word: str, code: str = "") -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(f"{word} {code}") + "\n")
        self._process.stdin.flush()
        return str(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.communicate(timeout=30)


@pytest.mark.slow
def test_a_notebook_on_gpus_of_the_pool(live_pool: Any, tmp_path: Path) -> None:
    python = os.environ.get("GPUPOOL_TEST_JUPYTER", "")
    if not python:
        pytest.skip("GPUPOOL_TEST_JUPYTER names no Python that has jupyter_client and ipykernel")
    env = live_pool.env | {"JUPYTER_DATA_DIR": str(tmp_path / "jupyter"), "JPY_PARENT_PID": "1"}
    ask = ["jupyter", "install", "-p", "0.5", "--idle-timeout", "5s", "--python", python]
    done = live_pool.run(*ask, env=env)
    assert done.returncode == 0, done.stderr
    notebook = Notebook(python, env)
    assert notebook.do("run", "seen = 0; print('no GPU yet')") == "no GPU yet\n"
    assert live_pool.view()["leases"] == []
    for _ in range(3):
        assert live_pool.run("alloc", "-n", "2", "-q").returncode == 0
    with ThreadPoolExecutor(1) as threads:
        cell = threads.submit(notebook.do, "run", SUM)
        live_pool.wait_until(one_waits_long)
        assert live_pool.run("release", "--all").returncode == 0
        said = cell.result()
    assert "gpupool: waiting for 50 % of 1 GPU" in said, said  # in the cell, where the reader looks
    assert said.endswith("8.0\n")
    assert live_pool.granted() == 4 << 30
    assert notebook.do("interrupt") == "1\n"  # once
    live_pool.wait_until(no_lease)  # the kernel lives on, without its GPU
    assert "it was not used for 5 s, its idle timeout" in notebook.do("run", SUM)
    assert notebook.do("restart") == "restarted"
    assert notebook.do("run", SUM) == "8.0\n"
    live_pool.wait_until(some_lease)
    assert notebook.do("kill") == "killed"
    live_pool.wait_until(no_lease)
    notebook.close()
