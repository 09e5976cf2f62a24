"""The CUDA door with GPUs of several servers: a worker each, and drivers without a GPU."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.control import Control
from test_cuda_door import KERNELS, ROOT, compiled, run

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.api import Api, CudaError
from gpupool.remoting.driver_api.executor.memory import address_slices
from gpupool.remoting.driver_api.executor.memory.server_copies import PEER, introduction
from gpupool.remoting.driver_api.executor.memory.virtual_addresses import PLACES, Addresses, Arena
from gpupool.remoting.worker.peer_links import Peer

IMAGE = str(KERNELS / "test_kernels.sm_90.cubin")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, library: Path) -> str:
    return str(compiled("servers", tmp_path_factory.mktemp("programs"), library))


@pytest.mark.parametrize(
    ("count", "devices", "option"),
    [(2, 2, "--tcp"), pytest.param(4, 1, "--no-launcher", marks=pytest.mark.slow)],
)
def test_a_c_program_on_several_servers(
    count: int, devices: int, option: str, servers: str, library: Path, tmp_path: Path
) -> None:
    """Kernels, copies between servers, events, graphs, pools, managed and virtual memory."""
    with Control(tmp_path) as control:
        program = [servers, IMAGE, str(count * devices)]
        done = run(library, control, program, "--servers", str(count), option, devices=devices)
        assert done.stdout == "results right\n", done.stderr
        assert done.stderr == ""
        assert control.missing_calls() == 0


def test_the_other_servers_go_on_when_one_is_lost(
    servers: str, library: Path, tmp_path: Path
) -> None:
    with Control(tmp_path) as control:
        done = run(library, control, [servers, IMAGE, "2", "lose"], "--servers", "2")
        assert done.stdout == "one server lost\n", done.stderr
        (line,) = done.stderr.splitlines()
        assert line.endswith("the connection to the server broke (server loopback1)")


VISIBLE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
for device in range(count.value):
    assert cuda.cuDeviceGetUuid_v2(uuid, device) == 0
    print(bytes(uuid)[14:].hex(), end=" ")
"""


@pytest.mark.parametrize(
    ("visible", "seen", "connections"),
    [
        ("3", "0101 ", 1),  # one process for each GPU
        pytest.param("2,1", "0100 0001 ", 2, marks=pytest.mark.slow),
        pytest.param(
            "GPU-fa4e0000-0000-4000-8000-000000000101", "0101 ", 1, marks=pytest.mark.slow
        ),
    ],
)
def test_a_process_uses_the_servers_whose_devices_it_may_see(
    visible: str,
    seen: str,
    connections: int,
    library: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    program = [sys.executable, "-c", VISIBLE]
    with Control(tmp_path) as control:
        done = run(library, control, program, "--servers", "2", "--verbose", devices=2)
    assert done.stdout == seen, done.stderr
    assert done.stderr.count("connected") == connections, done.stderr


@pytest.mark.parametrize(
    ("order", "visible", "seen", "connections"),
    [
        ("FASTEST_FIRST", None, "0001 0101 0000 0100 ", 2),
        pytest.param("FASTEST_FIRST", "1", "0101 ", 2, marks=pytest.mark.slow),
        pytest.param("PCI_BUS_ID", "1", "0001 ", 1, marks=pytest.mark.slow),
    ],
)
def test_the_fastest_device_of_all_servers_comes_first_if_asked_for(
    order: str,
    visible: str | None,
    seen: str,
    connections: int,
    library: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How fast they are is known from the servers, so that none can be left out before."""
    monkeypatch.setenv("FAKE_CUDA_FASTEST", "1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    program = [sys.executable, "-c", VISIBLE]
    with Control(tmp_path) as control:
        done = run(library, control, program, "--servers", "2", "--verbose", devices=2)
    assert done.stdout == seen, done.stderr
    assert done.stderr.count("connected") == connections, done.stderr


# --- parts of the address space -------------------------------------------------------------------


@pytest.mark.parametrize("servers", [1, 2, 9, 10, 64])
def test_parts_lie_apart_and_are_large(servers: int) -> None:
    parts = [address_slices.slice_of(place, servers) for place in range(servers)]
    for part, following in pairwise(parts):
        assert part.stop <= following.start
    assert parts[0].start >= address_slices.FIRST
    assert parts[-1].stop <= address_slices.LAST
    assert len(parts[0]) >= address_slices.TIB


@pytest.mark.parametrize(("place", "servers"), [(0, 73), (2, 2), (-1, 2)])
def test_there_are_parts_for_so_many_servers_only(place: int, servers: int) -> None:
    with pytest.raises(ValueError, match="no part of the address space"):
        address_slices.slice_of(place, servers)


def test_what_is_filled_is_free_and_outside_of_the_part() -> None:
    own = range(8 << 40, 16 << 40)
    maps = [
        "000000400000-000000500000 r-xp 00000000 00:00 0 /bin/program\n",
        "0a0000000000-0a0000100000 rw-p 00000000 00:00 0 within the part\n",
        "550000000000-550000100000 rw-p 00000000 00:00 0 [heap]\n",
        "7ffc00000000-7ffc00100000 rw-p 00000000 00:00 0 [stack]\n",
    ]
    assert address_slices.gaps(maps, own) == [
        (address_slices.UNTOUCHED, own.start),
        (own.stop, 0x550000000000),
        (0x550000100000, 0x7FFC00000000 - address_slices.STACK_ROOM),
        (0x7FFC00100000, address_slices.END),
    ]


CONFINED = """
import ctypes, mmap
from gpupool.remoting.driver_api.executor.memory import address_slices as slices
slices.confine(1, 2)
part = slices.slice_of(1, 2)
found = mmap.mmap(-1, 1 << 30)
at = ctypes.addressof(ctypes.c_char.from_buffer(found))
print(at in part, slices.holds(at, 1 << 30), slices.holds(part.stop - 4096, 8192))
print(slices.holds(part.start - 1, 1), len(bytearray(1 << 26)) >> 20)
"""


def test_a_confined_process_gets_addresses_of_its_part() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONFINED],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True True False\nFalse 64\n", done.stderr
    assert address_slices.holds(0, 1)  # this process is not confined


UNIT = 2 << 20
pieces = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from([1, 2, 4]), st.integers(0, 40), st.booleans()),
    max_size=30,
)


@given(pieces)
def test_pieces_of_an_arena_lie_apart(wanted: list[tuple[int, int, int, bool]]) -> None:
    """Fitting pieces are found, and a returned piece is free again, as a whole."""
    whole = range(8 * UNIT, 40 * UNIT)
    arena = Arena(whole)
    taken: dict[int, int] = {}

    def fits(start: int, size: int) -> bool:
        inside = whole.start <= start and start + size <= whole.stop
        return inside and all(start + size <= at or at + had <= start for at, had in taken.items())

    for size, alignment, wish, returns in wanted:
        size, alignment, wish = size * UNIT, alignment * UNIT, wish * UNIT
        possible = [at for at in range(0, whole.stop, alignment) if fits(at, size)]
        found = arena.take(size, alignment, wish)
        assert (found in possible) if possible else (found is None)
        if wish in possible and wish:
            assert found == wish
        if found is not None:
            taken[found] = size
        if returns and taken:
            start, had = taken.popitem()
            assert arena.has(start)
            assert not arena.give(start, had + UNIT)
            assert arena.give(start, had)
            assert not arena.give(start, had)
    for start, had in taken.items():
        assert arena.give(start, had)
    assert arena.take(len(whole), UNIT) == whole.start


class Reservations:
    """A driver that gives these addresses in turn; 0: it refuses."""

    def __init__(self, *given: int) -> None:
        self.given = list(given)
        self.wishes: list[int] = []
        self.returned: list[int] = []

    def call(self, name: str, *arguments: int) -> int:
        if name == "cuMemAddressFree":
            self.returned.append(arguments[0])
            return 0
        assert name == "cuMemAddressReserve"
        self.wishes.append(arguments[2])
        found = self.given.pop(0)
        if not found:
            raise CudaError(2, name)
        return found


PART = range(8 << 40, 16 << 40)
MIDDLE = 12 << 40


def test_reservations_are_pieces_of_the_servers_own_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is asked once, and again for a size that is too large."""
    monkeypatch.setattr(address_slices, "_own", PART)
    driver = Reservations(MIDDLE, PART.start)
    addresses = Addresses(cast("Api", driver))
    first = addresses.reserve(UNIT, 0, 0x7F32D0600000)
    assert (first, driver.wishes) == (MIDDLE, [MIDDLE])
    assert addresses.reserve(4 * UNIT, 8 * UNIT, 0) == MIDDLE + 8 * UNIT
    assert addresses.reserve(2 << 40, 0, 0) == PART.start
    with pytest.raises(CudaError):
        addresses.give_back(first, 2 * UNIT)
    addresses.give_back(first, UNIT)
    addresses.give_back(PART.start, 2 << 40)
    assert driver.returned == [PART.start]


@pytest.mark.parametrize("given", [[0, 0], [0x302000000], [0, 0x302000000]])
def test_addresses_of_others_are_refused(given: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """As drivers were seen to give them in the lowest 64 GiB, which nobody fills."""
    monkeypatch.setattr(address_slices, "_own", PART)
    driver = Reservations(*given, 0x302000000)
    with pytest.raises(CudaError):
        Addresses(cast("Api", driver)).reserve(UNIT, 0, 0)
    assert driver.returned == [one for one in given if one] + [0x302000000]


def test_a_server_alone_has_one_as_well_or_leaves_it_to_the_driver() -> None:
    driver = Reservations(MIDDLE)
    assert Addresses(cast("Api", driver)).reserve(UNIT, 0, 0) == MIDDLE
    assert driver.wishes[0] in PLACES
    driver = Reservations(0, 0, 0, 0x302000000)
    addresses = Addresses(cast("Api", driver))
    assert addresses.reserve(UNIT, 0, MIDDLE) == 0x302000000
    assert driver.wishes[1:] == [0, MIDDLE, 0]
    addresses.give_back(0x302000000, UNIT)
    assert driver.returned == [0x302000000]


# --- links between workers ------------------------------------------------------------------------


def test_an_introduction_of_workers() -> None:
    """As shim/memory/peers.c lays it out: itself left out, and a server that has no session."""
    other = PEER.pack(b"id-b", b"b", b"s" * 16, b"c" * 32, b"k" * 32, 1, 1)
    key, others = introduction(b"K" * 32 + other + bytes(2 * PEER.size), 3)
    assert key == b"K" * 32
    assert others == (Peer("id-b", "b", b"s" * 16, b"c" * 32, "tls", b"k" * 32), None, None)


@given(st.binary(max_size=3 * PEER.size), st.integers(0, 1 << 63))
def test_other_introductions_are_refused(data: bytes, count: int) -> None:
    assume(len(data) != 32 + count * PEER.size)
    with pytest.raises(RemoteProtocolError):
        introduction(data, count)
