"""The table of records: its generated files, and whether recorded bytes have its layout."""

import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from call_stubs import stub
from cuda_headers import Function
from forwards import FORWARDS
from generate import by_hand
from generate_records import rendered
from golden import NAMES, Sample, all_samples
from test_cuda_door import ROOT

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api import build
from gpupool.remoting.driver_api.schema import table
from gpupool.remoting.driver_api.schema.calls import ALIASES, BASE_CALLS, CALLS
from gpupool.remoting.driver_api.schema.decoding import AtHand, decoder
from gpupool.remoting.driver_api.schema.layout import (
    HEADER,
    Record,
    fields_of,
    items,
    posted,
    text,
)
from gpupool.remoting.driver_api.schema.records import (
    BASE_RECORDS,
    BY_NAME,
    LAYOUTS,
    NUMBERS,
    RECORDS,
)

ALL = [sample for samples in all_samples().values() for sample in samples]
BY_HAND = [sample for sample in ALL if NAMES[sample.op] in BY_NAME]


def test_every_function_is_exported_and_none_twice(library: Path) -> None:
    command = ["nm", "-D", "--defined-only", str(library / build.LIBRARY)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    names = [line.split()[-1] for line in done.stdout.splitlines()]
    assert len(names) == len(set(names)) > 630
    forwarded = {name for rows in FORWARDS.values() for name in rows}
    assert {*CALLS, *by_hand(), *ALIASES, *forwarded} <= set(names)
    # What our libnccl.so.2 calls has our name in front, which no library of a program uses.
    source = ROOT / "remoting/driver_api/shim/rare/collectives.c"
    for_nccl = set(re.findall(r"^GP_EXPORT .*?(gpupool_nccl_\w+)\(", source.read_text(), re.M))
    assert {name for name in names if not name.startswith("cu")} == for_nccl
    # Nothing but libc: a program's own libraries must not meet ours.
    needed = subprocess.run(
        ["readelf", "-d", str(library / build.LIBRARY)], check=True, capture_output=True, text=True
    )
    libraries = re.findall(r"NEEDED.*\[(.*?)\]", needed.stdout)
    assert all(re.match(r"(libc|libpthread|libdl|ld-linux.*)\.so", one) for one in libraries), (
        libraries
    )
    assert "SONAME" in needed.stdout and "[libcuda.so.1]" in needed.stdout


def test_generated_files_are_current() -> None:
    for path, expected in rendered().items():
        assert path.read_text() == expected, path


def test_records_are_packed_by_the_generated_functions() -> None:
    """Only these files name a record by its number where they send it, and why is in the list."""
    by_number = {
        "memory/kept.c",  # FREE, from a thread that must not close the program's mapped memory
        "hostmem/sync.c",  # one function sends all records that wait for the GPU
        "module/launch.c",  # LAUNCH and LAUNCH_EX are one place, and are a structure
        "module/occupancy.c",  # OCCUPANCY_CLUSTERS is a structure
    }
    call = re.compile(r"\bgp_(?:post|post_bulk|call|ask|exchange|open)\(")
    shim = build.HERE / "shim"
    found = {
        f"{path.parent.name}/{path.name}"
        for path in shim.rglob("*.c")
        if path.parent.name not in ("wire", "generated") and call.search(path.read_text())
    }
    assert found == by_number


def test_numbers_are_those_of_both_ends() -> None:
    header = (build.HERE / "shim/include/generated_records.h").read_text()
    found = {name: int(value) for name, value in re.findall(r"define GP_(\w+) (\d+)", header)}
    calls = {f"CALL_{name}": number for name, number in zip(CALLS, table.CALLS, strict=True)}
    assert (NUMBERS | calls | {"PROTOCOL": table.PROTOCOL}).items() <= found.items()


def test_ends_with_other_layouts_notice() -> None:
    """A change of a record's fields counts ``LAYOUTS`` up, and writes the sum down here."""
    rows: list[object] = []
    for record in RECORDS:
        row: list[object] = [record.asked, record.struct.format, record.bulk]
        if record.tail is not None:
            names = [field.name for field in record.fields]
            units = [(names.index(name), unit) for name, unit in record.tail.units]
            row += [record.tail.constant, units, record.tail.exact, record.tail.text]
        rows.append(row)
    base = dict([*CALLS.items()][:BASE_CALLS])
    known = repr((LAYOUTS, tuple(NUMBERS)[:BASE_RECORDS], base)).encode()
    assert zlib.crc32(known) == table.PROTOCOL
    assert (LAYOUTS, zlib.crc32(repr(rows[:BASE_RECORDS]).encode())) == (2, 2095832866)


def test_what_came_later_stays_as_it_came() -> None:
    """A client asks for the number of records of its worker, and takes each as it was added."""
    assert [
        (record.name, record.asked, record.struct.format) for record in RECORDS[BASE_RECORDS:]
    ] == [
        ("END_EVENT", True, "<QQ"),
        ("AWAIT_STREAM", False, "<Q"),
        ("NCCL_ASK", True, "<QQQQ"),
        ("NCCL_POST", False, "<Q"),
        ("LANES", True, "<Q"),
        ("GRAPH_EARLY", False, "<QQ"),
        ("SLOT_EARLY", False, "<QQ"),
        ("AWAIT_DEVICE", True, "<"),
    ]


def test_a_later_call_is_sent_to_workers_that_know_it() -> None:
    call, number = Function("cuCtxResetPersistingL2Cache", ()), table.FIRST_CALL + BASE_CALLS
    asks = ["gp_knows" in stub(call, at, ["async"]) for at in (number - 1, number)]
    assert asks == [False, True]


@pytest.mark.parametrize("sample", BY_HAND, ids=lambda sample: NAMES[sample.op])
def test_recorded_bytes_have_the_layout_of_the_table(sample: Sample) -> None:
    """Nothing of a record is left over but its padding, and nothing is missing."""
    record = BY_NAME[NAMES[sample.op]]
    if not record.asked:
        assert not sample.flags & 1
    found = decoder(AtHand(bytearray(sample.record()), sample.bulk), record)()
    size = HEADER.size + 8 * record.asked + record.struct.size
    if record.tail is not None:
        size += len(found[-1])
    padded = bool(record.tail and record.tail.text)  # whose end is zeros, as padding is
    assert size <= len(sample.record()) <= size + 7 + 8 * padded
    assert record.bulk or not sample.bulk


def decoded(record: Record, data: bytes, bulk: int = 0) -> tuple[object, ...]:
    whole = HEADER.pack(1, 0, HEADER.size + len(data)) + data
    return decoder(AtHand(bytearray(whole), bulk), record)()


def word(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def test_fields_and_what_is_behind_them() -> None:
    mixed = posted("X", "a b:u32[2] c:i64")
    assert decoded(mixed, word(1, 2 | 3 << 32, (1 << 64) - 4)) == (1, 2, 3, -4)
    named = posted("X", "a", tail=text("name"))
    assert decoded(named, word(1) + b"abc\0\0\0\0\0") == (1, b"abc")
    counted = posted("X", "count", tail=items("data", 4, count=2), bulk=True)
    assert decoded(counted, word(1) + b"abcdefgh") == (1, b"abcdef")
    assert decoded(counted, word(100), bulk=204) == (100, b"")


@pytest.mark.parametrize(
    "broken",
    [
        lambda: decoded(posted("X", "a b"), word(1)),
        lambda: decoded(posted("X", "count", tail=items("data", count=8)), word(2, 0)),
        lambda: decoded(posted("X", "count", tail=items("data", count=8)), word((1 << 64) - 1)),
        lambda: decoded(posted("X", "a", tail=items("data", 64)), word(1, 0)),
    ],
)
def test_records_that_are_too_short(broken: Callable[[], object]) -> None:
    with pytest.raises(RemoteProtocolError, match="malformed record"):
        broken()


def test_rows_that_say_nothing() -> None:
    with pytest.raises(ValueError, match="no field"):
        fields_of("size:u16")
