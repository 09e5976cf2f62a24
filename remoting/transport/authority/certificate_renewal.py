"""The renewal of a server's certificate: it gets a new one, and serves it, while it runs.

It is due when a third of the time is left, by the pool's time. A server that holds the CA's key
signs its own; another one asks the voters over their links, one after the other. What comes is
checked, kept on the disk whole or not at all, and used for every connection from then on. The key
is new each time, so that a stolen one ends with its certificate.

It is due at once when the CA that signs is another one than the certificate's.

``CertificateTime`` is the rule, without I/O; ``Renewal`` carries it out::

    renewal = Renewal(certificates, ...)
    links.takes[Kind.CERTIFICATE_GIVE] = renewal.answered
    await renewal.run()
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.policy.admission import duration_text
from gpupool.remoting.transport.authority.ca_bundle import (
    certificates_of,
    issuer_of,
    newest_of,
    number_of,
)
from gpupool.remoting.transport.authority.ca_key import AuthoritySigner
from gpupool.remoting.transport.authority.ca_store import CaStore
from gpupool.remoting.transport.authority.ca_vault import CaVaultPort
from gpupool.remoting.transport.connections import explain
from gpupool.remoting.transport.message_stream import OpenCalls
from gpupool.remoting.transport.pki import (
    SERVER_VALID,
    Authority,
    Identity,
    TlsContexts,
    Validity,
    check_server_certificate,
    create_key_and_csr,
    validity_of,
)

CERTIFICATE_OF = "the certificate of server "
"""Begins every problem that ``Renewal.problems`` returns, for ``gpupool doctor``."""


_YEAR_MS = int(SERVER_VALID.total_seconds() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalSettings:
    """Durations in seconds."""

    #: The pool's time can be set, so it is looked at now and then.
    check_every_s: float = 600.0

    retry_base_s: float = 30.0
    retry_max_s: float = 6 * 3600.0

    #: After the first failure to get a certificate of a new CA, which others may learn of later.
    exchange_retry_s: float = 0.5
    answer_timeout_s: float = 10.0

    def retry_s(self, failures: int) -> float:
        """Return the wait after so many failures in a row; also the least between two renewals."""
        return min(self.retry_max_s, self.retry_base_s * 2.0 ** min(max(0, failures - 1), 20))


@dataclass(frozen=True, slots=True)
class CertificateTime:
    """The times of one certificate: when to renew it, and when to warn."""

    validity: Validity
    ca_ends_ms: int

    @property
    def due_ms(self) -> int | None:
        """Return when a third is left; None when another one would not last longer.

        That is so in the CA's last year. A certificate of an older build lasts as long as the CA
        too, and is replaced by one of a year all the same.
        """
        length_ms = self._length_ms()
        if self.validity.ends_ms >= self.ca_ends_ms and length_ms <= _YEAR_MS:
            return None
        return self.validity.ends_ms - length_ms // 3

    def is_due(self, now_ms: int) -> bool:
        """Return whether it is time for another one."""
        return self.due_ms is not None and now_ms >= self.due_ms

    def is_late(self, now_ms: int) -> bool:
        """Return whether less than a tenth is left."""
        return now_ms > self.validity.ends_ms - self._length_ms() // 10

    def problem(self, now_ms: int, name: str, failure: str) -> str:
        """Return a problem that an operator must know, or an empty text."""
        if not self.is_late(now_ms):
            return ""
        left_ms = self.validity.ends_ms - now_ms
        if left_ms <= 0:
            ends = "has ended: new connections to it fail"
        else:
            ends = f"ends in {duration_text(left_ms)}"
        if self.due_ms is None:
            return f"{CERTIFICATE_OF}{name} {ends}, with the pool's CA"
        return f"{CERTIFICATE_OF}{name} {ends}" + (f"; not renewed: {failure}" if failure else "")

    def _length_ms(self) -> int:
        return max(0, self.validity.ends_ms - self.validity.issued_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCertificates:
    """The certificates of one server: those it shows, and those it signs."""

    #: The TLS settings, which the links share.
    contexts: TlsContexts

    #: Keeps a certificate and its key, on a thread, and returns the identity that uses them. None
    #: leaves the certificate as it is.
    save: Callable[[bytes, bytes], Identity] | None = None

    renewal: RenewalSettings = field(default_factory=RenewalSettings)

    #: How long certificates that it signs are good.
    valid: timedelta = SERVER_VALID

    #: Keeps the CAs while one is exchanged for another. None leaves the CA as it is.
    store: CaStore | None = None

    #: The CA with its key, where this server has it.
    authority: Authority | None = None

    #: Keeps the key of the oldest trusted CA, which a new voter is given.
    save_key: Callable[[bytes], None] = lambda _pem: None

    #: Uses the CA's key. None uses it in this process, as tests do.
    vault: CaVaultPort | None = None

    @property
    def signer_has_own_user(self) -> bool:
        """Return whether the signer's secret, if there is a signer, is closed to the server."""
        return self.vault is None or self.vault.has_own_user


class Renewal:
    """Keeps the certificate of this server fresh; see the module."""

    def __init__(
        self,
        certificates: ServerCertificates,
        *,
        now_ms: Callable[[], int],
        name: Callable[[], str],
        signer: Callable[[], AuthoritySigner | None],
        voters: Callable[[], Sequence[ServerId]],
        ask: Callable[[ServerId, bytes], bool],
        log: logging.Logger,
    ) -> None:
        """Read the certificate that this server has.

        Args:
            certificates: the certificates, with a way to keep a new one.
            now_ms: the pool's time.
            name: of this server, for people.
            signer: holds the CA's key, or None where this server does not.
            voters: the servers to ask.
            ask: sends a request to a peer, False when there is no link; ``answered`` gets the
                answer.
            log: where renewals and their failures are reported.
        """
        assert certificates.save is not None
        self._contexts = certificates.contexts
        self._save = certificates.save
        self._settings = certificates.renewal
        self._server = certificates.contexts.identity.server
        self._now_ms = now_ms
        self._name = name
        self._signer = signer
        self._voters = voters
        self._ask = ask
        self._log = log
        self._failures = 0
        self._failure = ""
        self.renewed: Callable[[], None] = lambda: None
        """Called after each renewal."""
        self._calls = OpenCalls[bytes]()
        self._awake = trio.Event()
        self._time, self._is_current = self._read()

    def problems(self) -> tuple[str, ...]:
        """Return the certificate's problems, as sentences."""
        problem = self._time.problem(self._now_ms(), self._name(), self._failure)
        return (problem,) if problem else ()

    def answered(self, peer: ServerId, certificate_pem: bytes) -> None:
        """Take the answer of a peer; an empty one says that it does not sign."""
        self._calls.answered(peer, certificate_pem)

    def ca_changed(self) -> None:
        """Look at the certificate anew, now: other CAs are trusted."""
        self._time, self._is_current = self._read()
        self._failures, self._failure = 0, ""
        self._awake.set()

    async def run(self) -> None:
        """Renew the certificate whenever that is due; never returns."""
        while True:
            self._awake = trio.Event()
            now_ms, due_ms = self._now_ms(), self._time.due_ms
            if not self._is_current or self._time.is_due(now_ms):
                await self._attempt()
                await self._sleep(self._retry_s())
                continue
            for problem in self.problems():
                self._log.warning("%s", problem)
            wait_s = self._settings.check_every_s
            if due_ms is not None:
                wait_s = min(wait_s, max(0.0, (due_ms - now_ms) / 1000))
            await self._sleep(wait_s)

    async def _sleep(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._awake.wait()

    def _retry_s(self) -> float:
        usual_s = self._settings.retry_s(self._failures)
        if self._is_current:
            return usual_s
        if not self._failures:
            return 0.0  # the CA has changed meanwhile
        return min(usual_s, self._settings.exchange_retry_s * 2.0 ** min(self._failures - 1, 20))

    async def _attempt(self) -> None:
        try:
            await self._renew()
        except (GpupoolError, OSError) as error:
            self._failures += 1
            self._failure = str(error) if isinstance(error, GpupoolError) else explain(error)
            retry_s = self._retry_s()
            self._log.warning(
                "this server's certificate could not be renewed: %s; again in %.0f s",
                self._failure,
                retry_s,
            )
            for problem in self.problems():
                self._log.error("%s", problem)
        else:
            self._failures, self._failure = 0, ""
            left_ms = self._time.validity.ends_ms - self._now_ms()
            self._log.info("this server has a new certificate, for %s", duration_text(left_ms))

    async def _renew(self) -> None:
        key, csr = create_key_and_csr(self._server)
        signer = self._signer()
        signed = signer.sign(self._server, csr) if signer is not None else await self._ask_all(csr)
        async with self._contexts.files:
            identity = self._contexts.identity
            ca_pem = newest_of(identity.ca_pem)
            check_server_certificate(signed, key, self._server, ca_pem, self._now_ms())
            saved = await trio.to_thread.run_sync(self._save, signed, key)
            if len(certificates_of(identity.ca_pem)) > 1:
                self._contexts.replace(identity, saved)
            else:
                self._contexts.replace(saved)
            self._time, self._is_current = self._read()
        self.renewed()

    async def _ask_all(self, csr_pem: bytes) -> bytes:
        """Return the certificate of the first voter that signs the request.

        Raises:
            GpupoolError: when none does.
        """
        for peer in self._voters():
            with self._calls.opened(peer) as call:
                if self._ask(peer, csr_pem) and (
                    signed := await call.wait(self._settings.answer_timeout_s)
                ):
                    return signed
        raise GpupoolError("no voter that holds the CA's key has signed it")

    def _read(self) -> tuple[CertificateTime, bool]:
        """Return the newest certificate's times, and whether it is of the CA that signs."""
        identity = self._contexts.newest
        certificate, signer = identity.certificate_path.read_bytes(), newest_of(identity.ca_pem)
        times = CertificateTime(validity_of(certificate), validity_of(signer).ends_ms)
        others = certificates_of(identity.ca_pem)[:-1]
        is_current = issuer_of(certificate, signer) is not None
        # Of no CA that is known it is not replaced: nobody would be believed to have signed it.
        return times, is_current or not (others or number_of(signer) > 1)
