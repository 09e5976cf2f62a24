"""A server's audit file: whole, append-only, bounded, and mended after a power loss."""

import logging
import os
import stat
from pathlib import Path

import pytest
import trio

from gpupool.pool.errors import StorageError
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.state import Act
from gpupool.remoting.daemon import record_files
from gpupool.remoting.daemon.record_files import AUDIT_FILE, MISSED, AuditLog, read_acts

LOG = logging.getLogger("test")


def act(number: int, text: str = "") -> Act:
    return Act(number, 10 * number, Milliseconds(1000 * number), "drained", "root", "a", text)


def test_acts_come_back_as_they_were(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, LOG)
    acts = [act(1), act(2, 'new "fans"\n\u2028\x1b[31m'), act(3, "ä")]
    log.record((acts[0],))
    log.flush()
    log.record((acts[1], acts[2]))
    log.flush()
    assert read_acts(tmp_path) == acts
    assert (tmp_path / AUDIT_FILE).read_text().count("\n") == 3
    assert stat.S_IMODE((tmp_path / AUDIT_FILE).stat().st_mode) == 0o600


def test_a_restarted_server_that_reads_its_table_again_writes_nothing_twice(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, LOG)
    log.record((act(1), act(2)))
    log.flush()
    again = AuditLog(tmp_path, LOG)
    again.record((act(1), act(2), act(3)))
    again.flush()
    assert [each.number for each in read_acts(tmp_path)] == [1, 2, 3]


def test_what_a_power_loss_left_of_the_last_line_is_cut(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, LOG)
    log.record((act(1), act(2)))
    log.flush()
    path = tmp_path / AUDIT_FILE
    path.write_bytes(path.read_bytes()[:-7])
    again = AuditLog(tmp_path, LOG)
    again.record((act(1), act(2), act(3)))
    again.flush()
    assert [each.number for each in read_acts(tmp_path)] == [1, 2, 3]


def test_acts_that_were_dropped_meanwhile_leave_a_line(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, LOG)
    log.record((act(1),))
    log.flush()
    log.record((act(9),))
    log.flush()
    found = read_acts(tmp_path)
    assert [(each.number, each.kind == MISSED) for each in found] == [
        (1, False),
        (1, True),
        (9, False),
    ]
    assert found[1].text == "acts 2 to 8 were dropped before this server saw them"


def test_the_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_files, "FILE_SIZE_MAX", 400)
    log = AuditLog(tmp_path, LOG)
    for number in range(1, 200):
        log.record((act(number),))
        log.flush()
    assert len(list(tmp_path.iterdir())) == record_files.FILE_COUNT_MAX
    assert all(path.stat().st_size <= 400 for path in tmp_path.iterdir())
    numbers = [each.number for each in read_acts(tmp_path)]
    assert numbers == list(range(numbers[0], 200))
    assert AuditLog(tmp_path, LOG)._last == 199  # pyright: ignore[reportPrivateUsage]
    (tmp_path / AUDIT_FILE).unlink()  # a crash between the renaming and the first line
    assert AuditLog(tmp_path, LOG)._last > 190  # pyright: ignore[reportPrivateUsage]


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(tmp_path, LOG)
    log.record((act(1),))
    log.flush()
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[: len(data) // 2])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        log.record((act(2),))
        log.flush()
    assert [each.number for each in read_acts(tmp_path)] == [1]
    log.record((act(3),))
    log.flush()
    assert [each.number for each in read_acts(tmp_path)] == [1, 2, 3]


async def test_it_writes_while_it_runs_and_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_files, "EVERY_S", 0.001)
    log = AuditLog(tmp_path, LOG)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        log.record((act(1),))
        with trio.fail_after(10):
            while not (tmp_path / AUDIT_FILE).exists():  # noqa: ASYNC110
                await trio.sleep(0.001)
        log.record((act(2),))
        nursery.cancel_scope.cancel()
    assert len(read_acts(tmp_path)) == 2


def test_no_audit_and_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no audit"):
        read_acts(tmp_path)
    (tmp_path / AUDIT_FILE).write_text('{"number": 1}\n')
    with pytest.raises(StorageError, match="is damaged: line 1"):
        read_acts(tmp_path)
    (tmp_path / AUDIT_FILE).write_bytes(b"\xff\n")
    with pytest.raises(StorageError, match="cannot read"):
        read_acts(tmp_path)
