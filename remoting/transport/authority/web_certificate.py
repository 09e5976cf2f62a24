"""The certificate that a server's exporter shows to browsers and to Prometheus.

The cluster CA signs it, for the server's name and its advertised address, as the table has them,
and never for a name of gpupool's own: whoever takes over the exporter cannot pass for a server. A
server with the CA's key signs for itself; another one asks the voters over its links. A site's own
certificate may take its place, and is read again when its files change.
"""

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from gpupool.pool.errors import GpupoolError, UsageError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import PoolState
from gpupool.remoting.transport.authority.ca_key import CaKey
from gpupool.remoting.transport.message_stream import OpenCalls
from gpupool.remoting.transport.peer_link import Kind, Take
from gpupool.remoting.transport.pki import create_key_and_csr, validity_of

RENEWED_BEFORE_MS = 30 * 86_400_000
LOOKED_AT_EVERY_S = 60.0
FILES_READ_EVERY_S = 5.0
RETRIED_AFTER_MIN_S, RETRIED_AFTER_MAX_S = 0.25, 1.0
ANSWER_TIMEOUT_S = 5.0
FILE_SIZE_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class WebCertificate:
    """A certificate, with those between it and its CA, and its key."""

    certificate_pem: bytes
    key_pem: bytes

    def __repr__(self) -> str:
        """Leave the key out, so that no log or traceback shows it."""
        return "WebCertificate(...)"


@dataclass(frozen=True, slots=True)
class SiteFiles:
    """A site's own certificate and key."""

    certificate: Path
    key: Path

    def read(self) -> WebCertificate:
        """Return the certificate and key from the files.

        Raises:
            UsageError: when they cannot be read.
        """
        try:
            found = [path.read_bytes() for path in (self.certificate, self.key)]
        except OSError as error:
            raise UsageError("the certificate for the web cannot be read", why=str(error)) from None
        if any(len(each) > FILE_SIZE_MAX for each in found):
            raise UsageError("the certificate for the web is too large")
        return WebCertificate(*found)

    def check(self) -> None:
        """Look whether these are a certificate and its key.

        Raises:
            UsageError: when they are not.
        """
        self.read()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # OpenSSL would ask the terminal for the password of a key that has one.
            context.load_cert_chain(self.certificate, self.key, password=str)
        except OSError as error:  # OpenSSL's errors are such
            raise UsageError(
                f"{self.certificate} and {self.key} are not a certificate for the web and its key",
                why=str(error),
                hint="both are PEM, and the key has no password",
            ) from None


class Links(Protocol):
    """The part of the links to the other servers that ``WebCertificates`` needs."""

    takes: dict[int, Take]

    def tell(self, peer: ServerId, kind: Kind, body: bytes) -> bool:
        """Send one frame; False when no link is up."""
        ...


class WebCertificates:
    """Gets certificates for one server's exporter, and signs those of the others."""

    def __init__(
        self,
        server: ServerId,
        *,
        state: Callable[[], PoolState],
        ca_key: CaKey,
        links: Links,
        now_ms: Callable[[], int],
        log: logging.Logger,
        site: SiteFiles | None = None,
    ) -> None:
        """Make it, and answer the links; ``run`` gets certificates."""
        self._server = server
        self._state = state
        self._ca_key = ca_key
        self._links = links
        self._now_ms = now_ms
        self._log = log
        self._site = site
        self._asked = b""
        self._calls = OpenCalls[bytes]()
        self._made_for: tuple[object, ...] = ()
        self.current: WebCertificate | None = None
        links.takes |= {Kind.WEB_ASK: self.sign_for, Kind.WEB_GIVE: self._take}

    async def run(self, changed: Callable[[WebCertificate], None]) -> None:
        """Call ``changed`` with each certificate that is to be shown from then on."""
        said, retried_after_s = "", RETRIED_AFTER_MIN_S
        while True:
            try:
                found = await (self._of_site() if self._site else self._of_ca())
                said = ""
            except GpupoolError as error:
                found = None
                if str(error) != said:
                    said = str(error)
                    self._log.warning("no new certificate for the web: %s", said)
            if found is not None and found != self.current:
                self.current = found
                changed(found)
            if self.current is None:  # a server that has just started is in the table soon
                await trio.sleep(retried_after_s)
                retried_after_s = min(2 * retried_after_s, RETRIED_AFTER_MAX_S)
            else:
                await trio.sleep(FILES_READ_EVERY_S if self._site else LOOKED_AT_EVERY_S)

    def sign_for(self, server: ServerId, csr_pem: bytes) -> bytes:
        """Return the certificate of a server's exporter; nothing when it cannot be signed here."""
        known, signer = self._state().servers.get(server), self._ca_key.joiner
        if known is None or signer is None:
            return b""
        try:
            return signer.sign_web(csr_pem, known)
        except GpupoolError as error:
            self._log.warning("signed no certificate for the web of %s: %s", known.name, error)
            return b""

    async def _of_site(self) -> WebCertificate | None:
        assert self._site is not None
        return await trio.to_thread.run_sync(self._site.read)

    async def _of_ca(self) -> WebCertificate | None:
        """Return another certificate when it is time for one."""
        me = self._state().servers.get(self._server)
        if me is None:
            return None
        # While one CA is exchanged for another, everybody trusts the older one.
        made_for = (me.name, me.address, self._ca_key.trusted[0])
        if self.current is not None and made_for == self._made_for:
            ends_ms = validity_of(self.current.certificate_pem).ends_ms
            ca_ends_ms = validity_of(self._ca_key.trusted[0]).ends_ms
            if ends_ms - self._now_ms() > RENEWED_BEFORE_MS or ends_ms >= ca_ends_ms:
                return None
        key_pem, csr_pem = create_key_and_csr(self._server)
        certificate = self.sign_for(self._server, csr_pem) or await self._ask(csr_pem)
        if not certificate:
            return None
        self._made_for = made_for
        return WebCertificate(certificate, key_pem)

    async def _ask(self, csr_pem: bytes) -> bytes:
        """Return the certificate signed by the first voter that answers; empty without any."""
        self._asked = csr_pem
        for voter in self._state().voters():
            with self._calls.opened(csr_pem) as call:
                if voter == self._server or not self._links.tell(voter, Kind.WEB_ASK, csr_pem):
                    continue
                if signed := await call.wait(ANSWER_TIMEOUT_S):
                    return signed
        return b""

    def _take(self, _voter: ServerId, certificate_pem: bytes) -> None:
        if not certificate_pem or _is_for(certificate_pem, self._asked):  # or it is late
            self._calls.answered(self._asked, certificate_pem)


def _is_for(certificate_pem: bytes, csr_pem: bytes) -> bool:
    """Return whether a certificate is for the key of a request."""
    try:
        key = x509.load_pem_x509_certificate(certificate_pem).public_key()
        return key == x509.load_pem_x509_csr(csr_pem).public_key()
    except (ValueError, UnsupportedAlgorithm):
        return False
