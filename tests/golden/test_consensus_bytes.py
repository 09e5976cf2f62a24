"""Raft's messages, the links, journals and snapshots have the bytes of commit 70ed747."""

from pathlib import Path

import pytest
from tests.golden import consensus_samples as samples
from tests.golden.recorded import check, read

from gpupool.consensus.protocol import raft_messages
from gpupool.consensus.protocol.membership import decode_voters
from gpupool.consensus.storage.disk import FileDisk
from gpupool.consensus.storage.journal import JOURNAL, Journal, decode_entries
from gpupool.consensus.storage.snapshot import decode_snapshot
from gpupool.remoting.protocol.framing import FrameReader
from gpupool.remoting.transport import peer_transport

FILE = "consensus.txt"


def test_everything_of_consensus_has_its_recorded_bytes() -> None:
    check(FILE, samples.everything())


def test_no_message_frame_or_record_is_without_a_sample() -> None:
    recorded = read(FILE)
    raft = {int(name.split()[1]) for name in recorded if name.endswith(" fields")}
    assert raft == {number for number, _fields in samples.KINDS.values()}
    assert len(raft) == len(samples.KINDS)
    assert {name for name in recorded if name.startswith("link ")} == {
        f"link {int(kind)}" for kind in peer_transport.Kind
    }
    assert samples.RECORDS == [1, 2, 3, 4, 5], "each of them is in the recorded journals"


def test_recorded_messages_are_read_as_what_was_sent() -> None:
    recorded = read(FILE)
    for name, message in samples.message_samples().items():
        assert raft_messages.decode_message(recorded[name]) == message, name
    reader = raft_messages.FrameReader()
    assert reader.body(recorded["raft frame 1"]) == recorded["raft 1 full"]
    assert reader.body(recorded["raft frame 2"]) == recorded["raft 2 full"]
    assert reader.body(recorded["raft frame 1"]) is None
    assert decode_voters(recorded["voters"]) == tuple(sorted(samples.VOTERS))
    assert decode_entries(recorded["entries"]) == samples.ENTRIES


def test_recorded_frames_of_links_are_whole_ones() -> None:
    recorded = read(FILE)
    for kind in peer_transport.Kind:
        reader = FrameReader(peer_transport.FRAME_SIZE_MAX)
        reader.feed(recorded[f"link {int(kind)}"])
        (frame,) = reader.frames()
        assert frame.kind == kind
    assert peer_transport.GREETING.unpack(recorded["link 1"][5:])[0] == peer_transport.VERSION


@pytest.mark.parametrize(
    ("name", "boot", "vote", "entries"),
    [
        ("journal new", 0, (0, None), []),
        ("journal with a vote", 1, (1, samples.VOTERS[0]), samples.ENTRIES[:2]),
        ("journal closed", 1, (2, None), samples.ENTRIES),
        ("journal opened again", 2, (2, None), samples.ENTRIES),
        ("journal behind a snapshot", 2, (2, None), samples.ENTRIES[4:]),
    ],
)
def test_recorded_journals_are_read_as_what_was_written(
    tmp_path: Path, name: str, boot: int, vote: tuple[int, str | None], entries: list[object]
) -> None:
    disk = FileDisk(tmp_path)
    disk.write(JOURNAL, read(FILE)[name])
    journal = Journal.open(disk)
    assert (journal.boot, journal.term, journal.vote) == (boot, *vote)
    assert journal.entries[1:] == entries
    disk.close()


def test_recorded_snapshot_is_read_as_what_was_saved() -> None:
    (data,) = (data for name, data in read(FILE).items() if name.startswith("file "))
    assert decode_snapshot(data) == samples.SNAPSHOT
