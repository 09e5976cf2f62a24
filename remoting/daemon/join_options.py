"""The options of ``gpupool join`` in one record, which all parts of the start read."""

import importlib.util
import sys
from dataclasses import dataclass, field
from pathlib import Path

from gpupool.monitoring.history.history_settings import HistorySettings
from gpupool.pool.errors import GpupoolError, UsageError
from gpupool.pool.values import Emulation
from gpupool.remoting.host.host_parts import HostLimits
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.transport.authority.web_certificate import SiteFiles


@dataclass(frozen=True, slots=True)
class WebOptions:
    """The options of ``gpupool join`` that concern HTTPS."""

    site: SiteFiles | None = None  # a certificate of the site's own
    open_networks: tuple[str, ...] = ()  # that may scrape without a token
    users: int = 0  # that have their own rows in the metrics
    sd_labels: tuple[str, ...] = ()  # of servers, told to Prometheus
    readonly: bool = False  # the web page gives no orders


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """The options of ``gpupool join``."""

    token: str = field(repr=False)
    address: Address | None
    listen: Address | None  # None: as last time, or the default
    advertise: Address | None
    state_dir: Path
    name: str
    pool_name: str
    witness: bool
    emulate: Emulation | None
    gpus: tuple[str, ...]  # to offer; empty: all
    gpm: str  # auto, on, off
    data_encryption: str
    ca: Path | None  # of a new pool: the folder with the CA of a former one
    operator_token: bool  # make another one, and print it
    client_timeout_s: float
    drain_timeout_s: float
    labels: tuple[tuple[str, str], ...]
    history: HistorySettings = HistorySettings()
    web: WebOptions | None = None  # None: no HTTPS
    drain_for: tuple[str, ...] = ()  # signs of a failing GPU, for which it is drained
    suspend_memory: int = -1  # bytes for what suspended leases have on GPUs; below 0: the default
    suspend_spill: Path | None = None  # a folder for what does not fit into that

    def host_limits(self) -> HostLimits:
        """Return the bounds of the host's sessions."""
        return HostLimits(suspend_memory=self.suspend_memory, suspend_spill=self.suspend_spill)


def need_numpy() -> None:
    """Refuse emulated GPUs without NumPy, which the workers of no other GPU get from us.

    Raises:
        GpupoolError: when this Python has none.
    """
    if importlib.util.find_spec("numpy") is None:
        install = f"{sys.executable} -m pip install numpy scipy"
        raise GpupoolError(
            "emulated GPUs need NumPy, which computes for them",
            why=f"{sys.executable} has none",
            hint=f"install gpupool with its extra emulate, or: {install}",
        )


HISTORY_SIZE_MIN = 16 << 20
KEEP_10S_MIN_S, KEEP_1M_MIN_S = 3600, 86_400


def history_settings(
    keep_10s: float, keep_1m: float, keep_1h: float, history_max: float
) -> HistorySettings:
    """Return the settings of the history that the options ask for.

    Raises:
        UsageError: when the history could not be kept with them.
    """
    if history_max < HISTORY_SIZE_MIN:
        raise UsageError("--history-max must be 16MiB at least")
    if keep_10s < KEEP_10S_MIN_S or keep_1m < KEEP_1M_MIN_S:
        raise UsageError("--keep-10s must be 1h at least, and --keep-1m 1d")
    if not keep_10s <= keep_1m <= keep_1h:
        raise UsageError("coarser figures are kept for as long as finer ones, or for longer")
    return HistorySettings(round(keep_10s), round(keep_1m), round(keep_1h), round(history_max))
