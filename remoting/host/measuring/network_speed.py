"""How fast a server's network is: the interface that has its address, and RDMA devices.

Linux only; elsewhere, and for an address that no interface has (behind NAT, or a name that leads
elsewhere), nothing is known. Reads files and asks the kernel, never the network.
"""

import socket
import struct
from ipaddress import ip_address
from pathlib import Path

RTM_NEWADDR, RTM_GETADDR = 20, 22
NLM_F_REQUEST_DUMP = 0x301
NLMSG_ERROR, NLMSG_DONE = 2, 3
IFA_ADDRESS, IFA_LOCAL = 1, 2
HEADER, MESSAGE, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), struct.Struct("=HH")
REPLY_COUNT_MAX = 256
TIMEOUT_S = 1.0
SPEED_MAX = 10_000_000
"""Mbit/s; drivers that do not know say -1, or 2**32 - 1."""


def interface_of(address: str) -> str:
    """Return the name of the interface that has ``address``, or an empty string."""
    try:
        wanted = ip_address(address).packed
        for index, found in _interface_addresses():
            if found == wanted:
                return socket.if_indextoname(index)
    except (AttributeError, OSError, ValueError, struct.error):
        pass  # no IP address, or not Linux
    return ""


def link_speed(address: str, sys: Path = Path("/sys")) -> int:
    """Return the Mbit/s of the interface that has ``address``; 0 when that is not known."""
    interface = interface_of(address)
    return speed_of(interface, sys) if interface else 0


def speed_of(interface: str, sys: Path = Path("/sys")) -> int:
    """Return the Mbit/s of an interface; 0 for one that has none, such as the loopback."""
    try:
        speed = int((sys / "class" / "net" / interface / "speed").read_text())
    except (OSError, ValueError):
        return 0
    return speed if 0 < speed <= SPEED_MAX else 0


def has_rdma(sys: Path = Path("/sys")) -> bool:
    """Return whether an RDMA device (InfiniBand, RoCE, iWARP) has an active port."""
    for state in (sys / "class" / "infiniband").glob("*/ports/*/state"):
        try:
            if "ACTIVE" in state.read_text():
                return True
        except OSError:
            continue
    return False


def _interface_addresses() -> list[tuple[int, bytes]]:
    """Return pairs of interface index and packed address, as the kernel has them (rtnetlink(7))."""
    found: list[tuple[int, bytes]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(TIMEOUT_S)
        size = HEADER.size + MESSAGE.size
        request = HEADER.pack(size, RTM_GETADDR, NLM_F_REQUEST_DUMP, 1, 0)
        netlink.sendto(request + MESSAGE.pack(socket.AF_UNSPEC, 0, 0, 0, 0), (0, 0))
        for _ in range(REPLY_COUNT_MAX):
            reply = netlink.recv(1 << 16)
            while len(reply) >= HEADER.size:
                length, kind, _, _, _ = HEADER.unpack_from(reply)
                if kind in (NLMSG_DONE, NLMSG_ERROR) or length < HEADER.size:
                    return found
                if kind == RTM_NEWADDR:
                    found += _addresses(reply[HEADER.size : length])
                reply = reply[(length + 3) & ~3 :]
    return found


def _addresses(message: bytes) -> list[tuple[int, bytes]]:
    index = MESSAGE.unpack_from(message)[4]
    found: list[tuple[int, bytes]] = []
    at = MESSAGE.size
    while at + ATTRIBUTE.size <= len(message):
        length, kind = ATTRIBUTE.unpack_from(message, at)
        if length < ATTRIBUTE.size:
            break
        if kind in (IFA_ADDRESS, IFA_LOCAL):
            found.append((index, message[at + ATTRIBUTE.size : at + length]))
        at += (length + 3) & ~3
    return found
