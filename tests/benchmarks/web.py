"""The cost of the web page with 1,000 servers of 8 GPUs and 10,000 leases, in Debian's Chromium.

    python tests/benchmarks/web.py [--servers 1000] [--seconds 30]

The pool does not exist (``tests/fake_web_pool.py``), so the figures are those of the page's program
and of the browser; what servers send to a client is not among them. It needs Playwright and
Chromium ("make browser-tests" gets the first).
"""

import argparse
import importlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LOOK = """() => {
  const paint = performance.getEntriesByName('first-contentful-paint')[0];
  const kinds = ['navigation', 'resource'];
  const all = kinds.flatMap((each) => performance.getEntriesByType(each));
  return {
    paint: paint ? paint.startTime : null,
    complete: performance.now(),
    files: all.length,
    bytes: all.reduce((sum, each) => sum + each.transferSize, 0),
    live: all.filter((each) => each.name.includes('/live')).map((each) => each.transferSize),
  };
}"""


def cpu_s(pid: int) -> float:
    """Return the seconds that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def metrics(session: Any) -> dict[str, float]:
    """Return Chromium's own counters."""
    found = session.send("Performance.getMetrics")["metrics"]
    return {each["name"]: each["value"] for each in found}


def measure(address: str, pid: int, seconds: float) -> dict[str, object]:
    """Open the page, watch it for some seconds, and return the figures."""
    playwright: Any = importlib.import_module("playwright.sync_api")
    chromium = shutil.which("chromium") or "/usr/bin/chromium"
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("gp-heat canvas[aria-label]")
        page.wait_for_timeout(3000)  # the program is warm, as after the first viewer
        page.close()
        origin = address.partition("/#")[0]
        page = context.new_page()
        session = context.new_cdp_session(page)
        session.send("Network.enable")
        session.send("Network.setCacheDisabled", {"cacheDisabled": True})
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(origin)
        page.wait_for_selector("gp-heat canvas[aria-label]")
        first = page.evaluate(LOOK)
        page.wait_for_timeout(2000)
        before, cpu, begun = metrics(session), cpu_s(pid), time.monotonic()
        updates = len(page.evaluate(LOOK)["live"])
        heap = before["JSHeapUsedSize"]
        page.wait_for_timeout(seconds * 1000)
        after, last = metrics(session), page.evaluate(LOOK)
        took = time.monotonic() - begun
        session.send("HeapProfiler.collectGarbage")
        count = max(1, len(last["live"]) - updates)
        per_update = 1000 * (after["ScriptDuration"] - before["ScriptDuration"]) / count
        found: dict[str, object] = {
            "first paint [ms]": round(first["paint"]),
            "map drawn [ms]": round(first["complete"]),
            "first page [kB]": round(first["bytes"] / 1000, 1),
            "of it the first document [kB]": round(first["live"][0] / 1000, 1),
            "files": first["files"],
            "updates": count,
            "an update [kB]": round(sum(last["live"][updates:]) / count / 1000, 1),
            "a second [kB]": round((last["bytes"] - first["bytes"]) / took / 1000, 1),
            "script for an update [ms of a processor]": round(per_update, 1),
            "program's processor [%]": round(100 * (cpu_s(pid) - cpu) / took, 1),
            "heap [MB]": round(metrics(session)["JSHeapUsedSize"] / 1e6, 1),
            "heap before [MB]": round(heap / 1e6, 1),
        }
        browser.close()
        return found


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", type=int, default=1000)
    parser.add_argument("--leases", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    command = [sys.executable, str(ROOT / "tests/serve_fake_pool.py")]
    command += ["--servers", str(given.servers), "--leases", str(given.leases)]
    served = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert served.stdin is not None and served.stdout is not None
    served.stdin.write("key\n")
    served.stdin.flush()
    try:
        found = measure(served.stdout.readline().strip(), served.pid, given.seconds)
    finally:
        served.kill()
        served.wait()
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
