"""The faults of a script reach telemetry, metrics and health."""

import json
import re
import shutil
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import scripted_join
from tests.cli.conftest import DEADLINE_S, LivePool

SCRIPT = """
[[at]]
temperature = 55

[[at]]
second = 20
gpu = 1
temperature = 93
xid = 79
lost = true
"""


@pytest.fixture
def lone() -> Iterator[LivePool]:
    """Yield a pool of which no server is started."""
    made = LivePool(Path(tempfile.mkdtemp(prefix="gpupool-test-")))
    yield made
    made.stop()
    shutil.rmtree(made.folder, ignore_errors=True)


def until(pool: LivePool, found: Callable[[], Any], within_s: float = DEADLINE_S) -> Any:
    """Look again and again until there is something."""
    end = time.monotonic() + within_s
    while not (something := found()):
        assert time.monotonic() < end, pool.logs()
        time.sleep(0.1)
    return something


class Scraped:
    """The metrics of one server, as a viewer reads them."""

    def __init__(self, pool: LivePool, address: str) -> None:
        made = json.loads(pool.run("token", "create", "--viewer", "--json").stdout)
        headers = {"Authorization": f"Bearer {made['token']}"}
        self._request = urllib.request.Request(f"https://{address}/metrics", headers=headers)
        self._context = ssl.create_default_context()
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE

    def of_gpu(self, number: int) -> dict[str, float]:
        """Return the values of one GPU, by the name of the metric; none while nobody answers."""
        try:
            with urllib.request.urlopen(self._request, timeout=10, context=self._context) as answer:
                text = answer.read().decode()
        except (urllib.error.URLError, OSError):
            return {}
        found = re.findall(rf'^(gpupool_\w+){{[^}}]*gpu="{number}"[^}}]*}} (\S+)$', text, re.M)
        return {name: float(value) for name, value in found}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_lost_gpu_is_seen_everywhere(lone: LivePool) -> None:
    server = lone.servers["a"]
    script = lone.folder / "faults.toml"
    script.write_text(SCRIPT)
    server.start(join=(*scripted_join.COMMAND, str(script)))
    server.wait_for_log("is listening")
    (shown,) = until(lone, lambda: lone.view()["servers"])
    scraped = Scraped(lone, shown["address"])

    whole = until(lone, lambda: scraped.of_gpu(1))
    assert whole["gpupool_gpu_temperature_celsius"] == 55
    assert "gpupool_gpu_fault" not in whole

    def faults() -> list[str]:
        return [each["fault"] for each in lone.view()["servers"][0]["gpus"]]

    until(lone, lambda: faults()[1])
    assert faults()[0] == "", "the other GPU is well"
    left = until(lone, lambda: (now := scraped.of_gpu(1)).get("gpupool_gpu_fault") and now)
    assert left == {"gpupool_gpu_fault": 1.0}, "all its other series are gone at once"
    assert scraped.of_gpu(0)["gpupool_gpu_temperature_celsius"] == 55

    def failing() -> set[tuple[str, str]]:
        said = json.loads(lone.run("health", "--json").stdout)["findings"]
        return {(each["check"], each["subject"]) for each in said if each["status"] == "fail"}

    until(lone, lambda: [each for each in failing() if each[0] == "gpu-fault"])

    def kept() -> list[dict[str, Any]]:
        said = lone.run("health", "history", "gpu-fault", "--server", "a", "--json")
        found: list[dict[str, Any]] = json.loads(said.stdout)["episodes"]
        return found

    [fault] = until(lone, kept)
    assert (fault["status"], fault["ended"]) == ("fail", None), "it goes on"
