"""``usage.db``: exact despite repeated imports, and despite faults of file and disk."""

import os
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.monitoring.records import LOG, START_MS, record, write

from gpupool.monitoring.accounting import Range, total
from gpupool.monitoring.history import history_store
from gpupool.monitoring.pages import told, with_recent
from gpupool.monitoring.record_writer import RecordWriter, answer
from gpupool.monitoring.usage_store import FILE_NAME, UsageStore
from gpupool.pool.errors import StorageError
from gpupool.pool.model.forgetting import Forgotten, digest_of
from gpupool.pool.model.ids import LeaseId, Milliseconds, ServerId
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.record_query import RecordPage, RecordQuery
from gpupool.pool.transitions.kept_records import record_of
from gpupool.remoting.daemon import record_files
from gpupool.remoting.daemon.record_files import LeaseLog, monitoring_folder

RECORDS = [record(number) for number in range(1, 101)]


writers: list[RecordWriter] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close a test's databases: Python warns of open ones, from 3.13 on."""
    yield
    while writers:
        writers.pop().close()


def imported(state_dir: Path, said: list[str] | None = None) -> RecordWriter:
    said = [] if said is None else said
    writer = RecordWriter(monitoring_folder(state_dir), said.append)
    writers.append(writer)
    writer.step()
    return writer


def ask(state_dir: Path, query: RecordQuery | None = None) -> RecordPage:
    return answer(monitoring_folder(state_dir), query or RecordQuery())


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write(tmp_path, RECORDS[:60])
    writer = imported(tmp_path)
    write(tmp_path, RECORDS[60:])
    writer.step()
    page = ask(tmp_path)
    assert list(page.records) == RECORDS
    assert (page.upto, page.newest, page.more, page.missing) == (100, 100, False, ())


def test_nothing_is_there_twice(tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    for _ in range(3):
        imported(tmp_path).close()
    store = UsageStore(monitoring_folder(tmp_path) / FILE_NAME, write=True)
    store.add(RECORDS)
    store.close()
    assert list(ask(tmp_path).records) == RECORDS


def test_pages_make_the_whole(tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    imported(tmp_path)
    found: list[LeaseRecord] = []
    after, more = 0, True
    while more:
        page = ask(tmp_path, RecordQuery(after=after, count=7))
        found += page.records
        after, more = page.upto, page.more
    assert found == RECORDS
    folder = monitoring_folder(tmp_path)
    small = answer(folder, RecordQuery(), 3000)
    assert small.more
    assert 0 < len(small.records) < 20
    only = RecordQuery(after=10, through=12)
    assert [each.number for each in ask(tmp_path, only).records] == [11, 12]
    one = ask(tmp_path, RecordQuery(lease=RECORDS[5].lease))
    assert list(one.records) == [RECORDS[5]]
    since = RecordQuery(since=Milliseconds(RECORDS[50].granted_at), count=1000)
    assert all(each.freed_at > since.since for each in ask(tmp_path, since).records)


def test_a_user_is_told_sums_of_others(tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    imported(tmp_path)
    page = ask(tmp_path, RecordQuery(user="ada"))
    assert {each.user for each in page.records} == {"ada"}
    assert [each.user_class for each in page.others] == ["", "lab"]
    assert sum(each.parts for each in page.others) + len(page.records) == len(RECORDS)
    bobs = total([each for each in RECORDS if each.user == "bob"], Range())
    assert page.others[1].milli_gpu_ms == bobs.unit_ms // 10**9
    foreign = next(each for each in RECORDS if each.user == "bob")
    page = ask(tmp_path, RecordQuery(user="ada", lease=LeaseId(foreign.lease)))
    assert page.records == page.others == ()


def test_gaps_are_said(tmp_path: Path) -> None:
    write(tmp_path, [*RECORDS[4:10], *RECORDS[20:30]])
    imported(tmp_path)
    assert ask(tmp_path).missing == ((1, 4), (11, 20))


def test_files_that_were_renamed_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_files, "FILE_SIZE_MAX", 4000)
    writer = imported(tmp_path)
    for at in range(0, 40, 5):
        write(tmp_path, RECORDS[at : at + 5])
        if at == 20:
            writer.step()
    writer.step()
    assert len(list(monitoring_folder(tmp_path).glob("leases.jsonl*"))) > 3
    assert list(ask(tmp_path).records) == RECORDS[:40]


def test_a_line_that_is_being_written_is_read_later(tmp_path: Path) -> None:
    write(tmp_path, RECORDS[:2])
    path = monitoring_folder(tmp_path) / "leases.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    writer = imported(tmp_path)
    assert len(ask(tmp_path).records) == 1
    with path.open("ab") as file:
        file.write(data[-9:])
    writer.step()
    assert list(ask(tmp_path).records) == RECORDS[:2]


def test_a_damaged_line_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, RECORDS[:3])
    path = monitoring_folder(tmp_path) / "leases.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + '{"schema":1,"number":"two"}\n' + lines[2])
    imported(tmp_path)
    page = ask(tmp_path)
    assert [each.number for each in page.records] == [1, 3]
    assert page.missing == ((2, 2),)


@pytest.mark.parametrize("kind", ["header", "pages", "truncated"])
def test_a_damaged_database_is_put_aside_and_begun_anew(tmp_path: Path, kind: str) -> None:
    many = [record(number) for number in range(1, 801)]
    write(tmp_path, many)
    imported(tmp_path).close()
    path = monitoring_folder(tmp_path) / FILE_NAME
    data = bytearray(path.read_bytes())
    if kind == "header":
        data[:16] = b"something else\0\0"
    elif kind == "pages":
        data[8192:] = os.urandom(len(data) - 8192)
    else:
        del data[len(data) // 2 :]
    path.write_bytes(data)
    said: list[str] = []
    writer = imported(tmp_path, said)
    assert "damaged" in said[0]
    assert writer.problem
    writer.step()
    assert list(ask(tmp_path, RecordQuery(count=1000)).records) == many
    assert [p.name for p in path.parent.glob("*damaged*")] == ["usage.damaged-1.db"]
    writer.step()
    assert writer.problem == ""


def test_a_full_disk_is_said_and_survived(tmp_path: Path) -> None:
    write(tmp_path, RECORDS)
    said: list[str] = []
    writer = imported(tmp_path, said)
    many = [record(number) for number in range(101, 901)]
    write(tmp_path, many)
    store = writer._store  # pyright: ignore[reportPrivateUsage]
    assert store is not None
    database: sqlite3.Connection = store._db  # pyright: ignore[reportPrivateUsage]
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count={pages}")  # SQLITE_FULL, as of a full disk
    writer.step()
    assert said == ["the accounts cannot be written: database or disk is full"]
    assert list(ask(tmp_path).records)[:100] == RECORDS
    writer.step()
    assert said[-1] == "the accounts are kept again"
    assert len(said) == 2
    assert list(ask(tmp_path, RecordQuery(count=1000)).records) == [*RECORDS, *many]


def test_a_newer_database_is_refused_in_a_sentence(tmp_path: Path) -> None:
    write(tmp_path, RECORDS[:1])
    imported(tmp_path).close()
    path = monitoring_folder(tmp_path) / FILE_NAME
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(StorageError, match="newer gpupool"):
        UsageStore(path)
    said: list[str] = []
    writer = imported(tmp_path, said)
    writer.step()
    assert len(said) == 1
    assert "newer gpupool" in said[0]
    assert not list(path.parent.glob("*damaged*"))


def test_a_clock_that_is_set_back_changes_nothing(tmp_path: Path) -> None:
    """Numbers order the records, and not their instants."""
    shift = 3_600_000
    back = [
        record(number, granted_at=START_MS - shift + number, freed_at=START_MS - shift + 2 * number)
        for number in range(101, 111)
    ]
    write(tmp_path, [*RECORDS, *back])
    imported(tmp_path)
    page = ask(tmp_path)
    assert list(page.records) == [*RECORDS, *back]
    found = total(page.records, Range()).byte_ms
    assert found == sum((r.freed_at - r.granted_at) * r.gpus[0].memory for r in [*RECORDS, *back])


def test_the_latest_of_the_table_come_after_those_of_the_database() -> None:
    query = RecordQuery(user="ada")
    page = told(RECORDS[:50], query)
    page = replace(page, upto=50, newest=50)
    whole = with_recent(page, RECORDS[40:], 100, query)
    assert list(whole.records) == [each for each in RECORDS if each.user == "ada"]
    assert (whole.upto, whole.newest, whole.missing) == (100, 100, ())
    assert sum(each.parts for each in whole.others) + len(whole.records) == 100
    away = with_recent(RecordPage(problem="away"), RECORDS[40:], 100, RecordQuery())
    assert list(away.records) == RECORDS[40:]
    assert (away.missing, away.problem) == (((1, 40),), "away")


@pytest.mark.parametrize(("by", "counts"), [("user", [1]), ("server", [1, 1])])
def test_a_lease_of_which_the_exporter_has_one_part_is_one_lease(
    by: str, counts: list[int]
) -> None:
    one = record(1)
    other = replace(
        one, number=2, server=ServerId("z" * 12), server_name="gpu-z", freed_at=one.freed_at + 1
    )
    query = RecordQuery(by=by)
    known = replace(told([one], query), upto=1, newest=1)
    page = with_recent(known, (one, other), 2, query)
    assert page.whole.leases == 1
    rows: dict[str, int] = {}
    for group in page.groups:
        rows[group.key] = rows.get(group.key, 0) + group.leases
    assert list(rows.values()) == counts


AWAY = ((Milliseconds(START_MS + 1000), Milliseconds(START_MS + 5000)),)
SUSPENDED = record(101, away=AWAY)


HERE, ELSEWHERE = ServerId("a" * 12), ServerId("b" * 12)
MOVED = "it was moved to another server"
STAYS = [
    record(1),
    record(2, lease=LeaseId(7), server=HERE, reason=MOVED),
    record(3, lease=LeaseId(7), server=ELSEWHERE, reason=MOVED),
    record(4),
    record(5, lease=LeaseId(7), server=HERE),
    record(6),
]
"""A lease that went to another server and came back, among others."""


def test_each_stay_of_a_lease_on_a_server_is_kept(tmp_path: Path) -> None:
    write(tmp_path, STAYS)
    imported(tmp_path).close()
    imported(tmp_path).close()
    page = ask(tmp_path)
    assert list(page.records) == STAYS
    assert page.missing == ()
    assert list(ask(tmp_path, RecordQuery(lease=LeaseId(7))).records) == [
        each for each in STAYS if each.lease == 7
    ]


def test_records_that_are_missing_are_read_again(tmp_path: Path) -> None:
    write(tmp_path, STAYS)
    path = monitoring_folder(tmp_path) / FILE_NAME
    store = UsageStore(path, write=True)
    store.add([each for each in STAYS if each.number != 5])
    assert store.missing() == ((5, 5),)
    store.close()
    write(tmp_path, [record(7)])
    ended: list[int] = []
    writer = RecordWriter(
        path.parent, lambda _text: None, lambda batch: ended.extend(r.number for r in batch)
    )
    writer.step()
    writer.close()
    assert list(ask(tmp_path).records) == [*STAYS, record(7)]
    assert ended == [7], "what is read again has not ended anew"


SALT = bytes(16)


def order(user: str, number: int = 80) -> Forgotten:
    return Forgotten(SALT, digest_of(SALT, user), number, Milliseconds(START_MS))


def test_a_forgotten_user_is_in_no_file_of_the_accounts(tmp_path: Path) -> None:
    folder, ada = monitoring_folder(tmp_path), order("ada")
    write(tmp_path, RECORDS[:60])
    writer = imported(tmp_path)
    write(tmp_path, RECORDS[60:70])
    writer.forgotten = (ada,)
    writer.step()
    write(tmp_path, RECORDS[70:])  # as a server does that has them late
    log = LeaseLog(tmp_path, LOG)
    log.forget((ada,))
    writer.step()
    writer.close()
    expected = [ada.pseudonym if r.user == "ada" and r.number <= 80 else r.user for r in RECORDS]
    assert [each.user for each in ask(tmp_path, RecordQuery(count=200)).records] == expected
    lines = (folder / "leases.jsonl").read_text().splitlines()
    assert [record_of(line).user for line in lines] == expected
    assert {each.number for each in map(record_of, lines) if not each.client} == {
        each.number for each in RECORDS[:80] if each.user == "ada"
    }
    (folder / FILE_NAME).unlink()
    imported(tmp_path).close()
    assert [each.user for each in ask(tmp_path, RecordQuery(count=200)).records] == expected


def test_a_name_is_taken_out_of_the_bytes_of_the_database(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    store = UsageStore(path, write=True)
    reason = "a lease of josephine lasts 8 h at most"
    client = "josephine@desk"
    store.add([replace(each, user="josephine", client=client, reason=reason) for each in RECORDS])
    store.forget((order("josephine", 100),))
    assert b"josephine" not in b"".join(each.read_bytes() for each in tmp_path.iterdir())
    store.close()


def test_files_are_searched_once_for_each_forgotten_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, RECORDS)
    searched: list[object] = []

    def rewrite(_log: LeaseLog, change: object) -> None:
        searched.append(change)

    monkeypatch.setattr(LeaseLog, "rewrite", rewrite)
    for _ in range(2):
        LeaseLog(tmp_path, LOG).forget((order("ada"),))
    assert len(searched) == 1


def test_a_database_of_the_other_kind_is_named(tmp_path: Path) -> None:
    accounts, history = tmp_path / "usage.db", tmp_path / "history.db"
    UsageStore(accounts, write=True).close()
    history_store.connect(history, write=True).close()
    with pytest.raises(StorageError, match=r"history\.db has no accounts"):
        UsageStore(history)
    with pytest.raises(StorageError, match=r"usage\.db has no history"):
        history_store.connect(accounts, write=False)


def test_a_number_that_sqlite_does_not_take_keeps_out_no_later_record(tmp_path: Path) -> None:
    """A server may say any size of its GPUs, and a record of it stopped all accounts."""
    write(tmp_path, [record(1), record(2, idle_timeout_ms=2**64 - 1), record(3)])
    imported(tmp_path).close()
    page = ask(tmp_path)
    assert [each.number for each in page.records] == [1, 2, 3]
    assert page.records[1].idle_timeout_ms == 2**63 - 1
