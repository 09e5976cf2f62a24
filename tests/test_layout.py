"""The shape of the project: permitted imports, and that the wheel has every folder."""

import functools
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.layout_rules import (
    Apart,
    Edge,
    Floors,
    class_sizes,
    crowded,
    forbidden,
    function_sizes,
    imports_of,
    namesakes,
    too_long,
)

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("pool", "consensus", "remoting", "monitoring", "cli", "simulations")
STDLIB_WITH_IO = {"socket", "ssl", "subprocess", "threading", "time", "random", "os", "select"}

# Each folder, with the folders and the outside packages that it may import.
MAY_IMPORT: dict[str, tuple[set[str], set[str]]] = {
    "pool": (set(), set()),
    "consensus": ({"pool"}, {"pysyncobj", "cbor2", "trio"}),
    "remoting": ({"pool"}, {"cbor2", "trio", "cryptography", "numpy", "cupy", "cuda", "pynvml"}),
    # The composition root of a server: above all that it composes.
    "remoting/daemon": ({"pool", "consensus", "remoting", "monitoring"}, {"trio"}),
    "monitoring": (
        {"pool", "remoting"},
        {"trio", "cbor2", "starlette", "h11", "prometheus_client"},
    ),
    "cli": (
        {"pool", "consensus", "remoting", "monitoring", "simulations"},
        {"click", "rich", "trio"},
    ),
    "simulations": ({"pool", "consensus", "remoting", "monitoring"}, {"pysyncobj", "trio"}),
}
# The drop-in lives in the program's own environment, where gpupool may not be installed at all.
DROPIN = ROOT / "remoting" / "array_api" / "dropin"
DROPIN_MAY_IMPORT = {"numpy", "cupy", "cupyx", "typing_extensions"}  # the last for checkers alone
MODULES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]

PROTOCOL = "remoting/protocol"
RULES: tuple[Floors | Apart, ...] = (
    Floors(
        "pool",
        (
            ("errors",),
            ("model",),
            ("ports", "policy"),
            ("invariants", "scheduling"),
            ("transitions",),
            (".",),
            ("read_model",),
        ),
    ),
    Floors("consensus", (("protocol",), ("storage",), ("core",), (".",))),
    Floors("cli", (("lib",), ("tui",), ("commands",), (".",))),
    Floors(
        "simulations",
        (
            ("kernel",),
            ("workload", "checkers"),
            ("cluster",),
            ("tools", "mutations"),
            (".",),
        ),
    ),
    Apart(
        PROTOCOL, tuple(f"remoting/{each}" for each in ("transport", "client", "server", "host"))
    ),
    Apart("remoting/transport", tuple(f"remoting/{each}" for each in ("client", "server", "host"))),
    Apart("remoting/client", ("remoting/server", "remoting/host", "remoting/worker")),
    Apart("remoting/server", ("remoting/client", "remoting/host", "remoting/worker")),
    Apart("remoting/host", ("remoting/worker", "remoting/array_api", "remoting/driver_api")),
    Apart("remoting/worker", ("remoting/host", "remoting/array_api", "remoting/driver_api")),
    Apart("remoting/devices", ("remoting/array_api", "remoting/driver_api")),
    Apart("remoting/array_api", ("remoting/driver_api",)),
    Apart("remoting/driver_api", ("remoting/array_api",)),
    Apart("remoting/program", ("remoting/daemon", "remoting/server", "remoting/worker")),
    *(
        Apart(lower, ("remoting/program", "remoting/daemon"))
        for lower in (
            *("monitoring", "simulations", PROTOCOL),
            *(f"remoting/{each}" for each in ("transport", "client", "local", "server", "host")),
            *(f"remoting/{each}" for each in ("worker", "devices", "array_api", "driver_api")),
        )
    ),
)
# What the protocol's modules leave to the transport; a name that only types need is no import.
NOT_IN_PROTOCOL = {"trio", "ssl", "socket"}

# Each of the lists below may only shrink: an entry that is not needed any more fails.
EXCUSED_EDGES: tuple[Edge, ...] = ()
MODULES_IN_A_FOLDER = 24
# Both ends of one protocol may have the same name. The modules of commands, which are called as
# users call them, are not counted.
NAMESAKES = ("serve",)
DROPIN_PREFIXES = ("remoting/array_api/dropin/", "remoting/driver_api/python/")  # named by others
LINES_IN_A_FILE = 1000  # a concept stays in one file; this stops a heap of several
LONG_FILES: tuple[str, ...] = ()
LINES_IN_A_FUNCTION = 70
LONG_FUNCTIONS: tuple[str, ...] = ()
PARAMETERS_OF_A_CONSTRUCTOR = 10
MANY_PARAMETERS = {
    "remoting/array_api/dropin/cupy/_core/kernels/typed_kernels:ReductionKernel": "CuPy has them",
    "remoting/devices/host_kernels/host_typed:ReductionKernel": "CuPy has them",
    "simulations/cluster/simulated_driver:SimulatedDriver": "each port of a node is simulated",
    "simulations/cluster/simulated_links:SimulatedTransport": "each port of a link is simulated",
}
ATTRIBUTES_OF_A_CLASS = 20
MANY_ATTRIBUTES = {
    "remoting/array_api/dropin/cupy/_door/session:Session": "each call uses its parts",
    "remoting/array_api/dropin/cupy/_door/transport/receiver:Receiver": "threads share frames",
    "simulations/cluster/cluster:Cluster": "all that one run simulates",
    "simulations/cluster/run_context:Checkers": "one for each checker of a run",
    "simulations/cluster/server_process:ServerProcess": "all that one process of a server has",
    "simulations/kernel/machines:Machine": "all that a run may change of a machine",
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").as_posix()


class Facts(NamedTuple):
    """The facts of a module that the rules read."""

    imports: frozenset[tuple[str, str]]
    functions: dict[str, int]
    classes: dict[str, tuple[int, int]]
    lines: int


@functools.cache
def facts(path: Path) -> Facts:
    source = path.read_text(encoding="utf-8")
    sizes = function_sizes(source), class_sizes(source), source.count("\n")
    return Facts(imports_of(source), *sizes)


PLAIN = [name_of(path) for path in MODULES if not path.stem.startswith("__")]


def edges_of(path: Path) -> set[Edge]:
    """Return the imports of our own modules; of a package, the module that is taken from it."""
    found: set[Edge] = set()
    for module, name in facts(path).imports:
        top, _, inner = module.partition(".")
        if top != "gpupool" or not inner:
            continue
        place = inner.replace(".", "/")
        inside = ROOT / place / name
        is_module = name and (inside.is_dir() or inside.with_suffix(".py").is_file())
        found.add((name_of(path), f"{place}/{name}" if is_module else place))
    return found


def may_import(path: Path, name: str) -> bool:
    """Return whether the rules let a module import another one."""
    folder = path.relative_to(ROOT).parts[0]
    room = "/".join(path.relative_to(ROOT).parts[:2])
    inside, outside = MAY_IMPORT.get(room, MAY_IMPORT[folder])
    top, *rest = name.split(".")
    if path.is_relative_to(DROPIN):
        return top in DROPIN_MAY_IMPORT | sys.stdlib_module_names
    if top == "gpupool":
        return not rest or rest[0] in {folder, *inside}
    if top in sys.stdlib_module_names:
        return folder != "pool" or top not in STDLIB_WITH_IO
    return top in outside


def test_imports_point_downwards() -> None:
    """One test for all modules: a separate test for each would cost more than its check."""
    imports = [(path, name) for path in MODULES for name, _ in facts(path).imports]
    assert len(imports) > 2000
    wrong = [(path, name) for path, name in imports if not may_import(path, name)]
    assert wrong == []
    assert not may_import(ROOT / "pool" / "x.py", "socket")
    assert not may_import(ROOT / "pool" / "x.py", "gpupool.cli")
    assert not may_import(DROPIN / "x.py", "trio")


def test_imports_within_a_folder_point_downwards() -> None:
    edges = {edge for path in MODULES for edge in edges_of(path)}
    assert forbidden(RULES, edges, EXCUSED_EDGES) == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / PROTOCOL).rglob("*.py")), ids=lambda path: path.stem
)
def test_the_protocol_leaves_connections_to_the_transport(path: Path) -> None:
    found = imports_of(path.read_text(encoding="utf-8"), typing_too=False)
    assert not {name.partition(".")[0] for name, _ in found} & NOT_IN_PROTOCOL


def test_no_folder_has_too_many_modules() -> None:
    assert crowded(PLAIN, MODULES_IN_A_FOLDER) == []


def test_modules_have_names_of_their_own() -> None:
    ours = [name for name in PLAIN if not name.startswith(("cli/commands/", *DROPIN_PREFIXES))]
    assert namesakes(ours, NAMESAKES) == []


def test_files_are_short() -> None:
    sizes = {name_of(path): facts(path).lines for path in MODULES}
    assert too_long(sizes, LINES_IN_A_FILE, LONG_FILES) == []


def test_functions_are_short() -> None:
    sizes = {
        f"{name_of(path)}:{function}": lines
        for path in MODULES
        for function, lines in facts(path).functions.items()
    }
    assert too_long(sizes, LINES_IN_A_FUNCTION, LONG_FUNCTIONS) == []


def test_no_class_is_a_hub() -> None:
    sizes = {
        f"{name_of(path)}:{name}": size
        for path in MODULES
        for name, size in facts(path).classes.items()
    }
    parameters = {name: size[0] for name, size in sizes.items()}
    attributes = {name: size[1] for name, size in sizes.items()}
    most = PARAMETERS_OF_A_CONSTRUCTOR
    assert too_long(parameters, most, MANY_PARAMETERS, "parameters") == []
    assert too_long(attributes, ATTRIBUTES_OF_A_CLASS, MANY_ATTRIBUTES, "attributes") == []


def test_pyproject_lists_every_package() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    # Every folder with a module in it, so that no file is missing from the wheel.
    found = {"gpupool"} | {
        ".".join(("gpupool", *path.parent.relative_to(ROOT).parts)) for path in MODULES
    }
    assert set(setuptools["packages"]) == found
    assert set(setuptools["package-dir"]) == {"gpupool", *(f"gpupool.{name}" for name in FOLDERS)}


@pytest.mark.parametrize("folder", FOLDERS)
def test_link_leads_to_the_folder(folder: str) -> None:
    assert (ROOT / "src" / "gpupool" / folder).resolve() == ROOT / folder


# --- the rules themselves -------------------------------------------------------------------------

HOUSE = Floors("house", (("cellar",), ("kitchen", "hall"), (".",)))


@pytest.mark.parametrize(
    "edge",
    [
        ("house/kitchen/stove", "house/cellar/wood"),  # downwards
        ("house/roof", "house/cellar/wood"),  # from the top, past a floor
        ("house/kitchen/stove", "house/kitchen/oven"),  # within a room
        ("house/roof", "house/chimney"),  # among the modules at the top
        ("house/cellar/wood", "garden/trees"),  # to another folder
        ("garden/trees", "house/roof"),
    ],
)
def test_floors_let_imports_lead_downwards(edge: Edge) -> None:
    assert forbidden((HOUSE,), {edge}) == []


@pytest.mark.parametrize(
    ("edge", "text"),
    [
        (("house/cellar/wood", "house/kitchen/stove"), "not below"),
        (("house/cellar/wood", "house/roof"), "not below"),
        (("house/kitchen/stove", "house/hall/door"), "not below"),  # of the same floor
        (("house/attic/box", "house/cellar/wood"), "house/attic stands on no floor"),
        (("house/kitchen/stove", "house/attic/box"), "house/attic stands on no floor"),
    ],
)
def test_floors_refuse_other_imports(edge: Edge, text: str) -> None:
    [found] = forbidden((HOUSE,), {edge})
    assert text in found


def test_a_module_at_the_top_may_stand_on_a_floor_of_its_own() -> None:
    rule = Floors("house", (("ground",), ("cellar",), (".",)))
    assert forbidden((rule,), {("house/cellar/wood", "house/ground")}) == []
    assert forbidden((rule,), {("house/ground", "house/cellar/wood")}) != []
    assert forbidden((rule,), {("house/ground", "house/roof")}) != []


def test_folders_apart_do_not_import_each_other() -> None:
    rule = Apart("a/host", ("a/worker",))
    assert forbidden((rule,), {("a/host/x", "a/worker/y")}) != []
    assert forbidden((rule,), {("a/host/x", "a/worker")}) != []
    assert forbidden((rule,), {("a/worker/y", "a/host/x")}) == []
    assert forbidden((rule,), {("a/host/x", "a/worker_messages")}) == []


def test_an_excused_edge_must_exist() -> None:
    upwards = ("house/cellar/wood", "house/roof")
    assert forbidden((HOUSE,), {upwards}, (upwards,)) == []
    assert forbidden((HOUSE,), set(), (upwards,)) != []


def test_lists_of_exceptions_only_shrink() -> None:
    assert too_long({"a": 501, "b": 500}, 500, ()) == ["a has 501 lines, more than 500"]
    assert too_long({"a": 501}, 500, ("a",)) == []
    assert too_long({"a": 500}, 500, ("a",)) != []
    assert too_long({}, 500, ("gone",)) != []
    assert namesakes(["x/a", "y/a", "y/b"], ()) == ["2 modules are called a"]
    assert namesakes(["x/a", "y/a"], ("a",)) == []
    assert namesakes(["x/a"], ("a",)) != []
    assert crowded(["x/a", "x/b", "y/a"], 1) == ["x has 2 modules, more than 1"]


def test_imports_are_found_in_functions_and_blocks() -> None:
    source = """
import ssl
if TYPE_CHECKING:
    import socket
else:
    import array
def run():
    from gpupool.cli import lib
"""
    always = {("ssl", ""), ("array", ""), ("gpupool.cli", "lib")}
    assert imports_of(source, typing_too=False) == always
    assert imports_of(source) == {*always, ("socket", "")}
    with pytest.raises(ValueError, match="relative"):
        imports_of("from . import lib")


def test_the_size_of_a_function_includes_its_last_line() -> None:
    source = "class A:\n    def b(self):\n        def c():\n            pass\n        return c\n"
    assert function_sizes(source) == {"A.b": 4, "A.b.c": 2}


def test_the_size_of_a_class_is_its_parameters_and_attributes() -> None:
    source = """
@dataclass(frozen=True)
class Record:
    a: int
class Hub(Base):
    b: int
    _Base__c: int
    def __init__(self, d, *, e):
        self.b, self.f, other.g = d, e, 0
    async def run(self):
        self.f += 1
        self.h.i = 2
        with open() as self.j:
            pass
"""
    assert class_sizes(source) == {"Hub": (2, 3)}
