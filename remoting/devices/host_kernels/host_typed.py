"""Elementwise and reduction kernels on an emulated GPU, from the source that CuPy would make.

A kernel is compiled once for its types: shapes and strides are data, and not types as in CuPy. One
thread computes one element, as on a GPU, and a thread of a reduction computes one result.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpupool.remoting.devices.base import is_ndarray
from gpupool.remoting.devices.host_kernels import (
    host_compiler,
    kernel_source,
    strict_source,
    typed_parameters,
)
from gpupool.remoting.devices.host_kernels.host_raw import GRID_MAX, INVALID, texts_of
from gpupool.remoting.devices.host_kernels.kernel_errors import CUDADriverError
from gpupool.remoting.devices.host_kernels.kernel_source import THREADS_MAX
from gpupool.remoting.devices.host_kernels.strict_launch import StrictLaunch
from gpupool.remoting.devices.host_kernels.typed_parameters import Memory, Parameter
from gpupool.remoting.devices.sources import check_options, check_source
from gpupool.remoting.devices.strict.strict_memory import StrictMode

Array = np.ndarray[Any, Any]
Types = dict[str, np.dtype[Any]]
_Named = tuple[int, Parameter, Array]

HEADERS = ("cupy/complex.cuh", "cupy/carray.cuh", "cuda_fp16.h")
BLOCK_SIZE = 128
ENTRY = "gpupool_kernel"
"""A kernel's own name may be that of a function of C, and nobody calls it by that."""


class _Typed:
    """Base of the two kinds of kernels."""

    preamble = ""

    def __init__(
        self, backend: Any, in_params: Any, out_params: Any, name: Any, options: Any, *texts: Any
    ) -> None:
        check_source(*texts_of("a kernel's parts", (in_params, out_params, name, *texts)))
        self.backend = backend
        self.name = name
        self.options = check_options(texts_of("options", options))
        self.inputs = typed_parameters.parameters(in_params, constant=True)
        self.outputs = typed_parameters.parameters(out_params, constant=False)
        self.parameters = (*self.inputs, *self.outputs)
        self._entries: dict[Any, tuple[Any, int]] = {}

    def body(self, named: Sequence[_Named]) -> Sequence[str]:
        """Return the lines that loop over indices, for arrays with named elements."""
        raise NotImplementedError

    def split(self, args: Sequence[Any]) -> tuple[list[Any], list[Any], Types]:
        """Return inputs and outputs of a call, and the types that letters have in it."""
        if len(args) not in (len(self.inputs), len(self.parameters)):
            raise TypeError(f"Wrong number of arguments for {self.name!r}: {len(args)}")
        values, results = list(args[: len(self.inputs)]), list(args[len(self.inputs) :])
        if not all(is_ndarray(result) for result in results):
            raise TypeError("Output arguments type must be cupy.ndarray")
        types = typed_parameters.bind(self.inputs, self.outputs, values, results)
        return values, results, types

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
        made, mode = [np.zeros(shape, kind) for kind in kinds], self.backend.strict
        return made if mode is None else list(map(mode.leave_unwritten, made))

    def launch(
        self, values: Sequence[Any], types: Types, indices: Sequence[tuple[int, ...]], block: int
    ) -> None:
        """Run one thread for each element of the last index."""
        mode: StrictMode | None = self.backend.strict
        memory = Memory()
        for parameter, value in zip(self.parameters, values, strict=True):
            if is_ndarray(value):
                memory.array(value)
            else:
                memory.number(value, typed_parameters.dtype_of(parameter, types))
        for index in indices:
            memory.layout(0, index, index, dense=True)
        key = (*sorted(types.items()), *[is_ndarray(value) for value in values])
        if key not in self._entries:
            text = kernel_source.unit(self._source(values, types), HEADERS)
            options = [*self.options, *([] if mode is None else [strict_source.OPTION])]
            made = host_compiler.compiled(text, options, every=False)
            self._entries[key] = made.library, made.library.address(ENTRY)
        library, entry = self._entries[key]
        count = math.prod(indices[-1])
        block = min(block, count)
        grid = min(-(-count // block), GRID_MAX[0])
        watch = None
        if mode is not None:
            watch = StrictLaunch(mode, self.name, arguments=memory.objects)
        library.launch(entry, (grid, 1, 1), (block, 1, 1), memory.pointers, watch)

    def _source(self, values: Sequence[Any], types: Types) -> str:
        declared = [
            _declared(parameter, place, value)
            for place, (parameter, value) in enumerate(zip(self.parameters, values, strict=True))
        ]
        return "\n".join(
            (
                typed_parameters.typedefs(types),
                self.preamble,
                f'extern "C" void {ENTRY}(void **_gp) {{',
                *declared,
                *self.body(_named(self.parameters, values)),
                "}",
            )
        )


def _type(parameter: Parameter) -> str:
    return ("const " if parameter.constant else "") + typed_parameters.type_of(parameter)


def _declared(parameter: Parameter, place: int, value: Any) -> str:
    """Return the declaration of a parameter in a kernel's function."""
    kind, name = typed_parameters.type_of(parameter), parameter.name
    if not is_ndarray(value):
        return f"{kind} {name} = *static_cast<{kind} *>(_gp[{place}]);"
    array = f"{'const ' if parameter.constant else ''}CArray<{kind}> &"
    named = f" {array}{name} = _raw_{name};" if parameter.raw else ""
    return f"{array}_raw_{name} = *static_cast<CArray<{kind}> *>(_gp[{place}]);{named}"


def _index(name: str, place: int) -> str:
    return f"CIndexer {name}(*static_cast<gpupool::Layout *>(_gp[{place}]));"


def _named(parameters: Sequence[Parameter], values: Sequence[Any]) -> list[_Named]:
    """Return the places, parameters and arrays with named elements in a kernel."""
    return [
        (place, parameter, value)
        for place, (parameter, value) in enumerate(zip(parameters, values, strict=False))
        if is_ndarray(value) and not parameter.raw
    ]


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
        self._operation, self.preamble, self._prepare, self._after = texts
        self._reduce_dims = bool(reduce_dims)

    def __call__(self, *args: Any, size: Any = None, block_size: Any = BLOCK_SIZE) -> Any:
        """Run the kernel; return its outputs."""
        if type(block_size) is not int or block_size <= 0:
            raise ValueError("block_size must be greater than zero")
        if block_size > THREADS_MAX:
            raise CUDADriverError(INVALID)
        values, given, types = self.split(args)
        shape = _shape(_named(self.parameters, [*values, *given]), size)
        results = self.results(given, types, shape, sized=size is not None)
        if 0 not in shape:
            values += results
            index = _placed(values, _named(self.parameters, values), shape, self._reduce_dims)
            self.launch(values, types, [index], block_size)
        return results[0] if len(results) == 1 else tuple(results)

    def body(self, named: Sequence[_Named]) -> Sequence[str]:
        """Return the lines that loop over the elements."""
        return (
            _index("_ind", len(self.parameters)),
            f"{self._prepare};",
            "CUPY_FOR(i, _ind.size()) {",
            "_ind.set(i);",
            *[f"{_type(each)} &{each.name} = _raw_{each.name}.at(_ind);" for _, each, _ in named],
            f"{self._operation};",
            "}",
            f"{self._after};",
        )


def _shape(named: Sequence[_Named], size: Any) -> tuple[int, ...]:
    """Return the shape that an elementwise kernel loops over."""
    if size is not None:
        if named:
            raise ValueError("Specified 'size' can be used only if all of the ndarray are 'raw'.")
        if type(size) is not int or size < 0:
            raise ValueError("size must be a number of elements")
        return (size,)
    if not named:
        raise ValueError("Loop size is undecided.")
    return np.broadcast_shapes(*[array.shape for _, _, array in named])


def _placed(
    values: list[Any], named: Sequence[_Named], shape: tuple[int, ...], reduce_dims: bool
) -> tuple[int, ...]:
    """Put views of one shape in the place of arrays; return it, with few dimensions if wanted."""
    views = [np.broadcast_to(array, shape) for _, _, array in named]
    if reduce_dims:
        shape, views = typed_parameters.collapse(shape, views)
    for (place, _, _), view in zip(named, views, strict=True):
        values[place] = view
    return shape


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
        if not self.outputs:
            raise ValueError("a reduction has an output")
        kind = reduce_type or typed_parameters.type_of(self.outputs[0])
        self._map, self._identity = map_expr, identity
        self.preamble = "\n".join(
            (
                preamble,
                f"#define REDUCE(a, b) ({reduce_expr})",
                f"#define POST_MAP(a) ({post_map_expr})",
                f"typedef {kind} _type_reduce;",
            )
        )
        self._reduce_dims = bool(reduce_dims)

    def __call__(self, *args: Any, axis: Any = None, keepdims: Any = False) -> Any:
        """Run the kernel along axes; return its outputs."""
        values, given, types = self.split(args)
        named = _named(self.inputs, values)
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
        left = tuple(shape[at] for at in rest)
        kept = tuple(1 if at in over else length for at, length in enumerate(shape))
        results = self.results(given, types, kept if keepdims else left, sized=False)
        if 0 not in left:
            views = [
                (place, each, np.broadcast_to(array, shape).transpose(order))
                for place, each, array in named
            ]
            # Without the dimensions of one element that are kept for the result's shape.
            outputs: list[Any] = [
                array if each.raw else _squeezed(array, left)
                for each, array in zip(self.outputs, results, strict=True)
            ]
            whole = tuple(shape[at] for at in order)
            index = _placed(values, views, whole, self._reduce_dims)
            rest_index = _placed(outputs, _named(self.outputs, outputs), left, self._reduce_dims)
            self.launch([*values, *outputs], types, [index, rest_index], BLOCK_SIZE)
        return results[0] if len(results) == 1 else tuple(results)

    def body(self, named: Sequence[_Named]) -> Sequence[str]:
        """Return the lines that loop over the results and over the elements of each."""
        place, inputs = len(self.parameters), len(self.inputs)
        read = [
            f"{_type(each)} {each.name} = _raw_{each.name}.at(_in_ind);"
            for at, each, _ in named
            if at < inputs
        ]
        written = [
            f"{_type(each)} &{each.name} = _raw_{each.name}.at(_out_ind);"
            for at, each, _ in named
            if at >= inputs
        ]
        return (
            _index("_in_ind", place),
            _index("_out_ind", place + 1),
            "CUPY_FOR(_i, _out_ind.size()) {",
            f"_type_reduce _s = _type_reduce({self._identity});",
            "IndexT _J = 0;",
            "for (ptrdiff_t _j = _i; _j < _in_ind.size(); _j += _out_ind.size(), ++_J) {",
            "_in_ind.set(_j);",
            *read,
            f"_type_reduce _a = static_cast<_type_reduce>({self._map});",
            "_s = REDUCE(_s, _a);",
            "}",
            "_out_ind.set(_i);",
            *written,
            "POST_MAP(_s);",
            "}",
        )


def _squeezed(array: Array, shape: tuple[int, ...]) -> Array:
    """Return a view without the dimensions of one element that a shape does not have."""
    made = array.reshape(shape)
    if not np.may_share_memory(made, array):
        raise ValueError("Out shape is mismatched")
    return made


def _axes(axis: Any, ndim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes to reduce, and the others."""
    given = range(ndim) if axis is None else axis
    over = tuple(sorted(np.lib.array_utils.normalize_axis_tuple(given, ndim, "axis")))
    return over, tuple(at for at in range(ndim) if at not in over)
