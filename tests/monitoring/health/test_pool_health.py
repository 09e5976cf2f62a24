"""The health of a pool from all servers' reports: once, with the silent servers."""

from dataclasses import replace

from tests.cli.conftest import pool, server

from gpupool.monitoring.health import health_history
from gpupool.monitoring.health.pool_health import grouped, line, merged, nagios, silence_words
from gpupool.pool.history_query import Episode, HistoryPage
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.telemetry import Finding, Health, HostTelemetry, Telemetry
from gpupool.pool.view import ALARM, SilenceView

VIEW = pool(server(0, ()), server(1, ()), server(2, ()))
IDS = [each.id for each in VIEW.servers]
WARN, FAIL = Health.WARN, Health.FAIL


def finding(check: str, status: Health = FAIL, subject: str = "", text: str = "") -> Finding:
    return Finding(check, subject, status, Milliseconds(7), text or f"{check} is bad", "do it")


def telemetry(*said: tuple[Finding, ...]) -> dict[ServerId, Telemetry]:
    pairs = zip(IDS, said, strict=False)
    return {i: Telemetry(i, Milliseconds(1), findings=found) for i, found in pairs}


def shown(*said: tuple[Finding, ...]) -> list[tuple[str, str, Health]]:
    rows = merged(VIEW, telemetry(*said)).findings
    return [(row.server, row.finding.check, row.finding.status) for row in rows]


def silence(check: str, server: str = "", subject: str = "", hours: int = 2) -> SilenceView:
    until = Milliseconds(VIEW.now + hours * 3_600_000)
    return SilenceView(check, server, subject, until, "known\x1b[2J", "root", VIEW.now)


def test_what_is_silenced_comes_last_and_counts_for_nothing() -> None:
    said = telemetry((finding("disk", subject="free"), finding("pcie", WARN)), (), ())
    name = VIEW.servers[0].name
    for known in (silence("disk"), silence("disk", name), silence("disk", name, "free")):
        health = merged(replace(VIEW, silences=(known,)), said)
        assert [row.finding.check for row in health.findings] == ["pcie", "disk"]
        assert (health.status, health.silenced, health.count(FAIL)) == (WARN, 1, 0)
        text, code = nagios(health)
        assert code == 1
        assert "disk" not in text
        assert "silenced=1" in text
    for other in (silence("clock"), silence("disk", "b"), silence("disk", "", "sync")):
        assert merged(replace(VIEW, silences=(other,)), said).silenced == 0
    words = silence_words(silence("disk"), VIEW.now + 60_000)
    assert words.startswith("silenced for another 1 h 59 min by root: known")
    assert "\x1b" not in words
    both = replace(VIEW, silences=(silence("disk", hours=1), silence("disk", name, hours=9)))
    longest = merged(both, said).findings[-1].silence
    assert longest is not None
    assert longest.server == name


def test_a_healthy_pool() -> None:
    health = merged(VIEW, telemetry((), (), ()))
    assert (health.status, health.answered, health.findings) == (Health.OK, 3, ())
    assert nagios(health) == ("GPUPOOL OK - 3 servers, nothing found | fail=0 warn=0 servers=3", 0)


def test_what_all_say_of_the_pool_is_said_once() -> None:
    versions = finding("versions", WARN)
    name = VIEW.servers[1].name
    assert shown((versions,), (versions, finding("disk")), (versions,)) == [
        (name, "disk", FAIL),
        ("", "versions", WARN),
    ]


def test_a_server_that_is_cut_off_does_not_speak_for_the_pool() -> None:
    cut_off = finding("quorum", FAIL)
    assert shown((), (cut_off,), ()) == [(VIEW.servers[1].name, "quorum", FAIL)]


def test_a_server_that_does_not_answer_is_named() -> None:
    assert shown((), ()) == [(VIEW.servers[2].name, "answer", FAIL)]
    lost = finding("silent", FAIL, VIEW.servers[2].name)
    assert shown((lost,), (lost,)) == [("", "silent", FAIL)]


def test_an_interface_that_is_slower_than_most_servers() -> None:
    said = telemetry((), (), ())
    speeds = dict(zip(said, (25_000, 25_000, 1000), strict=True))
    said = {
        server: replace(each, host=HostTelemetry(network_speed=speeds[server]))
        for server, each in said.items()
    }
    [row] = merged(VIEW, said).findings
    assert (row.server, row.finding.check) == (VIEW.servers[2].name, "link-speed")
    del said[IDS[0]]
    assert [r.finding.check for r in merged(VIEW, said).findings] == ["answer"]


def test_alarms_of_the_view_fail() -> None:
    view = replace(VIEW, warnings=(f"{ALARM}a vote was forgotten", "something"))
    health = merged(view, telemetry((), (), ()))
    assert [row.finding.text for row in health.findings] == ["a vote was forgotten"]


def test_a_view_without_quorum_fails() -> None:
    view = replace(VIEW, raft=replace(VIEW.raft, quorum=False))
    assert [r.finding.check for r in merged(view, telemetry((), (), ())).findings] == ["quorum"]


def test_nagios_has_one_line() -> None:
    health = merged(VIEW, telemetry((finding("disk", WARN, text="a|b\nc\x1b[31m"),), (), ()))
    text, code = nagios(health)
    assert code == 1
    assert text.isprintable()
    assert text.count("|") == 1
    assert "fail=0 warn=1" in text
    assert line(health.findings[0]).isprintable()
    assert nagios(merged(VIEW, telemetry((finding("disk"),), (), ())))[1] == 2


# --- what was found before ------------------------------------------------------------------------


def episode(check: str, began: int, ended: int = 0, **more: object) -> Episode:
    made = Episode(check, "", FAIL, Milliseconds(1000 * began), Milliseconds(1000 * ended))
    return replace(made, **more)  # type: ignore[arg-type]


def earlier(*said: tuple[Episode, ...]) -> list[tuple[str, str, int, int]]:
    names = {each.id: each.name for each in VIEW.servers}
    pages = {i: HistoryPage(episodes=found) for i, found in zip(IDS, said, strict=False)}
    rows = health_history.merged(pages, names)
    return [
        (row.server, each.check, each.began // 1000, each.ended // 1000)
        for row in rows
        for each in (row.episode,)
    ]


def test_what_several_servers_found_of_the_pool_is_one_episode() -> None:
    a, b, _ = (each.name for each in VIEW.servers)
    assert earlier(
        (episode("disk", 1, 50), episode("backup", 10, 70), episode("backup", 500)),
        (episode("disk", 5, 6), episode("backup", 12, 40), episode("backup", 95, 99)),
        (episode("backup", 510, 520),),
    ) == [
        ("", "backup", 500, 0),  # one of them still says so
        ("", "backup", 10, 99),
        (b, "disk", 5, 6),
        (a, "disk", 1, 50),
    ]


def test_a_lack_of_a_majority_is_of_the_server_that_was_cut_off() -> None:
    a, b, _ = (each.name for each in VIEW.servers)
    assert earlier((episode("quorum", 1, 9),), (episode("quorum", 2, 9),)) == [
        (b, "quorum", 2, 9),
        (a, "quorum", 1, 9),
    ]


def test_episodes_are_of_a_server_when_they_are_about_it() -> None:
    own = health_history.PoolEpisode("gpu-1", episode("temperature", 1, subject="GPU-77"))
    others = health_history.PoolEpisode("", episode("silent", 1, subject="gpu-1"))
    link = health_history.PoolEpisode("gpu-2", episode("link", 1, subject="gpu-1"))
    disk = health_history.PoolEpisode("gpu-2", episode("disk", 1, subject="free"))
    assert [each.is_of("gpu-1", "") for each in (own, others, link, disk)] == [True] * 3 + [False]
    assert own.is_of("", "GPU-7") and not own.is_of("", "GPU-8")
    assert not own.is_of("gpu-2", "GPU-77")


def test_csv_and_json_say_what_goes_on() -> None:
    rows = [
        health_history.PoolEpisode("a", episode("disk", 60, text='9 GiB, "free"')),
        health_history.PoolEpisode("", episode("backup", 0, 60)),
    ]
    assert health_history.as_csv(rows, Milliseconds(90_500)).splitlines() == [
        "began,ended,duration [s],result,check,server,subject,text",
        '1970-01-01T00:01:00Z,,30.500,fail,disk,a,,"9 GiB, ""free"""',
        "1970-01-01T00:00:00Z,1970-01-01T00:01:00Z,60.000,fail,backup,,,",
    ]
    assert [each["ended"] for each in health_history.as_plain(rows)] == [None, 60_000]


def test_a_server_that_does_not_know_the_whole_time_is_named() -> None:
    names = {each.id: each.name for each in VIEW.servers}
    oldest = dict(zip(IDS, (0, 5000, 9000), strict=True))
    pages = {i: HistoryPage(oldest=Milliseconds(at)) for i, at in oldest.items()}
    a, _, c = (each.name for each in VIEW.servers)
    assert health_history.unknown_before(pages, names, 6000) == {a: 0, c: 9000}
    outdated = {IDS[0]: HistoryPage(problem="it knows no temperature of a health")}
    assert health_history.unknown_before(outdated, names, 6000) == {}, "said as its problem"


def test_many_warnings_of_one_check_are_shown_as_one() -> None:
    """A failure is always shown, and so is a silenced warning."""
    links = tuple(finding("link-rtt", WARN, f"s{n}", f"slow to s{n}") for n in range(3))
    lost = finding("link", FAIL, "s1", "no link")
    rows = merged(VIEW, telemetry((*links, lost), links, ())).findings
    found = [(line(row).split(": ")[1], more) for row, more in grouped(rows)]
    assert found == [("no link", 0), ("slow to s0", 5)]
    few = merged(VIEW, telemetry(links, (), ())).findings
    assert [more for _, more in grouped(few)] == [0, 0, 0]
