"""Every state of ``gpupool top`` as drawn, in UTF-8 and in ASCII, beside the recorded one.

``GPUPOOL_REWRITE=1`` writes the frames anew, and you read the difference.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.test_detail import LEASE, busy_pool, charts

from gpupool.cli.lib.columns import Glyphs
from gpupool.cli.tui.answers import Answers
from gpupool.cli.tui.keys import Chosen, Mode, UiState
from gpupool.cli.tui.screen import render
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot

__all__ = ["busy_pool"]

RECORDED = Path(__file__).parent.parent / "testdata" / "top-frames.txt"
WIDTH, HEIGHT = 110, 26
PANELS = ("servers", "gpus", "leases")


def states(
    busy: PoolSnapshot, minority: PoolSnapshot
) -> Iterator[tuple[str, PoolSnapshot | None, UiState]]:
    """Return each state with its name: of the keys, of the lists, of the pool."""
    for mode in Mode:
        yield mode.value, busy, UiState(mode=mode, detail=LEASE)
    for panel in PANELS:
        yield f"list of {panel}", busy, UiState(panel=panel)
    server: Chosen = ("server", busy.view.servers[0].id)
    yield "detail of a server", busy, UiState(mode=Mode.DETAIL, detail=server)
    yield "no majority", minority, UiState()
    old = replace(busy, view_age_s=30.0, silent=frozenset(busy.telemetry))
    yield "an old view", old, UiState()
    yield "before the first answer", None, UiState()


@pytest.fixture
def utc() -> Iterator[None]:
    """Let times of day be those of UTC on every machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_every_state_looks_as_recorded(busy_pool: PoolSnapshot, minority: PoolSnapshot) -> None:
    answers = Answers(
        charts={(LEASE, 900): charts("busy", "waits", "rtt")},
        leases={LEASE[1]: ("user ada", "reason released")},
        usage=("USER  GPU-HOURS", "ada        1.25"),
    )
    found: list[str] = []
    for form, glyphs in (("UTF-8", Glyphs()), ("ASCII", Glyphs(ascii=True))):
        for name, pool, ui in states(busy_pool, minority):
            frame = render(pool, ui, WIDTH, HEIGHT, glyphs, answers).plain
            assert frame.isascii() or form == "UTF-8"
            found.append(f"=== {name}, {form}")
            found += [line.rstrip() for line in frame.split("\n")]
    text = "\n".join(found) + "\n"
    if os.environ.get("GPUPOOL_REWRITE"):
        RECORDED.write_text(text, encoding="utf-8")
    assert text == RECORDED.read_text(encoding="utf-8")
