"""A page of one of three real servers while another of them is killed, with hostile names on it.

It needs Playwright and Chromium, as ``test_browser.py``.
"""

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import LivePool, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or "/usr/bin/chromium"
SEEN_DEAD_S = 6.0
"""Seconds until a page shows that a server is dead."""

OPENS_MS = 15_000
MARK, LEFT_AGAIN = "\N{RIGHT-TO-LEFT OVERRIDE}", "\N{POP DIRECTIONAL FORMATTING}"
HOSTILE = f"<img src=x onerror=alert(1)>{MARK}\N{HEBREW LETTER ALEF}\N{HEBREW LETTER BET}"
PROGRAM = f"{HOSTILE}{LEFT_AGAIN}{'W' * 150}"
REASON = f"{HOSTILE.replace(MARK, '')}</td><script>alert(2)</script>"
PAGES = (
    *("", "servers", "servers/a", "servers/b", "servers/c", "gpus", "gpus/a/0", "gpus/b/0"),
    *("leases", "leases?show=over", "waiting", "history", "usage", "events", "events?show=audit"),
    *("health", "users", "clients", "about"),
)


@pytest.fixture
def pool() -> Iterator[LivePool]:
    """Run three servers; a program with a hostile name has a GPU of b, and c is drained."""
    with running() as made:
        program = made.folder / PROGRAM
        program.write_text("#!/bin/sh\nexec sleep 600\n")
        program.chmod(0o755)
        made.spawn("run", "-p", "0.5", "--server", "b", "--", str(program))
        assert made.run("drain", "c", "--reason", REASON).returncode == 0
        made.wait_until(lambda view: bool(view["leases"]))
        yield made
        for server in made.servers.values():  # those that are left would look for a majority
            if server.process is not None:
                server.process.kill()


@pytest.fixture
def page() -> Iterator[Any]:
    sync_api: Any = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: make browser-tests installs it"
    )
    if not Path(CHROMIUM).is_file():
        pytest.skip("there is no Chromium here: apt-get install chromium")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        size = {"width": 1280, "height": 900}
        yield browser.new_context(ignore_https_errors=True, viewport=size).new_page()
        browser.close()


def listen(page: Any) -> list[str]:
    """Return a page's later problems: errors, warnings, dialogs, answers of failure."""
    trouble: list[str] = []

    def console(message: Any) -> None:
        if message.type in ("error", "warning"):
            trouble.append(f"{message.text} {message.location}")

    page.on("console", console)

    def wrong(what: Any) -> None:
        trouble.append(str(what))

    page.on("pageerror", wrong)
    page.on("dialog", wrong)
    return trouble


def address_of(pool: LivePool, server: str) -> str:
    """Return an address that lets one browser in."""
    done = pool.run("web", "--on", server, "--no-browser")
    return next(word for word in done.stderr.split() if word.startswith("https://"))


def test_a_page_shows_that_a_server_was_killed_and_goes_on(pool: LivePool, page: Any) -> None:
    address = address_of(pool, "b")
    trouble = listen(page)
    page.goto(address)
    page.wait_for_selector("main .panel", timeout=OPENS_MS)
    origin = address.partition("/#")[0]
    page.goto(f"{origin}/servers")
    # The exporter has just connected to the servers, and has not heard of all yet.
    page.wait_for_selector("tbody:not(:has(tr.dead)) tr:nth-child(3)", timeout=OPENS_MS)
    victim = pool.servers["a"].process
    assert victim is not None
    victim.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    page.wait_for_selector("tr.dead >> text=a", timeout=SEEN_DEAD_S * 1000)
    took = time.monotonic() - killed
    assert took < SEEN_DEAD_S
    assert page.locator("tr.dead").count() == 1
    for path in PAGES:
        page.goto(f"{origin}/{path}")
        page.wait_for_selector("main .panel", timeout=OPENS_MS)
        page.wait_for_timeout(200)
        assert page.locator("main img, main script").count() == 0, path
        assert page.locator(".frame.old").count() == 0, path
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280, path
        assert MARK not in page.inner_text("main"), path
        if path == "leases":
            assert "<img src=x onerror=alert(1)>" in page.inner_text("main")
        if path == "about":
            page.wait_for_selector("section[aria-label='Certificates'] >> text=The pool's CA")
            page.wait_for_selector("section[aria-label='Storage'] >> text=of 1 GiB")
        if path == "servers/c":
            assert "<script>alert(2)</script>" in page.inner_text("main")
    page.goto(f"{origin}/")
    page.wait_for_selector("main >> text=a does not answer", timeout=OPENS_MS)
    print(f"seen after {took:.1f} s")
    assert trouble == []
