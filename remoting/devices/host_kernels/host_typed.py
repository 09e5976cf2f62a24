"""Elementwise and reduction kernels on an emulated GPU, from the source that CuPy would make.

A kernel is compiled once for its types: shapes and strides are data, and not types as in CuPy. One
thread computes one element, as on a GPU, and a thread of a reduction computes one result.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpupool.remoting.devices.host_kernels import host_compiler, kernel_source, typed_parameters
from gpupool.remoting.devices.host_kernels.host_raw import INVALID
from gpupool.remoting.devices.host_kernels.kernel_errors import CUDADriverError
from gpupool.remoting.devices.host_kernels.typed_parameters import Memory, Parameter
from gpupool.remoting.devices.sources import check_options, check_source

Array = np.ndarray[Any, Any]
Types = dict[str, np.dtype[Any]]

HEADERS = ("cupy/complex.cuh", "cupy/carray.cuh", "cuda_fp16.h")
BLOCK_SIZE = 128
BLOCK_MAX = 1024
GRID_MAX = 2**31 - 1
ENTRY = "gpupool_kernel"
"""A kernel's own name may be that of a function of C, and nobody calls it by that."""


class _Typed:
    """Base of the two kinds of kernels."""

    def __init__(
        self, backend: Any, in_params: Any, out_params: Any, name: Any, options: Any, *texts: Any
    ) -> None:
        check_source(*[_text(each) for each in (in_params, out_params, name, *texts)])
        self.backend = backend
        self.name = name
        self.options = check_options([_text(each) for each in options])
        self.inputs = typed_parameters.parameters(in_params, constant=True)
        self.outputs = typed_parameters.parameters(out_params, constant=False)
        self._entries: dict[Any, tuple[Any, int]] = {}

    def split(self, args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return inputs and outputs of a call."""
        if len(args) not in (len(self.inputs), len(self.inputs) + len(self.outputs)):
            raise TypeError(f"Wrong number of arguments for {self.name!r}: {len(args)}")
        values, results = list(args[: len(self.inputs)]), list(args[len(self.inputs) :])
        if not all(isinstance(result, np.ndarray) for result in results):
            raise TypeError("Output arguments type must be cupy.ndarray")
        return values, results

    def results(
        self, given: list[Any], types: Types, shape: tuple[int, ...], *, sized: bool
    ) -> list[Array]:
        """Return the outputs of a call, new ones where none were given."""
        if given:
            for parameter, array in zip(self.outputs, given, strict=True):
                if not parameter.raw and array.shape != shape:
                    raise ValueError("Out shape is mismatched")
            return given
        if not sized and any(parameter.raw for parameter in self.outputs):
            raise ValueError("Output array size is Undecided")
        kinds = [typed_parameters.dtype_of(parameter, types) for parameter in self.outputs]
        self.backend.expect(math.prod(shape) * sum(kind.itemsize for kind in kinds))
        return [np.zeros(shape, kind) for kind in kinds]

    def launch(
        self,
        key: tuple[Any, ...],
        source: Callable[[], str],
        memory: Memory,
        count: int,
        block_size: int,
    ) -> None:
        """Run one thread for each of so many elements."""
        if key not in self._entries:
            text = kernel_source.unit(source(), HEADERS)
            made = host_compiler.compiled(text, self.options, every=False)
            self._entries[key] = made.library, made.library.address(ENTRY)
        library, entry = self._entries[key]
        block = min(block_size, count)
        grid = min(-(-count // block), GRID_MAX)
        library.launch(entry, (grid, 1, 1), (block, 1, 1), memory.pointers)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a kernel's source is no text")
    return value


def _argument(parameter: Parameter, place: int, value: Any) -> str:
    """Return the declaration of a parameter in a kernel's function."""
    kind = typed_parameters.type_of(parameter)
    if not isinstance(value, np.ndarray):
        return f"{kind} {parameter.name} = *static_cast<{kind} *>(_gp[{place}]);"
    constant = "const " if parameter.constant else ""
    array = f"{constant}CArray<{kind}> &_raw_{parameter.name} = "
    declared = f"{array}*static_cast<CArray<{kind}> *>(_gp[{place}]);"
    if parameter.raw:
        declared += f" {constant}CArray<{kind}> &{parameter.name} = _raw_{parameter.name};"
    return declared


def _arrays(
    parameters: Sequence[Parameter], values: Sequence[Any]
) -> list[tuple[int, Parameter, Array]]:
    """Return the places, parameters and arrays with named elements in a kernel."""
    return [
        (place, parameter, value)
        for place, (parameter, value) in enumerate(zip(parameters, values, strict=True))
        if isinstance(value, np.ndarray) and not parameter.raw
    ]


def _kinds(values: Sequence[Any]) -> tuple[bool, ...]:
    return tuple(isinstance(value, np.ndarray) for value in values)


class ElementwiseKernel(_Typed):
    """A kernel that computes each element by a piece of CUDA C++."""

    def __init__(
        self,
        backend: Any,
        in_params: Any,
        out_params: Any,
        operation: Any,
        name: Any,
        *,
        reduce_dims: Any = True,
        preamble: Any = "",
        options: Any = (),
        loop_prep: Any = "",
        after_loop: Any = "",
    ) -> None:
        texts = (operation, preamble, loop_prep, after_loop)
        super().__init__(backend, in_params, out_params, name, options, *texts)
        self._operation, self._preamble, self._prepare, self._after = texts
        self._reduce_dims = bool(reduce_dims)

    def __call__(self, *args: Any, size: Any = None, block_size: Any = BLOCK_SIZE) -> Any:
        """Run the kernel; return its outputs."""
        if type(block_size) is not int or block_size <= 0:
            raise ValueError("block_size must be greater than zero")
        if block_size > BLOCK_MAX:
            raise CUDADriverError(INVALID)
        values, given = self.split(args)
        types = typed_parameters.bind(self.inputs, self.outputs, values, given)
        parameters = (*self.inputs, *self.outputs)
        shape = self._shape(parameters, [*values, *given], size)
        results = self.results(given, types, shape, sized=size is not None)
        if 0 not in shape:
            self._run(parameters, [*values, *results], types, shape, block_size)
        return results[0] if len(results) == 1 else tuple(results)

    def _shape(
        self, parameters: Sequence[Parameter], values: Sequence[Any], size: Any
    ) -> tuple[int, ...]:
        pairs = zip(parameters, values, strict=False)
        arrays = [value for each, value in pairs if isinstance(value, np.ndarray) and not each.raw]
        if size is not None:
            if arrays:
                raise ValueError(
                    "Specified 'size' can be used only if all of the ndarray are 'raw'."
                )
            if type(size) is not int or size < 0:
                raise ValueError("size must be a number of elements")
            return (size,)
        if not arrays:
            raise ValueError("Loop size is undecided.")
        return np.broadcast_shapes(*[array.shape for array in arrays])

    def _run(
        self,
        parameters: Sequence[Parameter],
        values: list[Any],
        types: Types,
        shape: tuple[int, ...],
        block_size: int,
    ) -> None:
        named = _arrays(parameters, values)
        views = [np.broadcast_to(array, shape) for _, _, array in named]
        count, index = math.prod(shape), shape
        if self._reduce_dims:
            index, views = typed_parameters.collapse(shape, views)
        for (place, _, _), view in zip(named, views, strict=True):
            values[place] = view
        memory = Memory()
        for parameter, value in zip(parameters, values, strict=True):
            if isinstance(value, np.ndarray):
                memory.array(value)
            else:
                memory.number(value, typed_parameters.dtype_of(parameter, types))
        memory.layout(0, index, index, dense=True)
        key = (*sorted(types.items()), _kinds(values))
        self.launch(key, lambda: self._source(parameters, values, types), memory, count, block_size)

    def _source(self, parameters: Sequence[Parameter], values: Sequence[Any], types: Types) -> str:
        declared = [
            _argument(parameter, place, value)
            for place, (parameter, value) in enumerate(zip(parameters, values, strict=True))
        ]
        elements = [
            f"{'const ' if parameter.constant else ''}{typed_parameters.type_of(parameter)} "
            f"&{parameter.name} = _raw_{parameter.name}.at(_ind);"
            for _, parameter, _ in _arrays(parameters, values)
        ]
        return "\n".join(
            (
                typed_parameters.typedefs(types),
                self._preamble,
                f'extern "C" void {ENTRY}(void **_gp) {{',
                *declared,
                f"CIndexer _ind(*static_cast<gpupool::Layout *>(_gp[{len(values)}]));",
                f"{self._prepare};",
                "CUPY_FOR(i, _ind.size()) {",
                "_ind.set(i);",
                *elements,
                f"{self._operation};",
                "}",
                f"{self._after};",
                "}",
            )
        )


class ReductionKernel(_Typed):
    """A kernel that reduces along axes by pieces of CUDA C++."""

    def __init__(
        self,
        backend: Any,
        in_params: Any,
        out_params: Any,
        map_expr: Any,
        reduce_expr: Any,
        post_map_expr: Any,
        identity: Any,
        name: Any,
        reduce_type: Any,
        reduce_dims: Any,
        preamble: Any,
        options: Any,
    ) -> None:
        identity = "" if identity is None else identity
        texts = (map_expr, reduce_expr, post_map_expr, identity, preamble)
        super().__init__(backend, in_params, out_params, name, options, *texts, reduce_type or "")
        self._map, self._reduce, self._post, self._identity, self._preamble = texts
        if not self.outputs:
            raise ValueError("a reduction has an output")
        self._type = reduce_type or typed_parameters.type_of(self.outputs[0])
        self._reduce_dims = bool(reduce_dims)

    def __call__(self, *args: Any, axis: Any = None, keepdims: Any = False) -> Any:
        """Run the kernel along axes; return its outputs."""
        values, given = self.split(args)
        types = typed_parameters.bind(self.inputs, self.outputs, values, given)
        named = _arrays(self.inputs, values)
        if not named:
            raise ValueError("Loop size is undecided.")
        shape = np.broadcast_shapes(*[array.shape for _, _, array in named])
        over, rest = _axes(axis, len(shape))
        if 0 in shape and not self._identity:
            raise ValueError(
                f"zero-size array to reduction operation {self.name} which has no identity"
            )
        order = over + rest
        if order != tuple(range(len(shape))) and any(each.raw for each in self.inputs):
            raise NotImplementedError("Illegal conditions")
        if keepdims:
            left = tuple(1 if at in over else length for at, length in enumerate(shape))
        else:
            left = tuple(shape[at] for at in rest)
        results = self.results(given, types, left, sized=False)
        if 0 not in left:
            for place, _, array in named:
                values[place] = np.broadcast_to(array, shape).transpose(order)
            self._run(values, results, types, tuple(shape[at] for at in order), len(rest))
        return results[0] if len(results) == 1 else tuple(results)

    def _run(
        self,
        values: list[Any],
        results: Sequence[Array],
        types: Types,
        shape: tuple[int, ...],
        rest: int,
    ) -> None:
        left = shape[len(shape) - rest :]
        outputs: list[Any] = [
            # Without the dimensions of one element that are kept for the result's shape.
            array if each.raw or array.shape == left else _squeezed(array, left)
            for each, array in zip(self.outputs, results, strict=True)
        ]
        count, index = math.prod(left), shape
        for names, arrays in ((self.inputs, values), (self.outputs, outputs)):
            named = _arrays(names, arrays)
            whole = shape if arrays is values else left
            views: list[Array] = [array for _, _, array in named]
            if self._reduce_dims:
                whole, views = typed_parameters.collapse(whole, views)
            for (place, _, _), view in zip(named, views, strict=True):
                arrays[place] = view
            if arrays is values:
                index = whole
            else:
                left = whole
        memory = Memory()
        parameters = (*self.inputs, *self.outputs)
        for parameter, value in zip(parameters, (*values, *outputs), strict=True):
            if isinstance(value, np.ndarray):
                memory.array(value)
            else:
                memory.number(value, typed_parameters.dtype_of(parameter, types))
        memory.layout(0, index, index, dense=True)
        memory.layout(0, left, left, dense=True)
        key = (*sorted(types.items()), _kinds(values))
        source = lambda: self._source([*values, *outputs], types)  # noqa: E731
        self.launch(key, source, memory, count, BLOCK_SIZE)

    def _source(self, values: Sequence[Any], types: Types) -> str:
        parameters = (*self.inputs, *self.outputs)
        declared = [
            _argument(parameter, place, value)
            for place, (parameter, value) in enumerate(zip(parameters, values, strict=True))
        ]
        inputs = [
            f"{'const ' if parameter.constant else ''}{typed_parameters.type_of(parameter)} "
            f"{parameter.name} = _raw_{parameter.name}.at(_in_ind);"
            for _, parameter, _ in _arrays(self.inputs, values[: len(self.inputs)])
        ]
        outputs = [
            f"{typed_parameters.type_of(parameter)} &{parameter.name} = "
            f"_raw_{parameter.name}.at(_out_ind);"
            for _, parameter, _ in _arrays(self.outputs, values[len(self.inputs) :])
        ]
        place = len(values)
        return "\n".join(
            (
                typed_parameters.typedefs(types),
                self._preamble,
                f"#define REDUCE(a, b) ({self._reduce})",
                f"#define POST_MAP(a) ({self._post})",
                f"typedef {self._type} _type_reduce;",
                f'extern "C" void {ENTRY}(void **_gp) {{',
                *declared,
                f"CIndexer _in_ind(*static_cast<gpupool::Layout *>(_gp[{place}]));",
                f"CIndexer _out_ind(*static_cast<gpupool::Layout *>(_gp[{place + 1}]));",
                "CUPY_FOR(_i, _out_ind.size()) {",
                f"_type_reduce _s = _type_reduce({self._identity});",
                "IndexT _J = 0;",
                "for (ptrdiff_t _j = _i; _j < _in_ind.size(); _j += _out_ind.size(), ++_J) {",
                "_in_ind.set(_j);",
                *inputs,
                f"_type_reduce _a = static_cast<_type_reduce>({self._map});",
                "_s = REDUCE(_s, _a);",
                "}",
                "_out_ind.set(_i);",
                *outputs,
                "POST_MAP(_s);",
                "}",
                "}",
            )
        )


def _squeezed(array: Array, shape: tuple[int, ...]) -> Array:
    """Return a view without the dimensions of one element that a shape does not have."""
    made = array.reshape(shape)
    if not np.may_share_memory(made, array):
        raise ValueError("Out shape is mismatched")
    return made


def _axes(axis: Any, ndim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes to reduce, and the others."""
    if axis is None:
        return tuple(range(ndim)), ()
    items = axis if isinstance(axis, (tuple, list)) else (axis,)
    if not all(type(item) is int for item in items):
        raise TypeError("axes are integers")
    over = tuple(sorted(np.lib.array_utils.normalize_axis_index(item, ndim) for item in items))
    if len(set(over)) != len(over):
        raise ValueError("duplicate value in 'axis'")
    return over, tuple(at for at in range(ndim) if at not in over)
