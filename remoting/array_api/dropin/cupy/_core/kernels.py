"""Kernels from source: sent once, compiled by the worker, called like any other operation."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from cupy._core.dispatch import arguments, make
from cupy._core.ufunc import broadcast
from cupy._door import pool, state
from cupy._door.calls import Remote, remote_object
from cupy._door.meta import fresh
from cupy._door.older import zip_strict

SOURCE_MAX = 900_000
_PARAMETER = re.compile(r"^\s*(raw\s+)?(?:const\s+)?(\w+)\s+(\w+)\s*$")


class _Kernel(Remote):
    """A kernel object of one session."""

    __slots__ = ()


class Parameter:
    """One parameter of an elementwise or reduction kernel: ``'raw T x'``."""

    def __init__(self, text: str) -> None:
        found = _PARAMETER.match(text)
        if found is None:
            raise ValueError(f"Invalid parameter syntax: {text!r}")
        self.raw = found[1] is not None
        self.ctype = found[2]
        self.name = found[3]
        # A single letter stands for a type that the arguments decide.
        self.dtype = None if len(self.ctype) == 1 else np.dtype(self.ctype)


def _parameters(text: str) -> tuple[Parameter, ...]:
    return tuple(Parameter(part) for part in text.split(",") if part.strip())


def _checked(source: str) -> str:
    if len(source) > SOURCE_MAX:
        raise ValueError(f"kernel source of {len(source):,} characters; at most {SOURCE_MAX:,}")
    return source


class _Compiled:
    """Makes the worker's kernel at first use in each session."""

    def __init__(self, operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._operation = operation
        self._args = args
        self._kwargs = kwargs
        self._made: dict[int, Any] = {}

    def in_session(self, session: Any) -> Any:
        """Return the worker's object, made at first use."""
        found = self._made.get(id(session))
        if found is None or found._session is not session:
            if session.devices[0].get("emulated"):
                raise NotImplementedError(
                    f"{self._operation.removeprefix('kernel.')} needs a real GPU: this device is "
                    "emulated, it computes with NumPy and cannot compile CUDA source"
                )
            found = self._made[id(session)] = remote_object(
                _Kernel, session, self._operation, self._args, **self._kwargs
            )
        return found


class _Typed:
    """What elementwise and reduction kernels share: parameters with types to bind."""

    in_params: tuple[Parameter, ...]
    out_params: tuple[Parameter, ...]
    name: str

    @property
    def params(self) -> tuple[Parameter, ...]:
        """All parameters."""
        return self.in_params + self.out_params

    @property
    def nin(self) -> int:
        """Number of inputs."""
        return len(self.in_params)

    @property
    def nout(self) -> int:
        """Number of outputs."""
        return len(self.out_params)

    @property
    def nargs(self) -> int:
        """Number of inputs and outputs."""
        return self.nin + self.nout

    def _bound(self, inputs: list[Any], outputs: list[Any]) -> dict[str, np.dtype[Any]]:
        types: dict[str, np.dtype[Any]] = {}
        for parameter, value in zip(self.params, [*inputs, *outputs]):
            if not isinstance(value, state.hooks["ndarray"]):
                continue
            if parameter.dtype is not None:
                if parameter.dtype != value.dtype:
                    raise TypeError(
                        f"Type is mismatched. {parameter.name} {value.dtype} {parameter.dtype}"
                    )
            elif types.setdefault(parameter.ctype, value.dtype) != value.dtype:
                raise TypeError(
                    f"Type is mismatched. {parameter.name} {value.dtype} {types[parameter.ctype]}"
                )
        for parameter, value in zip_strict(self.in_params, inputs):
            if parameter.dtype is None and parameter.ctype not in types:
                types[parameter.ctype] = np.asarray(value).dtype
        return types

    def _out_dtype(self, parameter: Parameter, types: dict[str, np.dtype[Any]]) -> np.dtype[Any]:
        kind = parameter.dtype if parameter.dtype is not None else types.get(parameter.ctype)
        if kind is None:
            raise TypeError(f"output type {parameter.ctype!r} is not decided by any argument")
        return kind


def _checked_name(name: str) -> str:
    if not name.isidentifier():
        raise ValueError(f"Invalid kernel name: {name!r}")
    return name


class ElementwiseKernel(_Typed):
    """A kernel that computes each element by a piece of CUDA C++; see CuPy's documentation."""

    def __init__(
        self,
        in_params: str,
        out_params: str,
        operation: str,
        name: str = "kernel",
        reduce_dims: bool = True,
        preamble: str = "",
        no_return: bool = False,
        return_tuple: bool = False,
        **kwargs: Any,
    ) -> None:
        self.in_params = _parameters(in_params)
        self.out_params = _parameters(out_params)
        self.operation = _checked(operation)
        self.name = _checked_name(name)
        self.preamble = preamble
        self.reduce_dims = reduce_dims
        self.no_return = no_return
        self.return_tuple = return_tuple
        self.kwargs = kwargs
        given = {
            key: list(value) if isinstance(value, tuple) else value for key, value in kwargs.items()
        }
        self._compiled = _Compiled(
            "kernel.ElementwiseKernel",
            (in_params, out_params, operation, name),
            {"reduce_dims": reduce_dims, "preamble": preamble, **given},
        )

    def __call__(
        self, *args: Any, size: Any = None, block_size: int = 128, stream: Any = None
    ) -> Any:
        """Run the kernel; outputs that are not given are made."""
        if len(args) not in (self.nin, self.nargs):
            raise TypeError(
                f"Wrong number of arguments for {self.name!r}. It must be either {self.nin} or "
                f"{self.nargs} (with outputs), but given {len(args)}."
            )
        values = [arguments.operand(arg) for arg in args]
        inputs, outputs = values[: self.nin], values[self.nin :]
        types = self._bound(inputs, outputs)
        ndarray: Any = state.hooks["ndarray"]
        shapes = [
            v.shape for p, v in zip(self.params, values) if not p.raw and isinstance(v, ndarray)
        ]
        if size is not None:
            shape = arguments.shape_of(size)
        elif shapes:
            shape = broadcast(*shapes)
        elif any(p.raw for p in self.in_params) or not values:
            raise ValueError("Loop size is undecided.")
        else:
            shape = ()
        session = make.session_of(*values)
        kernel = self._compiled.in_session(session)
        keywords: dict[str, Any] = {"block_size": block_size}
        if size is not None:
            keywords["size"] = int(size)
        if outputs:
            for parameter, value in zip_strict(self.out_params, outputs):
                if not parameter.raw and value.shape != shape:
                    raise ValueError("Out shape is mismatched")
            session.call("kernel.launch", (kernel, *values), keywords)
            made = tuple(outputs)
        else:
            metas = tuple(fresh(self._out_dtype(p, types), shape) for p in self.out_params)
            first, device = session.call("kernel.launch", (kernel, *values), keywords, *metas)
            made = tuple(
                make.result(session, first + at, meta, device) for at, meta in enumerate(metas)
            )
        if self.no_return:
            return None
        return made[0] if len(made) == 1 and not self.return_tuple else made


class ReductionKernel(_Typed):
    """A kernel that reduces by pieces of CUDA C++; see CuPy's documentation."""

    def __init__(
        self,
        in_params: str,
        out_params: str,
        map_expr: str,
        reduce_expr: str,
        post_map_expr: str,
        identity: Any,
        name: str = "reduce_kernel",
        reduce_type: Any = None,
        reduce_dims: bool = True,
        preamble: str = "",
        options: Any = (),
    ) -> None:
        self.in_params = _parameters(in_params)
        self.out_params = _parameters(out_params)
        self.map_expr = map_expr
        self.reduce_expr = reduce_expr
        self.post_map_expr = post_map_expr
        self.identity = "" if identity is None else str(identity)
        self.name = _checked_name(name)
        self.reduce_type = reduce_type
        self.reduce_dims = reduce_dims
        self.preamble = preamble
        self.options = options
        self._compiled = _Compiled(
            "kernel.ReductionKernel",
            (
                in_params,
                out_params,
                _checked(map_expr),
                reduce_expr,
                post_map_expr,
                None if identity is None else str(identity),
                name,
                reduce_type,
                reduce_dims,
                preamble,
                list(options),
            ),
            {},
        )

    def __call__(
        self,
        *args: Any,
        out: Any = None,
        axis: Any = None,
        keepdims: bool = False,
        stream: Any = None,
    ) -> Any:
        """Run the kernel along axes."""
        if len(args) not in (self.nin, self.nargs):
            raise TypeError(f"Wrong number of arguments for {self.name}")
        values = [arguments.operand(arg) for arg in args]
        inputs, outputs = values[: self.nin], values[self.nin :]
        if out is not None:
            outputs = [out]
        types = self._bound(inputs, outputs)
        ndarray: Any = state.hooks["ndarray"]
        shape = broadcast(
            *[
                v.shape
                for p, v in zip_strict(self.in_params, inputs)
                if not p.raw and isinstance(v, ndarray)
            ]
        )
        axes = arguments.axes_of(axis, len(shape))
        if keepdims:
            left = tuple(1 if at in axes else n for at, n in enumerate(shape))
        else:
            left = tuple(n for at, n in enumerate(shape) if at not in axes)
        session = make.session_of(*values)
        kernel = self._compiled.in_session(session)
        keywords: dict[str, Any] = {}
        if axis is not None:
            keywords["axis"] = axes
        if keepdims:
            keywords["keepdims"] = True
        if outputs:
            session.call("kernel.launch", (kernel, *inputs, *outputs), keywords)
            made = tuple(outputs)
        else:
            metas = tuple(fresh(self._out_dtype(p, types), left) for p in self.out_params)
            first, device = session.call("kernel.launch", (kernel, *inputs), keywords, *metas)
            made = tuple(
                make.result(session, first + at, meta, device) for at, meta in enumerate(metas)
            )
        return made[0] if len(made) == 1 else made


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
        self.code = _checked(code)
        self.name = name
        self.options = tuple(options)
        self.backend = backend
        self.enable_cooperative_groups = enable_cooperative_groups
        self.file_path: str | None = None
        self._compiled = _Compiled(
            "kernel.RawKernel",
            (code, name, list(self.options), translate_cucomplex, enable_cooperative_groups),
            {},
        )

    def _remote(self) -> Any:
        return self._compiled.in_session(pool.current())

    def __call__(
        self, grid: Any, block: Any, args: Any = (), *, shared_mem: int = 0, stream: Any = None
    ) -> None:
        """Launch the kernel; nothing waits."""
        values = tuple(_argument(value) for value in args)
        kernel = self._compiled.in_session(make.session_of(*values))
        keywords = {"shared_mem": int(shared_mem)} if shared_mem else {}
        kernel._session.call(
            "kernel.launch_raw", (kernel, _dims(grid), _dims(block), values), keywords
        )

    def compile(self, log_stream: Any = None) -> None:
        """Compile now; raise `CompileException` if the source does not compile."""
        self._remote()._session.ask("kernel.compile", (self._remote(),))

    @property
    def kernel(self) -> RawKernel:
        """The kernel itself; the server's function object stays there."""
        return self

    @property
    def attributes(self) -> dict[str, int]:
        """Attributes that CUDA has of the compiled function."""
        return self._remote()._session.ask("kernel.attributes", (self._remote(),))


def _attribute(name: str) -> property:
    def read(self: RawKernel) -> int:
        return self.attributes[name]

    return property(read, doc=f"The function's {name.replace('_', ' ')}.")


for _name in (
    "max_threads_per_block",
    "shared_size_bytes",
    "const_size_bytes",
    "local_size_bytes",
    "num_regs",
    "ptx_version",
    "binary_version",
    "cache_mode_ca",
    "max_dynamic_shared_size_bytes",
    "preferred_shared_memory_carveout",
):
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
        self.code = code if code is None else _checked(code)
        self.file_path = path
        self.options = tuple(options)
        self.backend = backend
        self.enable_cooperative_groups = enable_cooperative_groups
        self.name_expressions = None if name_expressions is None else list(name_expressions)
        if path is not None:
            # The file is of this machine: its bytes travel, never its name.
            with open(path, "rb") as file:
                binary = file.read()
            if len(binary) > SOURCE_MAX:
                raise ValueError(f"module of {len(binary):,} bytes; at most {SOURCE_MAX:,}")
            self._compiled = _Compiled("kernel.module", (binary,), {})
        else:
            args = (
                code,
                list(self.options),
                translate_cucomplex,
                enable_cooperative_groups,
                self.name_expressions,
            )
            self._compiled = _Compiled("kernel.RawModule", args, {})

    def compile(self, log_stream: Any = None) -> None:
        """Compile now; raise `CompileException` if the source does not compile."""
        kernel = self._compiled.in_session(pool.current())
        kernel._session.ask("kernel.compile", (kernel,))

    def get_function(self, name: str) -> RawKernel:
        """Return one function of the module."""
        made = RawKernel.__new__(RawKernel)
        made.code = self.code or ""
        made.name = name
        made.options = self.options
        made.backend = self.backend
        made.file_path = self.file_path
        made.enable_cooperative_groups = self.enable_cooperative_groups
        made._compiled = _OfModule(self._compiled, name)  # type: ignore[assignment]
        return made

    def get_global(self, name: str) -> Any:
        """Return a pointer to a global variable of the module."""
        kernel = self._compiled.in_session(pool.current())
        array = kernel._session.ask("kernel.global", (kernel, name))
        return state.hooks["MemoryPointer"](array)


class _OfModule(_Compiled):
    def __init__(self, module: _Compiled, name: str) -> None:
        super().__init__("kernel.function", (), {})
        self._module = module
        self._name = name

    def in_session(self, session: Any) -> Any:
        """Return the worker's object, made at first use."""
        found = self._made.get(id(session))
        if found is None or found._session is not session:
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


def _dims(value: Any) -> tuple[int, ...]:
    return tuple(int(item) for item in value) if isinstance(value, (tuple, list)) else (int(value),)


def _argument(value: Any) -> Any:
    if isinstance(value, state.hooks["MemoryPointer"]):
        return value._bytes(1)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return value[()]
    return arguments.operand(value)


KERNEL_CLASSES: dict[str, Any] = {
    "ElementwiseKernel": ElementwiseKernel,
    "ReductionKernel": ReductionKernel,
    "RawKernel": RawKernel,
    "RawModule": RawModule,
}
