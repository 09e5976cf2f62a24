"""What a server says of itself besides its GPUs, as it enters the table with ``ServerUp``."""

import trio

from gpupool import __version__
from gpupool.monitoring.health.alert_settings import find_settings
from gpupool.remoting.daemon.join_options import JoinOptions
from gpupool.remoting.daemon.listen_address import advertised_speed, own_names
from gpupool.remoting.host.inventory import Inventory
from gpupool.remoting.host.measuring.network_speed import has_rdma
from gpupool.remoting.server.software import Software


async def describe(address: str, inventory: Inventory, options: JoinOptions) -> Software:
    """Return the description of the server that is reached at ``address``."""
    return Software(
        address=address,
        version=__version__,
        driver_version=inventory.driver_version,
        cuda_version=inventory.cuda_version,
        labels=options.labels,
        link_speed=await trio.to_thread.run_sync(advertised_speed, address),
        rdma=has_rdma(),
        alerts=find_settings(options.state_dir) is not None,
        names=await trio.to_thread.run_sync(own_names, address),
    )
