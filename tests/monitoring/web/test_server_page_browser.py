"""A server's own page in a real browser: log-in by a token, an order, an address that is good once.

It needs Playwright and Chromium, as ``test_browser.py``.
"""

import queue
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.monitoring.http.web_kit import served

from gpupool.cli.lib.web_invitation import ask_key, token_text
from gpupool.pool.model.state import TokenKind
from gpupool.remoting.protocol.addresses import Address

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or "/usr/bin/chromium"
HOSTILE = "<img src=x onerror=alert(1)>"


class Lab:
    """A control server with its door for HTTPS, on a separate thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told: queue.SimpleQueue[tuple[int, str, str, str]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=lambda: trio.run(self._main), daemon=True)
        self._thread.start()
        self.port, self.token, self.text_of_ada, self.pem = self._told.get(timeout=60)

    async def _main(self) -> None:
        self._ended, self._trio = trio.Event(), trio.lowlevel.current_trio_token()
        async with served(self._folder) as web:
            lab = web.lab
            pem = lab.authority.certificate_pem.decode()
            lab.token("ada", TokenKind.USER)
            address = Address("127.0.0.1", lab.ports[0])
            text = token_text(lab.credentials("ada"), pem, address)
            operator = lab.token("olga", TokenKind.OPERATOR)
            self._told.put((lab.ports[0], operator, text, pem))
            await self._ended.wait()

    def end(self) -> None:
        self._trio.run_sync_soon(self._ended.set)
        self._thread.join(30)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.end()


@pytest.fixture
def page(lab: Lab) -> Iterator[Any]:
    sync_api: Any = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: make browser-tests installs it"
    )
    if not Path(CHROMIUM).is_file():
        pytest.skip("there is no Chromium here: apt-get install chromium")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_context(ignore_https_errors=True).new_page()
        browser.close()


def test_a_person_logs_in_orders_and_logs_out(lab: Lab, page: Any) -> None:
    trouble: list[str] = []

    def wrong(what: Any) -> None:
        trouble.append(str(what))

    page.on("pageerror", wrong)
    page.on("dialog", wrong)
    origin = f"https://127.0.0.1:{lab.port}"
    page.goto(f"{origin}/servers")
    page.wait_for_selector("h1 >> text=Log in to the pool")
    page.fill("input[name=token]", HOSTILE)
    page.click("button >> text=Log in")
    page.wait_for_selector("[role=alert]")
    page.fill("input[name=token]", lab.token)
    page.click("button >> text=Log in")
    page.wait_for_selector("main tbody tr")
    cookies = page.context.cookies()
    (cookie,) = cookies
    assert cookie["name"].startswith("__Host-")
    assert cookie["secure"] and cookie["httpOnly"] and cookie["sameSite"] == "Strict"
    page.click("main tbody tr a")
    page.click("button >> text=Drain")
    page.fill("dialog input[name=reason]", HOSTILE)
    page.click("dialog button.danger, dialog button.main")
    page.wait_for_selector("dialog", state="detached")
    page.goto(f"{origin}/about")
    page.click("button >> text=Log out")
    page.wait_for_selector("h1 >> text=Log in to the pool")
    assert page.context.cookies() == []
    assert trouble == []


def test_an_address_from_the_command_lets_one_browser_in(lab: Lab, page: Any) -> None:
    key = ask_key(Address("127.0.0.1", lab.port), lab.text_of_ada, lab.pem)
    page.goto(f"https://127.0.0.1:{lab.port}/#key={key}")
    page.wait_for_selector("main .panel")
    assert "key" not in page.url
    page.goto(f"https://127.0.0.1:{lab.port}/about")
    page.wait_for_selector("main >> text=ada")
