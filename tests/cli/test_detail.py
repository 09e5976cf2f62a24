"""Details of one server, GPU, lease or request; the tree; the usage."""

import re
from dataclasses import replace

import pytest

from gpupool.cli.lib.columns import Glyphs
from gpupool.cli.tui.answers import Answers, ChartData, Charts, chart_of
from gpupool.cli.tui.keys import Chosen, Mode, UiState
from gpupool.cli.tui.panels import extent
from gpupool.cli.tui.screen import render, row_at
from gpupool.pool.history_query import HistoryPage, HistorySeries
from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds
from gpupool.pool.read_model.figures import Rate
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.pool.telemetry import Finding, Health, SessionTelemetry

NOW = 1_700_000_000
LEASE: Chosen = ("lease", str(0x7F3A))
FORMS = [Glyphs(), Glyphs(blocks=True), Glyphs(ascii=True)]
SIZES = [(80, 24), (160, 50)]


@pytest.fixture
def busy_pool(snapshot: PoolSnapshot) -> PoolSnapshot:
    """Return the pool with a session of its lease, and a finding of a GPU."""
    first, lease = snapshot.view.servers[0].id, LeaseId(0x7F3A)
    session = SessionTelemetry(
        lease, 2, 9, 8, 7, 6 << 30, 3 << 30, 5, door="cuda", transport="tls", rtt_us=120
    )
    session = replace(session, busy={GpuId("GPU-0-0"): 0.5, GpuId("GPU-0-1"): 0.25}, idle_s=65.0)
    since = Milliseconds(1000 * NOW - 60_000)
    hot = Finding("temperature", "GPU-0-1", Health.FAIL, since, "88 C", "look at the fans")
    disk = Finding("disk", "free", Health.WARN, since, "9 % free", "")
    told = replace(snapshot.telemetry[first], sessions=(session,), findings=(hot, disk))
    rate = Rate(31_000.0, 10e6, 2.5e6, 1200.0, 0.14)
    return replace(
        snapshot,
        telemetry={**snapshot.telemetry, first: told},
        rates={(first, lease): rate},
    )


def charts(*metrics: str) -> Charts:
    points = tuple((NOW - 900 + 10 * at, float(at % 5)) for at in range(90))
    drawn = tuple(ChartData(name, "GPUs", points) for name in metrics)
    return Charts(NOW - 900, NOW, (*drawn, ChartData("power", "W", ())), "b: it is away")


def detail(
    snapshot: PoolSnapshot,
    of: Chosen,
    glyphs: Glyphs = FORMS[0],
    answers: Answers | None = None,
    width: int = 160,
) -> str:
    ui = UiState(mode=Mode.DETAIL, detail=of)
    return render(snapshot, ui, width, 60, glyphs, answers or Answers()).plain


def test_a_server_has_its_charts_gpus_leases_and_findings(busy_pool: PoolSnapshot) -> None:
    first = busy_pool.view.servers[0].id
    answers = Answers(charts={(("server", first), 900): charts("busy", "memory")})
    text = detail(busy_pool, ("server", first), answers=answers)
    assert "Server server-a  mix" in text
    assert "Last 15 minutes" in text
    assert "busy  mean 2, max 4, now 4 GPUs" in text
    assert "nothing is known of: power" in text
    assert "b: it is away" in text
    assert "GPUs (2)" in text
    assert "Leases (1)" in text
    assert "88 C (for 1m00s)" in text
    assert "hint: look at the fans" in text
    assert "Server server-b  drain   10.0.0.1:7470   new fan" in detail(
        busy_pool, ("server", busy_pool.view.servers[1].id)
    )


def test_a_gpu_has_its_leases_and_its_own_findings(busy_pool: PoolSnapshot) -> None:
    text = detail(busy_pool, ("gpu", "GPU-0-1"))
    assert "GPU 1 of server-a  mix   NVIDIA H200   141G" in text
    assert "asking the servers ..." in text
    assert "7f3a   ada" in text
    assert "88 C" in text
    assert "9 % free" not in text, "that is the server's"
    assert "nothing is wrong" in detail(busy_pool, ("gpu", "GPU-0-0"))


def test_a_lease_has_its_sessions_and_what_is_known_when_it_has_ended(
    busy_pool: PoolSnapshot,
) -> None:
    answers = Answers(leases={LEASE[1]: ("ended       2026-11-23: idle", "advice: -m 12G")})
    text = detail(busy_pool, LEASE, answers=answers)
    words = "on server-a: 2 sessions cuda over tls, up 9.5M/s down 2.4M/s, 1200 waits/s, "
    words += "RTT 0.12 ms, 0.75 GPUs busy, memory 3G of 6G reserved, idle 1m05s"
    assert words in text
    assert "Its GPUs" in text
    ended = replace(busy_pool, view=replace(busy_pool.view, leases=()))
    text = detail(ended, LEASE, answers=answers)
    assert "Lease 7f3a  ended" in text
    assert "2026-11-23: idle" in text
    assert "advice: -m 12G" in text
    answers.leases.clear()
    assert "asking the servers" in detail(ended, LEASE, answers=answers)


def test_a_request_says_when_gpus_are_free(snapshot: PoolSnapshot) -> None:
    """In the list of leases of ``top``, and alone; a list without such a request has no column."""
    view = snapshot.view
    two = replace(view.waiting[0], count=2)
    lease = replace(view.leases[0], ends_at=Milliseconds(view.now + 5_400_000))
    soon = replace(snapshot, view=replace(view, leases=(lease,), waiting=(two,)))
    assert "enough GPUs are free in 1h30m at the latest" in detail(soon, ("waiting", "abcd1234"))
    assert "enough GPUs" not in detail(snapshot, ("waiting", "abcd1234"))
    listed = render(soon, UiState(), 160, 60, FORMS[0], Answers()).plain
    assert re.search(r"FREE IN\b.*\n.*7f3a.*\n.*abcd.* 1h30m ", listed)
    assert "FREE IN" not in render(snapshot, UiState(), 160, 60, FORMS[0], Answers()).plain


def test_a_request_says_why_it_waits_and_who_is_before_it(snapshot: PoolSnapshot) -> None:
    assert "0 before it" in detail(snapshot, ("waiting", "abcd1234"))
    assert "because: 2 of 8 idle" in detail(snapshot, ("waiting", "abcd1234"))
    first = snapshot.view.waiting[0]
    queue = (first, replace(first, request="ffff0000", user="eve"))
    behind = replace(snapshot, view=replace(snapshot.view, waiting=queue))
    text = detail(behind, ("waiting", "ffff0000"))
    assert "Request ffff?  waiting   eve" in text
    assert "1 before it" in text
    assert "abcd?  bob" in text


@pytest.mark.parametrize(
    "of", [("server", "no"), ("gpu", "no"), ("lease", "255"), ("waiting", "no"), ("", "")]
)
def test_what_is_gone_is_said(snapshot: PoolSnapshot, of: Chosen) -> None:
    text = detail(snapshot, of)
    assert any(word in text for word in ("removed", "ended", "gone"))


def test_the_tree_has_users_leases_and_sessions(busy_pool: PoolSnapshot) -> None:
    text = render(busy_pool, UiState(mode=Mode.TREE), 200, 40, FORMS[0]).plain
    assert "ada  1 lease, 140G held, 0.75 GPUs busy, up 9.5M/s down 2.4M/s" in text
    assert "   └─ 7f3a held  2 x H200 on server-a, 140G, 1m40s" in text
    assert "      └─ server-a  2 sessions cuda over tls" in text
    assert "bob  0 leases, 0B held, 1 waiting" in text
    assert text.index("ada") < text.index("bob")
    nobody = replace(busy_pool, view=replace(busy_pool.view, leases=(), waiting=()))
    assert "nobody has or wants" in render(nobody, UiState(mode=Mode.TREE), 80, 24, FORMS[0]).plain


def test_the_tree_by_client_sums_what_each_machine_has(busy_pool: PoolSnapshot) -> None:
    lease = busy_pool.view.leases[0]
    other = replace(lease, id=LeaseId(0x11), name="11", user="eve")
    view = replace(busy_pool.view, leases=(lease, other))
    both = replace(busy_pool, view=view)
    ui = UiState(mode=Mode.TREE, tree_by="client")
    lines = render(both, ui, 220, 40, FORMS[0]).plain.splitlines()
    assert any(each.rstrip() == " Clients: 2   t: by user" for each in lines)
    [mine] = [each.rstrip() for each in lines if lease.client in each]
    assert "2 leases, 280G held, at least 0.75 GPUs busy, up 9.5M/s down 2.4M/s" in mine
    assert mine.endswith("1200 waits/s, 0.14 s/s on the wire, RTT 0.12 ms")
    first, session, second = [each for each in lines if "─" in each][:3]
    assert first.startswith("   ├─ 7f3a held  ada, 2 x H200")
    assert "└─ server-a  2 sessions cuda over tls" in session
    assert second.startswith("   └─ 11 held  eve, ")
    by_user = render(both, UiState(mode=Mode.TREE), 220, 40, FORMS[0]).plain.splitlines()
    assert any(each.rstrip() == " Users: 3   t: by client" for each in by_user)
    ascii_only = render(both, ui, 220, 40, FORMS[2]).plain
    assert ascii_only.isascii() and "|- 7f3a held" in ascii_only


def test_the_tree_by_client_shows_who_says_nothing_of_a_client(snapshot: PoolSnapshot) -> None:
    waits = replace(snapshot.view.waiting[0], client="")
    bare = replace(snapshot, view=replace(snapshot.view, leases=(), waiting=(waits,)))
    text = render(bare, UiState(mode=Mode.TREE, tree_by="client"), 120, 24, FORMS[0]).plain
    assert "(unnamed)  0 leases, 0B held, 1 waiting" in text


def test_the_usage_waits_for_its_answer(snapshot: PoolSnapshot) -> None:
    ui = UiState(mode=Mode.USAGE)
    assert "asking the servers" in render(snapshot, ui, 80, 24, FORMS[0]).plain
    said = Answers(usage=("USER  GPU-HOURS", "ada        1.25\x1b[2J"))
    text = render(snapshot, ui, 80, 24, FORMS[0], said).plain
    assert "ada        1.25" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("glyphs", FORMS, ids=["braille", "blocks", "ascii"])
@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("mode", list(Mode))
def test_every_state_is_drawn_in_each_form(
    busy_pool: PoolSnapshot, mode: Mode, width: int, height: int, glyphs: Glyphs
) -> None:
    spans = {(LEASE, 900): charts("busy", "waits", "rtt")}
    answers = Answers(charts=spans, leases={LEASE[1]: ("user ada",)}, usage=("USER",))
    ui = UiState(mode=mode, detail=LEASE)
    frame = render(busy_pool, ui, width, height, glyphs, answers)
    lines = frame.plain.split("\n")
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    assert frame.plain.isascii() or not glyphs.ascii
    if glyphs.blocks:
        assert not any("\u2800" <= each <= "\u28ff" for each in frame.plain)
    if mode is Mode.BROWSE:
        assert "q quit" in lines[-1]
        assert "U usage" in lines[-1]


def test_several_servers_are_a_sum_or_a_mean() -> None:
    def page(*points: tuple[int, int]) -> HistoryPage:
        series = HistorySeries("", "", tuple((t, value, 2, -1) for t, value in points))
        return HistoryPage(10, (series,))

    pages = [page((10, 4), (20, 8)), page((20, 2))]
    assert chart_of("busy", "", pages, 0.5, additive=True).points == ((10, 1.0), (20, 2.5))
    assert chart_of("rtt", "ms", pages, 0.5, additive=False).points == ((10, 1.0), (20, 1.25))


def test_a_click_finds_the_row_of_its_line(large: PoolSnapshot, snapshot: PoolSnapshot) -> None:
    for pool, ui in ((snapshot, UiState()), (large, UiState(selected=(40, 3, 0)))):
        lines = render(pool, ui, 120, 30, FORMS[0]).plain.split("\n")
        found = {
            row_at(pool, ui, 120, 30, at, FORMS[0]): line
            for at, line in enumerate(lines)
            if row_at(pool, ui, 120, 30, at, FORMS[0])
        }
        for key, line in found.items():
            panel, row = (int(each) for each in key.split(":")[1:])
            if panel == 0:
                assert pool.view.servers[row].name in line
        assert f"row:0:{ui.selected[0]}" in found
        assert row_at(pool, ui, 120, 30, 0, FORMS[0]) == ""


def test_what_a_row_opens(snapshot: PoolSnapshot) -> None:
    assert extent(snapshot, UiState(), FORMS[0]).chosen == ("server", snapshot.view.servers[0].id)
    assert extent(snapshot, UiState(panel="gpus"), FORMS[0]).chosen == ("gpu", "GPU-0-0")
    assert extent(snapshot, UiState(panel="leases"), FORMS[0]).chosen == LEASE
    waiting = UiState(panel="leases", selected=(0, 0, 1))
    assert extent(snapshot, waiting, FORMS[0]).chosen == ("waiting", "abcd1234")
