"""Raw kernels: CUDA C++ sent once, compiled by the worker, launched without waiting."""

from __future__ import annotations

from operator import le
from typing import Any

import numpy as np

from cupy._core.dispatch import arguments, make
from cupy._door import pool, state
from cupy._door.calls import Remote, remote_object
from cupy._door.cuda_errors import CUDADriverError
from cupy.cuda.memory import MemoryPointer

SOURCE_MAX = 900_000
STRUCTURE_MAX = 4096
"""Bytes that CUDA lets a kernel have of parameters."""


class _Kernel(Remote):
    """A kernel object of one session."""

    __slots__ = ()


def checked(source: str) -> str:
    """Return a source, if it is not too long to be sent."""
    if len(source) > SOURCE_MAX:
        raise ValueError(f"kernel source of {len(source):,} characters; at most {SOURCE_MAX:,}")
    return source


class Compiled:
    """Makes the worker's kernel at first use in each session."""

    def __init__(self, operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._operation = operation
        self._args = args
        self._kwargs = kwargs
        self._made: dict[int, Any] = {}

    def in_session(self, session: Any) -> Any:
        """Return the worker's object, made at first use."""
        found = self._made.get(id(session))
        if found is None or found._gp_session is not session:
            found = self._made[id(session)] = remote_object(
                _Kernel, session, self._operation, self._args, **self._kwargs
            )
        return found


class RawKernel:
    """A CUDA C++ function, launched with a grid and arguments."""

    def __init__(
        self,
        code: str,
        name: str,
        options: Any = (),
        backend: str = "nvrtc",
        *,
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        jitify: bool = False,
    ) -> None:
        _only_nvrtc(backend, jitify)
        self.code = checked(code)
        self.name = name
        self.options = tuple(options)
        self.backend = backend
        self.enable_cooperative_groups = enable_cooperative_groups
        self.file_path: str | None = None
        self._compiled = Compiled(
            "kernel.RawKernel",
            (code, name, list(self.options), translate_cucomplex, enable_cooperative_groups),
            {},
        )

    def _remote(self) -> Any:
        return self._compiled.in_session(pool.current())

    def __call__(
        self, grid: Any, block: Any, args: Any = (), *, shared_mem: int = 0, stream: Any = None
    ) -> None:
        """Launch the kernel, in `stream` or the current one; nothing waits."""
        values = tuple(_argument(value) for value in args)
        kernel = self._compiled.in_session(make.session_of(*values))
        keywords = {"shared_mem": int(shared_mem)} if shared_mem else {}
        blocks, threads = _dims("grid", grid), _dims("block", block)
        check_launch(blocks, threads)
        launch = (kernel, blocks, threads, values)
        if stream is None:
            kernel._gp_session.call("kernel.launch_raw", launch, keywords)
            return
        here = state.local.context[0]
        before = state.local.streams.get(here)
        stream.use()
        try:
            kernel._gp_session.call("kernel.launch_raw", launch, keywords)
        finally:
            state.use_stream(here, before)  # `with` would forget a stream of `use`

    def compile(self, log_stream: Any = None) -> None:
        """Compile now; raise `CompileException` if the source does not compile."""
        _compile(self._remote(), log_stream)

    @property
    def kernel(self) -> RawKernel:
        """The kernel itself; the server's function object stays there."""
        return self

    @property
    def attributes(self) -> dict[str, int]:
        """Attributes that CUDA has of the compiled function."""
        return self._remote()._gp_session.ask("kernel.attributes", (self._remote(),))


def _attribute(name: str) -> property:
    def read(self: RawKernel) -> int:
        return self.attributes[name]

    return property(read, doc=f"The function's {name.replace('_', ' ')}.")


_ATTRIBUTES = """
    max_threads_per_block shared_size_bytes const_size_bytes local_size_bytes num_regs ptx_version
    binary_version cache_mode_ca max_dynamic_shared_size_bytes preferred_shared_memory_carveout
"""
for _name in _ATTRIBUTES.split():
    setattr(RawKernel, _name, _attribute(_name))


class RawModule:
    """CUDA C++ source, PTX or a cubin, with several functions."""

    def __init__(
        self,
        code: Any = None,
        path: str | None = None,
        options: Any = (),
        backend: str = "nvrtc",
        *,
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        name_expressions: Any = None,
        jitify: bool = False,
    ) -> None:
        if (code is None) == (path is None):
            raise TypeError("Exactly one of `code` and `path` keyword arguments must be given.")
        _only_nvrtc(backend, jitify)
        self.code = code if code is None else checked(code)
        self.file_path = path
        self.options = tuple(options)
        self.backend = backend
        self.enable_cooperative_groups = enable_cooperative_groups
        self.name_expressions = None if name_expressions is None else list(name_expressions)
        if path is not None:
            # The file is of this machine: its bytes travel, never its name.
            try:
                with open(path, "rb") as file:
                    binary = file.read()
            except FileNotFoundError:
                missing = "CUDA_ERROR_FILE_NOT_FOUND: file not found"
                raise CUDADriverError(missing) from None
            if len(binary) > SOURCE_MAX:
                raise ValueError(f"module of {len(binary):,} bytes; at most {SOURCE_MAX:,}")
            self._compiled = Compiled("kernel.module", (binary,), {})
        else:
            args = (
                code,
                list(self.options),
                translate_cucomplex,
                enable_cooperative_groups,
                self.name_expressions,
            )
            self._compiled = Compiled("kernel.RawModule", args, {})

    def compile(self, log_stream: Any = None) -> None:
        """Compile now; raise `CompileException` if the source does not compile."""
        _compile(self._compiled.in_session(pool.current()), log_stream)

    def get_function(self, name: str) -> RawKernel:
        """Return one function of the module."""
        made = RawKernel.__new__(RawKernel)
        made.code = self.code or ""
        made.name = name
        made.options = self.options
        made.backend = self.backend
        made.file_path = self.file_path
        made.enable_cooperative_groups = self.enable_cooperative_groups
        compiled = _OfModule(self._compiled, name)
        compiled.in_session(pool.current())  # now, so that its errors are of this call
        made._compiled = compiled  # type: ignore[assignment]
        return made

    def get_global(self, name: str) -> Any:
        """Return a pointer to a global variable of the module."""
        kernel = self._compiled.in_session(pool.current())
        array = kernel._gp_session.ask("kernel.global", (kernel, name))
        return MemoryPointer(array)


class _OfModule(Compiled):
    def __init__(self, module: Compiled, name: str) -> None:
        super().__init__("kernel.function", (), {})
        self._module = module
        self._name = name

    def in_session(self, session: Any) -> Any:
        """Return the worker's object, made at first use."""
        found = self._made.get(id(session))
        if found is None or found._gp_session is not session:
            args = (self._module.in_session(session), self._name)
            found = remote_object(_Kernel, session, "kernel.function", args)
            self._made[id(session)] = found
        return found


def _only_nvrtc(backend: str, jitify: bool) -> None:
    if backend != "nvrtc" or jitify:
        raise NotImplementedError(
            "only the nvrtc backend without jitify compiles on a remote GPU: the others read and "
            "write files of the server"
        )


def _compile(kernel: Any, log_stream: Any) -> None:
    """Compile in the worker; its compiler's log comes back only if ``log_stream`` is given."""
    if log_stream is None:
        kernel._gp_session.ask("kernel.compile", (kernel,))
    else:
        log_stream.write(kernel._gp_session.ask("kernel.compile", (kernel, True)) or "")


def _dims(name: str, value: Any) -> tuple[int, ...]:
    """Return three sizes of a launch; an empty grid is one block, as in CuPy."""
    if not isinstance(value, tuple):
        kind = type(value).__name__
        raise TypeError(f"Argument '{name}' has incorrect type (expected tuple, got {kind})")
    return tuple([max(1, arguments.integer(item)) for item in (*value, 1, 1)[:3]])


def check_launch(blocks: tuple[int, ...], threads: tuple[int, ...]) -> None:
    """Raise for a grid or a block that no GPU has."""
    most = all(map(le, (*blocks, *threads), _MOST))
    if not most or threads[0] * threads[1] * threads[2] > _MOST[3]:
        error = CUDADriverError
        raise error("CUDA_ERROR_INVALID_VALUE: invalid argument")


_MOST = (2**31 - 1, 65535, 65535, 1024, 1024, 64)


def _argument(value: Any) -> Any:
    if isinstance(value, MemoryPointer):
        return value._bytes(1)
    if isinstance(value, np.ndarray):
        if value.size != 1:
            raise TypeError(
                f"You are trying to pass a numpy.ndarray of shape {value.shape} as a kernel "
                "parameter: one of size one is passed by value, and memory of the GPU is that of a "
                "cupy.ndarray"
            )
        value = value.reshape(())[()]
    if isinstance(value, np.void) and not value.dtype.hasobject:  # a structure, by value
        if value.nbytes > STRUCTURE_MAX:
            raise ValueError(f"a structure of {value.nbytes:,} bytes; at most {STRUCTURE_MAX:,}")
        return value.tobytes()
    return arguments.operand(value)


RAW_KERNELS: dict[str, Any] = {"RawKernel": RawKernel, "RawModule": RawModule}
