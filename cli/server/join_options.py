"""The options of ``gpupool join`` in one record, which all parts of the start read."""

from dataclasses import dataclass
from pathlib import Path

from gpupool.cli.lib.values import Emulation
from gpupool.remoting.devices.fault_script import Entry
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.transport.pki import Authority
from gpupool.remoting.transport.web_certificate import SiteFiles


@dataclass(frozen=True, slots=True)
class WebOptions:
    """The options of ``gpupool join`` that concern HTTPS."""

    site: SiteFiles | None = None  # a certificate of the site's own
    open_networks: tuple[str, ...] = ()  # that may scrape without a token
    users: int = 0  # that have their own rows in the metrics
    sd_labels: tuple[str, ...] = ()  # of servers, told to Prometheus


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """The options of ``gpupool join``."""

    token: str
    address: Address | None
    listen: Address | None  # None: as last time, or the default
    advertise: Address | None
    state_dir: Path
    name: str
    pool_name: str
    witness: bool
    emulate: Emulation | None
    faults: tuple[Entry, ...]  # of emulated GPUs, by a script
    gpus: tuple[str, ...]  # to offer; empty: all
    gpm: str  # auto, on, off
    data_encryption: str
    ca: Authority | None  # of a new pool: that of a former pool
    operator_token: bool  # make another one, and print it
    client_timeout_s: float
    drain_timeout_s: float
    labels: tuple[tuple[str, str], ...]
    web: WebOptions | None = None  # None: no HTTPS
    drain_for: tuple[str, ...] = ()  # signs of a failing GPU, for which it is drained
