"""A later worker of a user loads the kernels that an earlier one compiled."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import door_kit
import pytest

from gpupool.remoting.devices.host_kernels import host_compiler, kernel_source
from gpupool.remoting.devices.host_kernels.kernel_errors import CompileException

SOURCE = 'extern "C" __global__ void fill(int *a) { float unused = 1; a[threadIdx.x] = 7; }'

pytestmark = pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="kernels need a compiler")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "kernels"
    host_compiler.permit()


@pytest.fixture
def compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that compiles as a new worker of the same user does."""

    def make(source: str = SOURCE) -> host_compiler.Compiled:
        kept = vars(host_compiler)
        monkeypatch.setitem(kept, "_libraries", kept["_Libraries"]())
        host_compiler.permit(folder)
        return host_compiler.compiled(kernel_source.unit(source), [])

    return make


def test_a_later_worker_compiles_nothing(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled()
    monkeypatch.setattr(host_compiler, "_made", None)  # compiling again would call it
    again = compiled()
    assert (again.names, again.log) == (first.names, first.log) == (("fill",), first.log)
    assert "unused" in first.log
    assert again.library.address("fill") != 0


def test_another_source_or_compiler_is_compiled(
    compiled: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled()
    compiled(SOURCE.replace("7", "8"))
    assert len(list(folder.iterdir())) == 2
    monkeypatch.setattr(host_compiler, "_surroundings", "a newer {}".format)
    compiled()
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("content", [b"", b"no library", b"\x7fELF\n{}", b'\n{"log": 1}'])
def test_a_file_that_is_no_library_is_not_used(compiled: Any, folder: Path, content: bytes) -> None:
    compiled()
    (kept,) = folder.iterdir()
    kept.unlink()
    kept.write_bytes(content)
    assert compiled().names == ("fill",)


def test_a_folder_that_others_may_write_to_is_not_used(compiled: Any, folder: Path) -> None:
    compiled()
    (kept,) = folder.iterdir()
    before = kept.stat().st_ino
    for mode in (0o770, 0o702):
        folder.chmod(mode)
        compiled()
        assert kept.stat().st_ino != before  # it was compiled again
        before = kept.stat().st_ino


def test_workers_may_keep_a_kernel_at_the_same_time(compiled: Any, folder: Path) -> None:
    made = compiled()
    (kept,) = folder.iterdir()
    library, content = folder.with_name("made.so"), kept.read_bytes()
    library.write_bytes(content.rpartition(b"\n")[0])
    keep = vars(host_compiler)["_keep"]
    keepers = [
        threading.Thread(target=lambda: [keep(kept.stem, library, made) for _ in range(20)])
        for _ in range(2)
    ]
    for keeper in keepers:
        keeper.start()
    while any(keeper.is_alive() for keeper in keepers):
        assert kept.read_bytes() == content
    assert list(folder.iterdir()) == [kept]


def test_what_does_not_compile_is_not_kept(compiled: Any, folder: Path) -> None:
    with pytest.raises(CompileException):
        compiled("__global__ void f() { nothing }")
    assert not folder.exists()
