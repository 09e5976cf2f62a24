"""The plans of transforms that an emulated GPU pretends to keep, as CuPy's cache keeps them."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpupool.remoting.devices.operation_names import FFT

Operation = Callable[..., Any]
Key = tuple[Any, ...]
_TYPES = {"C2C": (0x29, 0x69), "R2C": (0x2A, 0x6A), "C2R": (0x2C, 0x6C)}
_SIZE = 16
_AXES_MAX = 3
_PLANS_MAX = 1 << 12  # where the client sets no limit


@dataclass(frozen=True, slots=True)
class Plan:
    """One plan: its kind, its bytes on each device, and the devices if they are several."""

    kind: str
    memsize: int
    gpus: tuple[int, ...] | None


class _Cache:
    """The plans of one device; those that were not used for longest come first."""

    def __init__(self) -> None:
        self.size, self.memsize = _SIZE, -1
        self.plans: OrderedDict[Key, Plan] = OrderedDict()

    @property
    def used(self) -> int:
        return sum(plan.memsize for plan in self.plans.values())

    @property
    def enabled(self) -> bool:
        return self.size != 0 and self.memsize != 0


class EmulatedPlans:
    """The caches of all devices of one session."""

    def __init__(self, devices: int) -> None:
        self._caches = [_Cache() for _ in range(devices)]

    def operations(self, current: Callable[[], int]) -> dict[str, Operation]:
        """Return the operations by which a client looks at the cache of the current device."""

        def cache() -> _Cache:
            return self._caches[current()]

        def limit(size: int, memsize: int) -> None:
            if size < -1 or memsize < -1:
                raise ValueError("invalid input")
            found = cache()
            found.size, found.memsize = size, memsize
            self._evict(found, size, memsize)

        def nodes() -> list[Any]:
            found = cache().plans
            rows = [[key, plan.kind, plan.memsize, plan.gpus] for key, plan in found.items()]
            return rows[::-1]

        return {
            "fft.cache.numbers": lambda: [
                cache().size,
                len(cache().plans),
                cache().memsize,
                cache().used,
            ],
            "fft.cache.set_size": lambda size: limit(size, cache().memsize),
            "fft.cache.set_memsize": lambda memsize: limit(cache().size, memsize),
            "fft.cache.clear": lambda: cache().plans.clear(),
            "fft.cache.nodes": nodes,
            "fft.cache.use": lambda key: self._used(cache(), key),
            "fft.cache.delete": lambda key: self._delete(cache(), key),
        }

    def _of(self, plan: Plan, cache: _Cache) -> Sequence[_Cache]:
        return [cache] if plan.gpus is None else [self._caches[at] for at in plan.gpus]

    def _used(self, cache: _Cache, key: Key) -> bool:
        plan = cache.plans.get(key)
        if plan is None:
            return False
        for each in self._of(plan, cache):
            if key in each.plans:
                each.plans.move_to_end(key)
        return True

    def _delete(self, cache: _Cache, key: Key) -> bool:
        plan = cache.plans.get(key)
        if plan is None:
            return False
        for each in self._of(plan, cache):
            each.plans.pop(key, None)
        return True

    def _evict(self, cache: _Cache, size: int, memsize: int) -> None:
        plans = cache.plans
        while plans and (
            len(plans) > (_PLANS_MAX if size == -1 else size)
            or (memsize != -1 and cache.used > memsize)
        ):
            self._delete(cache, next(iter(plans)))

    def keep(self, device: int, key: Key, plan: Plan) -> None:
        """Find a plan before a transform, as CuPy does, or make and keep it."""
        cache = self._caches[device]
        if self._used(cache, key) or not cache.enabled:
            return
        caches = self._of(plan, cache)
        for each in caches:
            if plan.memsize > each.memsize > 0:
                where = "" if plan.gpus is None else f" for device {self._caches.index(each)}"
                raise RuntimeError(f"the plan memsize is too large{where}")
        for each in caches:
            room = -1 if each.memsize == -1 else each.memsize - plan.memsize
            self._evict(each, -1 if each.size == -1 else each.size - 1, room)
            each.plans[key] = plan

    def planned(
        self, table: dict[str, Operation], current: Callable[[], int]
    ) -> dict[str, Operation]:
        """Return the transforms of a table, which keep their plans now, and one by several GPUs."""

        def one(name: str) -> Operation:
            function = table[f"fft.{name}"]

            def call(a: Any, *args: Any) -> Any:
                self._plan(current(), name, a, args, None)
                return function(a, *args)

            return call

        def several(gpus: Any, name: str, a: Any, *args: Any) -> Any:
            if name not in FFT or not all(at in range(len(self._caches)) for at in gpus):
                raise ValueError(f"no transform {name} by GPUs {gpus}")
            self._plan(current(), name, a, args, tuple(gpus))
            return table[f"fft.{name}"](a, *args)

        whole = [name for name in FFT if not name.endswith(("freq", "shift"))]
        return {**{f"fft.{name}": one(name) for name in whole}, "fft.several": several}

    def _plan(
        self, device: int, name: str, a: Any, args: Any, gpus: tuple[int, ...] | None
    ) -> None:
        if not isinstance(a, np.ndarray) or not a.size:
            return
        many = name[-1] in "2n"
        lengths, axes = (args[0] if args else None), (args[1] if len(args) > 1 else None)
        if not many:
            axes = (-1 if axes is None else axes,)
            lengths = None if lengths is None else (lengths,)
        elif axes is None:
            axes = range(-(a.ndim if lengths is None else len(lengths)), 0)
        places = [int(axis) % a.ndim for axis in axes]
        back = name in ("irfft", "hfft") or name[:5] == "irfft"
        shape = list(a.shape)
        if back and places:
            shape[places[-1]] = (shape[places[-1]] - 1) * 2
        for at, length in zip(places, lengths or (), strict=False):
            shape[at] = shape[at] if length is None else int(length)
        if not places or min(shape) < 1:
            return
        kind = "C2R" if back else "R2C" if name[0] == "r" or name == "ihfft" else "C2C"
        number = _TYPES[kind][0 if a.dtype.char in "efF" else 1]
        total = math.prod(shape) * (8 if a.dtype.char in "efF" else 16)
        inner = tuple(shape[at] for at in sorted(places))
        batch = math.prod(shape) // math.prod(inner)
        if len(places) == 1 or len(places) > _AXES_MAX:
            for length in inner:
                key: Key = (length, number, math.prod(shape) // length, gpus)
                self.keep(device, key, Plan("Plan1d", total // len(gpus or (0,)), gpus))
            return
        key = (inner, inner, 1, math.prod(inner), inner, 1, math.prod(inner))
        key = (*key, number, batch, "C", max(places), None)
        self.keep(device, key, Plan("PlanNd", total, None))
