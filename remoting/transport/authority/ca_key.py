"""The cluster CA's key: the first server makes it, and every other voter gets it from a voter.

What is here is the key sealed to this server's vault (``ca_vault``), which alone can open it.
Its holders sign the certificates of servers that join, and new ones of those that are in the pool.
While one CA is exchanged for another there are two keys: new certificates are of the newest CA. A
server that joins gets one of the oldest, which every server and client trusts, and renews it then.
"""

import logging
from collections.abc import Callable
from datetime import timedelta

from gpupool.pool.errors import AuthenticationError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import Server
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.remoting.protocol.signer_messages import GiveKeys, KeepKey, SignServer, SignWeb
from gpupool.remoting.transport.authority.ca_bundle import belongs, certificates_of, keys_of
from gpupool.remoting.transport.authority.ca_vault import CaVaultPort, make_request
from gpupool.remoting.transport.pki import (
    SERVER_VALID,
    Authority,
    TlsContexts,
    check_authority,
    fingerprint,
)


class AuthoritySigner:
    """Asks the vault to sign with one CA's key."""

    def __init__(
        self,
        authority: Authority,
        vault: CaVaultPort,
        now_ms: Callable[[], int],
        *,
        valid: timedelta | None = None,
    ) -> None:
        check_authority(authority)
        self._vault = vault
        self._valid_ms = int((valid or SERVER_VALID).total_seconds() * 1000)
        self.authority = authority
        """The CA, with its key sealed to this server's vault."""
        self._now_ms = now_ms

    def sign(self, server: ServerId, csr_pem: bytes) -> bytes:
        """Return a certificate for ``server``."""
        ca, now_ms, valid_ms = self.authority, self._now_ms(), self._valid_ms
        asked = SignServer(ca.certificate_pem, ca.key_pem, server, csr_pem, now_ms, valid_ms)
        return self._vault.ask(asked)[0]

    def sign_web(self, csr_pem: bytes, server: Server) -> bytes:
        """Return a certificate for the exporter of ``server``."""
        ca, name, address = self.authority, server.name, server.address
        asked = SignWeb(
            *(ca.certificate_pem, ca.key_pem, server.id, name, address, csr_pem, self._now_ms())
        )
        return self._vault.ask(asked)[0]

    def ca_pem(self) -> bytes:
        """Return the CA's certificate."""
        return self.authority.certificate_pem

    def ca_sha256(self) -> bytes:
        """Return the SHA-256 of the CA's certificate in DER."""
        return fingerprint(self.authority.certificate_pem)


class CaKey:
    """The keys that this server has; ``give`` and ``take`` serve the links between voters."""

    def __init__(
        self,
        contexts: TlsContexts,
        authority: Authority | None,
        *,
        vault: CaVaultPort,
        machine: PoolMachine,
        now_ms: Callable[[], int],
        log: logging.Logger,
        save: Callable[[bytes], None],
        save_next: Callable[[Authority], None] = lambda _authority: None,
        valid: timedelta | None = None,
    ) -> None:
        """Start with the key of ``authority``, or without one.

        ``save`` keeps the key of the oldest trusted CA that comes, and ``save_next`` that of the
        newest of two. Certificates are good for ``valid``, by default ``pki.SERVER_VALID``.
        """
        self._valid = valid
        self.vault = vault
        self.next_key = b""
        """That of the next CA, which voters may have before it is trusted."""
        self._contexts = contexts
        self._machine = machine
        self._now_ms = now_ms
        self._log = log
        self._save = save
        self._save_next = save_next
        self._signers: dict[bytes, AuthoritySigner] = {}
        self._trusted: tuple[bytes, tuple[bytes, ...]] = b"", ()
        for key in keys_of(authority.key_pem) if authority is not None else ():
            self.adopt(key)
        if authority is not None and not self._signers:
            check_authority(authority)

    @property
    def trusted(self) -> tuple[bytes, ...]:
        """Return the certificates of the CAs that this server trusts, the one that signs last."""
        ca_pem = self._contexts.identity.ca_pem
        if self._trusted[0] is not ca_pem:
            self._trusted = ca_pem, certificates_of(ca_pem) or (ca_pem,)
        return self._trusted[1]

    @property
    def signer(self) -> AuthoritySigner | None:
        """Return the newest CA, or None while this server lacks its key."""
        return self._signers.get(self.trusted[-1])

    @property
    def joiner(self) -> AuthoritySigner | None:
        """Return the oldest CA that is trusted, or None while this server lacks its key."""
        return self._signers.get(self.trusted[0])

    @property
    def is_whole(self) -> bool:
        """Return whether this server has the key of every CA that is trusted."""
        return self._signers.keys() >= set(self.trusted)

    def authorities(self) -> tuple[Authority, ...]:
        """Return every CA with its key on this server."""
        return tuple(signer.authority for signer in self._signers.values())

    def adopt(self, key_pem: bytes) -> bytes | None:
        """Use a key, and return the trusted certificate that it belongs to; None: to none."""
        for each in self.trusted:
            if belongs(key_pem, each):
                authority = Authority(each, key_pem)
                self._signers[each] = AuthoritySigner(
                    authority, self.vault, self._now_ms, valid=self._valid
                )
                return each
        return None

    def forget_others(self) -> None:
        """Forget the keys of CAs that are not trusted any more."""
        trusted = self.trusted
        self._signers = {ca: signer for ca, signer in self._signers.items() if ca in trusted}

    def request(self) -> bytes:
        """Return a request for the keys, which a voter seals to this server's vault."""
        identity = self._contexts.identity
        certificate = identity.certificate_path.read_bytes()
        (key, *_) = keys_of(identity.key_path.read_bytes())
        return make_request(self.vault.public(), certificate, key)

    def give(self, peer: ServerId, request: bytes) -> bytes:
        """Return the keys for a peer that the table has as a voter, else nothing."""
        server = self._machine.state.servers.get(peer)
        if server is None or not server.voter:
            return b""
        found = self._signers
        keys = [found[each].authority.key_pem for each in self.trusted if each in found]
        keys += [self.next_key] if self.next_key and self.next_key not in keys else []
        if not keys:
            return b""
        try:
            given = self.vault.ask(GiveKeys(tuple(keys), peer, request))[0]
        except AuthenticationError as error:
            why = str(error) if request else "its version of gpupool is older than this one"
            self._log.warning("the CA's key was not given to server %s: %s", server.name, why)
            return b""
        self._log.info("gave the CA's key to server %s, a voter now", server.name)
        return given

    def sign_for(self, peer: ServerId, csr_pem: bytes) -> bytes:
        """Return a new certificate for a peer that is in the table, else nothing."""
        server, signer = self._machine.state.servers.get(peer), self.signer
        if server is None or signer is None:
            return b""
        try:
            certificate = signer.sign(peer, csr_pem)
        except AuthenticationError as error:
            self._log.warning("signed no certificate for server %s: %s", server.name, error)
            return b""
        self._log.info("signed a new certificate for server %s", server.name)
        return certificate

    def take(self, peer: ServerId, key_pem: bytes) -> None:
        """Keep the keys that a peer has sent, if they belong to certificates that are trusted."""
        if self.is_whole:
            return
        found = False
        for each in keys_of(key_pem):
            known = set(self._signers)
            try:
                key = self.vault.ask(KeepKey(each))[0]
            except AuthenticationError:
                continue
            certificate = self.adopt(key)
            found = found or certificate is not None
            if certificate is None or certificate in known:
                continue
            if certificate == self.trusted[0]:
                self._save(key)
            else:
                self._save_next(Authority(certificate, key))
        if not found:
            self._log.warning("server %s sent a CA key that is none", peer)
