"""The expected failures of CuPy's tests, each with a reason."""

import json
import lzma
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RECORD = Path(__file__).resolve().parents[1] / "testdata" / "cupy-suite.txt.xz"
INTERNALS = "internals of CuPy"
COMPILER = "needs a kernel compiler"
EMULATION = "emulation refuses"
DECIDED = "decided otherwise"
MISSING = "not yet: missing"
RESULT = "not yet: wrong result"
ERROR = "not yet: other errors"
OWN = "own/"
"""Before folders of `cupyx` itself, for `cupyx.scipy` has some of the same names."""
REASONS = (INTERNALS, COMPILER, EMULATION, DECIDED, MISSING, RESULT, ERROR)

# What a failure's message says about its reason; the first match counts.
SIGNS: tuple[tuple[str, str], ...] = (
    (r"get_fft_plan", MISSING),  # public under another name
    (r"_from_parts|'_descr'|'_has_(sorted|canonical)|_allow_nd", INTERNALS),
    # An emulated GPU has SciPy's sparse matrices, and less memory than those tests take.
    (r"Out of memory|Unable to allocate|maxiter must be positive", EMULATION),
    (r"dtype\('int32'\) == <class 'numpy.int64'>", EMULATION),
    (r"internals of CuPy|cupy_backends|'Anything'|suite_shims", INTERNALS),
    (r"has no attribute '_[a-z]|_accelerator", INTERNALS),
    (r"call_count == times_called", INTERNALS),
    (r"compil|kernel.*emulat|emulat.*kernel|nvcc|nvrtc", COMPILER),
    (r"emulated", EMULATION),
    (r"__cuda_array_interface__|DLPack|dlpack|DummyObject", DECIDED),
    (r"has no attribute|not implemented|NotImplemented|unexpected keyword|does not have", MISSING),
    (r"Unsupported dtype|only supports float", MISSING),
    (r"MismatchError|[Nn]ot equal|[Mm]ismatch|DID NOT RAISE|[Aa]ssert|dtypes? |strides", RESULT),
    (r"XPASS", EMULATION),
)
# Where the message cannot say it.
PLACES: tuple[tuple[str, str], ...] = (
    # A vectorized function is computed by Python: it is not translated, so nothing is refused for
    # its types or its text, complex numbers have an order, and half precision rounds each step.
    (r"TestVectorize", DECIDED),
    (r"TestEstimateGradients2DGlobal", INTERNALS),
    # SciPy interpolates no complex numbers that way, and takes a minute for that spline.
    (r"test_rgi\.py::.*(test_complex\[pchip|test_nonscalar_values_2\[.*quintic\])", EMULATION),
    # A range does nothing here, whether a profiler is there or not.
    (r"TestTimeRangeNVTXUnavailable", DECIDED),
    (r"profiler_tests/test_(benchmark|profile)\.py", INTERNALS),
    # They look into files of compiled kernels, which the worker keeps.
    (r"core_tests/test_raw\.py::Test(CachePayload|RawNameExpressionCache)", INTERNALS),
    # Equal to the last bit with a function of NumPy, which the C library is not.
    (r"test_raw\.py::TestRaw::test_cu(Float|Double)Complex\[NVRTC", EMULATION),
    # An interpolator is on the server, so it has no copy; no flag of an array can be set.
    (r"interpolate_tests/.*(test_pickleable|test_(integrate_)?read_?only)", DECIDED),
    (r"test_polyint\.py::TestInterp1D::test_init", DECIDED),
    # What is left of an argument that may be overwritten.
    (r"test_(quantile|percentile)_overwrite|test_overwrite_x_with_contiguous_view", DECIDED),
    # NumPy adds in another order, or refuses what the GPU computes without a check.
    (r"test_sum_axis2_float16|test_hypergeometric_nsample_exceeds_total", EMULATION),
    # They replace functions of private modules by mocks, or look at the allocator's calls.
    (r"random_tests/test_sample\.py::Test(RandomIntegers|Choice|RandomSample)::", INTERNALS),
    (r"TestThrustWorkspaceOOM|test_argspec|test_docstring", INTERNALS),
    # A warning that needs the elements would be a wait for each call.
    (r"test_nan(max|min)_all_nan|test_polyfit_poor_fit|TestSos2Zpk::test_fewer_zeros_2", DECIDED),
    # A function of the program does not travel, and the worker cannot call it.
    (r"signal_tests/.*::Test(CSD|Welch)::test_(no_detrending|detrend_external)", DECIDED),
    # The text of the error is SciPy's.
    (r"TestFirwin::test_bad_pass_zero", EMULATION),
    # dtypes of one size and kind are one here: numpy.longlong is numpy.int64.
    (r"test_poly1d_repr", DECIDED),
    (r"/test_cublas\.py|core_tests/test_(core|function|internal|flags|scan)\.py", INTERNALS),
    # The memory is on another machine: no library of this process may be given its address.
    (r"core_tests/test_dlpack\.py", DECIDED),
    (r"test_cuda_array_interface_stream|TestCUDAArrayInterfaceStream", INTERNALS),
    (r"test_include\.py", COMPILER),
    # What CuPy refuses or warns of on a real GPU alone.
    (r"multi_?gpu|different_devices|test_copy_multi_device_non_contiguous_K", DECIDED),
    (r"test_copy_multi_device_with_stream", DECIDED),
    (r"test_poly_2d_square|test_roots_bool_symmetric", EMULATION),
    # Random numbers are NumPy's there, and a test at a level of 5 % fails for some seeds.
    (r"test_goodness_of_fit|TestRandomIntegers2::test_bound", EMULATION),
    (r"test_(sort|partition)_non_contiguous|test_lexsort_three_or_more_dim", EMULATION),
    (r"test_solve_singular_empty__assert_raises", EMULATION),
    (r"test_astype_type|TestGUFuncSignatures::test_signatures", DECIDED),  # as test_poly1d_repr
    # A description by `__cuda_array_interface__` is checked as any other array.
    (r"test_reject_references\[", DECIDED),
    (r"core_tests/test_mdspan\.py|test_pad_custom_function", MISSING),
    (r"TestKernelFieldAccess", COMPILER),
    (r"sparse_tests/test_base\.py::TestSpmatrix|TestMajorFancyFlag", INTERNALS),
    # SciPy counts repeated truth values, has no such sum of shapes, and powers are arrays.
    (r"test_sparray\.py::TestBool(Sum|Mean)|test_2d_one_row_plus_1d", EMULATION),
    (r"test_1d_count_nonzero_axis|test_matrix_pow_operator_keeps", EMULATION),
    # SciPy counts turns otherwise, keeps small indices in 32 bits, and wraps none.
    (r"TestLOBPCG::test_maxit_None|test_1d_sparse_enlarging_shape", EMULATION),
    (r"TestCsr2CooCanonical|TestInt64LinalgGuards|TestFromPartsBufferCheck", EMULATION),
    (r"TestAsindicesLegacyWraparound|canonical_format_preserved_by_copy", EMULATION),
    # An attribute is a new array each time, over the same memory.
    (r"test_inplace_scalar_preserves_identity|test_coo_array_coords_property", DECIDED),
    (r"test_sparray\.py::.*::test_setitem_ellipsis", DECIDED),  # a warning
    (r"core_tests/test_core_\w*accel|test_cub_", INTERNALS),
    # Pools and hooks of memory are the worker's; handles and plans of libraries are of its CuPy.
    (r"cuda_tests/(test_(pinned_)?memory|memory_hooks_tests)", INTERNALS),
    (
        r"cuda_tests/test_(compiler|cublas|cufft|curand|cusolver|cusparse|cutensor|driver|nvrtc|runtime)",
        INTERNALS,
    ),
    (r"TestDeviceHandles|TestDeviceFromPointer|TestExternalStream", INTERNALS),
    (r"cuda_tests/test_nccl", MISSING),
    # A graph on a server cannot call a function of the program.
    (r"test_capture_launch_host_func", DECIDED),
)
_PARAMETERS = re.compile(r"_param_\d+_\{.*?\}(?=::|$)|\[.*\]$")
_ADDRESS = re.compile(r"0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test's outcome: passed, failed or skipped, with its error."""

    test: str
    outcome: str
    error: str = ""

    @property
    def folder(self) -> str:
        """Return the part of the suite that the test belongs to."""
        parts = self.test.split("/")
        at = 2 if parts[1] == "scipy_tests" else 1
        before = "cupyx/" if parts[0] == "cupyx_tests" else ""
        before += OWN if before and parts[1] != "scipy_tests" else ""
        return before + parts[at].split("::")[0].removesuffix("_tests")

    @property
    def family(self) -> str:
        """Return the test's name without its parameters, as a pattern."""
        return _PARAMETERS.sub("", self.test) + "*"


def place_of(folder: str) -> str:
    """Return where a folder of tests, or a file in one, is in a checkout's `tests`."""
    head, _, rest = folder.partition("/")
    if head != "cupyx":
        return f"cupy_tests/{folder}"
    own = rest.startswith(OWN)
    return f"cupyx_tests/{rest.removeprefix(OWN) if own else f'scipy_tests/{rest}'}"


def read_outcomes(path: Path) -> list[Outcome]:
    """Read a run's lines; the last line of a test counts."""
    found: dict[str, Outcome] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        test = _ADDRESS.sub("0x", fields["id"])
        error = f"{fields['type']}: {fields['error']}" if fields["type"] else fields["error"]
        found[test] = Outcome(test, fields["outcome"], error)
    return list(found.values())


def reason_of(outcome: Outcome) -> str:
    """Return why a test probably fails."""
    for places, text in ((PLACES, outcome.test), (SIGNS, outcome.error)):
        for pattern, reason in places:
            if re.search(pattern, text):
                return reason
    return ERROR


def patterns(outcomes: list[Outcome]) -> dict[str, str]:
    """Return the lines of a record: a family's pattern where all of it fails for one reason."""
    families: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        families.setdefault(outcome.family, []).append(outcome)
    found: dict[str, str] = {}
    for family, members in families.items():
        failed = {each.test: reason_of(each) for each in members if each.outcome == "failed"}
        reasons = set(failed.values())
        if len(reasons) == 1 and len(failed) == len(members):
            found[family] = reasons.pop()
        else:
            found.update(failed)
    return found


def write_record(expected: dict[str, str], path: Path = RECORD) -> None:
    """Write the list, compressed: it has thousands of lines that differ little."""
    text = "".join(f"{reason}\t{test}\n" for test, reason in sorted(expected.items()))
    path.write_bytes(lzma.compress(text.encode(), preset=9))


def read_record(path: Path = RECORD) -> dict[str, str]:
    """Read the list: reasons by the names of tests and by the patterns of families."""
    lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    return {test: reason for reason, _, test in (line.partition("\t") for line in lines)}


def without(expected: dict[str, str], folders: Sequence[str]) -> dict[str, str]:
    """Return the list without the tests of some folders or files."""
    places = tuple(place_of(folder) for folder in folders)
    return {test: reason for test, reason in expected.items() if not test.startswith(places)}


def expected_reason(expected: dict[str, str], outcome: Outcome) -> str | None:
    """Return why a test is expected to fail; None if it is not."""
    return expected.get(outcome.test) or expected.get(outcome.family)


def table(outcomes: list[Outcome], expected: dict[str, str]) -> list[str]:
    """Return a Markdown table of the folders: passed, failed, known by reason, new, and mended."""
    heads = ["folder", "passed", "failed", "rate", *REASONS, "new", "now pass", "skipped"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        rows = (counts.setdefault(outcome.folder, Counter()), counts.setdefault("~", Counter()))
        reason = expected_reason(expected, outcome)
        for row in rows:
            row[outcome.outcome] += 1
            if outcome.outcome == "failed":
                row[reason or "new"] += 1
            elif outcome.outcome == "passed" and reason is not None:
                row["now pass"] += 1
    for folder, row in sorted(counts.items()):
        judged = row["passed"] + row["failed"]
        cells = [folder.replace("~", "**all**"), f"{row['passed']:,}", f"{row['failed']:,}"]
        cells.append(f"{row['passed'] / max(judged, 1):.1%}")
        cells += [f"{row[name]:,}" for name in (*REASONS, "new", "now pass", "skipped")]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def without_internals(outcomes: list[Outcome], expected: dict[str, str]) -> float:
    """Return the share of tests that pass, of those that are not tests of internals."""
    passed = sum(each.outcome == "passed" for each in outcomes)
    failed = [each for each in outcomes if each.outcome == "failed"]
    others = sum(expected_reason(expected, each) != INTERNALS for each in failed)
    return passed / max(passed + others, 1)
