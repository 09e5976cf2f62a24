"""The TLS settings of a client, and the names by which servers prove themselves.

They stand apart from ``pki``, which makes and reads certificates: a client only has them verified,
and its start need not wait for the library that does more.
"""

import ssl
from collections.abc import Iterable
from typing import Any

from gpupool.pool.errors import AuthenticationError
from gpupool.pool.model.ids import ServerId

CONTROL_NAME = "control.gpupool"
SERVER_SUFFIX = ".server.gpupool"
SESSION_SUFFIX = ".session.gpupool"
MEASURE_SUFFIX = ".measure.gpupool"
NEWEST_CONTROL_NAME = "newest.control.gpupool"
NEWEST_SERVER_SUFFIX = ".newest-server.gpupool"


class ClientContext(ssl.SSLContext):
    """A client's context, with the name that it asks a server for."""

    server_name = CONTROL_NAME


def client_context(ca_pem: bytes) -> ClientContext:
    """Return a client's context, which trusts the cluster CA alone, or both of a bundle.

    Raises:
        AuthenticationError: when ``ca_pem`` is no certificate.
    """
    context = ClientContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and name
    harden(context)
    try:
        context.load_verify_locations(cadata=ca_pem.decode())
    except (ssl.SSLError, ValueError) as error:
        raise AuthenticationError("the CA certificate is malformed") from error
    return context


def first_contact_context() -> ssl.SSLContext:
    """Return the context that fetches the CA certificate, before a server can be verified.

    No secret is sent over the connection. The certificate that comes over it is trusted only when
    its SHA-256 is the token's.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    harden(context)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def harden(context: ssl.SSLContext) -> None:
    """Demand TLS 1.3, and a certificate for each connection."""
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Sessions are never resumed: each connection shows its certificate afresh.
    context.options |= ssl.OP_NO_TICKET


def server_of(certificate: dict[str, Any] | None) -> ServerId | None:
    """Return the server that a verified certificate names, as ``getpeercert()`` gives it."""
    if not certificate:
        return None
    names: Iterable[tuple[str, str]] = certificate.get("subjectAltName", ())
    found = [
        value.removesuffix(SERVER_SUFFIX)
        for kind, value in names
        if kind == "DNS" and value.endswith(SERVER_SUFFIX)
    ]
    return ServerId(found[0]) if len(found) == 1 else None
