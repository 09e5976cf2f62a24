"""A server's memory of its GPUs from one start to the next."""

import logging
from typing import Any, cast

from gpupool.monitoring.health.device_memory import DeviceMemory
from gpupool.pool.model.ids import GpuId
from gpupool.remoting.daemon.health_rounds import HealthRounds


def test_the_tests_of_the_last_start_are_no_news() -> None:
    """A server wrote them at once, and 0 GPUs, since it had not counted them yet."""
    memory = DeviceMemory()
    memory.note_test(GpuId("gpu"), 1, 100.0, "")
    nothing = cast("Any", None)
    rounds = HealthRounds((), nothing, logging.getLogger(__name__), nothing, nothing, nothing)
    rounds.remember(memory.text(2))
    assert not rounds.tests_differ()
    rounds.devices.note_test(GpuId("gpu"), 2, 90.0, "")
    assert rounds.tests_differ()
