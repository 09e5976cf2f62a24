"""The answers of a lease's servers to a client process that opens its sessions, and their codec.

``gpupool run``'s agent, or the holder of a lease, hands them to the process as objects of a JSON
line. The client libraries of both doors read the same fields, so their names and order are fixed.
"""

from dataclasses import dataclass, field
from typing import Any, cast

from gpupool.pool.model.codec import decode
from gpupool.pool.model.ids import GpuId, ServerId
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.addresses import Address, parse_address
from gpupool.remoting.protocol.sessions import SessionDevice
from gpupool.remoting.transport.client_tls import SESSION_SUFFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSession:
    """A session on one server: the addresses of its worker, and the proofs of both sides."""

    server: str  # its name
    server_id: ServerId
    address: Address
    unix: str | None  # Unix socket for clients on the same host
    session: bytes
    certificate_sha256: bytes
    ticket: bytes = field(repr=False)
    encryption: str  # a ``DataEncryption``, for TCP
    devices: tuple[SessionDevice, ...]
    relay: str | None = None  # Unix socket of a relay that encrypts for the process


@dataclass(frozen=True, slots=True)
class SkippedServer:
    """A server without a session, because the process sees no device of it."""

    server: str  # its name
    gpus: tuple[GpuId, ...]


SessionAnswer = OpenedSession | SkippedServer


def opened_session(server: ServerId, name: str, opened: m.SessionOpened) -> OpenedSession:
    """Return the answer for the session that a server has opened."""
    info = opened.info
    return OpenedSession(
        server=name,
        server_id=server,
        address=parse_address(opened.address),
        unix=info.unix_path or None,
        session=info.session,
        certificate_sha256=info.certificate_sha256,
        ticket=info.ticket,
        encryption=opened.encryption,
        devices=info.devices,
    )


def has_emulated(answer: SessionAnswer) -> bool:
    """Return whether a server answered with emulated GPUs, which only the array door reaches."""
    return isinstance(answer, OpenedSession) and any(each.emulated for each in answer.devices)


def to_plain(answer: SessionAnswer) -> dict[str, object]:
    """Return the object that a client process reads."""
    if isinstance(answer, SkippedServer):
        return {"server": answer.server, "devices": [{"uuid": gpu} for gpu in answer.gpus]}
    plain: dict[str, object] = {
        "server": answer.server,
        "server_id": answer.server_id,
        "address": [answer.address.host, answer.address.port],
        "unix": answer.unix,
        "session": answer.session.hex(),
        "server_name": answer.session.hex() + SESSION_SUFFIX,
        "certificate_sha256": answer.certificate_sha256.hex(),
        "ticket": answer.ticket.hex(),
        "encryption": answer.encryption,
        "devices": [
            {
                "index": device.index,
                "name": device.name,
                "uuid": device.uuid,
                "memory": device.memory,
                "emulated": device.emulated,
            }
            for device in answer.devices
        ],
    }
    return plain if answer.relay is None else plain | {"relay": answer.relay}


def from_plain(plain: object) -> SessionAnswer:
    """Return the answer that an object stands for; skip unknown fields.

    Raises:
        ValueError: when a field is missing or makes no sense.
    """
    try:
        fields = dict(cast("dict[str, Any]", plain))
        if "session" not in fields:
            gpus = [each["uuid"] for each in fields["devices"]]
            return decode(SkippedServer, {"server": fields["server"], "gpus": gpus})
        for name in ("session", "certificate_sha256", "ticket"):
            fields[name] = bytes.fromhex(fields[name])
        host, port = fields["address"]
        fields["address"] = {"host": host, "port": port}
        return decode(OpenedSession, fields, unknown_fields=True)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not the answer of a server: {error}") from error
