"""The order of the shim's layers: its object files' definitions and uses, by nm and readelf.

A file may use what files of its own folder and of the folders before it define. Higher layers give
lower ones functions to call by registering them in ``gp_hooks`` as the library is loaded. Nothing
but the generated files uses an exported function of CUDA: a program may have put its own in its
place.
"""

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.objects import compiled

from gpupool.remoting.driver_api import build

SHIM = build.HERE / "shim"
LAYERS = (
    "base",  # logs, JSON, handles, ranges, routes: no connection yet
    "wire",  # the agent, TLS, the lines to the workers
    "hostmem",  # the host's memory that kernels see
    "runtime",  # devices, contexts, streams, captures, host functions
    "memory",  # devices' memory, arrays, pools, copies
    "module",  # images, functions, launches
    "graph",
    "rare",  # what few programs call
    "entry",  # cuInit, cuGetProcAddress
    "generated",
)
EXPORTS = "generated"
EXPORTED = re.compile(r"cu[A-Z]")
FILES_MAX = 20  # of a folder
LINES_MAX = 500  # of a file
FUNCTION_MAX = 70


@dataclass(frozen=True)
class Object:
    """One object file: the symbols that others may use, and those that it uses itself."""

    layer: str
    name: str
    defined: frozenset[str]
    used: frozenset[str]  # of others, and its own exported ones


def edges_of(objects: Iterable[Object]) -> dict[tuple[str, str], set[str]]:
    """Return pairs of a file and a file that it uses, both as layer/name, with the symbols."""
    objects = list(objects)
    where = {symbol: one for one in objects for symbol in one.defined}
    edges: dict[tuple[str, str], set[str]] = {}
    for one in objects:
        for symbol in one.used:
            other = where.get(symbol, one)
            if other is not one:
                key = (f"{one.layer}/{one.name}", f"{other.layer}/{other.name}")
                edges.setdefault(key, set()).add(symbol)
    return edges


def circles(edges: Mapping[tuple[str, str], object]) -> list[list[str]]:
    """Return the files that use each other, directly or through others, circle by circle."""
    uses: dict[str, set[str]] = {}
    for one, other in edges:
        uses.setdefault(one, set()).add(other)
        uses.setdefault(other, set())
    while True:
        # What uses nothing that is left, or what nothing that is left uses, is in no circle.
        used = {other for others in uses.values() for other in others}
        rest = {one: others for one, others in uses.items() if others and one in used}
        rest = {one: others & rest.keys() for one, others in rest.items()}
        if rest == uses:
            break
        uses = rest
    reached = {one: reachable(uses, one) for one in uses}
    found = {
        tuple(sorted(other for other in reached[one] if one in reached[other]))
        for one in uses
        if one in reached[one]
    }
    return [list(circle) for circle in sorted(found)]


def reachable(uses: Mapping[str, set[str]], start: str) -> set[str]:
    """Return the files that a file uses, directly or through others."""
    found: set[str] = set()
    todo = [start]
    while todo:
        new = uses[todo.pop()] - found
        found |= new
        todo += new
    return found


def complaints(objects: Iterable[Object]) -> list[str]:
    """Return the violations of the order, as sentences."""
    objects = list(objects)
    found: list[str] = []
    for one in objects:
        exported = sorted(symbol for symbol in one.used if EXPORTED.match(symbol))
        if exported and one.layer != EXPORTS:
            found.append(f"{one.layer}/{one.name} uses the exported {', '.join(exported)}")
    edges = edges_of(objects)
    for (one, other), symbols in sorted(edges.items()):
        low, high = one.partition("/")[0], other.partition("/")[0]
        if LAYERS.index(low) < LAYERS.index(high):
            found.append(f"{one} uses {', '.join(sorted(symbols))} of {other}, which is above it")
    return found + [f"in a circle: {', '.join(circle)}" for circle in circles(edges)]


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def read_object(path: Path, layer: str, name: str) -> Object:
    """Read an object file; a call of its exported function is a relocation by that name."""
    defined: set[str] = set()
    used: set[str] = set()
    for line in output("nm", str(path)).splitlines():
        *_, kind, symbol = line.split()
        if kind == "U":
            used.add(symbol)
        elif kind.isupper():
            defined.add(symbol)
    for line in output("readelf", "--relocs", "--wide", str(path)).splitlines():
        words = line.split()
        if len(words) > 4 and EXPORTED.match(words[4]):
            used.add(words[4])
    return Object(layer, name, frozenset(defined), frozenset(used))


def compile_object(source: Path, target: Path) -> Path:
    # Not optimized: quicker to compile, and no call is left out because it was inlined.
    flags = ["-O0" if flag == "-O2" else flag for flag in build.COMPILE if "FORTIFY" not in flag]
    command = [os.environ.get("CC", "gcc"), *flags, f"-I{build.HEADERS}", "-c"]
    compiled(command, source, target, (build.HEADERS, source.parent))
    return target


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    """Compile every file of the shim."""
    folder = tmp_path_factory.mktemp("objects")

    def made(source: Path) -> Object:
        layer, name = source.parent.name, source.stem
        return read_object(compile_object(source, folder / f"{layer}-{name}.o"), layer, name)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(made, build.SOURCES))


@pytest.mark.long
def test_no_layer_calls_up_no_file_calls_in_a_circle_and_none_calls_an_export(
    objects: list[Object],
) -> None:
    assert complaints(objects) == []
    # It has seen the library: edges within it, and what the generated files look up.
    edges = edges_of(objects)
    assert len(edges) > 400
    assert "gp_open" in edges["module/launch", "wire/send"]
    assert "cuInit" in edges["generated/exports", "entry/process"]


def test_a_header_of_one_folder_lies_there() -> None:
    """``include`` has those of several folders, and those that its own headers include."""
    users: dict[str, set[str]] = {}
    for path in build.HERE.rglob("*.[ch]"):
        for name in re.findall(r'#include "([\w/.]+)"', path.read_text()):
            users.setdefault(Path(name).name, set()).add(path.parent.name)
    assert {"wire", "native"} <= users["lanes.h"]
    for path in (SHIM / "include").iterdir():
        assert users[path.name] - {"include"} == set() or len(users[path.name]) > 1, path


def test_the_shim_is_in_folders_by_layer_of_a_readable_size() -> None:
    assert {path.name for path in SHIM.iterdir() if path.is_dir()} == {*LAYERS, "include"}
    assert [path for path in SHIM.iterdir() if path.is_file()] == []
    for folder in SHIM.iterdir():
        names = [path.name for path in folder.iterdir()]
        assert sum(not name.startswith("generated_") for name in names) <= FILES_MAX, folder
    for path in SHIM.rglob("*.[ch]"):
        lines = path.read_text().splitlines()
        if path.name.startswith("generated_"):
            continue
        assert len(lines) <= LINES_MAX, path
        assert longest_function(lines) <= FUNCTION_MAX, path


def longest_function(lines: list[str]) -> int:
    """Return how many lines the longest has: from its name at the margin to its brace there."""
    longest = start = 0
    for at, line in enumerate(lines):
        if re.match(r"[A-Za-z_].*\(", line):
            start = at
        elif line == "}":
            longest = max(longest, at + 1 - start)
    return longest


def test_functions_are_measured() -> None:
    lines = ["int one(int a,", "        int b) {", "    return 1;", "}", "", "int two(void) {", "}"]
    assert longest_function(lines) == 4


# ---- that it would complain ----


def thing(name: str, defined: str = "", used: str = "") -> Object:
    layer, _, stem = name.partition("/")
    return Object(layer, stem, frozenset(defined.split()), frozenset(used.split()))


GOOD = (
    thing("wire/send", "gp_open", "memcpy gp_here"),
    thing("base/route", "gp_here"),
    thing("module/launch", "cuLaunchKernel", "gp_open"),
    thing("generated/generated_calls", "cuLaunchKernel_ptsz", "cuLaunchKernel"),
)


def test_what_keeps_the_order_is_no_complaint() -> None:
    assert complaints(GOOD) == []


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (
            [
                thing("wire/receive", "gp_read", "gp_host_arrived"),
                thing("runtime/host", "gp_host_arrived"),
            ],
            "wire/receive uses gp_host_arrived of runtime/host, which is above it",
        ),
        (
            [thing("rare/legacy", "cuLaunchGrid", "cuLaunchKernel")],
            "rare/legacy uses the exported cuLaunchKernel",
        ),
        (
            [thing("module/linker", "cuLinkCreate cuLinkCreate_v2", "cuLinkCreate_v2")],
            "module/linker uses the exported cuLinkCreate_v2",
        ),
        (
            [thing("graph/a", "gp_a", "gp_b"), thing("graph/b", "gp_b", "gp_a gp_open")],
            "in a circle: graph/a, graph/b",
        ),
        (
            [
                thing("rare/a", "gp_a", "gp_b"),
                thing("rare/b", "gp_b", "gp_c"),
                thing("rare/c", "gp_c", "gp_a"),
                thing("rare/d", "gp_d", "gp_a"),
            ],
            "in a circle: rare/a, rare/b, rare/c",
        ),
    ],
)
def test_what_breaks_the_order_is_told(bad: list[Object], said: str) -> None:
    assert complaints([*GOOD, *bad]) == [said]


def test_two_circles_are_told_apart() -> None:
    edges = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "c"), ("d", "e")]
    assert circles(dict.fromkeys(edges)) == [["a", "b"], ["c", "d"]]


def test_an_exported_function_is_seen_where_its_own_file_calls_it(tmp_path: Path) -> None:
    """And the name by which it calls another file's; hidden functions are no edges of one file."""
    source = tmp_path / "called.c"
    source.write_text(
        '#include "base.h"\n'
        "int cuElsewhere(void);\n"
        "int gp_hidden(void) { return gp_ready(); }\n"
        "GP_EXPORT int cuOwn(void) { return gp_hidden(); }\n"
        "GP_ALIAS(cuOther, cuOwn);\n"
        "int gp_calls(void) { return cuOwn() + cuElsewhere(); }\n"
    )
    seen = read_object(compile_object(source, tmp_path / "called.o"), "base", "called")
    assert seen.defined == {"gp_hidden", "cuOwn", "cuOther", "gp_calls"}
    assert {"cuOwn", "cuElsewhere", "gp_ready"} <= seen.used
    assert "gp_hidden" not in seen.used and "cuOther" not in seen.used
    assert complaints([seen]) == ["base/called uses the exported cuElsewhere, cuOwn"]
