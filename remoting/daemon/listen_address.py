"""Where a server listens, and the address, speed and software that it advertises to others."""

import socket
import sys
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.remoting.daemon.join_options import JoinOptions
from gpupool.remoting.host.measuring.network_speed import link_speed
from gpupool.remoting.protocol.addresses import PORT_DEFAULT, Address, parse_address
from gpupool.remoting.protocol.token_text import parse_token

ANYWHERE = Address("0.0.0.0", PORT_DEFAULT)  # noqa: S104 - a server is there to be reached


BACKLOG = 4096
"""Connections that the kernel holds until they are accepted: its own bound is that by default."""
SILENT_S = 10
"""How long the kernel itself holds connections that say nothing, at no cost of the server's."""


async def open_listeners(listen: Address) -> list[trio.SocketListener]:
    """Listen, with the same port on every address that the host's name stands for.

    Raises:
        GpupoolError: when that is not possible.
    """
    try:
        listeners = await trio.open_tcp_listeners(listen.port, host=listen.host, backlog=BACKLOG)
        for listener in listeners:
            _defer_silent(listener)
        return listeners
    except OSError as error:
        why = error.strerror or str(error)
        hint = "choose another address with --listen"
        if "in use" in str(error):
            why = "the port is in use"
            hint = "is a server running here already? --listen chooses another port"
        raise GpupoolError(f"cannot listen on {listen}", why=why, hint=hint) from error


def _defer_silent(listener: trio.SocketListener) -> None:
    """Defer new connections in the kernel until they send data: clients always speak first."""
    if sys.platform == "linux":
        with suppress(OSError):
            listener.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, SILENT_S)


def advertised_address(options: JoinOptions, listen: Address) -> str:
    """Return where others reach this server."""
    if options.advertise is not None:
        return str(options.advertise)
    if listen.host in ("0.0.0.0", "::"):  # noqa: S104
        return str(replace(listen, host=own_address(options)))
    return str(listen)


def own_address(options: JoinOptions) -> str:
    """Return this machine's address on the way to the pool, or to the world; sends nothing."""
    target = "192.0.2.1"  # RFC 5737: never assigned, so it takes the default route
    if options.address is not None:
        target = options.address.host
    elif options.token:
        target = parse_token(options.token).addresses[0].host
    try:
        family, kind, _, _, where = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"  # no network at all


def own_names(address: str) -> tuple[str, ...]:
    """Return addresses by the names of this machine that stand for its numeric ``address``.

    Where DHCP gives it another one, the name goes with it.
    """
    own, name = parse_address(address), socket.getfqdn()
    if "." not in name or not own.is_numeric or ip_address(own.host).is_loopback:
        return ()
    named = replace(own, host=name)
    return () if named.is_numeric or own.host not in hosts_of(name) else (str(named),)


def hosts_of(name: str) -> set[str]:
    """Return the numeric addresses that a name stands for here; none when it is not known."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    return {str(each[4][0]) for each in found}


def advertised_speed(address: str) -> int:
    """Return the Mbit/s of the interface behind an advertised address; 0 when not known."""
    host = parse_address(address).host
    found = hosts_of(host)
    return link_speed(min(found)) if found else 0
