"""The exporter as a process: it answers, is started again when it dies, and loses nothing."""

import logging
import os
import random
import signal
import sqlite3
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from tests.monitoring import samples
from tests.monitoring.records import record, write

from gpupool.monitoring import exporter_link
from gpupool.monitoring.exporter import Exporter
from gpupool.monitoring.exporter_link import AWAY, ExporterLink
from gpupool.monitoring.frames import (
    EXPORTER,
    Answered,
    Asked,
    ExporterMessage,
    HistoryAnswered,
    HistoryAsked,
)
from gpupool.monitoring.history.history_settings import NOT_BEGUN
from gpupool.monitoring.record_writer import RecordWriter
from gpupool.monitoring.usage_store import FILE_NAME, UsageStore
from gpupool.pool.history_query import HistoryPage, HistoryQuery
from gpupool.pool.model.bounds import SIGNED_MAX
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.state import PoolState
from gpupool.pool.record_query import RecordPage, RecordQuery
from gpupool.remoting.daemon.record_files import monitoring_folder
from gpupool.remoting.transport import watching
from gpupool.remoting.worker.sandbox import NICE

LOG = logging.getLogger("test")
EVERYTHING = RecordQuery(count=1000)


@asynccontextmanager
async def observed(state_dir: Path, state: PoolState | None = None) -> AsyncGenerator[ExporterLink]:
    table = state or PoolState()
    link = ExporterLink(monitoring_folder(state_dir), lambda: table, LOG)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        yield link
        nursery.cancel_scope.cancel()


async def running(link: ExporterLink, *, running: bool = True) -> None:
    """Wait until it runs, or no more."""
    while (link.process is not None) is not running:  # noqa: ASYNC110
        await trio.sleep(0.005)


async def newest(link: ExporterLink, number: int) -> RecordPage:
    """Return everything once the record with this number is there."""
    with trio.fail_after(20):
        while True:
            page = await link.ask(RecordQuery(count=0))
            if page.newest >= number:
                return await link.ask(EVERYTHING)
            await trio.sleep(0.02)


def test_it_imports_and_answers_and_ends_with_its_server(tmp_path: Path) -> None:
    records = [record(number) for number in range(1, 50)]

    async def main() -> int:
        async with observed(tmp_path) as link:
            write(tmp_path, records[:20])
            assert list((await newest(link, 20)).records) == records[:20]
            write(tmp_path, records[20:])
            link.records_written()
            page = await newest(link, 49)
            assert (list(page.records), page.problem) == (records, "")
            assert link.process is not None
            # Seeing must not slow doing down.
            threads = [int(name) for name in os.listdir(f"/proc/{link.process.pid}/task")]
            own = os.getpriority(os.PRIO_PROCESS, 0)
            niceness = {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}
            assert len(threads) > 1 and niceness == {min(19, own + NICE)}
            return link.process.pid

    pid = trio.run(main)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_question_waits_until_there_are_accounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that asked while the file was being made had a failed check of its history."""
    step = RecordWriter.step

    def slow(writer: RecordWriter) -> None:
        (tmp_path / FILE_NAME).touch()
        time.sleep(0.1)
        step(writer)

    monkeypatch.setattr(RecordWriter, "step", slow)
    near, far = (trio.SocketStream(each) for each in trio.socket.socketpair())
    async with near, far, trio.open_nursery() as nursery:
        nursery.start_soon(Exporter(far, tmp_path).run)
        await near.send_all(EXPORTER.encode(Asked(1, EVERYTHING)))
        reader, found = EXPORTER.reader(), list[RecordPage]()
        with trio.fail_after(10):
            while not found:
                reader.feed(await near.receive_some())
                found += [EXPORTER.decode(Answered, f).page for f in reader.frames()]
        nursery.cancel_scope.cancel()
    assert found[0].problem == ""


async def answers(folder: Path, *asked: Asked | HistoryAsked) -> dict[int, str]:
    """Ask an exporter in this process; return the problem of each answer, by its number."""
    near, far = (trio.SocketStream(each) for each in trio.socket.socketpair())
    reader, found = EXPORTER.reader(), dict[int, str]()
    async with near, far, trio.open_nursery() as nursery:
        nursery.start_soon(Exporter(far, folder).run)
        for each in asked:
            await near.send_all(EXPORTER.encode(each))
        with trio.fail_after(10):
            while len(found) < len(asked):
                reader.feed(await near.receive_some())
                for frame in reader.frames():
                    message = EXPORTER.decode(ExporterMessage, frame)
                    assert isinstance(message, Answered | HistoryAnswered)
                    found[message.number] = message.page.problem
        nursery.cancel_scope.cancel()
    return found


async def test_a_question_that_it_cannot_answer_ends_no_exporter(tmp_path: Path) -> None:
    """A number that SQLite does not take ended it, and everybody's connections to the web."""
    write(tmp_path, [record(1)])
    too_large = RecordQuery(after=SIGNED_MAX, by="a key that there is not")
    long_ago = HistoryQuery("lease", "used", name="x" * 9, since=Milliseconds(-SIGNED_MAX))
    found = await answers(
        tmp_path, Asked(1, too_large), HistoryAsked(2, long_ago), Asked(3, RecordQuery(count=0))
    )
    assert "cannot read the accounts" in found[1]
    assert found[2] in ("", NOT_BEGUN)
    assert not found[3]


def test_while_it_is_away_the_table_answers(tmp_path: Path) -> None:
    records = tuple(record(number) for number in range(5, 9))

    async def main() -> None:
        link = ExporterLink(
            monitoring_folder(tmp_path), lambda: PoolState(records=records, record_count=8), LOG
        )
        link.records_written()
        page = await link.ask(EVERYTHING)
        assert (page.records, page.missing, page.problem) == (records, ((1, 4),), AWAY)

    trio.run(main)


def test_one_that_is_stopped_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter_link, "ANSWER_TIMEOUT_S", 0.3)

    async def main() -> None:
        async with observed(tmp_path) as link:
            write(tmp_path, [record(1)])
            await newest(link, 1)
            assert link.process is not None
            os.kill(link.process.pid, signal.SIGSTOP)
            try:
                with trio.fail_after(60):
                    for _ in range(3):
                        assert (await link.ask(EVERYTHING)).problem == AWAY
                    with trio.fail_after(exporter_link.SUM_TIMEOUT_S / 2):
                        assert (await link.ask(RecordQuery(by="user"))).problem == AWAY
                    async with trio.open_nursery() as nursery:
                        for _ in range(300):  # more than any queue holds
                            nursery.start_soon(link.ask, EVERYTHING)
            finally:
                os.kill(link.process.pid, signal.SIGCONT)
            await newest(link, 1)

    trio.run(main)


def kill_in_a_loop(state_dir: Path, kills: int, seed: int) -> None:
    """Kill the exporter at random moments while records come, and check its files."""
    draw = random.Random(seed)
    records = [record(number) for number in range(1, 12 * kills + 1)]

    async def main() -> None:
        async with observed(state_dir) as link:
            for at in range(0, len(records), 12):
                await running(link)
                write(state_dir, records[at : at + 6])
                link.records_written()
                # From before it has read its first byte to the middle of a transaction.
                await trio.sleep(draw.choice([0.0, 0.3, 0.6]) + draw.random() * 0.3)
                write(state_dir, records[at + 6 : at + 12])
                link.records_written()
                await trio.sleep(draw.random() * 0.02)
                if link.process is not None:
                    os.kill(link.process.pid, signal.SIGKILL)
                await trio.sleep(0.01)
                store = UsageStore(monitoring_folder(state_dir) / FILE_NAME) if at > 600 else None
                if store is not None:
                    store.check()
                    store.close()
            await newest(link, len(records))

    trio.run(main)
    store = UsageStore(monitoring_folder(state_dir) / FILE_NAME, write=True)
    try:
        store.check()
        assert store.everything() == records
    finally:
        store.close()
    assert not list(monitoring_folder(state_dir).glob("*damaged*"))


@pytest.mark.long
def test_killed_again_and_again_it_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "BACKOFF_MIN_S", 0.01)
    monkeypatch.setattr(watching, "BACKOFF_MAX_S", 0.01)
    kill_in_a_loop(tmp_path, 8, seed=1)


@pytest.mark.slow
def test_killed_each_second_for_a_minute_it_catches_up(tmp_path: Path) -> None:
    """With the real pauses between two starts: records come all the time, and none is lost."""

    async def main() -> None:
        async with observed(tmp_path) as link:
            for number in range(1, 61):
                write(tmp_path, [record(number)])
                link.records_written()
                if link.process is not None:
                    os.kill(link.process.pid, signal.SIGKILL)
                await trio.sleep(1)
            await running(link)
            await newest(link, 60)
            assert link.restarts >= 5

    trio.run(main)
    store = UsageStore(monitoring_folder(tmp_path) / FILE_NAME, write=True)
    try:
        store.check()
        assert store.everything() == [record(number) for number in range(1, 61)]
    finally:
        store.close()


@pytest.mark.slow
def test_killed_a_thousand_times_it_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "BACKOFF_MIN_S", 0.01)
    monkeypatch.setattr(watching, "BACKOFF_MAX_S", 0.01)
    kill_in_a_loop(tmp_path, 1000, seed=2)


def test_it_is_started_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with observed(tmp_path) as link:
            for restarts in range(2):
                await running(link)
                assert link.process is not None
                assert link.restarts == restarts
                os.kill(link.process.pid, signal.SIGKILL)
                await running(link, running=False)

    with caplog.at_level(logging.WARNING):
        trio.run(main)
    lines = [each.getMessage() for each in caplog.records]
    assert "the exporter has ended (the connection was closed, status -9); again in 1 s" in lines


def test_it_reads_and_writes_its_own_folder_only(tmp_path: Path) -> None:
    """The keys lie beside it."""
    from gpupool.remoting.worker import sandbox

    if sandbox.landlock_version() < 1:
        pytest.skip("this kernel has no Landlock")
    script = (
        "import sys; from pathlib import Path; from gpupool.monitoring import exporter\n"
        "folder = Path(sys.argv[1])\n"
        "exporter.confine(folder, connects=True)\n"
        "(folder / 'x').write_text('mine')\n"
        "try: (folder.parent / 'ca.key').read_text()\n"
        "except PermissionError: print('refused')\n"
    )
    (tmp_path / "ca.key").write_text("secret")
    folder = monitoring_folder(tmp_path)

    async def main() -> bytes:
        import sys

        result = await trio.run_process(
            [sys.executable, "-P", "-c", script, str(folder)], capture_stdout=True
        )
        return result.stdout

    assert trio.run(main) == b"refused\n"


def test_a_database_that_another_process_reads_stays_writable(tmp_path: Path) -> None:
    records = [record(number) for number in range(1, 30)]

    async def main() -> None:
        async with observed(tmp_path) as link:
            write(tmp_path, records[:5])
            await newest(link, 5)
            reader = sqlite3.connect(monitoring_folder(tmp_path) / FILE_NAME)
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM record").fetchone() == (5,)
            write(tmp_path, records[5:])
            link.records_written()
            assert list((await newest(link, 29)).records) == records
            assert reader.execute("SELECT count(*) FROM record").fetchone() == (5,)
            reader.close()

    trio.run(main)


def test_samples_become_history_that_it_answers(tmp_path: Path) -> None:
    state = samples.table(gpus=2, leases=3)
    query = HistoryQuery(
        "server",
        "busy",
        since=Milliseconds(samples.START_MS - 60_000),
        until=Milliseconds(samples.START_MS + 60_000),
    )

    async def main() -> None:
        away = ExporterLink(monitoring_folder(tmp_path), lambda: state, LOG)
        nothing = await away.answer(query)
        assert isinstance(nothing, HistoryPage)
        assert nothing.problem
        async with observed(tmp_path, state) as link:
            for second in range(25):
                link.add_sample(samples.sample(state, samples.START_MS + 1000 * second))
            with trio.fail_after(30):
                while True:
                    page = await link.answer(query)
                    assert isinstance(page, HistoryPage)
                    if page.series and len(page.series[0].points) == 2:
                        break
                    await trio.sleep(0.05)
            assert [series.label for series in page.series] == ["GPU 0", "GPU 1"]
            assert page.series[0].points[0][1:] == (5000, 10, 500)

    trio.run(main)
