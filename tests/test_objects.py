"""The cache of compiled C files gives the output that a compiler would give now."""

import tempfile
from pathlib import Path

import pytest
from tests import objects

COMPILE = ("gcc", "-c")


def test_any_change_compiles_anew_and_no_change_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source, header, library = (tmp_path / name for name in ("a.c", "a.h", "library"))
    source.write_text('#include "a.h"\nint a = VALUE;\n')
    header.write_text("#define VALUE 1\n")
    number = iter(range(100))

    def made(*more: str, libraries: tuple[Path, ...] = ()) -> Path:
        target = tmp_path / f"{next(number)}.o"
        objects.compiled([*COMPILE, *more], source, target, (tmp_path,), libraries)
        return target

    first = made()
    assert made().samefile(first)
    header.write_text("#define VALUE 2\n")
    second = made()
    assert second.read_bytes() != first.read_bytes()
    source.write_text('#include "a.h"\nint b = VALUE;\n')
    assert made().read_bytes() != second.read_bytes()
    assert not made("-g").samefile(made())
    # An object is a library as good as any to the linker, which -c leaves out.
    library.write_bytes(b"1")
    with_library = made("-w", libraries=(library,))
    library.write_bytes(b"2")
    assert not made("-w", libraries=(library,)).samefile(with_library)


def test_who_compiles_second_takes_the_first_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that another process links to at that moment is not replaced."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = tmp_path / "a.c"
    source.write_text("int a;\n")
    first, second = tmp_path / "first.o", tmp_path / "second.o"
    compile_one = objects.subprocess.run

    def overtaken(words: list[str], *, check: bool) -> None:
        monkeypatch.setattr(objects.subprocess, "run", compile_one)
        objects.compiled(COMPILE, source, first, ())
        compile_one(words, check=check)

    monkeypatch.setattr(objects.subprocess, "run", overtaken)
    objects.compiled(COMPILE, source, second, ())
    assert second.samefile(first)
