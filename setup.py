"""Build the one native file, gpupool/remoting/driver/library/libcuda.so.1, beside the Python code.

Everything else is in pyproject.toml. The library has no Python symbol in it, so the wheel is
tagged py3-none-<platform>. Where no C compiler works, the installation goes on without it, and
``gpupool run --door cuda`` says what is missing.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = sorted(
    path.relative_to(Path(__file__).resolve().parent).as_posix()
    for path in (Path(__file__).resolve().parent / "remoting/driver/shim").glob("*.c")
)


class BuildShim(build_ext):
    """Name the output libcuda.so.1, which is the name that the dynamic loader asks for."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so.1"

    def copy_extensions_to_source(self) -> None:
        # An editable installation copies into the checkout, where git keeps no empty folder.
        (Path(__file__).resolve().parent / "remoting/driver/library").mkdir(exist_ok=True)
        super().copy_extensions_to_source()

    def get_export_symbols(self, ext: object) -> list[str]:
        return []  # there is no PyInit_libcuda to export


class TagAnyPython(bdist_wheel):
    """Tag py3-none-<platform>: native, but tied to no interpreter."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


# Flags as in remoting/driver/build.py, which cannot be imported before gpupool is installed;
# warnings are not errors here, because compilers of the future have warnings of their own.
SHIM = Extension(
    "gpupool.remoting.driver.library.libcuda",
    sources=SOURCES,
    extra_compile_args=["-std=c11", "-O2", "-fvisibility=hidden"],
    extra_link_args=["-pthread", "-Wl,-soname,libcuda.so.1", "-Wl,--no-undefined", "-ldl"],
    optional=True,
)

if sys.platform == "linux":
    setup(ext_modules=[SHIM], cmdclass={"build_ext": BuildShim, "bdist_wheel": TagAnyPython})
else:
    setup()
