"""Lines of the log that a lasting condition repeats."""

import logging

import pytest

from gpupool.remoting.local.logs import OncePerMinute, TextFormatter


class Lines(logging.Handler):
    """Keeps lines without their times."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(TextFormatter())
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record).partition(" ")[2])


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def handler(lines: Lines) -> OncePerMinute:
    return OncePerMinute([lines])


def say(handler: logging.Handler, at: float, text: str, *args: object) -> None:
    record = logging.LogRecord("gpupool.x", logging.INFO, "", 1, text, args, None)
    record.created = at
    handler.handle(record)


VOTES = "asks for votes in term %d: no word of a leader for %.2f s; it was %.2f s late before"


def test_what_is_said_all_the_time_is_said_once_and_then_each_minute(
    handler: OncePerMinute, lines: Lines
) -> None:
    for tenth in range(1300):
        say(handler, tenth / 10, VOTES, 6, tenth / 10, 0.01)
    assert lines.found == [
        "info    " + VOTES % (6, 0, 0.01),
        "info    " + VOTES % (6, 59.9, 0.01) + " (599 more within a minute)",
        "info    " + VOTES % (6, 119.9, 0.01) + " (600 more within a minute)",
    ]


def test_other_lines_are_said_at_once_and_show_what_was_held_back(
    handler: OncePerMinute, lines: Lines
) -> None:
    for at, state in ((0, "up"), (1, "down"), (2, "up"), (3, "down"), (4, "up")):
        say(handler, at, "link to server %s is %s", "s2", state)
    say(handler, 5, "no link to server %s at %s", "s2", "10.0.0.2")
    say(handler, 6, "no link to server %s at %s", "s2", "10.0.0.3")
    say(handler, 90, "no link to server %s at %s", "s2", "10.0.0.3")
    assert [line[8:] for line in lines.found] == [
        "link to server s2 is up",
        "link to server s2 is down",
        "no link to server s2 at 10.0.0.2",
        "no link to server s2 at 10.0.0.3",
        "link to server s2 is down (1 more within a minute)",
        "link to server s2 is up (2 more within a minute)",
        "no link to server s2 at 10.0.0.3",
    ]


def test_errors_of_other_kinds_are_other_lines(handler: OncePerMinute, lines: Lines) -> None:
    for error in (ValueError("a"), ValueError("b"), ValueError("a")):
        record = logging.LogRecord(
            "gpupool.x", logging.ERROR, "", 1, "failed", (), (type(error), error, None)
        )
        record.created = 1.0
        handler.handle(record)
    assert lines.found == ["error   failed (ValueError: a)", "error   failed (ValueError: b)"]


def test_many_lines_are_held_for_less_than_a_minute(handler: OncePerMinute, lines: Lines) -> None:
    for number in range(3 * OncePerMinute.HELD_MAX):
        say(handler, 1.0, "line %d", number)
    assert len(lines.found) == 3 * OncePerMinute.HELD_MAX
    say(handler, 1.0, "line %d", 0)
    assert len(lines.found) == 3 * OncePerMinute.HELD_MAX + 1
