"""The live view's health panel shows the findings of ``gpupool health``, and silent servers."""

from dataclasses import replace

from gpupool.cli.lib.columns import Glyphs
from gpupool.cli.tui.keys import Extent, Mode, UiState, press
from gpupool.cli.tui.screen import render
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.pool.telemetry import Finding, Health

SINCE = Milliseconds(1_699_999_940_000)


def shown(snapshot: PoolSnapshot, *, ascii_only: bool = False) -> str:
    ui, action = press(UiState(), "H", Extent((3, 2, 1), (8, 8, 8)))
    assert (ui.mode, action) == (Mode.HEALTH, None)
    return render(snapshot, ui, 160, 24, Glyphs(ascii=ascii_only)).plain


def with_findings(snapshot: PoolSnapshot) -> PoolSnapshot:
    first = snapshot.view.servers[0].id
    found = (
        Finding(
            "disk", "/var", Health.WARN, SINCE, "8 % is free, which is little \u2013 soon none"
        ),
        Finding("clock", "", Health.FAIL, SINCE, "it is 7 s ahead\x1b[2J", "set the clock"),
    )
    told = replace(snapshot.telemetry[first], findings=found)
    return replace(snapshot, telemetry={**snapshot.telemetry, first: told})


def test_nothing_is_wrong(snapshot: PoolSnapshot) -> None:
    assert "Health: healthy; 0 fail, 0 warn; 3 of 3 servers answer" in shown(snapshot)


def test_findings_the_worst_first_with_hints(snapshot: PoolSnapshot) -> None:
    for ascii_only in (False, True):
        text = shown(with_findings(snapshot), ascii_only=ascii_only)
        assert "Health: not healthy; 1 fail, 1 warn" in text
        assert text.index("fail  clock") < text.index("warn  disk")
        assert "server-a: 8 % is free" in text
        assert "(for 1m00s)" in text
        assert "hint: set the clock" in text
        assert "\x1b" not in text
        assert text.isascii() == ascii_only


def test_a_server_that_is_silent_is_named_and_its_old_findings_are_not(
    snapshot: PoolSnapshot,
) -> None:
    first = snapshot.view.servers[0].id
    for lost in (
        replace(with_findings(snapshot), silent=frozenset({first})),
        replace(with_findings(snapshot), telemetry_age_s={**snapshot.telemetry_age_s, first: 42.0}),
    ):
        text = shown(lost)
        assert "2 of 3 servers answer" in text
        assert "server-a: it does not answer from here" in text
        assert "8 % is free" not in text
