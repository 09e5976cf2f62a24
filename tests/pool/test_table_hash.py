"""The hash of the whole table: the same for equal tables everywhere, another for any other one."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import cbor2
import pytest
from tests.benchmarks.scale import big_state
from tests.pool.policy_kit import whole_hash
from tests.pool.pool_strategies import founding
from tests.pool.test_apply_walks import Walker

from gpupool.pool.model.codec import BLOB_BYTES, HASH_BYTES, TableHash, decode, encode, shape_of
from gpupool.pool.model.commands import wrap
from gpupool.pool.model.ids import GpuId, Milliseconds
from gpupool.pool.model.state import GpuOrder, PoolState, Server, with_changes
from gpupool.pool.model.tables import PersistentMap
from gpupool.pool.transitions.apply import PoolMachine

ROOT = Path(__file__).resolve().parents[2]
WALK = 200
SCRIPT = """
import sys
from tests.pool.test_table_hash import hashes_of_a_walk
print(*hashes_of_a_walk(int(sys.argv[1])), sep="\\n")
"""


def hashes_of_a_walk(restart_every: int) -> Iterator[str]:
    """Apply a walk's commands; a server starts again from its snapshot every so many of them."""
    walker, machine, now_ms = Walker(5), PoolMachine(PoolState()), 2000
    for command in founding():
        machine.apply(machine.state.index + 1, wrap(command, at_ms=1000, ttl_ms=0))
    for number in range(WALK):
        now_ms += walker.random.choice([0, 1, 50, 500, 5000])
        command = walker.next(machine.state)
        machine.apply(machine.state.index + 1, wrap(command, at_ms=now_ms, ttl_ms=0))
        if restart_every and number % restart_every == 0:
            snapshot = cbor2.loads(cbor2.dumps(machine.snapshot()))
            machine = PoolMachine(PoolState())
            machine.restore(snapshot)
        if number % 5 == 0:
            yield whole_hash(machine.state).hex()


@pytest.mark.long
def test_hashes_are_the_same_in_every_process_and_after_restarts_anywhere() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(restart_every)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed, restart_every in (("1", 0), ("777", 7))
    ]
    mine = [*hashes_of_a_walk(11)]
    told = [process.communicate(timeout=60)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert told == [mine, mine]
    assert len({*mine}) > WALK // 10


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    share: float
    seen: bytes | None
    colour: Colour = Colour.RED
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    name: str
    rows: PersistentMap[str, Inner]
    plain: dict[str, int]
    parts: tuple[Inner, ...] = ()
    former: Inner | None = None
    nested: tuple[dict[str, float], ...] = ()
    numbers: dict[int, bytes] = field(default_factory=dict[int, bytes])


A, B = Inner(0.5, b"seen"), Inner(1.0, None, words=("one", "two"))
OUTER = Outer(
    "name",
    PersistentMap({"a": A, "b": B}),
    {"x": 1, "y": 2},
    (A, B),
    A,
    ({"u": 0.0, "v": 1.0}, {}),
    {1: b"long" * 100},
)


def test_equal_values_have_the_same_hash() -> None:
    turned = replace(
        OUTER,
        rows=PersistentMap({"b": replace(B, share=1), "a": A}),
        plain={"y": 2, "x": 1},
        nested=({"v": 1, "u": -0.0}, {}),
    )
    assert turned == OUTER
    assert whole_hash(turned) == whole_hash(OUTER) == whole_hash(decode(Outer, encode(OUTER)))
    assert len(whole_hash(OUTER)) == HASH_BYTES


def test_other_values_have_another_hash() -> None:
    others = [
        replace(OUTER, name="nama"),
        replace(OUTER, rows=OUTER.rows.set("b", replace(B, words=("two", "one")))),
        replace(OUTER, rows=OUTER.rows.without("b").set("c", B)),
        replace(OUTER, rows=PersistentMap({"a": B, "b": A})),
        replace(OUTER, plain={"x": 2, "y": 1}),
        replace(OUTER, parts=(B, A)),
        replace(OUTER, parts=(A,)),
        replace(OUTER, former=None),
        replace(OUTER, former=replace(A, share=0.25)),
        replace(OUTER, former=replace(A, seen=b"")),
        replace(OUTER, nested=({}, {"u": 0.0, "v": 1.0})),
        replace(OUTER, numbers={1: b"lonh" + b"long" * 99}),
        replace(OUTER, numbers={2: OUTER.numbers[1]}),
    ]
    assert len({whole_hash(each) for each in [OUTER, *others]}) == len(others) + 1


def test_every_field_of_a_server_counts() -> None:
    state = big_state(3)
    key, server = next(iter(state.servers.items()))
    order = {GpuId("gpu"): GpuOrder("drained", Milliseconds(1))}
    server = replace(server, labels={"rack": "1"}, labels_said={"rack": "2"}, gpu_orders=order)
    state = with_changes(state, servers=state.servers.set(key, server))
    hashes = {whole_hash(state)}
    names = [each.name for each in dataclasses.fields(Server)]
    for name in names:
        changed = with_changes(server, **{name: _another(getattr(server, name))})
        hashes.add(whole_hash(with_changes(state, servers=state.servers.set(key, changed))))
    assert len(hashes) == len(names) + 1


def _another(value: object) -> object:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}?"
        case bytes():
            return value + b"?"
        case Enum():
            return next(each for each in type(value) if each is not value)
        case None:
            return "now"
        case tuple():
            return (*cast("tuple[Any, ...]", value), b"?")
        case dict():
            known = cast("dict[str, Any]", value)
            return {f"{key}?": item for key, item in known.items()}
        case _:
            raise AssertionError(value)


def test_pieces_do_not_matter_and_are_small() -> None:
    state = big_state(200)
    hashing, steps = TableHash(state), 1
    while (digest := hashing.step()) is None:
        steps += 1
    assert digest == whole_hash(state)
    assert steps > 20


def test_builds_with_other_fields_have_another_shape() -> None:
    @dataclass(frozen=True)
    class Changed(Inner):
        more: int = 0

    assert shape_of(Inner) != shape_of(Changed) != shape_of(Outer)
    assert shape_of(PoolState) == TableHash(PoolState()).shape > 0


@dataclass(frozen=True)
class Blobs:
    only: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Numbered:
    number: int


@dataclass(frozen=True)
class Numbers:
    all: tuple[Numbered, ...] = ()


@pytest.mark.parametrize(("size", "as_hash"), [(BLOB_BYTES, False), (BLOB_BYTES + 1, True)])
def test_long_bytes_count_as_their_hash(size: int, as_hash: bool) -> None:
    """Every build of one shape writes rows alike, else equal tables would differ."""
    long = b"x" * size
    short = blake2b(long, digest_size=HASH_BYTES).digest()
    assert (whole_hash(Blobs((long,))) == whole_hash(Blobs((short,)))) is as_hash


def test_a_row_of_one_field_counts_too() -> None:
    one, two = Numbers((Numbered(1),)), Numbers((Numbered(2),))
    assert whole_hash(one) == whole_hash(decode(Numbers, encode(one))) != whole_hash(two)
