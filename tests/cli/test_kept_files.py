"""Stored data of three real servers, as they report it, and their certificates' expiry."""

import time
from typing import Any

import pytest

from gpupool.cli.lib.output import run_async
from gpupool.pool.history_query import HistoryQuery, Storage
from gpupool.remoting.client.history_answers import HistoryAnswer
from gpupool.remoting.local.logins import connected

DAY_MS = 86_400_000
DEADLINE_S = 60


async def ask() -> HistoryAnswer:
    async with connected(None) as pool:
        return await pool.history(HistoryQuery("storage"))


def test_each_server_says_what_it_keeps_and_when_its_certificates_end(
    live_pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in live_pool.env.items():
        monkeypatch.setenv(name, value)
    end = time.monotonic() + DEADLINE_S
    while True:
        answer = run_async(ask)
        kept = [page.storage for page in answer.pages.values()]
        told = [each for each in kept if each and each.files.get("history.db") and each.ends]
        if len(told) == 3:
            break
        assert time.monotonic() < end, answer
        time.sleep(0.2)
    for each in kept:
        assert isinstance(each, Storage)
        assert 0 < each.files["history.db"] <= each.size_max == 1 << 30
        assert [tier.step_s for tier in each.tiers] == [10, 60, 3600]
        left = {name: (at - 1000 * time.time()) / DAY_MS for name, at in each.ends.items()}
        assert {"server", "ca"} <= left.keys() <= {"server", "ca", "web"}
        assert all(days > 1 for days in left.values())
