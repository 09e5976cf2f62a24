"""What ``gpupool doctor`` makes of a server's answer."""

from tests.cli.conftest import pool, server

from gpupool.cli.commands.doctor import GOOD, WARN, Finding, grouped, older_finding


def test_what_is_true_of_several_servers_is_one_line() -> None:
    """Others stay in their places."""
    found = [
        Finding("server", GOOD, "a at 1"),
        Finding("workers", WARN, "no sandbox", "root", ("a",)),
        Finding("server", GOOD, "b at 2"),
        Finding("workers", WARN, "no sandbox", "root", ("b",)),
        Finding("workers", GOOD, "sandbox", "", ("c",)),
    ]
    assert grouped(found) == [
        found[0],
        Finding("workers", WARN, "no sandbox", "root", ("a", "b")),
        found[2],
        found[4],
    ]


def test_a_server_of_an_older_build_is_named() -> None:
    """It may answer last, and alone be the one that is not upgraded yet: then nobody says it."""
    found = older_finding(pool(server(0, ()), server(1, (), formats=10)))
    assert found is not None
    assert (found.check, found.result) == ("formats", WARN)
    assert found.text.startswith("server-a does not say its version of the formats")


def test_a_server_that_says_its_formats_is_not() -> None:
    assert older_finding(pool(server(0, (), formats=10), server(1, ()))) is None


def test_a_server_that_has_just_joined_is_not() -> None:
    assert older_finding(pool(server(0, (), state="new"))) is None
