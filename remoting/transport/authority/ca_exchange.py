"""The exchange of the pool's CA, as one server carries it out.

The server that takes the order makes the next CA and gives its key to every voter: ``make``. Only
then is it proposed. Every server follows what the table trusts: ``follow``. While two are trusted
it shows its old certificate under the old names, and a new one under the newest, so that nobody
who knows one of them is shut out. When the table drops the older one, the new one takes its place.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from gpupool.pool.errors import AuthenticationError, DeniedError, GpupoolError, NoRoomError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.transitions.authorities import fingerprint_of, moves_on, short_name
from gpupool.remoting.protocol.signer_messages import CreateCa, KeepKey
from gpupool.remoting.transport.authority.ca_bundle import (
    belongs,
    bundle_of,
    certificates_of,
    der_of,
    issuer_of,
    keys_of,
    newest_of,
    number_of,
    numbers_of,
)
from gpupool.remoting.transport.authority.ca_key import CaKey
from gpupool.remoting.transport.authority.ca_store import CaStore, NextCa
from gpupool.remoting.transport.peer_link import Kind
from gpupool.remoting.transport.peer_transport import PeerTransport
from gpupool.remoting.transport.pki import (
    Authority,
    Identity,
    TlsContexts,
    cluster_id_of,
    fingerprint,
)

GIVE_TIMEOUT_S = 2.0
"""How long voters have to say that they keep the next CA's key."""

STRANGERS_AFTER_S = 0.5
"""How long links by the older CA's certificates last after its end.

The leader applies it first, and the others hear of it over these links.
"""


@dataclass(slots=True)
class _Giving:
    """A key on its way to the voters."""

    sha256: bytes
    kept: set[ServerId] = field(default_factory=set[ServerId])
    changed: trio.Event = field(default_factory=trio.Event)


class CaExchange:
    """See the module."""

    def __init__(
        self,
        contexts: TlsContexts,
        ca_key: CaKey,
        store: CaStore | None,
        *,
        machine: PoolMachine,
        links: PeerTransport,
        now_ms: Callable[[], int],
        log: logging.Logger,
    ) -> None:
        self._contexts = contexts
        self._ca_key = ca_key
        self._store = store
        self._machine = machine
        self._links = links
        self._now_ms = now_ms
        self._log = log
        self._self = contexts.identity.server
        self._next = store.next_authority() if store is not None else None
        self._giving: _Giving | None = None
        self._announced = b""
        self._refused: tuple[bytes, ...] = ()
        self._issuer_of: Identity | None = None
        self._issuer = b""
        self.changed: Callable[[], None] = lambda: None
        """Called whenever other CAs are trusted."""
        if self._next is not None:
            ca_key.next_key = self._next.key_pem
            ca_key.adopt(self._next.key_pem)

    @property
    def issuer(self) -> bytes:
        """Return the SHA-256 of the trusted CA that has signed this server's newest certificate."""
        newest = self._contexts.newest
        if self._issuer_of is not newest:
            self._issuer_of, self._issuer = newest, self._read_issuer(newest)
        return self._issuer

    @staticmethod
    def _read_issuer(newest: Identity) -> bytes:
        found = issuer_of(newest.certificate_path.read_bytes(), newest.ca_pem)
        return b"" if found is None else fingerprint(found)

    # --- the next CA -----------------------------------------------------------------------------

    async def make(self) -> NextCa:
        """Make the next CA, and give its key to the voters.

        Raises:
            GpupoolError: when too few of them keep it; then nothing has changed.
        """
        if self._store is None:
            raise GpupoolError("this server cannot keep another CA")
        trusted = list(self._ca_key.trusted)
        if len(trusted) > 1:
            raise DeniedError(
                "two CAs are trusted already", hint="gpupool ca retire drops the older one"
            )
        if self._giving is not None:
            raise DeniedError("the CA is being exchanged already")
        number, cluster_id = number_of(trusted[-1]) + 1, self._contexts.identity.cluster_id
        asked = CreateCa(cluster_id, self._now_ms(), number, trusted[-1])
        authority = Authority(*self._ca_key.vault.ask(asked))
        giving = self._giving = _Giving(fingerprint(authority.certificate_pem))
        try:
            await self._give(authority, giving)
        finally:
            self._giving = None
        servers, voters = self._machine.state.servers, self._machine.state.voters()
        without = tuple(servers[voter].name for voter in voters if voter not in giving.kept)
        if 2 * len(giving.kept) <= len(voters):
            raise GpupoolError(
                f"{len(without)} of {len(voters)} voters do not have the next CA's key",
                why=", ".join(without),
                hint="start the missing servers; nothing has changed",
            )
        kept = tuple(voter for voter in voters if voter in giving.kept)
        return NextCa(der_of(trusted[-1]), der_of(authority.certificate_pem), without, kept)

    async def _give(self, authority: Authority, giving: _Giving) -> None:
        voters = self._machine.state.voters()
        self._ca_key.next_key = authority.key_pem
        if self._self in voters:
            self._keep_next(authority)
            giving.kept.add(self._self)
        for voter in voters:
            if voter != self._self:
                self._links.tell(voter, Kind.NEXT_KEY_GIVE, authority.certificate_pem)
        with trio.move_on_after(GIVE_TIMEOUT_S):
            while not giving.kept.issuperset(voters):
                giving.changed = trio.Event()
                await giving.changed.wait()

    def take_next(self, peer: ServerId, body: bytes) -> bytes:
        """Keep the next CA that a server of the pool has sent; return its SHA-256, or nothing.

        A server of an older build sends the key with it; of others it is asked for.
        """
        state, certificates, keys = self._machine.state, certificates_of(body), keys_of(body)
        me = state.servers.get(self._self)
        if self._store is None or me is None or not me.voter or peer not in state.servers:
            return b""
        if len(certificates) != 1 or len(keys) > 1 or len(self._ca_key.trusted) > 1:
            return b""
        if not keys:
            self._announced = certificates[0]
            self._links.tell(peer, Kind.KEY_ASK, self._ca_key.request())
            return b""
        return self._take_next(peer, certificates[0], keys[0])

    def take_key(self, peer: ServerId, body: bytes) -> None:
        """Keep the keys that a peer has sent: of the CAs that are trusted, and of the next."""
        announced = self._announced
        for key in keys_of(body) if announced else ():
            if belongs(key, announced) and len(self._ca_key.trusted) == 1:
                self._announced = b""
                if kept := self._take_next(peer, announced, key):
                    self._links.tell(peer, Kind.NEXT_KEY_KEPT, kept)
        self._ca_key.take(peer, body)

    def _take_next(self, peer: ServerId, certificate: bytes, key: bytes) -> bytes:
        try:
            authority = Authority(certificate, self._ca_key.vault.ask(KeepKey(key))[0])
            if cluster_id_of(authority) != self._contexts.identity.cluster_id:
                raise AuthenticationError("it is another pool's")
        except AuthenticationError as error:
            self._log.warning("server %s sent a next CA that is none: %s", peer, error)
            return b""
        self._keep_next(authority)
        return fingerprint(authority.certificate_pem)

    def next_kept(self, peer: ServerId, sha256: bytes) -> None:
        """Take note that a voter keeps the next CA's key."""
        if self._giving is not None and sha256 == self._giving.sha256:
            self._giving.kept.add(peer)
            self._giving.changed.set()

    def _keep_next(self, authority: Authority) -> None:
        assert self._store is not None
        self._store.keep_next(authority)
        self._next = authority
        self._ca_key.next_key = authority.key_pem

    # --- following the table ---------------------------------------------------------------------

    def is_behind(self) -> bool:
        """Return whether the table trusts other CAs than this server does."""
        authorities = self._machine.state.authorities
        if not authorities or authorities == self._refused or self._store is None:
            return False
        try:
            bundle = bundle_of(authorities)
            is_later = moves_on(numbers_of(self._contexts.identity.ca_pem), numbers_of(bundle))
        except AuthenticationError as error:
            self._refused = authorities
            self._log.error("the pool's table has a CA that is none: %s", error)
            return False
        return is_later

    async def follow(self) -> None:
        """Trust the CAs that the table trusts, and show certificates that fit."""
        async with self._contexts.files:
            if not self.is_behind():
                return
            assert self._store is not None
            bundle = bundle_of(self._machine.state.authorities)
            keys = self._keys_of(certificates_of(bundle))
            try:
                self._contexts.replace(*self._store.trust(bundle, keys[0]))
            except NoRoomError as error:
                self._log.error("the pool's CA is not trusted yet: %s: %s", error.what, error.why)
                return  # the next change of the table tries again
            for key in keys:
                self._ca_key.adopt(key)
            self._ca_key.forget_others()
        names = [short_name(fingerprint_of(each)) for each in self._machine.state.authorities]
        self._log.info("this server trusts CA %s", " and ".join(names))
        self.changed()
        await trio.sleep(STRANGERS_AFTER_S)
        self._links.drop_strangers(self._contexts.identity.ca_pem)

    def _keys_of(self, certificates: tuple[bytes, ...]) -> list[bytes]:
        """Return the key of each CA; nothing where this server does not have it."""
        known = {a.certificate_pem: a.key_pem for a in self._ca_key.authorities()}
        if self._next is not None:
            known.setdefault(newest_of(self._next.certificate_pem), self._next.key_pem)
        return [known.get(each, b"") for each in certificates]
