"""A later worker of a user loads the kernels that an earlier one compiled."""

import threading
from collections.abc import Iterator
from pathlib import Path

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


def compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch, source: str = SOURCE
) -> host_compiler.Compiled:
    """Compile as a new worker of the same user does."""
    kept = vars(host_compiler)
    monkeypatch.setitem(kept, "_libraries", kept["_Libraries"]())
    host_compiler.permit(folder)
    return host_compiler.compiled(kernel_source.unit(source), [])


def test_a_later_worker_compiles_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled(folder, monkeypatch)
    monkeypatch.setattr(host_compiler, "_made", None)  # compiling again would call it
    again = compiled(folder, monkeypatch)
    assert (again.names, again.log) == (first.names, first.log) == (("fill",), first.log)
    assert "unused" in first.log
    assert again.library.address("fill") != 0


def test_another_source_or_compiler_is_compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(folder, monkeypatch)
    compiled(folder, monkeypatch, SOURCE.replace("7", "8"))
    assert len(list(folder.iterdir())) == 2
    monkeypatch.setattr(host_compiler, "_surroundings", "a newer {}".format)
    compiled(folder, monkeypatch)
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("content", [b"", b"no library", b"\x7fELF\n{}", b'\n{"log": 1}'])
def test_a_file_that_is_no_library_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    compiled(folder, monkeypatch)
    (kept,) = folder.iterdir()
    kept.unlink()
    kept.write_bytes(content)
    assert compiled(folder, monkeypatch).names == ("fill",)


def test_a_folder_that_others_may_write_to_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(folder, monkeypatch)
    (kept,) = folder.iterdir()
    before = kept.stat().st_ino
    for mode in (0o770, 0o702):
        folder.chmod(mode)
        compiled(folder, monkeypatch)
        assert kept.stat().st_ino != before  # it was compiled again
        before = kept.stat().st_ino


def test_workers_may_keep_a_kernel_at_the_same_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compiled(folder, monkeypatch)
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


def test_what_does_not_compile_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompileException):
        compiled(folder, monkeypatch, "__global__ void f() { nothing }")
    assert not folder.exists()
