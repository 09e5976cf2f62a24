"""A hostile client's calls of an emulated GPU's textures, and the memory counted for them."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import Any

import door_kit
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from gpupool.remoting.devices.base import DeviceMemoryError, UnsupportedError
from gpupool.remoting.devices.cuda_objects.texture_checks import GRANULE, LINEAR, OF_ARRAY, PITCHED
from gpupool.remoting.devices.emulated import EmulatedBackend
from gpupool.remoting.devices.host_kernels.host_textures import HostTextures
from gpupool.remoting.devices.host_kernels.kernel_errors import CUDARuntimeError

FLOAT = (32, 0, 0, 0, 2)
LOOK = ([1, 1], 0, 0, None, None, None, None)
NONE = (0, 0, 0, 0)
EXPECTED = (ArithmeticError, TypeError, ValueError, MemoryError, CUDARuntimeError, UnsupportedError)


def made() -> tuple[EmulatedBackend, HostTextures, door_kit.MemoryBudget]:
    budget = door_kit.MemoryBudget([1 << 20])
    backend = EmulatedBackend(door_kit.emulated(1, 1 << 20), budget)
    return backend, HostTextures(backend), budget


def test_what_uses_a_cuda_array_keeps_it_counted() -> None:
    _, door, budget = made()
    array = door.array(FLOAT, 512, 256, 0, 2)
    texture = door.texture(OF_ARRAY, array, None, NONE, LOOK)
    surface = door.surface(OF_ARRAY, array, None, NONE)
    small = door.array((8, 8, 0, 0, 1), 3, 0, 0, 0)
    assert budget.usage(0) == 512 * 256 * 4 + GRANULE
    with pytest.raises(DeviceMemoryError):
        door.array(FLOAT, 512, 256, 0, 2)
    with pytest.raises(DeviceMemoryError):
        door.array(FLOAT, 1 << 20, 1 << 20, 1 << 20, 0)
    del array, texture, small
    assert budget.usage(0) == 512 * 256 * 4
    del surface
    assert budget.usage(0) == 0


def test_a_session_that_ends_gives_all_back_once() -> None:
    backend, door, budget = made()
    array = door.array(FLOAT, 64, 0, 0, 0)
    backend.close()
    assert budget.usage(0) == 0
    del array
    assert budget.usage(0) == 0


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (LINEAR, (401, 0, 0, 0)),
        (LINEAR, (-1, 0, 0, 0)),
        (LINEAR, (3, 0, 0, 0)),
        (PITCHED, (0, 10, 11, 40)),
        (PITCHED, (0, 11, 10, 40)),
        (PITCHED, (0, 10, -1, 40)),
        (1, NONE),
    ],
)
def test_a_texture_stays_inside_its_array(kind: int, sizes: Any) -> None:
    _, door, _ = made()
    array = np.zeros((10, 10), np.float32)
    with pytest.raises(
        (ValueError, CUDARuntimeError), match=r"outside its|no texture of|InvalidValue"
    ):
        door.texture(kind, array, FLOAT, sizes, LOOK)
    with pytest.raises(TypeError, match="dense"):
        door.texture(kind, array.T[1:], FLOAT, sizes, LOOK)
    assert door.texture(PITCHED, array, FLOAT, (0, 10, 10, 40), LOOK)


NUMBERS = st.one_of(st.integers(-(1 << 70), 1 << 70), st.none(), st.text(max_size=3), st.floats())
SMALL = st.integers(-1, 40)
CHANNELS = st.tuples(*[st.sampled_from([0, 8, 16, 32, 32.0, 7, -8, None])] * 4, st.integers(-1, 4))
LOOKS = st.tuples(
    *(st.none() | st.lists(SMALL | NUMBERS, max_size=5), SMALL | NUMBERS, SMALL | NUMBERS),
    *(NUMBERS, st.none() | st.lists(NUMBERS, max_size=5), NUMBERS, NUMBERS),
)
ARRAYS = st.sampled_from(
    [np.zeros(10, "f"), np.zeros((4, 4))[::2], np.zeros(0), np.zeros((3, 5), "i2"), np.float32(1)]
)


@given(data=st.data())
@settings(deadline=None, max_examples=examples(200))
def test_any_arguments_give_an_object_or_an_error(data: st.DataObject) -> None:
    backend, door, budget = made()
    objects: list[Any] = [door.array(FLOAT, 10, 0, 0, 2), door.array((8, 8, 0, 0, 1), 3, 2, 1, 0)]
    resources = st.sampled_from(objects) | ARRAYS | NUMBERS
    sizes = st.tuples(*[SMALL | NUMBERS] * 4) | NUMBERS
    kinds, channels = st.integers(-1, 4) | NUMBERS, CHANNELS | NUMBERS
    parts: dict[str, list[Any]] = {
        "cuda.array.create": [channels, *[SMALL | NUMBERS] * 4],
        "cuda.array.copy_from": [resources, resources, NUMBERS],
        "cuda.array.copy_to": [resources, resources, NUMBERS],
        "cuda.texture.create": [kinds, resources, channels, sizes, LOOKS | NUMBERS],
        "cuda.surface.create": [kinds, resources, channels, sizes],
    }
    for _ in range(5):
        name = data.draw(st.sampled_from(sorted(parts)))
        arguments = [data.draw(each) for each in parts[name]]
        try:
            found = door.operations()[name](*arguments)
        except EXPECTED:
            continue
        objects.append(found)
        resources = st.sampled_from(objects) | ARRAYS
    objects.clear()
    backend.close()
    assert budget.usage(0) == 0
