"""Build the native files in gpupool/remoting/driver_api/library, beside the Python code.

The metadata is in pyproject.toml, except for what depends on the place of the release. The
libraries have no Python symbol in them, so the wheel is tagged py3-none-<platform>. Where no C
compiler works, the installation goes on without them, and ``gpupool run --door cuda`` says what is
missing. packaging/wheels.py builds releases, and sets:

GPUPOOL_NATIVE_CC   the compiler that must build the libraries; its failure is an error
GPUPOOL_URL         the address of the repository, to which the README's links are made absolute
"""

import os
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
BUILD: dict[str, Any] = runpy.run_path(str(ROOT / "remoting/driver_api/build.py"))
"""Build script of tests and checkouts: gpupool itself cannot be imported before it is installed."""


def relative(paths: tuple[Path, ...]) -> list[str]:
    """Return paths as setuptools wants them."""
    return [path.relative_to(ROOT).as_posix() for path in paths]


class BuildShim(build_ext):
    """Name the outputs as the dynamic loader asks for them, such as libcuda.so.1."""

    def get_ext_filename(self, fullname: str) -> str:
        path = fullname.replace(".", "/")
        name = path.rpartition("/")[2]
        version = ".2" if name == "libnccl" else ".1" if name.startswith("lib") else ""
        return f"{path}.so{version}"

    def build_extension(self, ext: Extension) -> None:
        """Build one; beside libcuda.so.1, libcuda.so, which some programs load instead.

        A wheel keeps no symbolic links, and a copy would be loaded as another library; so it is a
        library of nothing but the need for libcuda.so.1.
        """
        super().build_extension(ext)
        if ext is SHIM:
            built = Path(self.get_ext_fullpath(ext.name))
            empty = Path(self.build_temp) / "nothing.c"  # Zig links no library of libraries alone
            empty.write_text("", encoding="utf-8")
            objects = self.compiler.compile([str(empty)], output_dir=self.build_temp)
            link = ["-Wl,--no-as-needed", "-o", str(built.with_name("libcuda.so")), *objects]
            self.spawn([*self.compiler.linker_so, *link, str(built)])

    def build_extensions(self) -> None:
        # Some builds of Python name their own folders here; a library of ours searches none.
        linker = self.compiler.linker_so
        self.compiler.linker_so = [word for word in linker if not word.startswith("-Wl,-rpath")]
        if COMPILER:  # and none of the flags with which this Python was built
            self.compiler.set_executables(
                compiler_so=[*COMPILER, "-fPIC"], linker_so=[*COMPILER, "-shared"]
            )
        super().build_extensions()

    def copy_extensions_to_source(self) -> None:
        # An editable installation copies into the checkout, where git keeps no empty folder.
        folder = ROOT / "remoting/driver_api/library"
        folder.mkdir(exist_ok=True)
        super().copy_extensions_to_source()
        link = folder / "libcuda.so"
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to("libcuda.so.1")

    def get_export_symbols(self, ext: object) -> list[str]:
        return []  # there is no PyInit_libcuda to export


class TagAnyPython(bdist_wheel):
    """Tag py3-none-<platform>: native, but tied to no interpreter."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def readme() -> str:
    """Return the README, with absolute links where the repository's address is known."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if not URL:
        return text
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:|#)", rf"\1{URL}/raw/HEAD/", text)
    return re.sub(r"((?<!!)\[[^]!]*\]\()(?!https?:|#)", rf"\1{URL}/blob/HEAD/", text)


COMPILER = shlex.split(os.environ.get("GPUPOOL_NATIVE_CC", ""))
URL = os.environ.get("GPUPOOL_URL", "").rstrip("/")
METADATA: dict[str, Any] = {
    "long_description": readme(),
    "long_description_content_type": "text/markdown",
}
if URL:
    METADATA["project_urls"] = {
        "Homepage": URL,
        "Documentation": f"{URL}/blob/HEAD/docs/README.md",
        "Changelog": f"{URL}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{URL}/issues",
        "Source": URL,
    }

FOLDER = "gpupool.remoting.driver_api.library"
FLAGS = [
    *("-std=c11", "-O2", "-fvisibility=hidden", "-pthread"),
    *BUILD["HARDENING"],
]
LINK = ["-pthread", "-Wl,--no-undefined", "-Wl,-z,relro,-z,now,-z,noexecstack"]
HEADERS = ["remoting/driver_api/shim/include"]
# Warnings are no errors here, because compilers of the future have warnings of their own.
SHIM = Extension(
    f"{FOLDER}.libcuda",
    sources=relative(BUILD["SOURCES"]),
    include_dirs=HEADERS,
    extra_compile_args=FLAGS,
    extra_link_args=[*LINK, "-Wl,-soname,libcuda.so.1", "-Wl,-z,nodelete", "-ldl"],
    optional=not COMPILER,
)
LAUNCHER = Extension(
    f"{FOLDER}.gpupool_launch",
    sources=relative(BUILD["NATIVE"]),
    include_dirs=HEADERS,
    extra_compile_args=FLAGS,
    extra_link_args=[*LINK, "-ldl"],
    optional=not COMPILER,
)
NCCL = Extension(
    f"{FOLDER}.libnccl",
    sources=[f"remoting/driver_api/nccl/{name}.c" for name in ("calls", "comm", "cuda", "group")],
    include_dirs=["remoting/driver_api/nccl"],
    extra_compile_args=FLAGS,
    extra_link_args=[*LINK, "-Wl,-soname,libnccl.so.2", "-Wl,-z,nodelete", "-ldl"],
    optional=not COMPILER,
)
NVML = Extension(
    f"{FOLDER}.libnvidia-ml",
    sources=[
        "remoting/driver_api/nvml/nvml.c",
        "remoting/driver_api/nvml/generated_refusals.c",
        "remoting/driver_api/shim/base/json.c",
    ],
    include_dirs=HEADERS,
    extra_compile_args=FLAGS,
    extra_link_args=[*LINK, "-Wl,-soname,libnvidia-ml.so.1", "-ldl"],
    optional=not COMPILER,
)

ABSENT = [
    Extension(
        f"{FOLDER}.{name.removesuffix('.so.1')}",
        sources=relative((source,)),
        extra_compile_args=FLAGS,
        extra_link_args=[*LINK, f"-Wl,-soname,{name}"],
        optional=not COMPILER,
    )
    for name, source in BUILD["ABSENT"].items()
]

if sys.platform == "linux":
    setup(
        ext_modules=[SHIM, LAUNCHER, NVML, NCCL, *ABSENT],
        cmdclass={"build_ext": BuildShim, "bdist_wheel": TagAnyPython},
        **METADATA,
    )
else:
    setup(**METADATA)
