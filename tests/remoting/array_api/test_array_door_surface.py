"""Every function of the drop-in gives NumPy's result; so do the scripts of `examples`."""

import ctypes
import importlib
import inspect
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import door_calls
import door_kit
import numpy as np
import pytest
from door_cases import backend, refused

from gpupool.remoting.devices.emulated_operations import operations

sys.path.insert(0, str(door_kit.DROPIN.parents[2] / "packaging"))
array_surface: Any = importlib.import_module("array_surface")
sys.path.pop(0)
MISSING = json.loads((door_kit.DROPIN.parent / "missing_names.json").read_text())

# Names that are exercised by tests of their own, or that have nothing to compute.
_ELSEWHERE = """
    DataSource asfarray asnumpy byte_bounds clear_memo flatiter fromDlpack from_dlpack fromfile
    fuse genfromtxt get_array_module get_default_memory_pool get_default_pinned_memory_pool in1d
    is_available load loadtxt memoize msort row_stack save savetxt savez
    savez_compressed show_config
"""
ELSEWHERE = frozenset(_ELSEWHERE.split())


TABLES = {"function": door_calls.CALLS, "method": door_calls.METHODS}


# NumPy 2.5 deprecates functions that CuPy has.
@pytest.mark.filterwarnings("ignore:numpy.fix is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, table in TABLES.items() for name in sorted(table)]
)
def test_a_function_agrees_with_numpy(cp: Any, kind: str, name: str) -> None:
    call = TABLES[kind][name]
    with np.errstate(all="ignore"):
        wanted = call(np, door_calls.arrays(np))
    for _ in ("asked", "remembered"):
        assert not door_calls.difference(call(cp, door_calls.arrays(cp)), wanted)


@pytest.mark.parametrize("name", sorted(door_calls.DRAWS))
def test_a_distribution_has_the_shape_that_is_inferred(cp: Any, name: str) -> None:
    call = door_calls.DRAWS[name]
    wanted = call(np.random.RandomState(1), None)
    for source in (cp.random, cp.random.RandomState(1)):
        drawn = call(source, None)
        assert drawn.shape == wanted.shape
        assert drawn.get().dtype.kind == wanted.dtype.kind


OF_GENERATORS = (
    "uniform poisson standard_normal exponential gamma chisquare power standard_gamma geometric "
    "logseries beta f binomial hypergeometric standard_exponential"
)


def test_generators_draw(cp: Any) -> None:
    generator = cp.random.default_rng(3)
    parameters = {name: given for given, names in door_calls.DISTRIBUTIONS.items()
                  for name in names.split()} | {"random": ()}  # fmt: skip
    for name in ("random", *OF_GENERATORS.split()):
        drawn = getattr(generator, name)(*parameters[name], size=(2, 3))
        assert drawn.get().shape == (2, 3), name
    assert generator.integers(5, size=4).get().max() < 5
    assert generator.dirichlet([1.0, 1.0], 3).shape == (3, 2)


def test_every_offered_function_is_called_by_some_test(cp: Any) -> None:
    offered: set[str] = set()
    recorded = array_surface.recorded()
    for prefix, module in (("", cp), ("linalg.", cp.linalg), ("fft.", cp.fft)):
        inside = [name for name in recorded if name.rpartition(".")[0] == module.__name__]
        for name in [name.rpartition(".")[2] for name in inside]:
            found: Any = getattr(module, name, None)
            is_ours = inspect.isfunction(found) and found.__module__.startswith("cupy")
            if (is_ours or isinstance(found, cp.ufunc)) and found.__name__ == name:
                offered.add(prefix + name)
    assert offered - set(door_calls.CALLS) - ELSEWHERE == set()


def test_every_operation_of_a_worker_is_asked_for_by_the_dropin() -> None:
    text = "".join(path.read_text() for path in sorted(door_kit.DROPIN.rglob("*.py")))
    table = operations(backend())
    families = ("cupyx.", "linalg.", "fft.", "random.", "generator.", "kernel.")
    unknown = [name for name in table if f'"{name}"' not in text and not name.startswith(families)]
    # Ufuncs and plain functions are named by tables or by their own name.
    assert all(name.split(".")[-1] in text for name in unknown), unknown


def test_missing_names_are_listed_and_not_there(cp: Any) -> None:
    names, gaps = MISSING["missing"], MISSING["gaps"]
    assert (names, gaps) == (sorted(set(names)), sorted(set(gaps)))
    assert "cupy.disp" in names
    assert "cupyx.jit (module)" in gaps
    assert not {"cupy.add", "cupy.linalg (module)"} & {*names, *gaps}
    spatial = ["MetricInfo", "check_soft_dependencies", "cuvs_available", "pylibraft_available"]
    assert {each for each in names if "scipy.interpolate" in each or "scipy.spatial" in each} == {
        "cupyx.scipy.spatial.delaunay_2d",
        *(f"cupyx.scipy.spatial.distance.{name}" for name in spatial),
    }
    assert not hasattr(cp, "disp")
    assert not hasattr(cp, "insert")  # NumPy has it, CuPy has not
    assert len([name for name in names if name.count(".") == 1 and name.startswith("cupy.")]) < 40
    # Memory that only CuPy makes, and what cupyx.scipy.sparse keeps of SciPy's printing.
    assert [each for each in gaps if not each.endswith("(module)")] == [
        "cupy.cuda.Memory (parameter size)",
        "cupy.cuda.MemoryAsyncPool (parameter pool_handles)",
        "cupy.cuda.MemoryPointer (parameter mem)",
        "cupy.cuda.PinnedMemoryPointer (parameter mem)",
        "cupy.cuda.PinnedMemoryPool (parameter allocator)",
        "cupyx.scipy.sparse.spmatrix (parameter maxprint)",
    ]


def test_a_lacking_keyword_or_type_is_a_gap() -> None:
    wanted = {
        "cupy.sum": ["a", "axis", "out"],
        "cupy.add": [":", "dd->d", "ff->f"],
        "cupy.cos": ["x", "out"],
        "= cupy.cuda": [],
    }
    offered = {"cupy.sum": ["a", "axis"], "cupy.add": [":", "dd->d"], "cupy.cos": ["**"]}
    gaps = ["cupy.add (type ff->f)", "cupy.cuda (module)", "cupy.sum (parameter out)"]
    assert array_surface.missing(wanted, offered) == {"missing": [], "gaps": gaps}


def test_signatures_are_read_from_functions_and_from_their_text() -> None:
    class Compiled:
        __doc__ = "Compiled.sum(self, axis=None, str order: str = 'C', *shape, **rest) -> array"

        def __call__(self) -> None: ...

        @property
        def __signature__(self) -> None:
            raise ValueError("no signature")

    found = array_surface.parameters_of(Compiled(), "sum")
    assert found == ["axis", "order", "*", "**"]
    assert array_surface.parameters_of(lambda a, *rest, key=1, **more: a, "f") == [
        *("a", "*", "key", "**")
    ]
    assert array_surface.parameters_of(3, "three") is None


def test_helpers_without_a_device(cp: Any, tmp_path: Any) -> None:
    array = cp.arange(6.0).reshape(2, 3)
    assert cp.get_array_module(array) is cp
    assert cp.get_array_module(np.zeros(1)) is np
    cp.save(tmp_path / "a.npy", array)
    assert cp.load(tmp_path / "a.npy").tolist() == array.tolist()
    cp.savez(tmp_path / "b.npz", x=array)
    cp.savez_compressed(tmp_path / "c.npz", x=array)
    for name in ("b.npz", "c.npz"):
        with cp.load(tmp_path / name) as found:
            assert found["x"].tolist() == array.tolist()
    cp.savetxt(tmp_path / "d.txt", array)
    assert cp.loadtxt(tmp_path / "d.txt").tolist() == array.tolist()
    assert cp.genfromtxt(tmp_path / "d.txt").tolist() == array.tolist()
    (tmp_path / "f").write_bytes(array.dumps())
    assert cp.load(tmp_path / "f", allow_pickle=True).tolist() == array.tolist()
    array.tofile(tmp_path / "e.bin")
    assert cp.fromfile(tmp_path / "e.bin").tolist() == array.ravel().tolist()
    assert cp.from_dlpack(np.arange(3)).tolist() == [0, 1, 2]
    assert np.from_dlpack(array, device="cpu").tolist() == array.tolist()
    refused((BufferError, "", array.toDlpack), (BufferError, "", lambda: cp.fromDlpack(None)))
    assert cp.asfarray([1, 2]).dtype == np.float64
    assert cp.asnumpy(array, order="F").flags.f_contiguous
    low, high = cp.byte_bounds(array)
    assert high - low == array.nbytes
    assert cp.in1d(cp.arange(3), cp.array([1])).tolist() == [False, True, False]
    assert cp.msort(cp.array([2, 1])).tolist() == [1, 2]
    with pytest.warns(DeprecationWarning, match="row_stack"):
        assert cp.row_stack([cp.arange(2), cp.arange(2)]).shape == (2, 2)
    assert cp.fuse(lambda x: x)(3) == 3
    assert cp.is_available()
    calls: list[int] = []
    remembered = cp.memoize(for_each_device=True)(lambda x: calls.append(x) or x)
    assert [remembered(1), remembered(1)] == [1, 1]
    assert calls == [1]
    cp.clear_memo()


def test_numpys_functions_and_ufuncs_dispatch(cp: Any) -> None:
    array = cp.arange(6.0).reshape(2, 3)
    for made in (
        np.sum(array),
        np.add(array, 1),
        np.concatenate([array, array]),
        np.linalg.norm(array),
        np.fft.fft(array),
        np.add.reduce(array),
    ):
        assert isinstance(made, cp.ndarray)
    refused(
        (TypeError, "", lambda: np.add(array, np.ones(3))),
        (TypeError, "", lambda: np.block([array])),
    )


def test_memory_can_be_seen_as_another_array(cp: Any) -> None:
    array = cp.arange(8, dtype=cp.int32)
    inner = cp.ndarray((3,), cp.int32, memptr=array.data + 8)
    assert inner.tolist() == [2, 3, 4]
    inner[0] = 99
    assert array.tolist()[2] == 99
    with pytest.raises(ValueError, match="outside its allocation"):
        cp.ndarray((9,), cp.int32, memptr=array.data).get()
    memory = cp.cuda.alloc(16)
    memory.memset(1, 16)
    host = bytearray(16)
    memory.copy_to_host(host, 16)
    assert bytes(host) == b"\x01" * 16
    numbers = np.arange(4, dtype=np.uint32)
    memory.copy_from_host(numbers.ctypes.data, 16)
    pinned = cp.cuda.alloc_pinned_memory(16)
    memory.copy_to_host(ctypes.c_void_p(pinned.ptr), 16)
    assert np.frombuffer(pinned, np.uint32).tolist() == [0, 1, 2, 3]
    assert int(pinned.sum()) == sum(pinned.tolist())
    errors = (TypeError, ValueError)
    for wrong, kind in (
        *((array.data.ptr + at, "on the server") for at in (0, 4, 8)),
        (np.uintp(pinned.ptr), "integer of ctypes"),
        (ctypes.c_void_p(0), "null"),
        (None, "null"),
    ):
        with pytest.raises(errors, match=kind):
            memory.copy_from_host(wrong, 4)
    memory.copy_from_host(ctypes.c_ulong(pinned.ptr), 4)
    windows = cp.lib.stride_tricks.sliding_window_view(cp.arange(5), 3)
    assert windows.tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]


PROPERTIES = (
    "name totalGlobalMem sharedMemPerBlock regsPerBlock warpSize maxThreadsPerBlock maxThreadsDim "
    "maxGridSize clockRate totalConstMem major minor textureAlignment texturePitchAlignment "
    "multiProcessorCount kernelExecTimeoutEnabled integrated canMapHostMemory computeMode "
    "maxTexture1D maxTexture2D maxTexture3D concurrentKernels ECCEnabled pciBusID pciDeviceID "
    "pciDomainID tccDriver memoryClockRate memoryBusWidth l2CacheSize maxThreadsPerMultiProcessor "
    "isMultiGpuBoard cooperativeLaunch cooperativeMultiDeviceLaunch maxTexture1DMipmap "
    "maxTexture1DLayered maxTexture2DMipmap maxTexture2DLinear maxTexture2DLayered "
    "maxTexture2DGather maxTexture3DAlt maxTextureCubemap maxTextureCubemapLayered maxSurface1D "
    "maxSurface1DLayered maxSurface2D maxSurface2DLayered maxSurface3D maxSurfaceCubemap "
    "maxSurfaceCubemapLayered surfaceAlignment asyncEngineCount unifiedAddressing "
    "streamPrioritiesSupported globalL1CacheSupported localL1CacheSupported "
    "sharedMemPerMultiprocessor regsPerMultiprocessor managedMemory multiGpuBoardGroupID "
    "hostNativeAtomicSupported pageableMemoryAccess concurrentManagedAccess "
    "computePreemptionSupported canUseHostPointerForRegisteredMem sharedMemPerBlockOptin "
    "pageableMemoryAccessUsesHostPageTables directManagedMemAccessFromHost uuid luid "
    "luidDeviceNodeMask persistingL2CacheMaxSize maxBlocksPerMultiProcessor "
    "accessPolicyMaxWindowSize reservedSharedMemPerBlock deviceOverlap maxTexture1DLinear "
    "singleToDoublePrecisionPerfRatio"
)
"""Those of CuPy 14.2 with CUDA."""


def test_streams_and_events(cp: Any) -> None:
    with cp.cuda.Stream() as stream:
        assert cp.cuda.get_current_stream() == stream
        start = stream.record()
        array = cp.arange(10) + 1
        end = cp.cuda.Event()
        end.record()
    end.synchronize()
    assert end.done
    assert stream.done
    assert cp.cuda.get_elapsed_time(start, end) >= 0
    stream.wait_event(end)
    stream.synchronize()
    assert int(array.sum()) == 55
    seen: list[Any] = []
    stream.launch_host_func(seen.append, 7)
    assert seen == [7]


def test_looks_of_a_device(cp: Any) -> None:
    device, runtime = cp.cuda.Device(1), cp.cuda.runtime
    free, total = device.mem_info
    assert free <= total == 512 << 20
    assert device.compute_capability == "90"
    assert cp.cuda.device.from_pci_bus_id(device.pci_bus_id) == device
    assert (runtime.getDeviceCount(), runtime.deviceCanAccessPeer(0, 1)) == (2, 1)
    refused((runtime.CUDARuntimeError, "cudaErrorInvalidDevice", cp.cuda.Device(5).use))
    found = runtime.getDeviceProperties(0)
    assert sorted(found) == sorted(PROPERTIES.split())
    assert (found["totalGlobalMem"], found["maxThreadsDim"]) == (total, (1024, 1024, 64))
    assert {type(found[name]) for name in ("name", "uuid", "luid")} == {bytes}
    attributes = cp.cuda.Device(0).attributes
    assert attributes["MaxSharedMemoryPerBlock"] == found["sharedMemPerBlock"]
    assert attributes["MaxRegistersPerBlock"] == found["regsPerBlock"]
    assert runtime.deviceGetAttribute(4, 0) == found["maxThreadsDim"][2]


def test_versions_and_errors_of_cudas_parts(cp: Any) -> None:
    assert cp.cuda.cufft.getVersion() == 11303
    assert issubclass(cp.cuda.driver.CUDADriverError, RuntimeError)
    error = cp.cuda.compiler.CompileException("log", "source", "name", (), "nvrtc")
    assert error.get_message() == "log"
    with pytest.raises(AttributeError, match="lacks it"):
        cp.cuda.compiler.compile_using_nvrtc  # noqa: B018


def test_what_runs_a_program_is_told(cp: Any, capsys: pytest.CaptureFixture[str]) -> None:
    info = str(importlib.import_module("cupyx").get_runtime_info())
    cp.show_config()
    assert capsys.readouterr().out == info
    rows = dict(line.split(":", 1) for line in info.splitlines())
    found = {name.strip(): value.strip() for name, value in rows.items()}
    assert found["NumPy Version"] == np.__version__
    assert found["Device 0 Name"]
    assert cp.DataSource is np.lib.npyio.DataSource


def test_what_is_like_scipy_comes_by_its_use(cp: Any) -> None:
    """One of CuPy's examples imports `cupyx` alone, and uses `cupyx.scipy.sparse`."""
    del cp
    cupyx = importlib.import_module("cupyx")
    for name in ("fft", "linalg", "ndimage", "signal", "sparse", "special", "stats"):
        assert getattr(cupyx.scipy, name).__name__ == f"cupyx.scipy.{name}"
    with pytest.raises(AttributeError, match="has no such name either"):
        cupyx.scipy.optimize  # noqa: B018


def test_what_only_our_arrays_have_has_names_that_no_other_librarys_protocol_has(cp: Any) -> None:
    # Libraries ask any object for names such as `_meta`, to see whether it is theirs.
    theirs = {*dir(object)}
    theirs |= {name.rpartition(".")[2] for name in array_surface.recorded() if "ndarray." in name}
    ours = {name for name in dir(cp.ndarray) if name not in theirs}
    assert "_gp_meta" in ours
    assert not [name for name in ours if not name.startswith(("__", "_gp_"))]


EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("solver", ["32", "10"]), ("kmeans", ["500", "4"]), ("image_filter", ["48"])],
)
def test_an_example_computes_what_numpy_computes(
    cp: Any, monkeypatch: pytest.MonkeyPatch, name: str, arguments: list[str]
) -> None:
    assert cp.cuda.runtime.getDeviceCount() == 2
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    assert runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]() == 0
