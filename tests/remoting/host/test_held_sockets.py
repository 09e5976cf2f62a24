"""The filters of packets by which workers' sockets are held, run as the kernel runs them."""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.pool.errors import UsageError
from gpupool.remoting.host.isolation import held_sockets
from gpupool.remoting.host.isolation.held_sockets import Network

LOAD_WORD, LOAD_HALF, LOAD_BYTE, AND, JUMP, IF_EQUAL, RETURN = (
    *(0x20, 0x28, 0x30, 0x54),
    *(0x05, 0x15, 0x06),
)
HEADER, INTERFACE = 0xFFF0_0000, 0xFFFF_F008
LOOPBACK, ETHERNET = 1, 2
Address = IPv4Address | IPv6Address


def keeps(allowed: list[Network], source: Address, interface: int, *, own: bool = True) -> bool:
    """Run the program on a packet from ``source`` as the kernel does."""
    four = source.version == 4
    header = bytes([0x45 if four else 0x60]) + bytes(11 if four else 7) + source.packed
    program = held_sockets.packet_filter(allowed, own=own)
    assert len(program) <= 4096
    at = value = 0
    while True:
        code, true, false, operand = program[at]
        assert 0 <= true < 256
        assert 0 <= false < 256
        at += 1
        if code == RETURN:
            return operand != 0
        if code == JUMP:
            at += operand
        elif code == IF_EQUAL:
            at += true if value == operand else false
        elif code == AND:
            value &= operand
        elif operand == INTERFACE:
            value = interface
        else:
            size = {LOAD_WORD: 4, LOAD_HALF: 2, LOAD_BYTE: 1}[code]
            value = int.from_bytes(header[operand - HEADER :][:size], "big")


addresses = st.ip_addresses()


@st.composite
def networks(draw: st.DrawFn) -> Network:
    address = draw(addresses)
    return ip_network((address, draw(st.integers(0, address.max_prefixlen))), strict=False)


@given(st.lists(networks(), max_size=8), addresses, st.booleans())
def test_packets_from_the_networks_are_kept_and_no_others(
    allowed: list[Network], source: Address, own: bool
) -> None:
    inside = any(source in network for network in allowed)
    assert keeps(allowed, source, ETHERNET, own=own) == inside
    assert keeps(allowed, source, LOOPBACK, own=own) == (inside or (own and not source.is_loopback))


@given(networks(), st.data())
def test_each_address_of_a_network_is_in_it(network: Network, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, network.num_addresses - 1))
    assert keeps([network], network[index], ETHERNET)


def test_as_many_networks_as_may_be_fit_a_filter() -> None:
    text = ",".join(f"fd00:1:2:{number:x}::5" for number in range(128))
    allowed = [*held_sockets.networks(text), *held_sockets.networks(text)]
    assert keeps(allowed, IPv6Address("fd00:1:2:7f::5"), ETHERNET)
    assert not keeps(allowed, IPv6Address("fd00:1:2:80::5"), ETHERNET)


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


def test_a_connection_that_has_ended_cannot_be_held() -> None:
    with socket.socket() as never, pytest.raises(OSError, match="not connected"):
        held_sockets.hold(never)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_connection_that_is_held_goes_on(family: int) -> None:
    host = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}[socket.AddressFamily(family)]
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with listener, socket.create_connection(listener.getsockname()[:2]) as client:
        served, _address = listener.accept()
        with served:
            held_sockets.hold(served)
            client.sendall(bytes(100_000))
            assert len(served.recv(100_000, socket.MSG_WAITALL)) == 100_000
            served.sendall(b"back")
            assert client.recv(4) == b"back"
            for option in (26, 27):
                with pytest.raises(PermissionError):
                    served.setsockopt(socket.SOL_SOCKET, option, bytes(16))


def test_sockets_of_other_kinds_are_not_made() -> None:
    for family, kind, protocol in (
        (socket.AF_INET, socket.SOCK_DGRAM, 0),
        (socket.AF_UNIX, socket.SOCK_STREAM, 0),
        (socket.AF_INET, socket.SOCK_STREAM, 132),
        (socket.AF_INET, socket.SOCK_RAW, 6),
    ):
        with pytest.raises(OSError, match="not supported"):
            held_sockets.make(family, kind, protocol, ())
