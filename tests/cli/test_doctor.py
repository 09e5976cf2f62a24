"""The findings of ``gpupool doctor`` from a server's answer."""

from gpupool.cli.commands.doctor import GOOD, WARN, Finding, grouped


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
