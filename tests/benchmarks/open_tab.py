"""The heap of a web page that stays open: the updates of hours, in minutes, in Debian's Chromium.

    python tests/benchmarks/open_tab.py [--hours 8] [--speed 40] [--tabs 1] [--servers 12]

Nobody waits for eight hours, so time is compressed: the clocks and timers of the page run
``--speed`` times as fast, and so does the clock of the pool, which does not exist
(``tests/fake_web_pool.py``). So the page gets as many updates, each with new readings, and draws
them; how many there were is printed, because a busy machine gives fewer. What depends on real time
alone, such as the browser's own caches that end after hours, is not in it. The heap is read after
a collection of garbage, in ten places.
"""

import argparse
import importlib
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from web import metrics

ROOT = Path(__file__).resolve().parents[2]
PLACES = 10
FASTER = """(() => {
  const speed = SPEED, began = performance.now(), beganAt = Date.now();
  const now = performance.now.bind(performance), at = Date.now;
  performance.now = () => began + speed * (now() - began);
  Date.now = () => beganAt + speed * (at() - beganAt);
  for (const name of ["setTimeout", "setInterval"]) {
    const real = window[name].bind(window);
    window[name] = (work, ms, ...more) => real(work, (ms || 0) / speed, ...more);
  }
  const fetched = window.fetch.bind(window);
  window.updates = 0;
  window.fetch = async (path, ...more) => {
    const answer = await fetched(path, ...more);
    if (String(path).includes("/live")) window.updates += 1;
    return answer;
  };
})()"""


def open_tabs(context: Any, address: str, count: int) -> list[tuple[Any, Any]]:
    """Return tabs that show the page, each with a session of Chromium's own counters."""
    found: list[tuple[Any, Any]] = []
    for number in range(count):
        page = context.new_page()
        # The key of the address is good for one visit; then the browser has a cookie.
        page.goto(address.partition("/#")[0] if number else address)
        page.wait_for_selector("gp-heat canvas[aria-label]")
        session = context.new_cdp_session(page)
        session.send("Performance.enable")
        found.append((page, session))
    return found


def heap_mb(session: Any) -> tuple[float, int]:
    """Return the heap that is in use after a collection of garbage, and the nodes of documents."""
    session.send("HeapProfiler.collectGarbage")
    found = metrics(session)
    return found["JSHeapUsedSize"] / 1e6, int(found["Nodes"])


def watch(address: str, given: argparse.Namespace) -> None:
    """Open the tabs, and print their heap sizes while time passes."""
    playwright: Any = importlib.import_module("playwright.sync_api")
    chromium = shutil.which("chromium") or "/usr/bin/chromium"
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        context.add_init_script(FASTER.replace("SPEED", repr(given.speed)))
        tabs = open_tabs(context, address, given.tabs)
        began, whole_s = time.monotonic(), 3600 * given.hours / given.speed
        for place in range(PLACES + 1):
            tabs[0][0].wait_for_timeout(
                1000 * max(0.0, began + whole_s * place / PLACES - time.monotonic())
            )
            heaps, updates = [heap_mb(session) for _, session in tabs], list[int]()
            for page, _ in tabs:
                updates.append(page.evaluate("window.updates"))
            largest, nodes = max(heaps)
            print(
                f"{given.hours * place / PLACES:5.2f} h  {min(updates):6d} updates  "
                f"heap {largest:6.2f} MB  {nodes:6d} nodes",
                flush=True,
            )
        browser.close()


def main() -> None:
    """Serve a pool, and watch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--speed", type=float, default=40.0)
    parser.add_argument("--tabs", type=int, default=1)
    parser.add_argument("--servers", type=int, default=12)
    parser.add_argument("--leases", type=int, default=40)
    given = parser.parse_args()
    command = [sys.executable, str(ROOT / "tests/serve_fake_pool.py")]
    command += ["--servers", str(given.servers), "--leases", str(given.leases)]
    command += ["--speed", str(given.speed)]
    served = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert served.stdin is not None and served.stdout is not None
    served.stdin.write("key\n")
    served.stdin.flush()
    try:
        watch(served.stdout.readline().strip(), given)
    finally:
        served.kill()
        served.wait()


if __name__ == "__main__":
    main()
