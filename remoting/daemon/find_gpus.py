"""The GPUs that a server offers: real ones by NVML, or emulated ones."""

import logging
from functools import partial

import trio

from gpupool.pool.values import size_text
from gpupool.remoting.daemon.enter_pool import no_gpu_error
from gpupool.remoting.daemon.join_options import JoinOptions
from gpupool.remoting.daemon.server_identity import ServerIdentity
from gpupool.remoting.devices.fault_script import ScriptedNvml
from gpupool.remoting.devices.nvml import PynvmlNvml
from gpupool.remoting.devices.slow_readings import read_by_others
from gpupool.remoting.host.device_lock import DeviceLocks
from gpupool.remoting.host.inventory import Inventory


def _reads_gpm(wish: str) -> bool:
    return wish == "on" or (wish == "auto" and not read_by_others())


async def find_gpus(
    options: JoinOptions, identity: ServerIdentity, log: logging.Logger
) -> Inventory:
    """Return this machine's GPUs as the options say.

    Raises:
        GpupoolError: when there is none, and this is no witness.
    """
    emulate, witness = options.emulate, identity.witness

    def discover() -> Inventory:
        # Real or emulated, never both: a request for a GPU must not get an emulated one by chance.
        has_nvml = not witness and emulate is None
        return Inventory.discover(
            identity.server,
            PynvmlNvml(gpm=_reads_gpm(options.gpm)) if has_nvml else None,
            emulated_count=emulate.count if emulate else 0,
            emulated_memory=emulate.memory if emulate else 1,
            script=partial(ScriptedNvml, options.faults) if options.faults else None,
            only=options.gpus,
            device_locks=DeviceLocks(),
            log=logging.getLogger("gpupool.gpus").warning,
        )

    inventory = await trio.to_thread.run_sync(discover)
    for gpu in inventory.gpus():
        log.info("GPU %d: %s, %s, %s", gpu.index, gpu.name, size_text(gpu.capacity), gpu.id)
    if not inventory.gpus() and not witness:
        raise no_gpu_error(inventory)
    if inventory.problem and emulate is None and not witness:
        log.warning("%s", inventory.problem)
    return inventory
