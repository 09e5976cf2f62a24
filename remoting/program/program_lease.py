"""The lease of a program: one interface for a run and its agent, for every source of leases.

``lease_source`` implements it for a lease taken for the program, and for one taken at its first
use of a GPU; ``holder_client`` implements it for a lease that ``gpupool alloc`` holds.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from gpupool.remoting.client.moving_lease import Bring
from gpupool.remoting.client.session_answer import SessionAnswer


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A process of the program asks for a separate session."""

    door: str
    program: str = ""
    pid: int = 0
    visible: str | None = None  # its CUDA_VISIBLE_DEVICES; servers without any of them are left out
    settings: dict[str, str] = field(default_factory=dict[str, str])  # for the servers' drivers


class ProgramLease(ABC):
    """The lease of one program, which ends with it, is held for it, or is yet to be taken."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Return its name; empty while there is none."""

    @abstractmethod
    def server_names(self) -> tuple[str, ...]:
        """Return the names of its servers, as far as they are known."""

    @abstractmethod
    async def open_session(self, request: SessionRequest) -> list[SessionAnswer]:
        """Open a session on every server of the lease, for one process of the program.

        Raises:
            GpupoolError: when that cannot be done.
        """

    @abstractmethod
    async def wait_lost(self) -> str:
        """Wait until the lease ends without having been released; return the text for programs."""

    @abstractmethod
    async def check(self) -> str:
        """Ask for the state of the lease; return the text of ``wait_lost``, empty while held."""

    @abstractmethod
    async def describe(self) -> dict[str, object]:
        """Return its devices, for NVML and ``nvidia-smi``.

        Raises:
            GpupoolError: when no server or holder answers.
        """

    def follow(self, bring: Bring) -> None:
        """Call ``bring`` to move the program's process when the lease goes to another server.

        A lease whose source does not do this stays while a process uses it.
        """
        del bring
