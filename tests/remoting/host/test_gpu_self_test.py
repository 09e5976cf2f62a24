"""A real worker tests emulated GPUs; each serves nobody else."""

import pytest
from host_kit import GIB, SERVER, MakeHost, until
from tests.fault_script import ScriptedNvml, parse_script

from gpupool.remoting.host.inventory import Inventory

SCRIPT = parse_script("[[at]]\ngpu = 1\ncomputes_wrongly = true\n")


@pytest.mark.slow
async def test_a_worker_tests_a_gpu_and_ends(make_host: MakeHost) -> None:
    inventory = Inventory.discover(
        SERVER,
        None,
        emulated_count=2,
        emulated_memory=GIB,
        script=lambda names: ScriptedNvml(SCRIPT, names),
    )
    kit = await make_host(inventory)
    good, bad = [await kit.host.self_test(gpu, 5.0) for gpu in kit.host.gpus()]
    assert good.problem == ""
    assert good.passes_a_second > 0
    assert bad.problem == "it computed a wrong product in its self-test"
    await until(lambda: not kit.host.worker_pool.workers)
