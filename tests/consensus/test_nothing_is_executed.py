"""A pickle that runs code, sent to every place where pysyncobj unpickles: it must never run."""

import gzip
import hashlib
import pickle  # noqa: TID251 - to show what must never be run
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bare_library import Bare, append
from lone_node import Lone

from gpupool.consensus.core import library_copy
from gpupool.consensus.core.raft_core import RaftCore
from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.storage.snapshot import decode_snapshot
from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.ids import ServerId


class _Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (Path.touch, (self.target,))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "executed"


@pytest.fixture
def bomb(target: Path) -> bytes:
    data = pickle.dumps(_Bomb(target), protocol=2)
    pickle.loads(data)
    assert target.exists(), "the bomb works"
    target.unlink()
    return data


# --- the library: every one of these runs it -------------------------------------------------


def test_the_library_runs_a_forwarded_command(bomb: bytes, target: Path) -> None:
    bare = Bare("me", [])
    bare.campaign()
    bare.take("b", {"type": "apply_command", "command": b"\x00" + bomb})
    bare.tick()
    with pytest.raises((TypeError, KeyError)):
        bare.tick()
    assert target.exists()


@pytest.mark.parametrize("kind", [b"\x00", b"\x02", b"\x03"])
def test_the_library_runs_entries(bomb: bytes, target: Path, kind: bytes) -> None:
    bare = Bare("me", ["b", "c"])
    try:
        bare.take("b", append(5, 1, 0, [(kind + bomb, 2, 5)], commit=2))
        bare.tick()
    except (TypeError, KeyError, AttributeError):
        pass
    assert target.exists()


def test_the_library_runs_the_pieces_of_a_long_entry(bomb: bytes, target: Path) -> None:
    bare = Bare("me", ["b", "c"])
    message = append(5, 1, 0, [])
    bare.take("b", {**message, "transmission": "start", "data": b""})
    with pytest.raises((TypeError, AttributeError)):
        bare.take("b", {**message, "transmission": "finish", "data": bomb})
    assert target.exists()


def test_the_library_runs_a_snapshot(bomb: bytes, target: Path) -> None:
    bare = Bare("me", ["b", "c"])
    message = {"type": "append_entries", "term": 5, "commit_index": 1}
    data = gzip.compress(bomb)
    bare.take("b", {**message, "serialized": (data, True, False)})
    bare.take("b", {**message, "serialized": (b"", False, True)})
    assert target.exists()


# --- ours: none of them does -----------------------------------------------------------------


@pytest.mark.parametrize("kind", [b"\x00", b"\x01", b"\x02", b"\x03", b""])
def test_entries_are_not_run(bomb: bytes, target: Path, kind: bytes) -> None:
    lone = Lone()
    lone.append(2, 1, [(kind + bomb, 3, 5)], commit=3)
    for _ in range(3):
        lone.tick()
    assert not target.exists()


def test_a_forwarded_command_is_not_run(bomb: bytes, target: Path) -> None:
    lone = Lone(("me", "b"))
    term = lone.win("b")
    last = lone.journal.last_index
    for number, kind in enumerate((b"\x00", b"\x01", b"\x02", b"\x03", b"")):
        sent = lone.take(
            "b",
            "forward",
            term=term,
            request_id=number,
            command=kind + bomb,
            deadline_ms=lone.node.core.clock_ms() + 1000,
        )
        assert [m["refused"] for _, m in sent if m["type"] == "forward_response"] == [
            "the command cannot be read"
        ]
    assert lone.journal.last_index == last
    assert not target.exists()


def test_a_snapshot_is_not_run(bomb: bytes, target: Path) -> None:
    lone = Lone()
    for data in (bomb, gzip.compress(bomb)):
        header = b"gpupoolS" + (1).to_bytes(4, "little") + len(data).to_bytes(8, "little")
        blob = header + hashlib.sha256(data).digest() + data
        with pytest.raises(ValueError, match="CBOR"):
            decode_snapshot(blob)
        for piece in (blob, data):
            fields = {"term": 5, "leading": True, "index": 99, "offset": 0}
            lone.take("b", "snapshot", total=len(piece), data=piece, **fields)
    assert not target.exists()


def test_a_frame_is_not_run(bomb: bytes, target: Path) -> None:
    lone = Lone()
    for body in (bomb, b"", b"\xff" * 40):
        lone.take_frame("b", lone.writers[ServerId("b")].frame(body))
        lone.take_frame("b", body)
    assert not target.exists()


def test_what_stands_for_pickle_in_the_library_cannot_run_anything(
    bomb: bytes, target: Path
) -> None:
    closed = library_copy.LIBRARY.pickle
    with pytest.raises(RemoteProtocolError):
        closed.loads(bomb)
    assert closed.loads(closed.dumps(["add", b"x"])) == ["add", b"x"]
    with pytest.raises(TypeError):
        closed.dumps(_Bomb(target))
    assert not target.exists()


@pytest.mark.parametrize("tag", [*range(64), 100, 256, 258, 260, 261, 1004, 43000, 55799, 65535])
def test_no_tag_is_decoded(tag: int) -> None:
    head = b"\xda" + tag.to_bytes(4, "big")
    for content in (b"\x01", b"\x41a", b"\x61a", b"\x80", b"\xa0", b"\x82\x01\x02"):
        for decode in (closed_cbor.decode, closed_cbor.decode_unchecked):
            with pytest.raises(RemoteProtocolError) as refused:
                decode(head + content)
            cause: BaseException | None = refused.value
            while cause is not None and "carries a tag" not in str(cause):
                cause = cause.__cause__
            assert cause is not None, "it was refused for another reason, after it was decoded"


# --- the guard against another version of the library ----------------------------------------


def test_another_version_of_the_library_is_refused() -> None:
    def changed(self: object, timeToWait: float = 0.0) -> None:
        return

    base = library_copy.LIBRARY.SyncObj
    methods = {name: base.__dict__[name] for name in library_copy.AUDITED}
    library_copy.check_library(type("SyncObj", (), dict(methods)))
    methods["_onTick"] = changed
    with pytest.raises(ImportError, match=r"_onTick is not the audited one of version 0\.3\.17"):
        library_copy.check_library(type("SyncObj", (), methods))


def test_every_override_is_audited() -> None:
    base = library_copy.LIBRARY.SyncObj
    ours: tuple[type, ...] = RaftCore.__mro__[: RaftCore.__mro__.index(base)]
    overridden = {
        name
        for one in ours
        for name, value in vars(one).items()
        if callable(value) and name in vars(base) and name != "__init__"
    }
    assert {one.__name__ for one in ours} >= {"RaftCore", "Replication", "Elections", "LibraryCore"}
    assert overridden
    assert overridden <= set(library_copy.AUDITED)


def test_the_library_that_others_import_stays_as_it_is() -> None:
    program = (
        "import pysyncobj.syncobj as s; before = dict(vars(s)); "
        "import gpupool.consensus.core.library; "
        "import gpupool.consensus.core.library_copy as r; "
        "assert dict(vars(s)) == before; "
        "assert s.pickle.__name__ == 'pysyncobj.pickle'; "
        "assert r.LIBRARY is not s"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
