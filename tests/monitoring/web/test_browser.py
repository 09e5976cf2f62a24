"""The page in a real browser: each page, both themes, axe-core, a server that dies, hostile names.

It needs Playwright and Chromium ("make browser-tests"), and axe-core's axe.min.js, for which
GPUPOOL_AXE names the file; each is left out with a sentence where it is missing.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from tests.fake_web_pool import HOSTILE, START_MS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[3]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or "/usr/bin/chromium"
AXE = os.environ.get("GPUPOOL_AXE", "")
PAGES = {
    "": "GPUs in use",
    "servers": "node-1",
    "servers/node-1": "Membership",
    "gpus": "node-1 / GPU 1",
    "gpus/node-1/1": "Xid 31",
    "leases": "barbara",
    "leases/1000": "Where",
    "leases?show=over": "released",
    "waiting": "in the order of service",
    "usage": "GPU-hours",
    "usage?cost=1": "Cost, EUR",
    "usage?cost=1&span=7d": "Free, EUR",
    "health": "Checks",
    "events": "Events",
    "events?show=audit": "every administrative act",
    "history": "Granted",
    "history?span=24h&of=node-1": "Busy",
    "users": "Users with leases",
    "users?by=department": "Wasted",
    "users/ada": "Reached",
    "clients": "ada@desk",
    "clients/ada%40desk": "GPUs held",
    "about": "Rows of 1 min",
}
STALE_S = 6.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api: Any = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: make browser-tests installs it"
    )
    if not Path(CHROMIUM).is_file():
        pytest.skip("there is no Chromium here: apt-get install chromium")
    with sync_api.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


class Served:
    """A program that serves a pool that does not exist; lines on its input change it."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/serve_fake_pool.py"), *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, words: str) -> str:
        """Give an order, and return the answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served("--servers", "4", "--gpus", "2", "--leases", "8")
    yield made
    made.end()


class Visit:
    """One page of a browser, with all that went wrong and all that was asked for."""

    def __init__(self, browser: Any, served: Served, **options: Any) -> None:
        self.trouble: list[str] = []
        self.asked: list[str] = []
        self.page = browser.new_context(**options).new_page()
        self.page.on("console", self._console)
        self.page.on("pageerror", self._error)
        self.page.on("request", self._request)
        self.page.on("dialog", self._dialog)
        self.address = served.say("key")
        self.origin = self.address.partition("/#")[0]
        self.page.goto(self.address)
        self.page.wait_for_selector("main .panel")

    def _error(self, error: Any) -> None:
        self.trouble.append(str(error))

    def _request(self, request: Any) -> None:
        self.asked.append(request.url)

    def _dialog(self, dialog: Any) -> None:
        self.trouble.append(f"a script ran: {dialog.message}")

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.trouble.append(message.text)

    def open(self, path: str) -> None:
        """Open a page by its address."""
        self.page.goto(f"{self.origin}/{path}")
        self.page.wait_for_selector("main .panel")

    def check(self) -> None:
        """Nothing went wrong, and no request left the origin."""
        assert self.trouble == []
        foreign = [each for each in self.asked if not each.startswith((self.origin, "blob:"))]
        assert foreign == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_page_opens_and_axe_finds_nothing(browser: Any, served: Served, theme: str) -> None:
    if not Path(AXE).is_file():
        pytest.skip("GPUPOOL_AXE names no axe.min.js: npm pack axe-core has it")
    visit = Visit(browser, served, color_scheme=theme, viewport={"width": 1280, "height": 900})
    axe = Path(AXE).read_text(encoding="utf-8")
    wrong: list[str] = []
    for path, word in PAGES.items():
        visit.open(path)
        visit.page.wait_for_selector(f"main >> text={word}")
        visit.page.wait_for_timeout(300)
        visit.page.evaluate(axe)
        found = visit.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        wrong += [
            f"{path or 'overview'}: {each['id']}: {each['nodes'][0]['html'][:160]}"
            f" {each['nodes'][0]['failureSummary'][:200]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]
    assert wrong == []
    visit.check()


@pytest.mark.parametrize("width", [360, 820, 1920, 3840])
def test_no_page_is_wider_than_its_window(browser: Any, served: Served, width: int) -> None:
    visit = Visit(browser, served, viewport={"width": width, "height": 900})
    for path in PAGES:
        visit.open(path)
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width, path
    visit.check()


def test_a_server_that_dies_is_grey_in_six_seconds(browser: Any, served: Served) -> None:
    visit = Visit(browser, served)
    visit.open("servers")
    assert visit.page.locator("tr.dead").count() == 0
    served.say("kill 2")
    killed = time.monotonic()
    visit.page.wait_for_selector("tr.dead >> text=node-2", timeout=STALE_S * 1000)
    assert time.monotonic() - killed < STALE_S
    visit.page.click("text=Overview")  # the page can be used
    visit.page.wait_for_selector("text=node-2 does not answer")
    visit.check()


def test_a_page_whose_program_ends_looks_old(browser: Any, served: Served) -> None:
    visit = Visit(browser, served)
    served.end()
    visit.page.wait_for_selector(".frame.old", timeout=8000)
    assert "gpupool web does not answer" in visit.page.inner_text(".lost")


@pytest.mark.parametrize("width", [360, 1280])
def test_hostile_names_are_texts(browser: Any, width: int) -> None:
    served = Served("--servers", "4", "--gpus", "2", "--leases", "8", "--hostile")
    try:
        visit = Visit(browser, served, viewport={"width": width, "height": 900})
        served.say("drain 1")
        for path in (*PAGES, f"clients/{quote(HOSTILE, safe='')}"):
            visit.open(path)
            visit.page.wait_for_timeout(150)
            assert visit.page.locator("main img").count() == 0, path
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= width, path
        visit.open("leases")
        visit.page.locator("main", has_text="<script>alert(2)</script>").wait_for()
        assert visit.page.locator("main img, main script").count() == 0
        visit.check()
    finally:
        served.end()


def test_an_event_leads_to_its_lease_whose_charts_are_there(browser: Any, served: Served) -> None:
    visit = Visit(browser, served)
    visit.open("events?q=released")
    visit.page.click("main tbody a >> nth=-1")
    visit.page.wait_for_selector("h2 >> text=Traffic to the GPUs")
    assert "/leases/" in visit.page.url
    visit.page.wait_for_selector("main >> text=Where")
    visit.open("clients")
    visit.page.click("main tbody >> text=ada@desk")
    visit.page.wait_for_selector("h2 >> text=Traffic from the GPUs")
    visit.page.wait_for_selector("h2 >> text=Wire")
    visit.open("gpus/node-1/1")
    visit.page.wait_for_selector("h2 >> text=Tensor")
    visit.check()


def test_what_happened_to_a_gpu_is_on_its_charts(browser: Any, served: Served) -> None:
    visit = Visit(browser, served, viewport={"width": 1280, "height": 900})
    visit.open("gpus/node-1/1")
    visit.page.wait_for_selector("h2 >> text=Memory by lease")
    stack = visit.page.locator("section[aria-label='Memory by lease']")
    stack.get_by_text("1025, barbara").first.wait_for()
    assert "all that is in use" in stack.inner_text()
    stack.get_by_text("Values as a table").click()
    stack.get_by_role("columnheader", name="1025, barbara, GiB").wait_for()
    found = visit.page.locator("section[aria-label='Throttling and errors']")
    for words in ("Clocks held down by heat, by the hardware", "the power limit", "Xid 31"):
        found.get_by_text(words).first.wait_for()
    visit.check()


def test_the_page_of_a_gpu_leaves_no_half_empty(browser: Any, served: Served) -> None:
    visit = Visit(browser, served, viewport={"width": 1400, "height": 900})
    visit.open("gpus/node-1/1")
    visit.page.wait_for_selector("h2 >> text=Memory by lease")
    rights = (
        "grids => grids.map(grid => [...grid.children].map(e => e.getBoundingClientRect().right))"
    )
    for panels in visit.page.locator(".grid").evaluate_all(rights):
        assert panels[-1] == max(panels), "the last panel ends where the page does"
    visit.check()


def test_limits_and_waste_are_beside_what_is_used(browser: Any, served: Served) -> None:
    visit = Visit(browser, served)
    visit.open("users")
    table = visit.page.locator("section[aria-label='Users with leases or requests']")
    table.get_by_text(" of 4").first.wait_for()
    table.get_by_text(" h", exact=False).first.wait_for()
    visit.page.get_by_role("button", name="Departments").click()
    visit.page.wait_for_selector("section[aria-label='Departments']")
    visit.open("users/ada")
    limits = visit.page.locator("section[aria-label='Limits']")
    limits.get_by_text("of the user").first.wait_for()
    visit.check()


def test_the_page_about_the_pool_says_what_is_kept_and_until_when_certificates_hold(
    browser: Any, served: Served
) -> None:
    visit = Visit(browser, served)
    visit.open("about")
    ends = visit.page.locator("section[aria-label='Certificates']")
    ends.get_by_text("in 19 days").wait_for()
    kept = visit.page.locator("section[aria-label='Storage']")
    kept.get_by_text("235 MiB of 1 GiB").wait_for()
    kept.get_by_text("30 d", exact=False).first.wait_for()
    visit.check()


def test_a_moment_leads_to_the_charts_around_it(browser: Any, served: Served) -> None:
    visit = Visit(browser, served)
    visit.open("health?past=30")
    visit.page.get_by_role("searchbox").fill("temperature")
    visit.page.click("section[aria-label='Earlier findings'] tbody a >> nth=0")
    visit.page.wait_for_selector("h2 >> text=Busy")
    assert "of=node-1%2F0" in visit.page.url and "at=" in visit.page.url
    visit.page.wait_for_selector("p.notice >> text=Around")
    asked = [each for each in visit.asked if "/api/v1/history" in each][-1]
    of_answer, of_page = (parse_qs(urlsplit(each).query) for each in (asked, visit.page.url))
    since, until = (int(of_answer[name][0]) for name in ("since", "until"))
    at = int(of_page["at"][0])
    assert since < at <= until and until - since == 6 * 3_600_000
    visit.page.get_by_role("button", name="Up to now").click()
    visit.page.wait_for_function("!location.search.includes('at=')")
    visit.open("events")
    href = visit.page.get_attribute("main tbody td >> nth=0 >> a", "href")
    assert href.startswith("/history?of=") and "&at=" in href
    visit.check()


def test_a_report_of_leases_up_to_the_end_of_a_day(browser: Any, served: Served) -> None:
    visit = Visit(browser, served)
    visit.open("usage?span=7d&by=lease")
    visit.page.wait_for_selector("section[aria-label='By lease']")
    day = datetime.fromtimestamp(START_MS / 1000, UTC)
    day = day.replace(hour=0, minute=0, second=0, microsecond=0)  # by the pool's time
    visit.page.get_by_label("Up to").fill(str((day - timedelta(days=1)).date()))
    visit.page.wait_for_function("location.search.includes('until=')")
    visit.page.wait_for_selector("text=GPU-hours")
    asked = [each for each in visit.asked if "/api/v1/usage" in each][-1]
    until = 1000 * int(day.timestamp())
    found = parse_qs(urlsplit(asked).query)
    assert int(found["until"][0]) == until
    assert int(found["since"][0]) == until - 7 * 86_400_000
    visit.open(f"usage?until={(day + timedelta(days=2)).date()}")
    visit.page.wait_for_selector("text=GPU-hours")
    assert "until=" not in [each for each in visit.asked if "/api/v1/usage" in each][-1]
    visit.check()


def test_a_hidden_page_asks_nothing(browser: Any, served: Served) -> None:
    visit = Visit(browser, served)
    visit.page.evaluate(
        "Object.defineProperty(document, 'hidden', {get: () => true, configurable: true})"
    )
    visit.page.wait_for_timeout(1500)
    visit.asked.clear()
    visit.page.wait_for_timeout(2500)
    assert visit.asked == []


def test_a_lease_is_ended_with_a_reason_and_a_key_is_good_once(
    browser: Any, served: Served
) -> None:
    visit = Visit(browser, served)
    visit.open("leases/1000")
    visit.page.click("text=End the lease")
    visit.page.keyboard.type("it hangs")
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_selector("text=lease 1000 is ending")
    assert "it hangs (web)" in served.say("orders")
    other = browser.new_context().new_page()
    other.goto(visit.address)
    other.wait_for_selector("text=This address was used already")
    assert urlsplit(str(other.url)).fragment == ""
    visit.check()


def test_the_page_of_health_shows_when_checks_failed(browser: Any, served: Served) -> None:
    visit = Visit(browser, served)
    visit.open("health?past=30")
    found = visit.page.locator("section[aria-label='Earlier findings']")
    found.get_by_text("temperature").wait_for()
    assert "goes on" in found.inner_text() and "25 min 00 s" in found.inner_text()
    assert "no records before" in visit.page.locator("p.notice").inner_text()
    visit.page.get_by_role("searchbox").fill("temperature")
    found.get_by_text("disk", exact=True).wait_for(state="detached")
    found.get_by_role("button", name="A day").click()
    visit.page.wait_for_function("location.search.includes('past=1')")
    found.get_by_text("temperature").wait_for()
    visit.check()


def test_a_finding_is_silenced_with_a_reason(browser: Any, served: Served) -> None:
    visit = Visit(browser, served)
    visit.open("health")
    visit.page.click("text=Silence…")
    visit.page.keyboard.type("new disk")
    visit.page.select_option("dialog select", "24")
    visit.page.click("text=Silence it")
    visit.page.wait_for_selector("text=is silenced")
    assert "new disk (web)" in served.say("orders")
    visit.page.wait_for_selector("text=silenced for another 23 h", timeout=8000)
    visit.page.click("text=End the silence")
    visit.page.click("dialog button.main")
    visit.page.wait_for_selector("text=is not silenced any more")
    visit.check()


def test_keys_lead_from_page_to_page_and_the_map_is_walked(browser: Any, served: Served) -> None:
    visit = Visit(browser, served)
    visit.page.keyboard.press("2")
    visit.page.wait_for_selector("h1 >> text=Servers")
    visit.page.keyboard.press("/")
    visit.page.keyboard.type("node-3")
    visit.page.locator("tbody:not(:has(tr:nth-child(2))) tr").wait_for()
    assert "q=node-3" in visit.page.url
    visit.open("")
    visit.page.focus("gp-heat canvas")
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        visit.page.keyboard.press(key)
    visit.page.wait_for_selector("h1 >> text=node-0 / GPU 1")
    visit.page.go_back()
    visit.page.wait_for_selector("h1 >> text=Overview")
    visit.check()
