"""Elementwise and reduction kernels: pieces of CUDA C++, and arguments by CuPy's rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy._core.dispatch import arguments, make
from cupy._core.kernels.raw_kernels import Compiled, check_launch, checked
from cupy._core.ufunc import broadcast
from cupy._door.meta import fresh
from cupy._door.older import zip_strict
from cupy.cuda.texture import TextureObject


class ParameterInfo:
    """One parameter of an elementwise or reduction kernel: ``'raw T x'``."""

    def __init__(self, text: str, is_const: bool) -> None:
        words = text.split()
        if len(words) < 2:
            raise ValueError(f"Syntax error: {text}")
        *before, self.ctype, self.name = words
        self.raw = False
        self.is_const = is_const
        # A single letter stands for a type that the arguments decide.
        self.dtype = None if len(self.ctype) == 1 else arguments.dtype_of(np.dtype(self.ctype))
        for word in before:
            if word == "raw":
                self.raw = True
            elif word == "_non_const":
                self.is_const = False
            else:
                raise ValueError(f'Unknown keyword "{word}"')


def _parameters(text: str, is_const: bool) -> tuple[ParameterInfo, ...]:
    return tuple(
        [ParameterInfo(part, is_const) for part in text.strip().split(",")] if text else ()
    )


class _Typed:
    """Base of elementwise and reduction kernels: parameters with types to bind."""

    in_params: tuple[ParameterInfo, ...]
    out_params: tuple[ParameterInfo, ...]
    name: str
    _compiled: Compiled

    @property
    def params(self) -> tuple[ParameterInfo, ...]:
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
        """Return the types that letters stand for. Arrays decide, and those of outputs first.

        The letter of a texture stands for its own type, which is that of no array.
        """
        types: dict[str, np.dtype[Any]] = {}
        given = zip_strict(self.out_params, outputs) if outputs else ()
        for parameter, value in (*given, *zip_strict(self.in_params, inputs)):
            if not arguments.is_array(value):
                continue
            wanted = parameter.dtype
            if wanted is None:
                wanted = types.setdefault(parameter.ctype, value.dtype)
            if wanted != value.dtype:
                raise TypeError(f"Type is mismatched. {parameter.name} {value.dtype} {wanted}")
        textures = {
            parameter.ctype
            for parameter, value in zip_strict(self.in_params, inputs)
            if isinstance(value, TextureObject)
        }
        for parameter in self.params:
            if parameter.dtype is None and parameter.ctype not in {*types, *textures}:
                raise TypeError(f"type {parameter.ctype!r} is not decided by any array")
        return types

    def _shapes(self, parameters: Any, values: list[Any]) -> list[tuple[int, ...]]:
        pairs = zip(parameters, values)
        return [v.shape for p, v in pairs if not p.raw and arguments.is_array(v)]

    def _launched(
        self, inputs: list[Any], outputs: list[Any], keywords: dict[str, Any], shape: Any
    ) -> tuple[Any, ...]:
        """Launch the kernel; return the outputs that were given, or else new ones of a shape."""
        types = self._bound(inputs, outputs)
        for parameter, value in zip_strict(self.out_params, outputs) if outputs else ():
            if not arguments.is_array(value):
                raise TypeError("Output arguments type must be cupy.ndarray")
            if not parameter.raw and value.shape != shape:
                raise ValueError("Out shape is mismatched")
        session = make.session_of(*inputs, *outputs)
        launch = self._compiled.in_session(session), *inputs, *outputs
        if outputs or not self.out_params:
            session.call("kernel.launch", launch, keywords)
            return tuple(outputs)
        kinds = [types[p.ctype] if p.dtype is None else p.dtype for p in self.out_params]
        metas = [fresh(kind, shape) for kind in kinds]
        first, device = session.call("kernel.launch", launch, keywords, *metas)
        return tuple(
            [make.result(session, first + at, meta, device) for at, meta in enumerate(metas)]
        )


def _checked_name(name: str) -> str:
    if not name.isidentifier():
        raise ValueError(f'Invalid kernel name: "{name}"')
    return name


def _only(kwargs: dict[str, Any], *names: str) -> None:
    wrong = {key: value for key, value in kwargs.items() if key not in names}
    if wrong:
        raise TypeError(f"Wrong arguments {wrong}")


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
        self.name = self.__name__ = _checked_name(name)
        _only(kwargs, "options", "loop_prep", "after_loop")
        self.in_params = _parameters(in_params, True)
        self.out_params = _parameters(out_params, False)
        if any(parameter.name == "i" for parameter in self.params):
            raise ValueError("Can not use 'i' as a parameter name")
        self.operation = checked(operation)
        self.preamble = preamble
        self.reduce_dims = reduce_dims
        self.no_return = no_return
        self.return_tuple = return_tuple
        self.kwargs = kwargs
        given = {
            key: list(value) if isinstance(value, tuple) else value for key, value in kwargs.items()
        }
        given |= {"reduce_dims": bool(reduce_dims), "preamble": preamble}
        parts = in_params, out_params, operation, name
        self._compiled = Compiled("kernel.ElementwiseKernel", *parts, **given)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel; outputs that are not given are made.

        Args:
            args: inputs, or inputs and outputs.
            kwargs: ``size`` where all arrays are raw, ``block_size`` and ``stream``.
        """
        _only(kwargs, "size", "stream", "block_size")
        size = int(kwargs.get("size", -1))
        block_size = int(kwargs.get("block_size", 128))
        if block_size <= 0:
            raise ValueError("block_size must be greater than zero")
        check_launch((1, 1, 1), (block_size, 1, 1))
        if len(args) not in (self.nin, self.nargs):
            raise TypeError(
                f"Wrong number of arguments for {self.name!r}. It must be either {self.nin} or "
                f"{self.nargs} (with outputs), but given {len(args)}."
            )
        values = [arguments.operand(arg) for arg in args]
        inputs, outputs = values[: self.nin], values[self.nin :]
        shapes = self._shapes(self.params, values)
        if size != -1 and shapes:
            raise ValueError("Specified 'size' can be used only if all of the ndarray are 'raw'.")
        if size == -1 and not shapes:
            raise ValueError("Loop size is undecided.")
        shape = broadcast(*shapes) if size == -1 else arguments.shape_of(size)
        if not outputs and size == -1 and any(parameter.raw for parameter in self.out_params):
            raise ValueError("Output array size is Undecided")
        keywords: dict[str, Any] = {"block_size": block_size}
        if size != -1:
            keywords["size"] = size
        made = self._launched(inputs, outputs, keywords, shape)
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
        self.name = self.__name__ = _checked_name(name)
        self.in_params = _parameters(in_params, True)
        self.out_params = _parameters(out_params, False)
        self.map_expr = checked(map_expr)
        self.reduce_expr = reduce_expr
        self.post_map_expr = post_map_expr
        self.identity = "" if identity is None else str(identity)
        self.reduce_type = self.out_params[0].ctype if reduce_type is None else reduce_type
        self.reduce_dims = reduce_dims
        self.preamble = preamble
        self.options = options
        texts = (in_params, out_params, map_expr, reduce_expr, post_map_expr)
        start = None if identity is None else str(identity)
        rest = (start, name, reduce_type, bool(reduce_dims), preamble, list(options))
        self._compiled = Compiled("kernel.ReductionKernel", *texts, *rest)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel along axes.

        Args:
            args: inputs, or inputs and outputs.
            kwargs: ``out``, ``axis``, ``keepdims`` and ``stream``.
        """
        _only(kwargs, "out", "axis", "keepdims", "stream")
        if len(args) not in (self.nin, self.nargs):
            raise TypeError(f"Wrong number of arguments for {self.name}")
        values = [arguments.operand(arg) for arg in args]
        inputs, outputs = values[: self.nin], values[self.nin :]
        if kwargs.get("out") is not None:
            if self.nout != 1:
                raise NotImplementedError("'out' of a kernel with several outputs")
            if outputs:
                raise ValueError("cannot specify 'out' as both a positional and keyword argument")
            outputs = [arguments.operand(kwargs["out"])]
        shapes = self._shapes(self.in_params, inputs)
        if not shapes:
            raise ValueError("Loop size is undecided.")
        shape = broadcast(*shapes)
        axis, keepdims = kwargs.get("axis"), bool(kwargs.get("keepdims", False))
        over = arguments.axes_of(axis, len(shape))
        if 0 in shape and not self.identity:
            raise ValueError(
                f"zero-size array to reduction operation {self.name} which has no identity"
            )
        if keepdims:
            left = tuple([1 if at in over else n for at, n in enumerate(shape)])
        else:
            left = tuple([n for at, n in enumerate(shape) if at not in over])
        keywords: dict[str, Any] = {}
        if axis is not None:
            keywords["axis"] = over
        if keepdims:
            keywords["keepdims"] = True
        made = self._launched(inputs, outputs, keywords, left)
        return made[0] if len(made) == 1 else made


TYPED_KERNELS: dict[str, Any] = {
    "ElementwiseKernel": ElementwiseKernel,
    "ReductionKernel": ReductionKernel,
}
