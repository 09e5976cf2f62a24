"""Draw docs/images/web-*.png anew: pages of a pool that does not exist, as Chromium shows them.

    python packaging/site/web_pictures.py [--folder docs/images]

The page is the real one. A pool of emulated GPUs that has just started has no last 24 hours, so
its servers' answers are made up here. It needs Playwright and Chromium, as "make browser-tests".
Where Pillow is installed, the files are a third as large.
"""

import argparse
import importlib
import math
import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import trio

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

# The pool that does not exist is that of the tests, which are not installed.
from tests.fake_web_pool import PRICES  # noqa: E402
from tests.serve_fake_pool import MovingPool  # noqa: E402

from gpupool.monitoring.web.gate import LocalGate  # noqa: E402
from gpupool.monitoring.web.page_app import make_app  # noqa: E402
from gpupool.monitoring.web.serving import loopback_socket, serve_page  # noqa: E402
from gpupool.pool.history_query import HistoryPage, HistoryQuery, HistorySeries  # noqa: E402
from gpupool.pool.model.ids import Milliseconds, ServerId  # noqa: E402
from gpupool.pool.telemetry import GpuTelemetry, Telemetry  # noqa: E402
from gpupool.pool.transitions.policy_versions import pack_text  # noqa: E402
from gpupool.pool.view import LeaseView, PoolView  # noqa: E402
from gpupool.remoting.client.history_answers import HistoryAnswer  # noqa: E402
from gpupool.remoting.protocol import messages as m  # noqa: E402

SPEED = 60.0
LOOKS_S = 25.0
"""Seconds for which a page stays open to collect its live data: twenty-five of its minutes."""

HEAT_STEPS, POWER_STEPS = (150, 165), ((40, 58), (210, 236))
"""Of a day in steps of 288 s: when a GPU was too hot, and when its power limit held it down."""

ERROR_STEP = 106
SHOWN = "GPU-7-3"
LEASES = (
    ("1025", "katherine", 287, 300, 52),
    ("1309", "grace", 251, 300, 26),
    ("0f92", "linus", 60, 240, 44),
    ("", "", 0, 110, 21),
)
"""Leases of that GPU, from which step to which, and the GiB that they used; others come last."""

CLASSES = {
    "students": ("ada", "grace", "linus", "alan"),
    "research": ("barbara", "edsger", "katherine", "radia"),
}
DEPARTMENTS = ("physics", "biology", "law")
POLICY = """
[defaults]
max_gpus = 12

[class.students]
users = ["ada", "grace", "linus", "alan"]
max_gpus = 32

[class.research]
users = ["barbara", "edsger", "katherine", "radia"]
max_gpus = 16
max_memory = "3T"

"""


class Picture(NamedTuple):
    """One picture: page, height and colours, and whether the page stays open long."""

    path: str
    height: int = 0
    theme: str = "light"
    looks: bool = False


PICTURES = {
    "web-overview": Picture(""),
    "web-gpu": Picture("gpus/node-7/3", height=1566, looks=True),
    "web-users": Picture("users", theme="dark"),
    "web-about": Picture("about"),
}


def busy_share(at_s: float, phase: float) -> float:
    """Return how busy something is: more by day than by night, with shorter waves."""
    day = math.sin(2 * math.pi * (at_s - 32_000) / 86_400)
    waves = 0.14 * math.sin(at_s / 2300 + phase) + 0.09 * math.sin(at_s / 610 + 3 * phase)
    return min(0.99, max(0.02, 0.58 + 0.22 * day + waves))


def class_of(user: str) -> str:
    """Return a user's class, by the policy above."""
    return next((each for each, users in CLASSES.items() if user in users), "")


def measured(gpu: GpuTelemetry, at_s: float, phase: float, granted: int) -> GpuTelemetry:
    """Return the readings of a GPU that leases hold."""
    share = round(busy_share(at_s, phase), 3)
    shown = gpu.gpu == SHOWN
    return replace(
        gpu,
        utilization=share,
        memory_used=round(0.76 * min(granted, 139 << 30)),
        temperature_c=round(36 + 38 * share),
        power_w=round(80 + 560 * share),
        power_limit_w=700.0,
        xids={31: 1} if shown else {},
        throttled_s={"power": 3294.0, "hw_thermal": 2160.0} if shown else {},
    )


class PicturePool(MovingPool):
    """A pool with a history that fits its present."""

    def _view(self, at_ms: int, ids: list[ServerId], leases: tuple[LeaseView, ...]) -> PoolView:
        found = super()._view(at_ms, ids, leases)
        waiting = tuple(replace(each, user_class=class_of(each.user)) for each in found.waiting)
        return replace(found, waiting=waiting)

    def _lease(self, n: int) -> LeaseView:
        found = super()._lease(n)
        name = class_of(found.user)
        department = DEPARTMENTS[len(found.user) % 3]
        return replace(found, user_class=name, granted_class=name, department=department)

    def _telemetry(self, n: int, at_s: float, leases: tuple[LeaseView, ...]) -> Telemetry:
        found = super()._telemetry(n, at_s, leases)
        held: dict[str, int] = defaultdict(int)
        for part in (part for each in leases for part in each.partitions):
            held[part.gpu] += part.memory
        gpus = tuple(
            measured(each, found.at / 1000, 2.1 * n + 0.8 * g, held[each.gpu]) if held[each.gpu]
            else each
            for g, each in enumerate(found.gpus)
        )  # fmt: skip
        return replace(found, gpus=gpus)

    async def policy(self, version: int = 0) -> m.PolicyIs:
        """Return a policy with limits of users and of classes."""
        return replace(await super().policy(version), packed=pack_text(POLICY.lstrip() + PRICES))

    async def history(self, query: HistoryQuery, servers: Sequence[ServerId] = ()) -> HistoryAnswer:
        """Return a day of each figure, and the events of a GPU in it."""
        if query.of not in ("pool", "server", "gpu", "gpu-leases", "gpu-marks"):
            return await super().history(query, servers)
        step = max(10, int(query.until - query.since) // 300_000)
        times = range(int(query.since) // 1000 // step * step, int(query.until) // 1000, step)
        answer = HistoryAnswer({})
        ids = [self._server_id(n) for n in range(self.servers)]
        for each in servers or (self._server_id(0),):
            phase = 0.8 * 3 + 2.1 * ids.index(each)
            series = self._series(query, times, phase)
            answer.pages[each] = HistoryPage(step, series, oldest=Milliseconds(0))
        return answer

    def _series(self, query: HistoryQuery, times: range, phase: float) -> tuple[HistorySeries, ...]:
        if query.of == "gpu-marks":
            return marks(times)
        if query.of == "gpu-leases":
            return used(times)
        gpus = 1 if query.of == "gpu" else self.gpus
        most = {"busy": 1000 * gpus, "sm": 800, "tensor": 520, "granted": 1 << 20}
        if query.metric == "memory":
            return (HistorySeries("", "", tuple((at, gib, 10, -1) for at, gib in in_use(times))),)
        points: list[tuple[int, int, int, int]] = []
        for at in times:
            share = busy_share(at, phase)
            value = most.get(query.metric, 1 << 20) * share
            if query.metric == "granted":
                value = (1 << 20) * min(1.0, 0.62 + 0.3 * share)
            if query.metric == "capacity":
                value = 1 << 20
            if query.metric == "temperature":
                value = 36 + 38 * share
            if query.metric == "power":
                value = 80 + 560 * share
            points.append((at, round(1000 * value), 1000, -1))
        return (HistorySeries("", "", tuple(points)),)


def in_use(times: range) -> list[tuple[int, int]]:
    """Return the memory of one GPU that was in use at each moment, a GiB of it the driver's."""
    parts = dict.fromkeys(times, 10240)
    for each in used(times):
        for at, amount, *_ in each.points:
            parts[at] += amount
    return list(parts.items())


def used(times: range) -> tuple[HistorySeries, ...]:
    """Return the memory that leases of one GPU had in use."""
    return tuple(
        HistorySeries(lease, user, tuple((t, gib * 10240, 10, -1) for t in times[since:until]))
        for lease, user, since, until, gib in LEASES
    )


def marks(times: range) -> tuple[HistorySeries, ...]:
    """Return for how long clocks were held down, and the errors of a GPU."""
    if len(times) < 2 or times.step < 60:
        return ()
    hot = tuple((t, 500 * times.step, 1, -1) for t in times[slice(*HEAT_STEPS)])
    power = tuple((t, 260 * times.step, 1, -1) for part in POWER_STEPS for t in times[slice(*part)])
    error = ((times[ERROR_STEP], 1, 1, -1),)
    words = {"throttled.hw_thermal": hot, "throttled.power": power, "xid.31": error}
    return tuple(HistorySeries(word, "", points) for word, points in words.items())


def draw(address: str, folder: Path) -> None:
    """Open each page, and save its screenshot."""
    playwright: Any = importlib.import_module("playwright.sync_api")
    chromium = shutil.which("chromium") or "/usr/bin/chromium"
    origin = address.partition("/#")[0]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(timezone_id="UTC").new_page()
        page.goto(address)
        for name, picture in PICTURES.items():
            page.emulate_media(color_scheme=picture.theme)
            page.set_viewport_size({"width": 1280, "height": picture.height or 600})
            page.goto(f"{origin}/{picture.path}")
            page.wait_for_selector("main .panel")
            page.wait_for_timeout(1000 * (LOOKS_S if picture.looks else 3.0))
            if not picture.height:
                height = page.evaluate("document.documentElement.scrollHeight")
                page.set_viewport_size({"width": 1280, "height": height})
                page.wait_for_timeout(500)
            path = folder / f"{name}.png"
            page.screenshot(path=str(path))
            make_smaller(path)
            sys.stdout.write(f"{path}: {path.stat().st_size / 1000:.0f} kB\n")
        browser.close()


def make_smaller(path: Path) -> None:
    """Leave a picture its 256 most frequent colours, where there is a library that does it."""
    with suppress(ImportError):
        images: Any = importlib.import_module("PIL.Image")
        with images.open(path) as file:
            image = file.convert("RGB")
        colours = sorted(image.getcolors(1 << 24), reverse=True)[:256]
        palette = images.new("P", (1, 1))
        palette.putpalette([part for _, colour in colours for part in colour])
        image.quantize(palette=palette, dither=images.Dither.NONE).save(path, optimize=True)


async def serve_and_draw(folder: Path) -> None:
    """Serve the pool on the loopback until all is drawn."""
    pool = PicturePool(speed=SPEED, servers=8, gpus=4, leases=40, waiting=3)
    listener = loopback_socket(0)
    port = listener.getsockname()[1]
    gate = LocalGate(pool, port)
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_page, make_app(gate), listener)
        address = f"http://127.0.0.1:{port}/#key={gate.new_key()}"
        await trio.to_thread.run_sync(partial(draw, address, folder))
        nursery.cancel_scope.cancel()


def main() -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    trio.run(serve_and_draw, parser.parse_args().folder)


if __name__ == "__main__":
    main()
