"""What ``gpupool doctor`` makes of a server's answer."""

from tests.cli.conftest import pool, server

from gpupool.cli.commands.doctor import WARN, older_finding


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
