"""The port by which a server keeps CAs on its disk while one follows another, and the next CA."""

from dataclasses import dataclass
from typing import Protocol

from gpupool.pool.model.ids import ServerId
from gpupool.remoting.transport.pki import Authority, Identity


class CaStore(Protocol):
    """Keeps the CAs; implemented by the state directory."""

    def next_authority(self) -> Authority | None:
        """Return the CA that ``keep_next`` has kept last."""
        ...

    def keep_next(self, authority: Authority) -> None:
        """Keep a CA with its key, before it is trusted or afterwards."""
        ...

    def trust(self, ca_pem: bytes, key_pem: bytes) -> tuple[Identity, Identity | None]:
        """Trust these CAs, and no other; return the server's identities from now on.

        The certificate of the newest takes the place of the usual one whose CA is dropped.
        ``key_pem`` is the key of the oldest, or nothing.
        """
        ...


@dataclass(frozen=True, slots=True)
class NextCa:
    """A CA with its key at a majority of the voters; both certificates in DER."""

    old: bytes
    new: bytes
    without: tuple[str, ...] = ()  # the voters that do not have it yet, by name
    keepers: tuple[ServerId, ...] = ()  # the voters that do
