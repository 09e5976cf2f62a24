"""Decodes records by the worker's code, and prints the calls that it would make.

    golden_decode.py FRAMES

runs in a process with the fake driver. Each frame of the file has one record. What executes records
is replaced, after the executor's areas are made: nothing is executed but the decoding.
"""

import ctypes
import inspect
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from loopback import CountingBudget
from test_cuda_door import MEMORY, ScriptedStream

from gpupool.remoting.devices.base import DeviceSpec
from gpupool.remoting.driver_api.executor import executor
from gpupool.remoting.driver_api.executor.api import Api
from gpupool.remoting.driver_api.executor.client_state import Client, HandlerGroup
from gpupool.remoting.driver_api.executor.modules.function import Function
from gpupool.remoting.driver_api.executor.modules.image_cache import Images
from gpupool.remoting.driver_api.executor.reader import ClosedError
from gpupool.remoting.driver_api.executor.serve import Session
from gpupool.remoting.driver_api.schema import table
from gpupool.remoting.driver_api.schema.layout import Record
from gpupool.remoting.driver_api.schema.records import BY_NAME, NUMBERS
from gpupool.remoting.worker.peer_links import Links

SPEC = DeviceSpec(0, "GPU-0", "GPU", MEMORY, emulated=False, ordinal=0)
handler_groups = executor.handler_groups


class Anything(dict[int, Any]):
    """A dictionary that makes a value for every missing number."""

    def __init__(self, made: Callable[[int], Any]) -> None:
        super().__init__()
        self.made = made

    def __missing__(self, number: int) -> Any:
        return self.made(number)


def name_of(op: int, method: Callable[..., Any]) -> str:
    """Return the name of the function that executes a record."""
    name = method.__qualname__
    if "<lambda>" in name:
        return name.split(".<locals>")[0]
    return f"Generic {table.CALLS[op][0]}" if "<locals>" in name else name


def said(client: Client, name: str) -> Callable[..., bytes]:
    """Return a function that prints its arguments."""

    def run(*given: Any) -> bytes:
        print(name, *(one for one in given if isinstance(one, int)))
        client.skip_bulk()
        return b""

    return run


def check_signature(record: Record, method: Callable[..., Any]) -> None:
    """Compare the handler of a record with the record's fields, tail and answer."""
    signature = inspect.signature(method)
    taken: list[Any] = [int] * sum(max(field.count, 1) for field in record.fields)
    if record.tail is not None:
        taken.append(bytes if record.tail.text else memoryview)
    signature.bind(*taken)  # as many as there are
    found = [
        each.annotation
        for each in signature.parameters.values()
        if each.kind != each.VAR_POSITIONAL
    ]
    if "<lambda>" not in method.__qualname__:
        assert found == taken[: len(found)], (record.name, signature)
        assert record.asked or signature.return_annotation is None, (record.name, signature)


def replaced_areas(client: Client, images: Images, links: Links | None) -> list[HandlerGroup]:
    """Return the executor's areas, with each method replaced by a print of its call."""
    areas = handler_groups(client, images, links)
    for area in areas:
        for name, method in area.methods.items():
            check_signature(BY_NAME[name], method)
            area.methods[name] = said(client, name_of(NUMBERS[name], method))
        for op, (record, method) in area.calls.items():
            area.calls[op] = record, said(client, name_of(op, method))
    return areas


def function(rest: tuple[Any, ...], number: int) -> Function:
    """Return a function with any number."""
    return Function(number, *rest)


def launch(handle: int, *rest: int) -> None:
    """Print the arguments of a plain launch: the executor decodes these itself."""
    *head, _pointers, _extra = rest
    print("launch", handle, *head)


def main(frames: Path) -> None:
    ctypes.CDLL("libcuda.so.1").cuInit(0)
    session = Session(ScriptedStream(frames.read_bytes()))
    executor.handler_groups = replaced_areas
    made = executor.Executor(
        Api(), session, [SPEC], CountingBudget(MEMORY), print, Images.of_worker(), None
    )
    client, reader = made.client, session.reader
    client.launcher, client.api.launch = None, launch
    client.streams = Anything(lambda number: number)
    while True:
        try:
            start, end, bulk = reader.next_frame()
        except ClosedError:
            return
        # As if every kernel had parameters of the size that its launch says.
        (size,) = struct.unpack_from("<I", reader.buffer, min(start + 52, end))
        view = memoryview(bytearray(size % (1 << 16)))
        client.functions = Anything(
            partial(
                Function,
                kernel=False,
                size=size,
                view=view,
                values=0,
                pointers=0,
                keep=(),
                offsets=(),
            )
        )
        made.execute(reader.buffer, reader.view, start, end, bulk)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
