"""Leases kept by a holder: its file, its agent, and the message for an ended lease."""

import json
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.test_agent import SESSION

from gpupool.cli.commands.hold import release_lease
from gpupool.pool.errors import DeniedError, GpupoolError, LeaseLostError
from gpupool.pool.model.ids import TokenId
from gpupool.remoting.client.credentials import Credentials, save_credentials
from gpupool.remoting.client.session_answer import OpenedSession, SessionAnswer
from gpupool.remoting.program import held_leases as held
from gpupool.remoting.program.agent import Agent, HolderActions
from gpupool.remoting.program.held_leases import (
    ENDED_COUNT_MAX,
    HeldRecord,
    RecordFile,
    find_held,
    held_leases,
    holder_dir,
    parse_record,
)
from gpupool.remoting.program.holder_client import HeldLease, release_held
from gpupool.remoting.program.lease_source import held_record
from gpupool.remoting.program.program_lease import SessionRequest
from gpupool.remoting.protocol.addresses import Address

RECORD = HeldRecord(
    lease="7f3a", cluster_id="c0ffee00c0ffee00", pool="lab", user="ada", pid=os.getpid(),
    socket="/nowhere/7f3a.sock", text="1 x H200 (70G) on a, lease 7f3a", servers=("a", "b"),
    idle_timeout_s=1800.0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give this user a runtime folder, and no other place where holders are looked for."""
    folder = Path(tempfile.mkdtemp(prefix="gp-"))  # short enough for sockets
    monkeypatch.setattr(held, "_candidates", lambda: (folder / "gpupool",))
    yield folder
    shutil.rmtree(folder)


CANDIDATES = held._candidates  # pyright: ignore[reportPrivateUsage]


def test_a_folder_that_somebody_else_has_made_is_not_used(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user of the machine could keep another one's alloc from working."""
    monkeypatch.setattr(held, "cache_dir", lambda: runtime / "home" / "gpupool")
    *others, last = CANDIDATES()
    assert last == runtime / "home" / "gpupool" / "run"
    assert not [each for each in others if runtime in each.parents]
    taken = runtime / "taken"
    taken.symlink_to(runtime)
    monkeypatch.setattr(held, "_candidates", lambda: (taken, last))
    assert holder_dir() == last
    assert last.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(held, "_candidates", lambda: (taken,))
    with pytest.raises(GpupoolError, match="it is not a folder") as refused:
        holder_dir()
    assert "XDG_RUNTIME_DIR" in refused.value.hint


def test_a_record_is_found_while_it_is_held_and_says_why_it_ended() -> None:
    file = RecordFile(holder_dir(), RECORD)
    assert file.path.stat().st_mode & 0o777 == 0o600
    found = find_held("7f3a")
    assert found is not None
    assert (found.record, found.alive, found.why_over) == (RECORD, True, "")
    assert find_held("7f3b") is None
    file.end(replace(RECORD, ended="released"))
    found = find_held("7f3a")
    assert found is not None
    assert (found.alive, found.why_over) == (False, "released")


def test_a_killed_holder_leaves_no_socket(runtime: Path) -> None:
    sock = holder_dir() / "7f3a-000000.sock"
    sock.write_text("")
    file = RecordFile(holder_dir(), replace(RECORD, socket=str(sock)))
    assert held_leases()[0].alive
    file.close()  # what the system does when the process dies
    [found] = held_leases()
    assert found.why_over == "the process that held it on this machine was killed"
    assert not sock.exists()


@pytest.mark.long
def test_a_record_that_is_written_can_be_read_all_the_time() -> None:
    """A program was told that nobody holds its lease, just when the holder wrote that it ended."""
    RecordFile(holder_dir(), RECORD).close()
    long, short = replace(RECORD, text="x" * 5000), RECORD
    written = threading.Event()

    def write() -> None:
        for at in range(2000):
            RecordFile(holder_dir(), short if at % 2 else long).close()
        written.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not written.is_set():
        assert len(held_leases()) == 1
    writer.join()


def test_records_of_the_past_are_forgotten(runtime: Path) -> None:
    for number in range(ENDED_COUNT_MAX + 5):
        record = replace(RECORD, lease=f"{number:04x}")
        RecordFile(holder_dir(), record).end(replace(record, ended="released"))
    old = sorted(holder_dir().glob("*.json"))[0]
    os.utime(old, (0, 0))
    assert len(held_leases()) == ENDED_COUNT_MAX
    assert not old.exists()
    assert len(list(holder_dir().glob("*.json"))) == ENDED_COUNT_MAX


def test_the_pool_decides_between_leases_of_one_name() -> None:
    files = [
        RecordFile(holder_dir(), replace(RECORD, cluster_id=each * 8)) for each in ("aa", "bb")
    ]
    for cluster_id in ("aa" * 8, "bb" * 8):
        found = find_held("7f3a", cluster_id)
        assert found is not None
        assert found.record.cluster_id == cluster_id
    assert find_held("7f3a") is not None  # nobody is logged in
    assert find_held("7f3a", "cc" * 8) is not None
    for file in files:
        file.end(replace(file.record, ended="released"))
    assert find_held("7f3a", "cc" * 8) is None  # every pool gives the same names


async def test_a_lease_of_another_user_of_the_pool_is_left_alone(tmp_path: Path) -> None:
    """One account of a machine may have the tokens of several users of a pool."""
    file = RecordFile(holder_dir(), RECORD)

    def login(user: str, cluster_id: str = RECORD.cluster_id) -> str:
        path = tmp_path / f"{user}.json"
        known = (Address("127.0.0.1", 1),)
        token = TokenId("a1b2c3d4e5f6")
        made = Credentials(cluster_id, "lab", user, token, bytes(32), "", known)
        save_credentials(path, made)
        return str(path)

    bob = login("bob")
    for attempt in (held_record, release_lease):
        with pytest.raises(DeniedError) as refused:
            await attempt("7f3a", bob)
        assert refused.value.what == "lease 7f3a belongs to ada"
        assert refused.value.why == "you are logged in as bob"
    assert await held_record("7f3a", login("ada")) == RECORD
    assert await held_record("7f3a", login("cy", "ff" * 8)) == RECORD  # of another pool
    assert await held_record("7f3a", str(tmp_path / "none.json")) == RECORD
    file.close()


def test_nobody_elses_records_are_believed(runtime: Path) -> None:
    file = RecordFile(holder_dir(), RECORD)
    (runtime / "gpupool").chmod(0o755)
    assert held_leases() == []
    file.close()
    with pytest.raises(GpupoolError, match="others may enter it"):
        holder_dir()


def test_a_link_in_place_of_a_record_is_not_followed(runtime: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text(json.dumps(asdict(RECORD)))
    path = holder_dir() / "7f3a-c0ffee00c0ff.json"
    path.symlink_to(target)
    assert held_leases() == []
    RecordFile(holder_dir(), replace(RECORD, text="new")).close()
    assert not path.is_symlink()
    path.with_suffix(".new").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        RecordFile(holder_dir(), RECORD)
    assert target.read_text() == json.dumps(asdict(RECORD))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    ).map(json.dumps)
    | st.text()
    | st.fixed_dictionaries(
        {
            name: st.just(value) | st.none() | st.integers() | st.text() | st.lists(st.integers())
            for name, value in json.loads(json.dumps(asdict(RECORD))).items()
        }
    ).map(json.dumps)
)
def test_other_records_are_refused(text: str) -> None:
    try:
        record = parse_record(text)
    except ValueError:
        return
    assert parse_record(json.dumps(asdict(record))) == record


def test_a_record_round_trips() -> None:
    assert parse_record(json.dumps(asdict(RECORD))) == RECORD


# --- its agent ------------------------------------------------------------------------------------


@asynccontextmanager
async def holder() -> AsyncGenerator[tuple[Agent, HeldRecord, trio.Event]]:
    released = trio.Event()

    async def open_session(request: SessionRequest) -> list[SessionAnswer]:
        await trio.lowlevel.checkpoint()
        asked = {key: getattr(request, key) for key in ("door", "program", "visible", "settings")}
        return [replace(SESSION, server=json.dumps(asked))]

    async def release() -> None:
        await trio.lowlevel.checkpoint()
        released.set()

    async def check() -> str:
        await trio.lowlevel.checkpoint()
        return "lease 7f3a is void: released" if released.is_set() else ""

    held = HolderActions(dict, release)
    agent = Agent(holder_dir(), lease="7f3a", open_session=open_session, held=held, check=check)
    async with trio.open_nursery() as nursery:
        await nursery.start(agent.serve)
        yield agent, replace(RECORD, socket=str(agent.path)), released
        nursery.cancel_scope.cancel()


async def test_programs_come_and_go_on_one_lease() -> None:
    async with holder() as (agent, record, _released):
        for _ in range(2):
            async with HeldLease(record) as one, HeldLease(record) as two:
                assert agent.watcher_count() == 2
                [opened] = await one.open_session(SessionRequest("arrays", "a.py"))
                asked: dict[str, object] = {
                    "door": "arrays",
                    "program": "a.py",
                    "visible": None,
                    "settings": {},
                }
                assert opened == replace(SESSION, server=json.dumps(asked))
                [opened] = await one.open_session(SessionRequest("cuda", "b", visible="1,0"))
                assert json.loads(opened.server)["visible"] == "1,0"
                settings = {"CUDA_AUTO_BOOST": "1"}
                [opened] = await one.open_session(SessionRequest("cuda", "b", settings=settings))
                assert json.loads(opened.server)["settings"] == {"CUDA_AUTO_BOOST": "1"}
                # The program's own agent makes the relay of the other door.
                [opened] = await two.open_session(SessionRequest("cuda", "b"))
                assert isinstance(opened, OpenedSession)
                assert opened.relay is None
            with trio.fail_after(5):
                await agent.drained()


async def test_who_uses_the_lease_hears_of_it(nursery: trio.Nursery) -> None:
    async with holder() as (agent, record, released):
        async with HeldLease(record) as lease:
            told: list[str] = []
            lease.on_notice = told.append
            nursery.start_soon(lease.listen)
            await agent.notify("it ends in 1m")
            assert await lease.check() == ""
            assert await release_held(record) == 1
            assert released.is_set()
            assert await lease.check() == "lease 7f3a is void: released"  # before it is told
            await agent.lost("lease 7f3a is void: released")
            with trio.fail_after(5):
                assert await lease.wait_lost() == "lease 7f3a is void: released"
            assert told == ["it ends in 1m"]
        with pytest.raises(LeaseLostError, match="released"):
            async with HeldLease(record):
                raise AssertionError
        with pytest.raises(GpupoolError, match="released"):
            await lease.open_session(SessionRequest("arrays", "a.py"))


async def test_a_holder_that_dies_ends_the_lease() -> None:
    async with AsyncExitStack() as stack:
        async with holder() as (_agent, record, _released):
            lease = await stack.enter_async_context(HeldLease(record))
        with trio.fail_after(5):
            await lease.listen()
        assert "has ended" in await lease.wait_lost()
        assert await lease.check() == await lease.wait_lost()
        with pytest.raises(LeaseLostError, match="does not answer"):
            await lease.open_session(SessionRequest("arrays", "a.py"))


async def test_a_holder_that_ends_before_it_answers_says_why_it_has_ended(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    """It hangs up as its last step; a program that came just then was told of a silent holder."""
    record = replace(RECORD, socket=str(holder_dir() / "7f3a-000000.sock"))
    nobody = str(tmp_path / "none.json")

    async def hang_up(*, task_status: trio.TaskStatus[None]) -> None:
        with trio.socket.socket(trio.socket.AF_UNIX) as listener:
            await listener.bind(record.socket)
            listener.listen()
            file = RecordFile(holder_dir(), record)
            task_status.started()
            connection, _address = await listener.accept()
            file.end(replace(record, ended="released"))
            connection.close()

    await nursery.start(hang_up)
    with pytest.raises(LeaseLostError, match="has ended") as failure:
        async with HeldLease(record):
            raise AssertionError
    assert failure.value.why == "released"
    await nursery.start(hang_up)
    assert await release_lease("7f3a", nobody) == "lease 7f3a has ended already: released"
    with pytest.raises(LeaseLostError, match="has ended"):  # nobody listens any more
        async with HeldLease(record):
            raise AssertionError


async def test_the_agent_of_a_program_gives_nothing_back(tmp_path: Path) -> None:
    async def never(request: SessionRequest) -> list[SessionAnswer]:
        raise AssertionError

    agent = Agent(tmp_path, lease="7f3a", open_session=never)
    for operation in ("watch", "release"):
        answer = json.loads(await agent.answer(json.dumps({"op": operation}).encode()))
        assert (answer["ok"], answer["what"]) == (False, "this lease ends with its program")
