"""The filters of packets by which workers' sockets are held, run as the kernel runs them."""

import ctypes
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.pool.errors import UsageError
from gpupool.remoting.host.isolation import held_sockets
from gpupool.remoting.host.isolation.held_sockets import Network

NETWORK_HEADER, TCP_FLAGS, INTERFACE = -0x10_0000, 13, 40
LOOPBACK, ETHERNET = 1, 2
SYN, ACK = 0x02, 0x10
Address = IPv4Address | IPv6Address


def run(program: bytes, source: Address, interface: int = ETHERNET, flags: int = ACK) -> bool:
    """Run a program on a packet from ``source`` as the kernel does; return whether it is kept."""
    four = source.version == 4
    header = bytes([0x45 if four else 0x60]) + bytes(11 if four else 7) + source.packed
    tcp = bytes(TCP_FLAGS) + bytes([flags, 0, 0])
    instructions = list(struct.iter_unpack("=BBhi", program))
    at, registers = 0, [0, 1]  # the result, and the context
    while True:
        code, names, jump, operand = instructions[at]
        at += 1
        match code:
            case 0x95:  # exit
                return registers[0] != 0
            case 0xBF:  # register 6 has the context, for loads
                assert names == 0x16
            case 0xB7:
                registers[0] = operand
            case 0x54:
                registers[0] &= operand & 0xFFFF_FFFF
            case 0x05:
                at += jump
            case 0x16:
                at += jump if registers[0] == operand & 0xFFFF_FFFF else 0
            case 0x56:
                at += jump if registers[0] != operand & 0xFFFF_FFFF else 0
            case 0x45:
                at += jump if registers[0] & operand else 0
            case 0x61:
                assert (names, jump) == (0x60, INTERFACE)
                registers[0] = interface
            case 0x20 | 0x30:
                size = 4 if code == 0x20 else 1
                place, data = (operand, tcp) if operand >= 0 else (operand - NETWORK_HEADER, header)
                assert len(data[place:][:size]) == size
                registers[0] = int.from_bytes(data[place:][:size], "big")
            case _:
                raise AssertionError(code)


def keeps(allowed: Sequence[Network], source: Address, interface: int = ETHERNET) -> bool:
    return run(held_sockets.lease_program(allowed), source, interface)


addresses = st.ip_addresses()


@st.composite
def networks(draw: st.DrawFn) -> Network:
    address = draw(addresses)
    return ip_network((address, draw(st.integers(0, address.max_prefixlen))), strict=False)


@given(st.lists(networks(), max_size=8), addresses)
def test_packets_from_the_networks_are_kept_and_no_others(
    allowed: list[Network], source: Address
) -> None:
    inside = any(source in network for network in allowed)
    near = source not in ip_network("127.0.0.0/8") and source != IPv6Address("::1")
    assert keeps(allowed, source) == inside
    assert keeps(allowed, source, LOOPBACK) == (inside or near)


@given(addresses, st.integers(0, 255))
def test_a_connection_keeps_all_but_what_begins_one(source: Address, flags: int) -> None:
    program = held_sockets.connection_program()
    assert run(program, source, flags=flags) == (not flags & SYN)


@given(networks(), st.data())
def test_each_address_of_a_network_is_in_it(network: Network, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, network.num_addresses - 1))
    assert keeps([network], network[index])


def test_as_many_networks_as_may_be_fit_a_filter() -> None:
    text = ",".join(f"fd00:1:2:{number:x}::5" for number in range(128))
    allowed = [*held_sockets.networks(text), *held_sockets.networks(text)]
    assert keeps(allowed, IPv6Address("fd00:1:2:7f::5"))
    assert not keeps(allowed, IPv6Address("fd00:1:2:80::5"))


@pytest.mark.parametrize("text", ["10.0.0.1/24", "here", "10.0.0.0/33", "fe80::1%eth0/64"])
def test_what_is_no_network_is_said(text: str) -> None:
    with pytest.raises(UsageError, match="GPUPOOL_NCCL_NETWORKS names"):
        held_sockets.networks(f"10.1.0.0/16, {text}")


def test_too_many_networks_are_refused() -> None:
    with pytest.raises(UsageError, match="names 129 networks"):
        held_sockets.networks(" ".join(["10.0.0.0/8"] * 129))


def test_addresses_of_sockets_are_networks() -> None:
    found = held_sockets.of_addresses(["10.1.2.3", "fe80::1%eth0", "::ffff:10.1.2.4", "::1"])
    assert [str(each) for each in found] == [
        *("10.1.2.3/32", "fe80::1/128", "10.1.2.4/32", "::1/128"),
    ]


def programs() -> list[int]:
    """Return descriptors of the programs that this process can attach to connections."""
    found = [held_sockets.CLASSIC]
    if held_sockets.can_load():
        found.append(held_sockets.load(held_sockets.connection_program()))
    return [each for each in found if held_sockets.can_hold(each)]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connection_that_is_held_goes_on_and_leads_nowhere_else(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    found = programs()
    if not found:
        pytest.skip("this process may attach no filter")
    with listener:
        for program in found:
            with socket.create_connection(listener.getsockname()[:2]) as client:
                served, _address = listener.accept()
                with served:
                    held_sockets.hold(served, program)
                    _use_and_turn(served, client, listener.getsockname()[:2])
            if program >= 0:
                os.close(program)


def _use_and_turn(served: socket.socket, client: socket.socket, other: tuple[str, int]) -> None:
    client.sendall(bytes(100_000))
    assert len(served.recv(100_000, socket.MSG_WAITALL)) == 100_000
    served.sendall(b"back")
    assert client.recv(4) == b"back"
    with pytest.raises(PermissionError):
        served.setsockopt(socket.SOL_SOCKET, 27, 0)  # SO_DETACH_FILTER
    with pytest.raises(PermissionError):
        served.setsockopt(socket.SOL_SOCKET, 44, 0)  # SO_LOCK_FILTER
    ctypes.CDLL(None).connect(served.fileno(), bytes(16), 16)
    served.settimeout(0.2)
    with pytest.raises(TimeoutError):
        served.connect(other)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_who_is_not_root_attaches_what_root_has_loaded() -> None:
    """Linux 6.18.44 wants CAP_NET_ADMIN for a classic filter, so every session was refused."""
    code = """
import os, socket, sys
os.setgroups([]); os.setresgid(60005, 60005, 60005); os.setresuid(60005, 60005, 60005)
with socket.socket() as sock:
    sock.setsockopt(socket.SOL_SOCKET, 50, int(sys.argv[1]))
    sock.setsockopt(socket.SOL_SOCKET, 44, 1)
"""
    if not held_sockets.can_load():
        pytest.skip("this process may load no filter")
    for program in (held_sockets.connection_program(), held_sockets.lease_program([])):
        loaded = held_sockets.load(program)
        try:
            command = [sys.executable, "-ISc", code, str(loaded)]
            subprocess.run(command, pass_fds=[loaded], check=True)
        finally:
            os.close(loaded)


def test_sockets_of_other_kinds_are_not_made() -> None:
    for family, kind, protocol in (
        (socket.AF_INET, socket.SOCK_DGRAM, 0),
        (socket.AF_UNIX, socket.SOCK_STREAM, 0),
        (socket.AF_INET, socket.SOCK_STREAM, 132),
        (socket.AF_INET, socket.SOCK_RAW, 6),
    ):
        with pytest.raises(OSError, match="not supported"):
            held_sockets.make(family, kind, protocol, held_sockets.CLASSIC)
