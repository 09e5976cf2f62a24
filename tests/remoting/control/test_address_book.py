"""Addresses are hints: the places to look for servers, the servers' answers, and the found ones."""

import itertools
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from tests.remoting.control.control_kit import (
    PeerLog,
    SeededRng,
    VirtualClock,
    make_authority,
    make_identity,
)

from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.protocol.framing import FrameReader, dump, frame_bytes
from gpupool.remoting.transport.address_book import ADDRESSES_MAX, TOLD_MAX, AddressBook, Said
from gpupool.remoting.transport.peer_dial import Finder
from gpupool.remoting.transport.peer_link import Kind
from gpupool.remoting.transport.peer_transport import GREETING, PeerTransport

A, B, C, D = (ServerId(name * 12) for name in "abcd")
ALL = (A, B, C)


def book(server: ServerId = A, own: Said = (1, ("own:1",)), *, listed: str = "") -> AddressBook:
    return AddressBook(server, own, lambda _peer: listed.split())


def told(server: str, number: int, *addresses: str) -> bytes:
    return dump([[server, number, [*addresses]]])


# --- the book -----------------------------------------------------------------------------------


def test_each_failure_tries_the_next_address() -> None:
    known = book(listed="old:1 name:1")
    assert known.address(B) == "old:1"
    assert known.heard(A, told(B, 3, "relayed:1"), {B}) == [B]
    assert known.heard(B, told(B, 3, "new:1", "newest:1"), {B}) == [B]
    assert known.places(B) == ["new:1", "newest:1", "relayed:1", "old:1", "name:1"]
    seen: list[str | None] = []
    for _ in range(6):
        seen.append(known.address(B))
        known.failed(B)
    assert seen == [*known.places(B), "new:1"]
    known.met(B, "name:1")
    assert known.places(B)[:2] == ["name:1", "new:1"]


def test_what_an_earlier_incarnation_said_takes_no_later_ones_place() -> None:
    known = book()
    known.heard(B, told(B, 5, "new:1"), {B})
    assert known.heard(B, told(B, 4, "old:1"), {B}) == []
    assert known.heard(C, told(B, 9, "lie:1"), {B}) == [B]
    assert known.heard(B, told(B, 5, "newer:1"), {B}) == [B]
    assert known.places(B) == ["lie:1", "newer:1"], "a lie is one more place, and no less"
    assert book(B, listed="").heard(A, known.whole(), {A, B, C}) == [A]


def test_a_server_passes_on_only_what_servers_say_of_themselves() -> None:
    first, second, third = book(A), book(B), book(C)
    assert second.heard(A, first.whole(), ALL) == [A]
    assert third.heard(B, second.whole(), ALL) == [B, A]
    assert (third.address(A), third.address(B)) == ("own:1", "own:1")
    assert second.news() != b""
    assert second.news() == b"", "each is told once"
    assert third.heard(A, told(D, 1, "stranger:1"), ALL) == [], "of no server that it knows"
    assert third.heard(D, told(D, 1, "stranger:1"), ALL) == [D], "who has proven who it is"
    assert first.heard(C, told(A, 9, "elsewhere:1"), ALL) == [], "it knows where itself is"


def test_liars_make_nothing_long() -> None:
    known = book(listed="old:1")
    for number in range(3 * TOLD_MAX):
        known.heard(ServerId(f"liar{number}"), told(B, 2**61, f"lie{number}:1"), {B})
    assert len(known.places(B)) == 12
    assert known.places(B)[-1] == "old:1"
    known.heard(C, told(C, 1, "c:1"), {B})
    assert known.places(D) == ["old:1"]
    for number in range(3 * TOLD_MAX):
        liar = ServerId(f"liar{number}")
        known.heard(liar, told(liar, 1, "here:1"), {B})
    assert len(known.whole()) < 64 * TOLD_MAX


@pytest.mark.parametrize(
    "plain",
    [
        7,
        [7],
        [["b", 1]],
        [["b", 1, ["x:1"], 1]],
        [[7, 1, ["x:1"]]],
        [["b", -1, ["x:1"]]],
        [["b", True, ["x:1"]]],
        [["b", 2**62, ["x:1"]]],
        [["b", "1", ["x:1"]]],
        [["b", 1, "x:1"]],
        [["b", 1, [7]]],
        [["b", 1, ["x:0"]]],
        [["b", 1, ["a b:1"]]],
        [["b", 1, ["x:1"] * (ADDRESSES_MAX + 1)]],
        [["b", 1, list[Plain]()]] * (TOLD_MAX + 1),
    ],
    ids=itertools.count(),
)
def test_other_bodies_make_no_sense(plain: Plain) -> None:
    known = book()
    with pytest.raises(RemoteProtocolError, match="malformed addresses"):
        known.heard(B, dump(plain), {B})
    with pytest.raises(RemoteProtocolError):
        known.heard(B, b"\xff", {B})
    assert known.address(B) is None


# --- links --------------------------------------------------------------------------------------


class Site:
    """Servers that listen at addresses, and dial one another over memory streams."""

    def __init__(self, folder: Path, nursery: trio.Nursery) -> None:
        self.folder = folder
        self.nursery = nursery
        self.authority = make_authority()
        self.at: dict[str, ServerId] = {}
        self.links: dict[ServerId, PeerTransport] = {}
        self.dials = 0

    async def start(
        self, server: ServerId, address: str, known: dict[ServerId, str], *places: str
    ) -> None:
        self.at[address] = server
        links = self.links[server] = PeerTransport(
            make_identity(self.folder, self.authority, server),
            clock=VirtualClock(),
            rng=SeededRng(len(self.links)),
            log=logging.getLogger("test"),
            dial=self.dial_from(server),
            book=AddressBook(
                server, (2, (address,)), lambda peer: [known[peer]] if peer in known else []
            ),
            places=places,
        )
        links.finder.who = self.who
        links.set_peers(ALL)
        await self.nursery.start(links.run, PeerLog())

    async def who(self, address: Address) -> ServerId | None:
        await trio.lowlevel.checkpoint()
        return self.at.get(str(address))

    def dial_from(self, me: ServerId) -> Callable[[ServerId, Address], Awaitable[trio.abc.Stream]]:
        async def dial(peer: ServerId, address: Address) -> trio.abc.Stream:
            await trio.lowlevel.checkpoint()
            self.dials += 1
            if str(address) not in self.at:
                raise ConnectionRefusedError
            if self.at[str(address)] != peer:
                raise trio.BrokenResourceError
            near, far = trio.testing.memory_stream_pair()
            self.nursery.start_soon(self.links[peer].accept, far, me)
            return near

        return dial

    def is_whole(self) -> bool:
        return all(len(links.connected()) == len(ALL) - 1 for links in self.links.values())


FORMER = {A: "a:1", B: "b:1", C: "c:1"}


@pytest.mark.parametrize(
    ("now", "places"),
    [
        ({A: "a:2", B: "b:2", C: "c:2"}, {B: "a:2", C: "b:2"}),
        ({A: "a:2", B: "b:2", C: "c:2"}, {A: "c:2", B: "c:2"}),
        ({A: "a:2", B: "b:2", C: "c:1"}, {}),
        ({A: "b:1", B: "c:1", C: "a:1"}, {}),
        ({A: "b:1", B: "a:1", C: "c:1"}, {}),
        ({A: "b:1", B: "b:2", C: "c:2"}, {B: "c:2"}),
        ({A: "a:1", B: "b:1", C: "c:1"}, {A: "nowhere:1", B: "b:1"}),
    ],
    ids=["all", "all to one", "two", "in a ring", "exchanged", "a former one", "none"],
)
async def test_servers_find_each_other_after_a_move(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    now: dict[ServerId, str],
    places: dict[ServerId, str],
) -> None:
    site = Site(tmp_path, nursery)
    for server, address in now.items():
        await site.start(server, address, FORMER, *[places[s] for s in (server,) if s in places])
    await trio.sleep(10)
    assert site.is_whole()
    before = site.dials
    await trio.sleep(60)
    assert site.is_whole()
    assert site.dials == before


async def test_a_server_that_joined_meanwhile_is_linked_to(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    site = Site(tmp_path, nursery)
    await site.start(D, "d:1", FORMER)
    site.links[D].set_peers(())
    await site.start(A, "a:1", FORMER, "d:1")
    await trio.sleep(5)
    assert site.links[A].connected() == (D,)


@pytest.mark.parametrize("version", [VERSION, VERSION - 1])
async def test_an_older_server_is_told_no_addresses(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, version: int
) -> None:
    site = Site(tmp_path, nursery)
    await site.start(A, "a:1", FORMER)
    near, far = trio.testing.memory_stream_pair()
    nursery.start_soon(site.links[A].accept, far, B)
    await near.send_all(frame_bytes(Kind.GREETING, GREETING.pack(version, 0), size_max=99))
    await trio.sleep(1)
    reader = FrameReader(1 << 20)
    reader.feed(bytes(await near.receive_some(1 << 16)))
    kinds = [frame.kind for frame in reader.frames()]
    assert (Kind.ADDRESSES in kinds) is (version == VERSION)


async def test_a_linked_server_is_dialled_at_its_address_until_it_is_met_there(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    at: dict[str, ServerId | None] = {"b:1": B, "c:1": None}
    asked: list[str] = []
    linked, addresses = [B, C], {B: "b:1", C: "c:1"}

    async def who(address: Address) -> ServerId | None:
        asked.append(str(address))
        if (found := at.get(str(address))) is None:
            await trio.sleep_forever()
        return found

    async def dial(peer: ServerId, address: Address) -> trio.abc.Stream:
        raise AssertionError((peer, address))

    finder = Finder(book(), dial, who, logging.getLogger("test"))
    nursery.start_soon(finder.meet, lambda: linked, addresses.get)
    await trio.sleep(35.0)
    assert asked == ["b:1", "c:1", "c:1"]
    assert finder.away == {C: 2}
    at["c:1"] = B  # another server is there
    await trio.sleep(10.0)
    assert finder.away == {C: 3}
    addresses[C], at["c:2"] = "c:2", C
    await trio.sleep(10.0)
    assert finder.away == {}
    at["c:2"], addresses[C] = None, "c:3"
    await trio.sleep(15.0)
    linked.remove(C)
    await trio.sleep(15.0)
    assert finder.away == {}
    nursery.cancel_scope.cancel()
