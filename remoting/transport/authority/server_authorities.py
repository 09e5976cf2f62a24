"""The certificates of one server at work: the CA's keys, the CA's exchange, and the renewal.

They serve the links between servers, and tell the controller about themselves: this is its
``service_context.Authorities``.
"""

import logging
from collections.abc import Callable

from gpupool.pool.table_clock import Source, TableClock
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.remoting.transport.authority.ca_exchange import CaExchange
from gpupool.remoting.transport.authority.ca_key import AuthoritySigner, CaKey
from gpupool.remoting.transport.authority.ca_vault import CaVault
from gpupool.remoting.transport.authority.certificate_renewal import Renewal, ServerCertificates
from gpupool.remoting.transport.peer_link import Kind
from gpupool.remoting.transport.peer_transport import PeerTransport


class ServerAuthorities:
    """See the module."""

    def __init__(
        self,
        certificates: ServerCertificates,
        *,
        machine: PoolMachine,
        links: PeerTransport,
        table_clock: TableClock,
        log: logging.Logger,
    ) -> None:
        self.contexts = contexts = certificates.contexts
        self.signer_has_own_user = certificates.signer_has_own_user
        self._links, self._table_clock = links, table_clock
        me, store, now_ms = contexts.identity.server, certificates.store, self._certificate_ms
        self.key = CaKey(
            contexts,
            certificates.authority,
            vault=certificates.vault or CaVault.of_this_process(table_clock.clock.monotonic),
            machine=machine,
            now_ms=now_ms,
            log=log,
            save=certificates.save_key,
            save_next=store.keep_next if store is not None else lambda _authority: None,
            valid=certificates.valid,
        )
        self.exchange = CaExchange(
            contexts, self.key, store, machine=machine, links=links, now_ms=now_ms, log=log
        )

        def name() -> str:
            server = machine.state.servers.get(me)
            return server.name if server is not None else me

        self.renewal = certificates.save and Renewal(
            certificates,
            now_ms=now_ms,
            name=name,
            signer=lambda: self.key.signer,
            voters=lambda: [each for each in machine.state.voters() if each != me],
            ask=lambda peer, csr: links.tell(peer, Kind.CERTIFICATE_ASK, csr),
            log=log,
        )

    def connect(self, changed: Callable[[], None], renewed: Callable[[], None]) -> None:
        """Serve the links; ``changed`` is called when other CAs are trusted."""

        def ca_changed() -> None:
            if self.renewal is not None:
                self.renewal.ca_changed()  # it gets a certificate of the CA that signs
            changed()

        self.exchange.changed = ca_changed
        self._links.takes |= {
            Kind.KEY_ASK: self.key.give,
            Kind.KEY_GIVE: self.exchange.take_key,
            Kind.CERTIFICATE_ASK: self.key.sign_for,
            Kind.NEXT_KEY_GIVE: self.exchange.take_next,
            Kind.NEXT_KEY_KEPT: self.exchange.next_kept,
        }
        if self.renewal is not None:
            self._links.takes[Kind.CERTIFICATE_GIVE] = self.renewal.answered
            self.renewal.renewed = renewed

    def _certificate_ms(self) -> int:
        """Return the pool's time; where others sign, without a majority's word, this machine's.

        The pool's time stands still in a server that was away, whose certificate may have ended.
        Voters check with their own clocks. Who signs for itself has nobody to check: with a clock
        that is a year ahead, its certificate would not be valid yet for anybody else.
        """
        reading = self._table_clock.reading()
        asks = reading.source is Source.HELD and self.key.signer is None
        return reading.wall_ms if asks else self._table_clock.now_ms()

    # --- for the controller ----------------------------------------------------------------------

    def ca_pem(self) -> bytes:
        """Return the certificates of every CA that is trusted."""
        return self.contexts.identity.ca_pem

    def signer(self) -> AuthoritySigner | None:
        """Return the oldest CA that is trusted, or None while this server lacks its key."""
        return self.key.joiner

    def has_keys(self) -> bool:
        """Return whether this server has the key of every CA that is trusted."""
        return self.key.is_whole

    def issuer(self) -> bytes:
        """Return the SHA-256 of the CA that has signed this server's certificate."""
        return self.exchange.issuer

    def problems(self) -> tuple[str, ...]:
        """Return the problems of this server's certificate, as sentences."""
        return self.renewal.problems() if self.renewal is not None else ()
