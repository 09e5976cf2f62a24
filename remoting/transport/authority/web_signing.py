"""The certificate that the cluster CA signs for a server's observer: its names, and its time."""

import ipaddress
import re
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from gpupool.pool.model.state import Server
from gpupool.remoting.protocol.addresses import parse_address
from gpupool.remoting.transport.pki import Authority, sign_leaf

WEB_VALID = timedelta(days=397)
"""The most that browsers take; a leaf never outlives its CA."""

OWN_DOMAIN = "gpupool"
_NAME = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*"
)


def web_names(server: Server) -> list[x509.GeneralName]:
    """Return the names and addresses of a server; never one of gpupool's own."""
    found: list[x509.GeneralName] = []
    for text in dict.fromkeys((parse_address(server.address).host.lower(), server.name.lower())):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(text)))
        except ValueError:
            if _NAME.fullmatch(text) and text.rpartition(".")[2] != OWN_DOMAIN:
                found.append(x509.DNSName(text))
    return found


def sign_web(authority: Authority, csr_pem: bytes, server: Server, now: datetime) -> bytes:
    """Return the certificate of the observer of ``server``.

    Raises:
        AuthenticationError: when the request is malformed.
    """
    return sign_leaf(
        authority,
        csr_pem,
        common_name=f"the observer of {server.name}"[:64],
        names=web_names(server),
        usages=[ExtendedKeyUsageOID.SERVER_AUTH],
        now=now,
        valid=WEB_VALID,
    )
