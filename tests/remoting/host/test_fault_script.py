"""Scripts of readings and errors for emulated GPUs."""

import pytest
from host_kit import GIB, SERVER
from tests.fault_script import Entry, ScriptedNvml, ScriptError, parse_script

from gpupool.pool.model.ids import GpuId
from gpupool.remoting.host.inventory import Inventory

SCRIPT = """
[[at]]
second = 60
gpu = 1
xid = 79
lost = true

[[at]]
temperature = 55
throttled = { power = 0 }
remapped.pending = 0

[[at]]
second = 30
gpu = 1
temperature = 91.5
ecc = 2
recovery_action = 1
per_second = { "throttled.power" = 0.5, pcie_replays = 0.25 }

[[at]]
second = 70
gpu = 1
lost = false
per_second = { pcie_replays = 0 }
"""


class FakeTime:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_emulated_gpus_follow_the_script() -> None:
    now = FakeTime()
    entries = parse_script(SCRIPT)
    inventory = Inventory.discover(
        SERVER,
        None,
        emulated_count=2,
        emulated_memory=GIB,
        script=lambda uuids: ScriptedNvml(entries, uuids, monotonic=now),
    )
    first, second = (gpu.id for gpu in inventory.gpus())
    assert not inventory.has_real

    async def at(elapsed: float) -> None:
        now.now = 1000.0 + elapsed
        await inventory.sample(dict)

    await at(29)
    healthy, sick = inventory.telemetry({first: 5}, {first: 0.5})
    assert (healthy.temperature_c, healthy.memory_used, healthy.utilization) == (55.0, 5, 0.5)
    assert healthy.ecc_errors is healthy.pcie_replays is healthy.power_w is None
    assert (sick.temperature_c, sick.ecc_errors, sick.pcie_replays) == (55.0, 0, 0)
    assert (sick.remapped_rows, sick.throttled_s) == ({"pending": 0}, {"power": 0.0})
    assert fault(inventory, second) == ""
    await at(40)
    healthy, sick = inventory.telemetry({}, {})
    assert (sick.temperature_c, sick.ecc_errors, sick.recovery_action) == (91.5, 2, 1)
    assert (sick.throttled_s, sick.pcie_replays) == ({"power": 5.0}, 2)
    assert healthy.throttled_s == {"power": 0.0}
    assert "memory errors" in fault(inventory, second)
    await at(61)
    assert "fallen off the bus" in fault(inventory, second)
    sick = inventory.telemetry({}, {})[1]
    assert (sick.temperature_c, sick.xids) == (None, {79: 1})
    await at(80)
    assert "Xid 79" in fault(inventory, second)  # until the server is started again
    sick = inventory.telemetry({}, {})[1]
    assert (sick.pcie_replays, sick.xids) == (10, {79: 1})
    assert fault(inventory, first) == ""


def fault(inventory: Inventory, gpu: GpuId) -> str:
    return inventory.readings()[gpu].fault


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("at = 5", "list of tables"),
        ("at = [5]", "list of tables"),
        ("[[at]\n", "Expected"),
        ("[at]\nsecond = 1", "list of tables"),
        ("[[on]]\nsecond = 1", "'on' is unknown"),
        ("[[at]]\nsecond = -1", "outside"),
        ("[[at]]\nsecond = nan", "outside"),
        ("[[at]]\ngpu = true", "gpu = True"),
        ("[[at]]\nxid = -79", "xid = -79"),
        ("[[at]]\nheat = 3", "'heat' is unknown"),
        ("[[at]]\ntemperature = 'hot'", "no number"),
        ("[[at]]\ntemperature = true", "no number"),
        ("[[at]]\nlost = 1", "neither true nor false"),
        ("[[at]]\nper_second = 1", "is a table"),
        ("[[at]]\nper_second = { lost = 1 }", "'lost' is unknown"),
        ("[[at]]\nthrottled = { wind = 1 }", "'throttled.wind' is unknown"),
    ],
)
def test_a_script_that_is_wrong_says_where(text: str, why: str) -> None:
    with pytest.raises(ScriptError, match=why):
        parse_script(text)


def test_an_empty_script_says_nothing() -> None:
    assert parse_script("") == ()
    assert parse_script("[[at]]") == (Entry(0.0),)
