"""Messages between servers, and consensus data on disk, as bytes."""

import tempfile
from pathlib import Path
from typing import Any

from tests.golden.samples import full

from gpupool.consensus.core.library import BARRIER_TYPE, COMMAND_TYPE
from gpupool.consensus.protocol import raft_messages
from gpupool.consensus.protocol.membership import encode_voters
from gpupool.consensus.storage import journal as journals
from gpupool.consensus.storage.disk import FileDisk
from gpupool.consensus.storage.journal import Journal, encode_entries
from gpupool.consensus.storage.snapshot import Snapshot, SnapshotStore, encode_snapshot
from gpupool.consensus.storage.store import DIRECTORY, MEMBERSHIP_TYPE
from gpupool.pool.model.ids import ServerId
from gpupool.remoting.protocol.framing import frame_bytes
from gpupool.remoting.transport import link_clock, peer_transport
from gpupool.remoting.transport.address_book import AddressBook

# The registry of kinds is private to its module, whose functions are all that others need.
KINDS: dict[str, tuple[int, dict[str, tuple[type, ...]]]] = getattr(raft_messages, "_KINDS")  # noqa: B009
RECORDS = sorted(int(kind) for kind in getattr(journals, "_Record"))  # noqa: B009
VOTERS = tuple(ServerId(letter * 12) for letter in "bac")
ENTRIES = [
    (journals.PLACEHOLDER, 2, 1),
    (MEMBERSHIP_TYPE + encode_voters(VOTERS), 3, 1),
    (COMMAND_TYPE + b"\xa0", 4, 2),
    (BARRIER_TYPE, 5, 2),
    (COMMAND_TYPE + b"\xa1\x61k\x01", 6, 2),
]
SNAPSHOT = Snapshot(5, 2, VOTERS, {"table": [1, 2.5, b"\x00", None, {"k": "v"}]})
EPOCH = (7 << 32) + 1


def message_samples() -> dict[str, raft_messages.Message]:
    """Return a sample of each message, two where a field may be None, by its number."""
    found: dict[str, raft_messages.Message] = {}
    for kind, (number, fields) in sorted(KINDS.items(), key=lambda item: item[1][0]):
        made: dict[str, Any] = {"type": kind}
        for name, types in fields.items():
            made[name] = full(types[0], f"{number}.{name}")
        found[f"raft {number} full"] = made
        if any(type(None) in types for types in fields.values()):
            empty = {name: None for name, types in fields.items() if type(None) in types}
            found[f"raft {number} bare"] = made | empty
    return found


def raft() -> dict[str, bytes]:
    """Return each message, the names of its fields in their order, and frames of two."""
    found: dict[str, bytes] = {}
    for name, message in message_samples().items():
        found[name] = raft_messages.encode_message(message)
        if name.endswith("full"):
            found[f"{name[:-5]} fields"] = " ".join(message).encode() + b"\n"
    writer = raft_messages.FrameWriter(EPOCH)
    found["raft frame 1"] = writer.frame(found["raft 1 full"])
    found["raft frame 2"] = writer.frame(found["raft 2 full"])
    found["voters"] = encode_voters(VOTERS)
    found["entries"] = encode_entries(ENTRIES)
    return found


def peers() -> dict[str, bytes]:
    """Return the frames of the links, by the number of their kind."""
    bodies = {
        peer_transport.Kind.RAFT: b"opaque",
        peer_transport.Kind.GREETING: peer_transport.GREETING.pack(
            peer_transport.VERSION, 1_790_000_000_123
        ),
        peer_transport.Kind.KEY_ASK: b"",
        peer_transport.Kind.KEY_GIVE: b"-----BEGIN",
        peer_transport.Kind.REMOVED: b"",
        peer_transport.Kind.CLOCK_ASK: b"",
        peer_transport.Kind.CERTIFICATE_ASK: b"-----BEGIN CERTIFICATE REQUEST",
        peer_transport.Kind.CERTIFICATE_GIVE: b"-----BEGIN CERTIFICATE",
        peer_transport.Kind.NEXT_KEY_GIVE: b"-----BEGIN CERTIFICATE, -----BEGIN PRIVATE KEY",
        peer_transport.Kind.NEXT_KEY_KEPT: bytes(range(32)),
        peer_transport.Kind.WEB_ASK: b"-----BEGIN CERTIFICATE REQUEST",
        peer_transport.Kind.WEB_GIVE: b"-----BEGIN CERTIFICATE",
        peer_transport.Kind.ADDRESSES: AddressBook(
            ServerId("a" * 12), (7, ("10.0.0.4:7470", "a.lab.example:7470")), lambda _peer: ()
        ).whole(),
        peer_transport.Kind.CLOCK_GIVE: link_clock.WALL.pack(1_790_000_000_123),
    }
    size_max = peer_transport.FRAME_SIZE_MAX
    return {
        f"link {int(kind)}": frame_bytes(kind, bodies[kind], size_max=size_max)
        for kind in peer_transport.Kind
    }


def disk() -> dict[str, bytes]:
    """Return a journal after each of its writes, and a snapshot's file."""
    found: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = FileDisk(Path(folder, DIRECTORY))
        written = Journal.create(files)
        found["journal new"] = files.read(journals.JOURNAL)
        written.begin()
        written.set_vote(1, VOTERS[0])
        for entry in ENTRIES[:2]:
            written.append(*entry)
        written.sync()
        found["journal with a vote"] = files.read(journals.JOURNAL)
        written.set_vote(2, None)
        for entry in (*ENTRIES[2:], (COMMAND_TYPE + b"\xa2", 7, 2)):
            written.append(*entry)
        written.truncate(7)
        written.close()
        found["journal closed"] = files.read(journals.JOURNAL)
        again = Journal.open(files)
        again.begin()
        found["journal opened again"] = files.read(journals.JOURNAL)
        SnapshotStore(files).save(SNAPSHOT)
        name = next(each for each in files.names() if each.startswith("snapshot"))
        found[f"file {DIRECTORY}/{name}"] = files.read(name)
        again.rewrite(SNAPSHOT.index, SNAPSHOT.term, keep=True)
        again.close()
        found["journal behind a snapshot"] = files.read(journals.JOURNAL)
        found["files"] = " ".join(files.names()).encode() + b"\n"
        files.close()
    assert found[f"file {DIRECTORY}/{name}"] == encode_snapshot(SNAPSHOT)
    return found


def everything() -> dict[str, bytes]:
    return raft() | peers() | disk()
