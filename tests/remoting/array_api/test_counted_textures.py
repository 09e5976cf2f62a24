"""Textures of the array door, with CuPy's classes replaced by small fakes.

A real GPU runs CuPy's own tests of them (`test_texture.py` of its suite).
"""

import gc
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import door_kit
import numpy as np
import pytest
from door_cases import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from gpupool.remoting.devices.cuda_objects.counted_textures import (
    GRANULE,
    LINEAR,
    OF_ARRAY,
    PITCHED,
    CudaTextures,
)

FLOAT = (32, 0, 0, 0, 2)
LOOK = ([1, 1], 0, 0, None, None, None, None)


class OutOfMemoryError(RuntimeError):
    """Stands for CuPy's error of CUDA's runtime."""


class Plain:
    """A descriptor or an object of CuPy: it keeps its arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs


class FakeArray(Plain):
    """A CUDA array; one of 13 elements is more than the GPU has."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.copied: list[Any] = []
        if args[1] == 13:
            raise OutOfMemoryError(2)

    def copy_from(self, source: Any, stream: Any) -> None:
        self.copied.append((source, stream))

    copy_to = copy_from


@dataclass
class FakeBackend:
    """The partition and the classes that `CudaTextures` uses."""

    budget: door_kit.MemoryBudget
    devices: list[Any] = field(default_factory=lambda: door_kit.emulated(1, 1 << 20))
    current: int = 0

    def __post_init__(self) -> None:
        runtime = types.SimpleNamespace(CUDARuntimeError=OutOfMemoryError)
        cuda = types.SimpleNamespace(runtime=runtime)
        self.cupy: Any = types.SimpleNamespace(cuda=cuda, ndarray=np.ndarray)


def made_of_fakes(patch: pytest.MonkeyPatch) -> tuple[CudaTextures, door_kit.MemoryBudget]:
    names = ("ChannelFormatDescriptor", "ResourceDescriptor", "TextureDescriptor", "TextureObject")
    made: dict[str, Any] = {name: type(name, (Plain,), {}) for name in (*names, "SurfaceObject")}
    module: Any = types.SimpleNamespace(**made, CUDAarray=FakeArray)
    patch.setitem(sys.modules, "cupy.cuda.texture", module)
    budget = door_kit.MemoryBudget([1 << 20])
    return CudaTextures(FakeBackend(budget)), budget


Fakes = tuple[CudaTextures, door_kit.MemoryBudget]


@pytest.fixture
def textures(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return made_of_fakes(monkeypatch)


def test_a_cuda_array_is_counted_until_nothing_uses_it(textures: Fakes) -> None:
    door, budget = textures
    array = door.array(FLOAT, 512, 256, 0, 0)
    assert budget.usage(0) == 512 * 256 * 4
    texture = door.texture(OF_ARRAY, array, None, (0, 0, 0, 0), LOOK)
    small = door.array((8, 8, 8, 8, 1), 3, 0, 0, 2)
    assert budget.usage(0) == 512 * 256 * 4 + GRANULE
    del array, small
    gc.collect()
    assert budget.usage(0) == 512 * 256 * 4  # the texture reads it
    del texture
    gc.collect()
    assert budget.usage(0) == 0


def test_a_cuda_array_that_does_not_fit_is_refused(textures: Fakes) -> None:
    door, budget = textures
    refused(
        (OutOfMemoryError, "", lambda: door.array(FLOAT, 1024, 1024, 0, 0)),  # 4 MiB of one
        (OutOfMemoryError, "", lambda: door.array(FLOAT, 13, 0, 0, 0)),  # the driver says so
    )
    assert budget.usage(0) == 0


OUTSIDE = [
    *((LINEAR, (size, 0, 0, 0)) for size in (401, -1)),
    *((PITCHED, (0, *size, 40)) for size in ((10, 11), (11, 10), (10, -1))),
    (1, (0, 0, 0, 0)),
]


@pytest.mark.parametrize(("kind", "sizes"), OUTSIDE)
def test_a_texture_stays_inside_its_array(kind: int, sizes: Any, textures: Fakes) -> None:
    array = np.zeros((10, 10), np.float32)
    with pytest.raises(ValueError, match=r"outside its array|no texture of resources"):
        textures[0].texture(kind, array, FLOAT, sizes, LOOK)
    assert textures[0].texture(PITCHED, array, FLOAT, (0, 10, 10, 40), LOOK)


def test_a_copy_has_as_many_bytes_as_the_cuda_array(textures: Fakes) -> None:
    door, _ = textures
    array = door.array(FLOAT, 10, 4, 0, 0)
    right, *others = np.zeros((4, 10), "f"), np.zeros((4, 10), "B"), np.zeros((4, 11), "f")
    for copy in (door.copy_from, door.copy_to):
        refused(
            *((ValueError, "the CUDA array has 160", lambda copy=copy, x=x: copy(array, x, None))
              for x in others),
            (TypeError, "array of the device", lambda copy=copy: copy(array, bytes(160), None)),
        )  # fmt: skip
        copy(array, right, None)
    assert len(array.copied) == 2


NUMBERS = st.one_of(st.integers(-(1 << 70), 1 << 70), st.none(), st.text(max_size=3), st.floats())
ARGUMENTS = st.one_of(NUMBERS, st.lists(NUMBERS, max_size=8), st.just(np.zeros(4)))


@given(data=st.data())
@settings(max_examples=examples(200))
def test_any_arguments_of_textures_give_an_object_or_an_error(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        door, budget = made_of_fakes(patch)
        calls: list[tuple[Callable[..., Any], int]]
        calls = [(door.array, 5), (door.copy_from, 3), (door.texture, 5)]
        call, count = data.draw(st.sampled_from(calls))
        arguments = [data.draw(ARGUMENTS) for _ in range(count)]
        try:
            made = call(*arguments)
        except (ArithmeticError, TypeError, ValueError, OutOfMemoryError):
            assert budget.usage(0) == 0
        else:
            del made


def test_an_emulated_gpu_says_that_it_has_no_textures() -> None:
    source = """
import cupy as cp
from cupy.cuda import texture
four = texture.ChannelFormatDescriptor(32, 0, 0, 0, 2)
linear = texture.ResourceDescriptor(2, arr=cp.zeros(8, 'f'), chDesc=four, sizeInBytes=32)
for what in (
    lambda: texture.CUDAarray(four, 0),
    lambda: texture.CUDAarray(four, 8),
    lambda: texture.TextureObject(linear, texture.TextureDescriptor()),
    lambda: cp.cuda.Stream(non_blocking=True).begin_capture(),
):
    try:
        what()
        cp.cuda.Device().synchronize()
    except Exception as error:
        print(type(error).__name__, str(error).split(":")[-1].strip())
print(float(cp.ones(3).sum()))
"""
    with door_kit.pool(1) as agent:
        lines = door_kit.output(agent, source).splitlines()
    assert lines[0] == "ValueError To create a CUDA array, width must be nonzero."
    assert lines[1:3] == ["NotImplementedError a real one has them"] * 2
    assert lines[3].startswith("AttributeError gpupool's drop-in cupy leaves captured graphs")
    assert lines[4:] == ["3.0"]
