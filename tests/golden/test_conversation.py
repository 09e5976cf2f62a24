"""Clients of commit 70ed747 work with the servers of today: they are answered as they were.

What they said is recorded. It is said again, word for word, to today's servers over a fake log, in
virtual time. Each answer must be of the recorded kind, with the recorded values: all but those of
time, chance and counting, which ``LOOSE`` names.
"""

import re
from typing import Any, cast

import pytest
import trio
import trio.testing
from tests.golden.control_samples import KINDS
from tests.golden.conversations import FILE, Event, Replay, parse
from tests.golden.record_conversation import found
from tests.golden.recorded import GOLDEN
from tests.remoting.control.control_cluster import Cluster

Clock = trio.testing.MockClock

LOOSE = {
    # Times, and what grows with them.
    *("now", "at", "created_at", "expires_at", "granted_at", "joined_at"),
    *("age_s", "majority_age_s", "waited_s"),
    # Drawn by servers, or counted by them.
    *("session", "ticket", "certificate_sha256", "certificate_pem", "pem", "ca_pem", "ca_key_pem"),
    *("data", "index", "commit_index", "applied_index", "lease", "number", "count"),
    # Of the server's software.
    "version",
}
LOOSE_PLACES = re.compile(
    # The number and name of a lease, which is the index of its grant in the log.
    r".*(\.leases\[\d+\](\.id|\.name)?"
    # Servers that start at once come up in any order.
    r"|\.(events|acts)\[\d+\]\.(subject|text|kind))"
)
"""Whole places that differ from run to run; kinds of events are compared by themselves."""


RENAMED = {("usage", "unknown-name")}
"""Codes of errors: an older client takes an unknown one for a plain error, with exit code 1."""


def differences(recorded: Any, found: Any, place: str) -> list[str]:
    """Return the places where ``found`` differs. It may have more fields, not fewer."""
    name = place.rpartition(".")[2]
    if name == "code" and (recorded, found) in RENAMED:
        return []
    if name == "hint" and found:
        return []  # a text for people, which old clients print as it comes
    if isinstance(recorded, dict) and isinstance(found, dict):
        before, fields = cast("dict[str, Any]", recorded), cast("dict[str, Any]", found)
        wrong = [f"{place}.{key} is missing" for key in before if key not in fields]
        for key in before.keys() & fields.keys():
            wrong += differences(before[key], fields[key], f"{place}.{key}")
        return wrong
    if isinstance(recorded, list) and isinstance(found, list):
        ours, theirs = cast("list[Any]", recorded), cast("list[Any]", found)
        if name in ("events", "acts") and kinds_of(ours) != kinds_of(theirs):
            return [f"{place} are {kinds_of(theirs)}, and were {kinds_of(ours)}"]
        if name == "counters":
            return differences(dict(ours), dict(theirs), place)
        if len(ours) != len(theirs):
            return [f"{place} has {len(theirs)} items, and had {len(ours)}"]
        return [
            each
            for number, (was, now) in enumerate(zip(ours, theirs, strict=True))
            for each in differences(was, now, f"{place}[{number}]")
        ]
    was, now = cast(object, recorded), cast(object, found)
    if type(was) is not type(now):
        return [f"{place} is {found!r}, and was {recorded!r}"]
    if name == "protocol" and isinstance(was, int) and isinstance(now, int) and now > was:
        return []  # a server says its own version, and serves clients of older ones
    if name in LOOSE or recorded == found or LOOSE_PLACES.fullmatch(place):
        return []
    return [f"{place} is {found!r}, and was {recorded!r}"]


def kinds_of(events: list[Any]) -> list[str]:
    """Return the kinds of events, in no order."""
    return sorted(event["kind"] for event in events)


@pytest.fixture
def events() -> list[Event]:
    return parse((GOLDEN / FILE).read_text(encoding="utf-8"))


def test_the_conversation_has_every_call_answer_and_push(events: list[Event]) -> None:
    """No call, answer or push of 70ed747 is left out; later additions need no record."""
    kinds = {event.kind for event in events}
    numbers = {*range(16, 24), *range(32, 35), *range(48, 55), 64, *range(80, 84), *range(96, 100)}
    answers = {*range(128, 139), *range(160, 163), 176, 177}
    pushes = {*range(192, 197), 200}
    assert kinds == {0, 1, 2} | numbers | answers | pushes


async def test_recorded_clients_are_answered_as_they_were(
    autojump_clock: Clock, nursery: trio.Nursery, events: list[Event]
) -> None:
    cluster = Cluster(nursery)
    await found(cluster)
    replay = Replay(cluster, nursery)
    await replay.run(events)
    wrong: list[str] = []
    for recorded, answer in replay.answered:
        who = f"connection {recorded.connection}, call {recorded.call}"
        if answer is None or answer.kind != recorded.kind:
            wrong.append(f"{who}: {answer and answer.plain} in place of {recorded.plain}")
        else:
            wrong += differences(recorded.plain, answer.plain, f"{who}, kind {recorded.kind}: ")
    assert len(replay.answered) > 60
    assert not wrong, "\n".join(wrong)
    for recorded in events:
        # How often a hint or an update comes is the servers' affair; that one comes is not.
        if recorded.what == ">" and recorded.call == 0:
            kinds = {push.kind for push in replay.pushes(recorded.connection)}
            name = KINDS[recorded.kind].__name__
            assert recorded.kind in kinds, f"connection {recorded.connection} got no {name}"
