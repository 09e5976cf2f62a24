"""The cluster CA's key: the first server makes it, and every other voter gets it from a voter.

Its holders sign the certificates of servers that join, and new ones of those that are in the pool.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from gpupool.pool.errors import AuthenticationError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.transitions.state_machine import PoolMachine
from gpupool.remoting.transport.pki import Authority, Identity, check_authority, sign_server


class AuthoritySigner:
    """Signs server certificates with the CA's key."""

    def __init__(
        self,
        authority: Authority,
        now_ms: Callable[[], int],
        *,
        valid: timedelta | None = None,
    ) -> None:
        check_authority(authority)
        self._valid = valid
        self._authority = authority
        self._now_ms = now_ms

    def sign(self, server: ServerId, csr_pem: bytes) -> bytes:
        """Return a certificate for ``server``."""
        now = datetime.fromtimestamp(self._now_ms() / 1000, UTC)
        return sign_server(self._authority, csr_pem, server, now, valid=self._valid)

    def key_pem(self) -> bytes:
        """Return the CA's key."""
        return self._authority.key_pem


class CaKey:
    """The key, where this server has it; ``give`` and ``take`` serve the links between voters."""

    def __init__(
        self,
        identity: Identity,
        authority: Authority | None,
        *,
        machine: PoolMachine,
        now_ms: Callable[[], int],
        log: logging.Logger,
        save: Callable[[bytes], None],
        valid: timedelta | None = None,
    ) -> None:
        """Start with the key of ``authority``, or without one; ``save`` keeps one that comes.

        Certificates that it signs are good for ``valid``, by default ``pki.SERVER_VALID``.
        """
        self._valid = valid
        self._identity = identity
        self._machine = machine
        self._now_ms = now_ms
        self._log = log
        self._save = save
        self._signer = AuthoritySigner(authority, now_ms, valid=valid) if authority else None

    @property
    def signer(self) -> AuthoritySigner | None:
        """Return the authority that signs with the key, or None while this server lacks the key."""
        return self._signer

    def give(self, peer: ServerId) -> bytes:
        """Return the key for a peer that the table has as a voter, else nothing."""
        server = self._machine.state.servers.get(peer)
        if server is None or not server.voter or self._signer is None:
            return b""
        self._log.info("gave the CA's key to server %s, a voter now", server.name)
        return self._signer.key_pem()

    def sign_for(self, peer: ServerId, csr_pem: bytes) -> bytes:
        """Return a new certificate for a peer that is in the table, else nothing."""
        server = self._machine.state.servers.get(peer)
        if server is None or self._signer is None:
            return b""
        try:
            certificate = self._signer.sign(peer, csr_pem)
        except AuthenticationError as error:
            self._log.warning("signed no certificate for server %s: %s", server.name, error)
            return b""
        self._log.info("signed a new certificate for server %s", server.name)
        return certificate

    def take(self, peer: ServerId, key_pem: bytes) -> None:
        """Keep a key that a peer has sent, if it belongs to the CA's certificate."""
        if self._signer is not None:
            return
        try:
            authority = Authority(self._identity.ca_pem, key_pem)
            signer = AuthoritySigner(authority, self._now_ms, valid=self._valid)
        except AuthenticationError as error:
            self._log.warning("server %s sent a CA key that is none: %s", peer, error)
            return
        self._save(key_pem)
        self._signer = signer
