"""The live view is a function of known data: right words, right size, nothing old as new."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from gpupool.cli.commands.view import leases_body, problems
from gpupool.cli.lib.columns import (
    LEASE_COLUMNS,
    SERVER_COLUMNS,
    Glyphs,
    bar,
    mini_cell,
)
from gpupool.cli.lib.listing import print_table
from gpupool.cli.tui.keys import KEYS, Mode, UiState
from gpupool.cli.tui.panels import chosen_row, extent, row_json
from gpupool.cli.tui.screen import render
from gpupool.pool.model.ids import GpuId
from gpupool.pool.read_model.figures import Rate
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot, ServerRow
from gpupool.pool.telemetry import ConsensusTelemetry, SessionTelemetry

GLYPHS = Glyphs()


def lines(
    snapshot: PoolSnapshot | None, ui: UiState, width: int = 120, height: int = 40
) -> list[str]:
    return render(snapshot, ui, width, height, GLYPHS).plain.split("\n")


def style_at(frame: Text, word: str) -> str:
    at = frame.plain.index(word)
    return " ".join(str(s.style) for s in frame.spans if s.start <= at < s.end)


def test_banner_says_how_the_pool_is(snapshot: PoolSnapshot) -> None:
    first, second = lines(snapshot, UiState(), 160)[:2]
    assert "gpupool lab" in first
    assert "leader server-a  term 12  quorum 3/3" in first
    assert "GPUs 2 used, 0 idle, 2 not offered, 4 in all" in first
    assert "as of now" in first
    assert "140G of 560G granted" in second
    assert "waiting 1" in second


def test_counts(snapshot: PoolSnapshot) -> None:
    sums = snapshot.sums
    assert (sums.used, sums.idle, sums.unreachable, sums.other) == (2, 0, 0, 2)
    assert snapshot.view.raft.reached(snapshot.view.answered_by) == 3


def test_servers_with_state_reason_and_mini_cells(snapshot: PoolSnapshot) -> None:
    text = "\n".join(lines(snapshot, UiState(), 200))
    assert "mix" in text
    assert "server-a (leader)" in text
    assert "new fan" in text
    assert "▃▃" in text  # 42 % of each GPU of server-a
    assert "witness" in text
    assert "700W" in text
    assert "61C" in text


def test_the_policy_and_its_classes_are_shown_where_there_are_some(snapshot: PoolSnapshot) -> None:
    plain = "\n".join(lines(snapshot, UiState(), 200))
    assert "policy v" not in plain
    assert "CLASS" not in plain
    view = replace(
        snapshot.view,
        policy_version=7,
        leases=tuple(replace(each, user_class="staff") for each in snapshot.view.leases),
        waiting=tuple(replace(each, priority=-3) for each in snapshot.view.waiting),
    )
    text = "\n".join(lines(replace(snapshot, view=view), UiState(), 200))
    assert "data tls   policy v7" in text
    assert re.search(r"USER  CLASS  PRIORITY +GPUS", text)
    assert re.search(r"ada   staff +2 x H200", text)
    assert re.search(r"bob +-3  8 whole GPUs", text)


def test_a_list_of_nothing_has_no_classes(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(LEASE_COLUMNS, [], wide=False, glyphs=GLYPHS)
    assert capsys.readouterr().out.split()[:4] == ["STATE", "LEASE", "USER", "GPUS"]


def test_leases_and_who_waits_for_what(snapshot: PoolSnapshot) -> None:
    text = "\n".join(lines(snapshot, UiState(), 160))
    assert "2 x H200 on server-a" in text
    assert "11.9M" in text
    assert "31000" in text
    assert "8 whole GPUs" in text
    assert "2 of 8 idle" in text
    assert "granted" in text


def lease_line(snapshot: PoolSnapshot, glyphs: Glyphs = GLYPHS) -> list[str]:
    """Return the words of the lease's row, after its GPUs."""
    frame = render(snapshot, UiState(panel="leases"), 200, 40, glyphs).plain
    line = next(each for each in frame.split("\n") if "7f3a" in each and "on server-a" in each)
    return line.split("on server-a")[1].split()


def with_session(snapshot: PoolSnapshot, wire_s: float, **figures: Any) -> PoolSnapshot:
    first = snapshot.view.servers[0].id
    lease = snapshot.view.leases[0].id
    session = SessionTelemetry(lease, 1, 0, 0, 0, 0, **figures)
    told = replace(snapshot.telemetry[first], sessions=(session,))
    rates = {(first, lease): Rate(31_000.0, 10e6, 2.5e6, 1200.0, wire_s)}
    return replace(snapshot, telemetry={**snapshot.telemetry, first: told}, rates=rates)


def test_figures_of_a_lease_and_those_not_known(snapshot: PoolSnapshot) -> None:
    #        MEMORY  AGE   USED UP/S DOWN/S CALLS/S WAITS/S RTT WIRE BUSY IDLE PROGRAM
    unknown = "140G 1m40s - 11.9M 0B 31000 - - - - - train.py"
    assert lease_line(snapshot) == unknown.split()
    busy = {GpuId("GPU-0-0"): 0.5, GpuId("GPU-0-1"): 0.25}
    full = with_session(snapshot, 0.12, memory_used=3 << 30, rtt_us=100, busy=busy, idle_s=65.0)
    known = "140G 1m40s 3G 9.5M 2.4M 31000 1200 0.10ms 0.12 0.75 1m05s train.py"
    assert lease_line(full) == known.split()
    assert lease_line(full, Glyphs(ascii=True)) == known.split()
    assert "latency" not in " ".join(lease_line(full))
    slow = with_session(snapshot, 0.31, busy=busy, busy_estimated=True)
    assert "0.31 latency ~0.75 -" in " ".join(lease_line(slow))


def test_what_a_lease_got_of_its_share_is_shown_where_others_want_the_gpu(
    snapshot: PoolSnapshot,
) -> None:
    assert "SHARE" not in render(snapshot, UiState(panel="leases"), 200, 40, GLYPHS).plain
    due = {GpuId("GPU-0-0"): 0.25}
    wanted = with_session(snapshot, 0.12, share_due=due, share_got={GpuId("GPU-0-0"): 0.262})
    assert "140G 0.26 of 0.25 1m40s" in " ".join(lease_line(wanted))
    assert leases_body(wanted)["shares"] == {"7f3a": {"due": 0.25, "got": 0.262}}
    alone = with_session(snapshot, 0.12, share_due=due)
    assert "140G - of 0.25 1m40s" in " ".join(lease_line(alone))
    assert leases_body(alone)["shares"] == {"7f3a": {"due": 0.25, "got": None}}
    assert leases_body(snapshot)["shares"] == {}


def test_servers_of_another_version_are_named(
    snapshot: PoolSnapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c = snapshot.view.servers
    assert not any(row.other_version for row in snapshot.servers)
    newer = replace(snapshot.view, servers=(a, replace(b, version="0.2.0"), c))
    print_table(SERVER_COLUMNS, replace(snapshot, view=newer).servers, wide=False, glyphs=GLYPHS)
    assert "new fan; other version: 0.2.0, most have 0.1.0" in capsys.readouterr().out
    # One that the others cannot understand counts as away, and this is why.
    lost = replace(c, state="down", reason="no contact for more than 10 s")
    raft = replace(snapshot.view.raft, connected=(b.id,))
    view = replace(snapshot.view, servers=(a, b, lost), raft=raft)
    apart = {
        each: replace(measured, consensus=ConsensusTelemetry(link_versions=others))
        for (each, measured), others in zip(
            snapshot.telemetry.items(), ({c.id: 9}, {}, {a.id: 7, b.id: 7}), strict=True
        )
    }
    why = "other version, which the others do not understand; no contact for more than 10 s"
    found = replace(snapshot, view=view, telemetry=apart)
    assert [row.reason for row in found.servers] == ["", "new fan", why]
    assert problems(found) == [f"server {c.name} is down: {why}"]


def test_a_narrow_screen_keeps_the_reason(snapshot: PoolSnapshot) -> None:
    for width in (80, 100):
        frame = render(snapshot, UiState(), width, 24, GLYPHS).plain
        assert "new fan" in frame  # why server-b is drained
        assert "2 of 8 idle" in frame  # why abcd waits
    assert "ADDRESS" not in render(snapshot, UiState(), 80, 24, GLYPHS).plain
    assert "ADDRESS" in render(snapshot, UiState(), 200, 24, GLYPHS).plain


def test_lost_quorum_is_a_red_sentence_and_dims_the_rest(minority: PoolSnapshot) -> None:
    frame = render(minority, UiState(), 160, 40, GLYPHS)
    second = frame.plain.split("\n")[1]
    assert "not in touch with a majority" in second
    assert "on red" in style_at(frame, "not in touch")
    assert "dim" in style_at(frame, "server-b")
    assert "quorum 1/3" in frame.plain
    assert problems(minority)[0] == "server server-a is not in touch with a majority"


def test_old_numbers_are_dim_and_carry_their_age(snapshot: PoolSnapshot) -> None:
    first = snapshot.view.servers[0].id
    old = replace(snapshot, telemetry_age_s={**snapshot.telemetry_age_s, first: 42.0})
    frame = render(old, UiState(panel="leases"), 200, 40, GLYPHS)
    assert re.search("away +server-a", frame.plain)
    assert "measured 42s ago" in frame.plain
    assert "dim" in style_at(frame, "server-a (leader)")
    assert "dim" not in style_at(frame, "server-b")


def test_an_old_view_dims_everything(snapshot: PoolSnapshot) -> None:
    frame = render(
        replace(snapshot, view_age_s=30.0, silent=frozenset(snapshot.telemetry)),
        UiState(),
        160,
        40,
        GLYPHS,
    )
    assert "as of 30s ago" in frame.plain
    assert "no server answers" in frame.plain
    assert "dim" in style_at(frame, "server-b")


def test_before_the_first_answer() -> None:
    assert "asking the pool" in "\n".join(lines(None, UiState()))


def test_help_is_made_of_the_key_table(snapshot: PoolSnapshot) -> None:
    text = "\n".join(lines(snapshot, UiState(mode=Mode.HELP)))
    for key in KEYS:
        assert key.does in text
    readonly = "\n".join(lines(snapshot, UiState(mode=Mode.HELP, readonly=True)))
    assert "drain" not in readonly.split("States")[0]


def test_filter_keeps_what_matches(snapshot: PoolSnapshot) -> None:
    ui = UiState(filter="SERVER-B")
    text = "\n".join(lines(snapshot, ui))
    assert "(1 of 3)" in text
    assert extent(snapshot, ui, GLYPHS).rows[0] == 1


def test_only_what_is_wrong(snapshot: PoolSnapshot) -> None:
    ui = UiState(only_wrong=True)
    row = chosen_row(snapshot, ui, GLYPHS)
    assert isinstance(row, ServerRow)
    assert row.server.name == "server-b"
    assert extent(snapshot, ui, GLYPHS).rows == (1, 2, 1)


def test_sorting_and_reverse(snapshot: PoolSnapshot) -> None:
    by_name = UiState(sort=(1, -1, -1), reverse=True)
    row = chosen_row(snapshot, by_name, GLYPHS)
    assert isinstance(row, ServerRow)
    assert row.server.name == "server-c"
    assert "by server" in "\n".join(lines(snapshot, by_name))


def test_gpus_are_those_of_the_chosen_server(snapshot: PoolSnapshot) -> None:
    text = "\n".join(lines(snapshot, UiState(selected=(1, 0, 0), panel="gpus"), 160))
    assert "2 GPUs of server-b (2)" in text
    assert "7f3a ada" not in text


def test_the_cursor_scrolls(large: PoolSnapshot) -> None:
    text = "\n".join(lines(large, UiState(selected=(63, 0, 0)), 120, 30))
    assert "server-063" in text
    assert "server-001" not in text
    assert "shown" in text


def test_wide_columns(snapshot: PoolSnapshot) -> None:
    assert "DRIVER" not in "\n".join(lines(snapshot, UiState(), 200))
    assert "DRIVER" in "\n".join(lines(snapshot, UiState(wide=True), 200))


def test_row_as_json(snapshot: PoolSnapshot) -> None:
    for panel in ("servers", "gpus", "leases"):
        row = chosen_row(snapshot, UiState(panel=panel), GLYPHS)
        assert row is not None
        json.loads(row_json(row))
    shown = "\n".join(lines(snapshot, UiState(mode=Mode.JSON)))
    assert '"name": "server-a"' in shown


def test_ascii_has_no_other_characters(snapshot: PoolSnapshot, minority: PoolSnapshot) -> None:
    for each in (snapshot, minority):
        for mode in (Mode.BROWSE, Mode.HELP, Mode.JSON, Mode.FILTER, Mode.DRAIN):
            text = render(each, UiState(mode=mode), 300, 60, Glyphs(ascii=True)).plain
            assert text.isascii()


def test_bars_and_cells(snapshot: PoolSnapshot) -> None:
    assert bar(0.0, 4, GLYPHS) == "░░░░"
    assert bar(0.01, 4, GLYPHS) == "█░░░"
    assert bar(7.0, 4, Glyphs(ascii=True)) == "####"
    gpu = snapshot.view.servers[0].gpus[0]
    assert mini_cell(gpu, None, GLYPHS) == "▄"  # no reading: the granted share
    assert mini_cell(replace(gpu, fault="fell off the bus"), None, GLYPHS) == "x"


@given(
    width=st.integers(1, 250),
    height=st.integers(1, 70),
    panel=st.sampled_from(["servers", "gpus", "leases"]),
    mode=st.sampled_from(list(Mode)),
    selected=st.tuples(st.integers(0, 70), st.integers(0, 70), st.integers(0, 70)),
    sort=st.tuples(st.integers(-1, 20), st.integers(-1, 20), st.integers(-1, 20)),
)
def test_every_frame_has_exactly_its_size(
    width: int,
    height: int,
    panel: str,
    mode: Mode,
    selected: tuple[int, int, int],
    sort: tuple[int, int, int],
) -> None:
    ui = UiState(panel=panel, mode=mode, selected=selected, sort=sort, wide=width % 2 == 0)
    for each in FRAMES:
        rendered = render(each, ui, width, height, GLYPHS).split("\n", allow_blank=True)
        assert len(rendered) == height
        assert max(line.cell_len for line in rendered) <= width


FRAMES: list[PoolSnapshot | None] = [None]


@pytest.fixture(autouse=True)
def _frames(snapshot: PoolSnapshot, minority: PoolSnapshot, large: PoolSnapshot) -> None:  # pyright: ignore[reportUnusedFunction]
    FRAMES[:] = [None, snapshot, minority, large]
