"""The CUDA door: the shim that gets installed, the worker's real code, and a driver without a GPU.

Only gcc is needed. Where CuPy and cuda.bindings would be, ctypes stands in (ctypes_bindings/).
"""

import ctypes
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[3]))  # programs that import this need it

from fake_cuda.build import build as build_driver
from fake_cuda.control import Control, process_environment
from tests import objects

from gpupool.remoting.driver_api import build
from gpupool.remoting.driver_api.executor.serve import ANSWER, NOTICE, Session
from gpupool.remoting.driver_api.schema import table
from gpupool.remoting.driver_api.schema.records import NUMBERS
from gpupool.remoting.program.agent import parse_request
from gpupool.remoting.program.program_lease import SessionRequest
from gpupool.remoting.protocol import handshake
from gpupool.remoting.protocol.driver_variables import ALLOWED, LIBRARIES, VALUE_LENGTH_MAX
from gpupool.remoting.transport.tally import Tally

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
KERNELS = HERE / "fake_cuda" / "kernels"
MEMORY = 64 << 20


in_python = pytest.mark.skipif(
    "GPUPOOL_SANITIZERS" in os.environ, reason="Python itself has no sanitizer"
)
"""Marks tests in which a Python process loads the door's library."""


def compiled(name: str, folder: Path, library: Path) -> Path:
    """Compile a program against the shim alone."""
    program = folder / name
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-pthread", "-Wall", "-Wextra", "-Werror"]
    command += os.environ.get("GPUPOOL_SANITIZERS", "").split()
    programs = HERE / "programs"
    source, linked = programs / f"{name}.c", library / build.LIBRARY
    objects.compiled(command, source, program, (programs, build.HEADERS), (linked,))
    return program


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Path:
    return compiled("everything", tmp_path_factory.mktemp("programs"), library)


def run(
    library: Path,
    control: Control,
    program: list[str],
    *options: str,
    devices: int = 1,
    more: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program behind the door; the worker has the fake driver.

    ``more`` goes to the environment of both.
    """
    driver = build_driver()
    values = control.environment(driver, devices=devices) | (more or {})
    del values["LD_LIBRARY_PATH"]
    command = [sys.executable, str(HERE / "loopback.py"), "--library", str(library)]
    command += ["--driver", str(driver.parent), "--bindings", str(HERE / "ctypes_bindings")]
    command += ["--memory", str(MEMORY), "--devices", str(devices), *options, "--", *program]
    with subprocess.Popen(
        command,
        env=process_environment(values),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate()
        except BaseException:  # the test's limit
            os.killpg(process.pid, signal.SIGKILL)  # the program and the worker too
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def calling(module: str, function: str) -> str:
    """Return the code that calls a function of a module of this folder."""
    path = [str(HERE), str(ROOT / "src")]
    return f"import sys; sys.path[:0] = {path}; from {module} import {function}; {function}()"


def in_one_process(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these words, where it finds the worker's code, and the fake driver."""
    with Control(folder) as control:
        path = f"{HERE / 'ctypes_bindings'}:{ROOT / 'src'}"
        values = control.environment(build_driver()) | {"PYTHONPATH": path}
        return subprocess.run(
            [sys.executable, *words],
            env=process_environment(values),
            capture_output=True,
            text=True,
            check=False,
        )


def right(done: subprocess.CompletedProcess[str]) -> None:
    """Check that a program found nothing wrong, and that nobody complained."""
    assert done.stdout == "results right\n", done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--tcp --tls",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("--tcp", "--no-launcher")),
    ],
)
def test_a_c_program(options: str, library: Path, everything: Path, tmp_path: Path) -> None:
    """Memory, copies, streams, events, launches, graphs, the budget and a sticky error."""
    image = str(KERNELS / "test_kernels.sm_90.cubin")
    with Control(tmp_path) as control:
        done = run(library, control, [str(everything), image], *options.split())
        assert done.stdout == "results right\n", done.stderr
        assert done.returncode == 0
        assert done.stderr == ""
        names = [launch.kernel for launch in control.launches()]
        assert names.count("increment") == 10
        assert names.count("saxpy") == names.count("add_offset") == 1
        assert control.missing_calls() == 0


@pytest.mark.parametrize(
    "options", [pytest.param("--tcp --lanes", marks=pytest.mark.long), "--tcp --tls --lanes"]
)
def test_large_copies_by_several_connections_without_a_server(
    options: str, library: Path, tmp_path: Path
) -> None:
    program = compiled("stripes", tmp_path, library)
    more = {"GPUPOOL_LANES": "2"}
    with Control(tmp_path) as control:
        words = [str(program), "9", "2", "go"]
        done = run(library, control, words, "--verbose", *options.split(), more=more)
    assert done.stdout.endswith("results right\n"), done.stderr
    assert "2 connections each way for large copies" in done.stderr


@pytest.mark.parametrize(
    "image",
    [
        "fatbin",
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in ("ptx", "zstd.fatbin", "lz4.fatbin")
        ),
    ],
)
def test_other_kinds_of_images(image: str, library: Path, everything: Path, tmp_path: Path) -> None:
    with Control(tmp_path) as control:
        done = run(library, control, [str(everything), str(KERNELS / f"test_kernels.{image}")])
        assert done.stdout == "results right\n", done.stderr


def test_an_image_that_was_linked_of_parts(library: Path, everything: Path, tmp_path: Path) -> None:
    """As NCCL's kernels are: the binary for the device is there, and the parts are not needed."""
    words = [str(everything), str(KERNELS / "test_kernels.fatbin"), "linked"]
    with Control(tmp_path) as control:
        done = run(library, control, words)
        assert done.stdout == "results right\n", done.stderr


def test_a_thread_that_waits_delays_no_other(library: Path, tmp_path: Path) -> None:
    """A free and copies behind a kernel that another thread of the program has to end."""
    program = compiled("threads", tmp_path, library)
    with Control(tmp_path) as control:
        image = str(KERNELS / "test_kernels.sm_90.cubin")
        path = tmp_path / "counts.json"
        done = run(library, control, [str(program), image, "two"], "--count", str(path))
        assert done.stdout == "launched: 0, then 700\n", done.stderr  # CUDA_ERROR_ILLEGAL_ADDRESS
        # 1,000 queries of an event that has ended ask nobody. The driver's own count says nothing
        # of them, because the worker asks it over and over while it waits.
        assert json.loads(path.read_text()).get("QUERY_EVENT", 0) == 0


def test_virtual_memory_management(library: Path, tmp_path: Path) -> None:
    """Physical memory is charged once, wherever it is mapped; addresses cost nothing."""
    program = compiled("virtual", tmp_path, library)
    with Control(tmp_path) as control:
        done = run(library, control, [str(program)])
        assert done.stdout == "results right\n", done.stderr
        assert done.stderr == ""
        assert control.calls()["cuMemCreate"] == 2


def test_the_hosts_memory_by_virtual_memory_management(library: Path, tmp_path: Path) -> None:
    """At a NUMA node it grows, moves, and kernels see it, as XGBoost keeps its pinned memory."""
    program = compiled("host_virtual", tmp_path, library)
    with Control(tmp_path) as control:
        done = run(library, control, [str(program), str(KERNELS / "test_kernels.sm_90.cubin")])
        assert (done.stdout, done.stderr) == ("results right\n", "")


def test_the_linker(library: Path, tmp_path: Path) -> None:
    """The server links files of the client, and the client loads the image."""
    program = compiled("linker", tmp_path, library)
    with Control(tmp_path) as control:
        done = run(library, control, [str(program), str(KERNELS / "test_kernels.ptx"), "texts"])
        assert done.stdout == "results right\n", done.stderr
        assert control.calls()["cuLinkAddData_v2"] == 3


def test_launches_that_block(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = compiled("threads", tmp_path, library)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with Control(tmp_path) as control:
        image = str(KERNELS / "test_kernels.sm_90.cubin")
        done = run(library, control, [str(program), image, "one"])
        assert done.stdout == "launched: 700, then 700\n", done.stderr


FAILING_GRAPH = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, module, kernel, stream, graph, exec_ = (ctypes.c_void_p() for _ in range(6))
here = ctypes.byref
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(here(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == cuda.cuStreamCreate(here(stream), 1) == 0
assert cuda.cuModuleLoad(here(module), sys.argv[1].encode()) == 0
assert cuda.cuModuleGetFunction(here(kernel), module, b"out_of_bounds") == 0
assert cuda.cuStreamBeginCapture_v2(stream, 0) == 0
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(ctypes.c_uint64(0)))
assert cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, None) == 0
assert cuda.cuStreamEndCapture(stream, here(graph)) == 0
assert cuda.cuGraphInstantiateWithFlags(here(exec_), graph, ctypes.c_uint64(0)) == 0
print(cuda.cuGraphLaunch(exec_, stream), cuda.cuStreamSynchronize(stream))
"""


@pytest.mark.parametrize(
    ("blocking", "codes"), [("1", "700 700"), pytest.param("0", "0 700", marks=pytest.mark.slow)]
)
def test_launches_of_graphs_that_block(
    blocking: str, codes: str, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", blocking)
    with Control(tmp_path) as control:
        image = str(KERNELS / "test_kernels.sm_90.cubin")
        done = run(library, control, [sys.executable, "-c", FAILING_GRAPH, image])
        assert done.stdout == f"{codes}\n", done.stderr


def test_an_upload_behind_a_sticky_error_does_not_end_the_session(
    library: Path, tmp_path: Path
) -> None:
    """Its bytes are read all the same, and the program gets to know the error."""
    program = compiled("endings", tmp_path, library)
    with Control(tmp_path) as control:
        words = [str(program), str(KERNELS / "test_kernels.sm_90.cubin"), "sticky"]
        done = run(library, control, words, "--tcp")
        assert done.stdout == "sticky: 0, 700, 0, 700\n", done.stderr


@pytest.mark.slow
def test_a_cut_network_ends_a_wait(library: Path, tmp_path: Path) -> None:
    """Nothing says that the server is gone: no packet of it arrives any more."""
    alone = ["unshare", "-rn"]
    try:
        subprocess.run([*alone, "ip", "link", "set", "lo", "up"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no network namespace can be made here")
    program = compiled("leased", tmp_path, library)
    command = [*alone, sys.executable, str(HERE / "cut_network.py"), str(library)]
    command += [str(build_driver().parent), str(program)]
    command += [str(KERNELS / "test_kernels.sm_90.cubin"), "wait"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "error 46, then 46\n", done.stderr


@pytest.mark.parametrize("encryption", ["off", "tls"])
def test_a_lease_that_is_lost_before_the_worker_answers(
    encryption: str, library: Path, tmp_path: Path
) -> None:
    """A worker may need long for that, and the program learns of the loss at once."""
    program = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    with (
        socket.socket(socket.AF_UNIX) as agent,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        agent.bind(str(tmp_path / "agent"))
        agent.listen()
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            env={"LD_LIBRARY_PATH": str(library), "GPUPOOL_AGENT": str(tmp_path / "agent")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        asking, _ = agent.accept()
        session = {"server": "a", "session": "0" * 32, "ticket": "0" * 64, "server_name": "x"}
        session |= {"certificate_sha256": "0" * 64, "encryption": encryption, "server_id": "a"}
        session["address"] = server.getsockname()
        asking.recv(4096)
        asking.sendall(json.dumps({"ok": True, "sessions": [session]}).encode() + b"\n")
        connection, _ = server.accept()
        connection.recv(1)
        asking.sendall(b'{"op":"lost","what":"lost server a: no answer"}\n')
        out, err = process.communicate(timeout=20)
        assert out == "100\n", err  # CUDA_ERROR_NO_DEVICE
        assert err.startswith("gpupool: lost server a: no answer\n")
        asking.close()
        connection.close()


def test_settings_for_the_servers_driver_are_sent(library: Path, tmp_path: Path) -> None:
    """All that the server heeds, each as long as it may be, beside the longest list of devices."""
    longest = dict.fromkeys(ALLOWED, "x" * VALUE_LENGTH_MAX)
    left_out = {"CUDA_CACHE_PATH": "x", "CUDA_AUTO_BOOST": "1 ", "CUDA_CACHE_DISABLE": ""}
    left_out |= {"CUDA_DISABLE_PERF_BOOST": "x" * (VALUE_LENGTH_MAX + 1)}
    devices = {"CUDA_VISIBLE_DEVICES": "0," * 3000}
    kept = {name: value for name, value in longest.items() if name not in left_out}
    for given, sent in (({}, {}), (longest | devices, longest), (longest | left_out, kept)):
        path = str(tmp_path / "agent")
        with socket.socket(socket.AF_UNIX) as agent:
            agent.bind(path)
            agent.listen()
            process = subprocess.Popen(
                [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"],
                env={"LD_LIBRARY_PATH": str(library), "GPUPOOL_AGENT": path} | given,
            )
            asking, _ = agent.accept()
            with asking, asking.makefile("rb") as lines:
                request = parse_request(lines.readline())
                asking.sendall(b'{"ok":false}\n')
                process.wait(20)
        os.unlink(path)
        assert isinstance(request, SessionRequest)
        assert request.settings == sent


def test_all_settings_that_are_passed_on_are_written_down() -> None:
    text = (ROOT / "docs" / "variables.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`CUDA_.*?) \| [^|]*?\bpassed on\b", text, re.M)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(ALLOWED)
    rows = re.findall(r"^\| (`\w.*?) \| (?:.* \| )?passed on \|", text, re.M)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted((*ALLOWED, *LIBRARIES))


def test_without_an_agent_there_is_no_device(library: Path) -> None:
    code = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    environment = {name: value for name, value in os.environ.items() if name != "GPUPOOL_AGENT"}
    environment |= {"LD_LIBRARY_PATH": str(library)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "100\n"  # CUDA_ERROR_NO_DEVICE
    assert done.stderr == ""


def test_the_last_words_of_a_worker_that_has_closed_are_heard(
    library: Path, tmp_path: Path
) -> None:
    words = b"emulated GPUs have the array door only"
    path = str(tmp_path / "socket")

    def serve(listener: socket.socket) -> None:
        agent, _ = listener.accept()
        with agent, agent.makefile("rwb") as lines:
            lines.readline()
            session = {"session": "aa" * 16, "ticket": "bb" * 32, "encryption": "off", "unix": path}
            lines.write(json.dumps({"ok": True, "sessions": [session]}).encode() + b"\n")
            lines.flush()
            worker, _ = listener.accept()
            with worker:
                hello = worker.recv(handshake.CLIENT_HELLO_SIZE, socket.MSG_WAITALL)
                nonce = handshake.parse_client_hello(hello, b"\xaa" * 16)
                worker.sendall(handshake.server_proof(b"\xbb" * 32, nonce, bytes(16)))
                worker.recv(handshake.PROOF_SIZE, socket.MSG_WAITALL)
                # What the client sends from now on is refused, as if we had closed already.
                worker.shutdown(socket.SHUT_RD)
                notice = ANSWER.pack(NOTICE, 0, 0, len(words), 0, 0) + words
                worker.sendall(handshake.ACCEPTED + notice)

    code = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    environment = os.environ | {"LD_LIBRARY_PATH": str(library), "GPUPOOL_AGENT": path}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        thread.join(30)
    assert not thread.is_alive()
    assert done.stdout == "46\n"  # CUDA_ERROR_DEVICE_UNAVAILABLE
    assert words.decode() in done.stderr


def test_a_fork_cannot_use_the_device(library: Path, tmp_path: Path) -> None:
    code = """
import ctypes, os
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
count = ctypes.c_int()
if os.fork() == 0:
    os._exit(cuda.cuDeviceGetCount(ctypes.byref(count)))
print(os.waitstatus_to_exitcode(os.wait()[1]), cuda.cuDeviceGetCount(ctypes.byref(count)))
"""
    with Control(tmp_path) as control:
        done = run(library, control, [sys.executable, "-W", "ignore", "-c", code])
        assert done.stdout == "3 0\n", done.stderr  # CUDA_ERROR_NOT_INITIALIZED


@pytest.mark.long
def test_what_is_missing_is_named_under_verbose_only(library: Path, tmp_path: Path) -> None:
    name = "cuGraphicsUnregisterResource"
    code = f"import ctypes; c = ctypes.CDLL('libcuda.so.1'); c.cuInit(0); print(c.{name}())"
    with Control(tmp_path) as control:
        done = run(library, control, [sys.executable, "-c", code])
        assert (done.stdout, done.stderr) == ("801\n", "")
        done = run(library, control, [sys.executable, "-c", code], "--verbose")
        assert f"gpupool: not supported: {name}, called 1 times" in done.stderr


@pytest.mark.parametrize(
    ("server", "seen"), [(13050, 13000), pytest.param(12020, 12020, marks=pytest.mark.long)]
)
def test_functions_are_those_of_the_version_that_programs_see(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: int, seen: int
) -> None:
    """A runtime of a newer CUDA asks for newer forms, and takes an existing one instead."""
    monkeypatch.setenv("FAKE_CUDA_DRIVER_VERSION", str(server))
    code = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
version, found, said = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
assert cuda.cuDriverGetVersion(ctypes.byref(version)) == 0
print(version.value)
for name in ("cuMemAlloc", "cuLaunchHostFunc", "cuMemcpyBatchAsync", "cuGraphGetId"):
    more = 13050, ctypes.c_uint64(0), ctypes.byref(said)
    cuda.cuGetProcAddress_v2(name.encode(), ctypes.byref(found), *more)
    forms = [getattr(cuda, name + form, None) for form in ("", "_v2", "_v3")]
    there = [ctypes.cast(form, ctypes.c_void_p).value for form in forms]
    print(there.index(found.value) + 1 if found.value else 0, said.value)
"""
    expected = {"cuMemAlloc": "2 0", "cuLaunchHostFunc": "1 0", "cuGraphGetId": "0 1"}
    expected["cuMemcpyBatchAsync"] = "2 0" if seen >= 12080 else "0 1"
    order = ("cuMemAlloc", "cuLaunchHostFunc", "cuMemcpyBatchAsync", "cuGraphGetId")
    with Control(tmp_path) as control:
        done = run(library, control, [sys.executable, "-c", code])
    assert done.stdout.splitlines() == [str(seen), *(expected[name] for name in order)], done.stderr


# ---- frames that no shim of ours sends ----


class ScriptedStream:
    """Gives prepared bytes; keeps the sent ones."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sent = bytearray()
        self.closed = False
        self.calls = 0
        self.tally = Tally()

    def recv_into(self, buffer: memoryview, /) -> int:
        count = min(len(buffer), len(self.data))
        buffer[:count] = self.data[:count]
        self.data = self.data[count:]
        return count

    def send_buffers(self, buffers: list[bytes | memoryview], /) -> None:
        for piece in buffers:
            self.sent += piece

    def close(self) -> None:
        self.closed = True


def test_answers_that_somebody_waits_for_are_counted_with_their_time() -> None:
    stream = ScriptedStream(b"")
    session = Session(stream)
    session.began[5] = time.perf_counter_ns() - 3_000_000
    session.reply(5, 0, b"body")
    session.reply(6, 0)  # nobody has begun it
    session.host([(5, 0, 1)])
    assert stream.tally.waits == 1
    assert 3_000_000 <= stream.tally.wait_ns < 3_000_000_000
    assert session.began == {}


def frame(body: bytes, *, bulk: bytes = b"", magic: int = 0x47504331) -> bytes:
    return struct.pack("<IIQ", magic, len(body), len(bulk)) + body + bulk


def record(op: int | str, *words: int, flags: int = 0, size: int | None = None) -> bytes:
    number, values = NUMBERS.get(str(op), op), struct.pack(f"<{len(words)}Q", *words)
    return struct.pack("<HHI", number, flags, 8 + len(values) if size is None else size) + values


MALFORMED = {
    "magic": (frame(b"", magic=1), "malformed frame"),
    "body too large": (struct.pack("<IIQ", 0x47504331, 1 << 30, 0), "malformed frame"),
    "bulk too large": (struct.pack("<IIQ", 0x47504331, 0, 1 << 60), "malformed frame"),
    "half a header": (frame(b"1234"), "malformed record"),
    "record beyond the frame": (frame(record("FREE", 1, size=64)), "malformed record"),
    "record of no size": (frame(record("FREE", size=0)), "malformed record"),
    "record of odd size": (frame(record("FREE", 1, size=13)), "malformed record"),
    "too few words": (frame(record("FREE")), "malformed record"),
    "another version": (
        frame(record("HELLO", 1, table.PROTOCOL ^ 1, 13000, flags=1)),
        "another version of the CUDA door, and the client was told what to do",
    ),
    "unknown number": (frame(record(9999)), "unknown record"),
    "number zero": (frame(record(0)), "unknown record"),
    "no request": (frame(record("ALLOCATE", 1, 2)), "without a request"),
    "short launch": (frame(record("LAUNCH", 1)), "malformed launch"),
    "bulk nobody wants": (frame(record("SET_DEVICE", 0), bulk=b"12345678"), "nobody asked"),
    "upload of another size": (
        frame(record("COPY_IN", 4096, 99, 1), bulk=b"12345678"),
        "malformed upload",
    ),
    "edges beyond the record": (frame(record("GRAPH_EDGES", 1, 0, 5)), "malformed record"),
    "too many edges": (frame(record("GRAPH_EDGES", 1, 0, 1 << 40)), "malformed record"),
    "a node of no size": (frame(record("GRAPH_NODE", 1, 2, 0, 0, 0)), "malformed record"),
    "a slot of no size": (frame(record("SLOT_MAKE", 99, 0)), "cannot be made"),
    "a slot twice": (frame(record("SLOT_MAKE", 99, 8) * 2), "cannot be made"),
    "image of another size": (
        frame(record("LOAD_MODULE", 1, 2, 9999, flags=1), bulk=b"12345678"),
        "malformed image",
    ),
}


def test_malformed_frames_end_the_session(tmp_path: Path) -> None:
    """One process serves them all: the bytes of one client leave nothing behind for the next."""
    done = in_one_process(tmp_path, "-c", calling("test_cuda_door", "serve_malformed"))
    assert done.returncode == 0, done.stderr
    said = dict(line.split("\t") for line in done.stdout.splitlines())
    assert set(said) == set(MALFORMED)
    for name, (_, expected) in MALFORMED.items():
        assert expected in said[name], (name, said[name])


def serve_malformed() -> None:
    """Give the worker's code each malformed input; runs in a process with the fake driver."""
    from loopback import CountingBudget

    from gpupool.remoting.devices.base import DeviceSpec
    from gpupool.remoting.driver_api.executor.serve import serve

    ctypes.CDLL("libcuda.so.1").cuInit(0)
    spec = DeviceSpec(0, "GPU-0", "GPU", MEMORY, emulated=False, ordinal=0)
    for name, (data, _) in MALFORMED.items():
        stream, said = ScriptedStream(data), list[str]()
        serve(stream, [spec], CountingBudget(MEMORY), said.append)
        assert stream.closed
        if b"install the same version of gpupool" in stream.sent:
            said[-1] += ", and the client was told what to do"
        sys.stdout.write(f"{name}\t{' '.join(said)}\n")
