"""``history.db``: slots, roll-ups, deletion, and the treatment of an altered file."""

import os
import random
import signal
import sqlite3
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.monitoring.samples import START_MS, gpu_id, sample, table

from gpupool.monitoring.history import history_store
from gpupool.monitoring.history.history_settings import SET_BACK, HistorySettings
from gpupool.monitoring.history.history_store import FILE_NAME, HistoryStore
from gpupool.monitoring.history.history_writer import CAPPED, FULL, HistoryWriter
from gpupool.monitoring.history.series import GPU, LEASE, TABLES, TIERS, Table
from gpupool.monitoring.history.time_slots import GROWN_MAX, Slot, SlotMaker
from gpupool.monitoring.sample import Sample
from gpupool.pool.model.forgetting import Forgotten, digest_of
from gpupool.pool.model.ids import LeaseId, Milliseconds

T0 = START_MS // 1000 // 3600 * 3600
Rows = list[tuple[Any, ...]]


def writer(
    folder: Path, said: list[str] | None = None, settings: HistorySettings | None = None
) -> HistoryWriter:
    notes = said if said is not None else []
    return HistoryWriter(
        folder, settings or HistorySettings(), notes.append, disk_full=lambda _: False
    )


def seconds(first: int, count: int, step_s: int = 1, busy: float = 0.5) -> list[Sample]:
    """Return samples from a second after the hour on."""
    state = table(gpus=2, leases=3)
    return [sample(state, 1000 * (T0 + first + at * step_s), busy) for at in range(count)]


def rows_of(folder: Path, what: str) -> Rows:
    db = sqlite3.connect(folder / FILE_NAME)
    try:
        return db.execute(what).fetchall()
    finally:
        db.close()


def sums_of(folder: Path, tier: str, until: int) -> dict[str, tuple[int, ...]]:
    return {each.name: _sums_of(folder, each, tier, until) for each in TABLES}


def _sums_of(folder: Path, table: Table, tier: str, until: int) -> tuple[int, ...]:
    sums = ", ".join(f"sum({each})" for each in (*table.sums, *table.later))
    [found] = rows_of(folder, f"SELECT {sums} FROM {table.name}_{tier} WHERE t < {until}")
    return found


# --- slots ----------------------------------------------------------------------------------------


def slots_of(samples: list[Sample]) -> list[Slot]:
    maker = SlotMaker()
    return [slot for each in samples if (slot := maker.add(each)) is not None]


def test_ten_samples_make_a_row_of_sums_with_counts_and_maxima() -> None:
    [first, _] = slots_of(seconds(0, 21))
    row = first.gpus[gpu_id(0)]
    assert first.t == T0
    assert [row[each] for each in ("n", "busy_n", "busy", "busy_max", "power", "memory_max")] == [
        10, 10, 5000, 500, 4000, 20 * 1024
    ]  # fmt: skip
    lease = first.leases[LeaseId(2), gpu_id(1)]
    assert [lease[each] for each in ("n", "granted", "slots", "idle", "busy")] == [
        10, 102400, 1, 0, 1250
    ]  # fmt: skip
    assert (first.server["cpu"], first.pool["granted"]) == (2500, 10 * 30 * 1024)


def test_counters_are_what_grew_within_the_slot() -> None:
    first, second, third = slots_of(seconds(0, 31))
    key = (LeaseId(2), gpu_id(1))
    grown = [slot.leases[key]["bytes_in"] for slot in (first, second, third)]
    # The first sample is no growth; what is less than 1 KiB counts later.
    assert sum(grown) == 29 * 1_000_000 // 1024
    assert [slot.leases[key]["waits"] for slot in (first, second)] == [90, 100]
    assert second.server["network_in"] == pytest.approx(10 * 2_000_000 / 1024, abs=1)


def test_after_a_gap_counters_begin_anew() -> None:
    samples = [*seconds(0, 10), *seconds(600, 11)]
    _, after = slots_of([*samples, *seconds(620, 1)])[:2]
    assert after.t == T0 + 600
    assert after.leases[LeaseId(2), gpu_id(1)]["waits"] == 90


def test_what_is_not_known_is_neither_busy_nor_idle() -> None:
    def quiet(at: Sample, **more: object) -> Sample:
        sessions = tuple(
            replace(each, calls=7, waits=None, rtt_us=None, **more)  # type: ignore[arg-type]
            for each in at.telemetry.sessions
        )
        gpus = tuple(replace(each, utilization=None) for each in at.telemetry.gpus)
        return replace(at, telemetry=replace(at.telemetry, gpus=gpus, sessions=sessions))

    def lease(**more: object) -> list[int]:
        [slot] = slots_of([quiet(each, **more) for each in seconds(0, 11)])
        assert (slot.gpus[gpu_id(0)]["busy_n"], slot.gpus[gpu_id(0)]["n"]) == (0, 10)
        row = slot.leases[LeaseId(2), gpu_id(1)]
        return [row[each] for each in ("slots", "idle", "busy_n", "rtt_n")]

    assert lease(busy={}, idle_s=None) == [0, 0, 0, 0]
    assert lease(busy={}, idle_s=60.0) == [1, 1, 0, 0]  # the server says that nothing ran
    assert lease(busy={gpu_id(1): 0.0}) == [1, 1, 10, 0]
    assert lease(busy={gpu_id(1): 0.1}) == [1, 0, 10, 0]


def test_a_lease_without_a_worker_is_idle() -> None:
    samples = [
        replace(each, telemetry=replace(each.telemetry, sessions=())) for each in seconds(0, 11)
    ]
    [slot] = slots_of(samples)
    row = slot.leases[LeaseId(2), gpu_id(1)]
    assert [row[each] for each in ("slots", "idle", "busy_n", "busy")] == [1, 1, 10, 0]


def test_a_clock_that_was_set_back_writes_nothing_until_it_has_caught_up(tmp_path: Path) -> None:
    said: list[str] = []
    helper = writer(tmp_path, said)
    helper.take(seconds(0, 41))
    assert (helper.problem, said) == ("", [])
    helper.take(seconds(0, 39))
    assert (helper.refused, helper.problem, said) == (39, SET_BACK, [SET_BACK])
    helper.take(seconds(41, 9))
    assert helper.problem == SET_BACK, "no slot has ended yet"
    helper.take(seconds(50, 11))
    assert (helper.problem, said[1:]) == ("", ["the history is kept again"])
    helper.close()
    found = rows_of(tmp_path, "SELECT t, n FROM server_sample_10s ORDER BY t")
    assert found == [(T0 + 10 * at, 10) for at in range(6)]


def test_a_clock_that_was_set_back_while_the_exporter_was_away_is_said(tmp_path: Path) -> None:
    helper = writer(tmp_path)
    helper.take(seconds(0, 41))
    helper.close()
    said: list[str] = []
    again = writer(tmp_path, said)
    again.take(seconds(0, 5))
    assert (again.problem, said) == (SET_BACK, [SET_BACK])
    again.close()


def test_a_restart_in_the_middle_of_a_slot_is_no_clock_that_was_set_back(tmp_path: Path) -> None:
    said: list[str] = []
    for first in (0, 25, 50):
        helper = writer(tmp_path, said)
        helper.take(seconds(first, 25))
        helper.close()
    assert said == []


# --- roll-ups -------------------------------------------------------------------------------------


def test_coarser_tiers_are_the_finer_ones_added_up_exactly(tmp_path: Path) -> None:
    draw, helper = random.Random(3), writer(tmp_path)
    for at in range(0, 3 * 3600, 25):  # a few samples of each slot, also none
        helper.take(seconds(at, draw.randrange(4), step_s=2, busy=draw.random()))
    helper.take(seconds(3 * 3600, 70))
    helper.close()
    until = T0 + 3 * 3600
    fine, middle, coarse = (sums_of(tmp_path, tier.name, until) for tier in TIERS)
    assert fine == middle == coarse
    assert fine[GPU.name][0] > 100
    for each in (GPU, LEASE):
        maxima = [
            rows_of(tmp_path, f"SELECT max(busy_max) FROM {each.at(t)} WHERE t < {until}")
            for t in TIERS
        ]
        assert maxima[0] == maxima[1] == maxima[2]


def test_rolling_up_twice_changes_nothing(tmp_path: Path) -> None:
    helper = writer(tmp_path)
    helper.take(seconds(0, 800, step_s=5))
    helper.close()
    before = sums_of(tmp_path, "1h", 2**62)
    db = sqlite3.connect(tmp_path / FILE_NAME)
    db.execute("DELETE FROM rolled")
    db.commit()
    db.close()
    again = writer(tmp_path)
    again.take(seconds(4000, 120))
    again.close()
    assert sums_of(tmp_path, "1h", 2**62) == before
    assert sums_of(tmp_path, "1m", T0 + 3600) == sums_of(tmp_path, "10s", T0 + 3600)


def test_a_restart_rolls_up_what_was_left(tmp_path: Path) -> None:
    helper = writer(tmp_path)
    helper.take(seconds(0, 100))
    helper.close()
    again = writer(tmp_path)
    again.take(seconds(7200, 61))
    again.close()
    assert rows_of(tmp_path, "SELECT t, n FROM server_sample_1m") == [
        (T0, 60), (T0 + 60, 30), (T0 + 7200, 60)
    ]  # fmt: skip
    assert rows_of(tmp_path, "SELECT t, n FROM server_sample_1h") == [(T0, 90)]


# --- what goes ------------------------------------------------------------------------------------


def test_each_tier_is_kept_as_long_as_the_settings_say(tmp_path: Path) -> None:
    settings = HistorySettings(keep_10s_s=600, keep_1m_s=7200, keep_1h_s=4 * 3600)
    helper = writer(tmp_path, settings=settings)
    for hour in range(6):
        helper.take(seconds(3600 * hour, 120, step_s=30))
    helper.close()
    end = T0 + 6 * 3600
    oldest = [rows_of(tmp_path, f"SELECT min(t) FROM sample_{t.name}")[0][0] for t in TIERS]
    assert end - oldest[0] <= 600 + 120
    assert 7200 <= end - oldest[1] <= 7200 + 120
    assert 3 * 3600 <= end - oldest[2] <= 5 * 3600


@pytest.mark.long
def test_the_files_never_grow_beyond_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_store, "SYNCHRONOUS", "OFF")  # power cuts are not its topic
    # Half of its margin holds all pages that a slot changes at the end of an hour: 28 of them.
    most, hours = 1 << 20, 14
    said: list[str] = []
    helper = writer(tmp_path, said, HistorySettings(size_max=most))
    largest = 0
    for hour in range(hours):
        for each in seconds(3600 * hour, 360, step_s=10):
            helper.take([each])
            largest = max(largest, sum(path.stat().st_size for path in tmp_path.iterdir()))
    helper.close()
    assert most // 2 < largest <= most
    assert (helper.lost, said) == (0, [])
    # The finest tier went, and nothing else did.
    counts = [rows_of(tmp_path, f"SELECT count(*) FROM server_sample_{t.name}") for t in TIERS]
    assert counts[0][0][0] < hours * 300
    assert (counts[1], counts[2]) == ([(hours * 60 - 1,)], [(hours - 1,)])


def test_when_nothing_may_be_deleted_sampling_stops_and_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "usage.db").write_bytes(bytes(1 << 20))
    helper = writer(tmp_path, said, HistorySettings(size_max=1 << 20))
    helper.take(seconds(0, 41))
    assert (helper.lost, helper.problem, said) == (4, CAPPED, [CAPPED])
    helper.close()


def test_a_full_disk_stops_sampling_and_is_said(tmp_path: Path) -> None:
    said, full = list[str](), [True]
    helper = HistoryWriter(tmp_path, HistorySettings(), said.append, lambda _: full[0])
    helper.take(seconds(0, 31))
    assert (helper.lost, said) == (3, [FULL])
    full[0] = False
    helper.take(seconds(31, 10))
    assert said == [FULL, "the history is kept again"]
    helper.close()
    assert rows_of(tmp_path, "SELECT t FROM server_sample_10s") == [(T0 + 30,)]


# --- files that are not as they were -------------------------------------------------------------


def test_a_damaged_file_is_put_aside_and_begun_anew(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database at all" * 1000)
    said: list[str] = []
    helper = writer(tmp_path, said)
    helper.take(seconds(0, 11))
    helper.close()
    assert "begun anew" in said[0]
    assert (tmp_path / "history.damaged-1.db").exists()
    assert rows_of(tmp_path, "SELECT t FROM server_sample_10s") == [(T0,)]


def test_a_file_of_a_newer_gpupool_is_left_alone(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / FILE_NAME)
    db.execute("PRAGMA user_version=99")
    db.close()
    before, said = (tmp_path / FILE_NAME).read_bytes(), list[str]()
    helper = writer(tmp_path, said)
    helper.take(seconds(0, 31))
    assert len(said) == 1
    assert "was written by a newer gpupool" in said[0]
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_a_forgotten_user_has_a_pseudonym_up_to_then(tmp_path: Path) -> None:
    helper = writer(tmp_path)
    helper.take(seconds(0, 25))
    salt = bytes(16)
    late, early = (
        Forgotten(salt, digest_of(salt, "ada"), 0, Milliseconds(START_MS + shift))
        for shift in (0, -1)
    )
    helper.forgotten = (early,)
    helper.take([])
    assert users(tmp_path) == {"ada", "bob"}, "who came later is another one"
    helper.forgotten = (late,)
    helper.take([])
    helper.close()
    assert users(tmp_path) == {late.pseudonym, "bob"}


def test_a_slot_that_was_going_on_then_is_written_under_the_pseudonym(tmp_path: Path) -> None:
    helper = writer(tmp_path)
    helper.take(seconds(0, 5))  # nothing of it is written yet
    salt = bytes(16)
    helper.forgotten = (Forgotten(salt, digest_of(salt, "ada"), 0, Milliseconds(START_MS + 5000)),)
    helper.take(seconds(5, 25))
    helper.close()
    assert users(tmp_path) == {helper.forgotten[0].pseudonym, "bob"}
    clients = "SELECT client FROM lease WHERE user != 'bob'"
    assert set(rows_of(tmp_path, clients)) == {("",)}, "which names the user as well"


def users(folder: Path) -> set[str]:
    return {user for (user,) in rows_of(folder, "SELECT user FROM lease")}


def kill_the_writer(folder: Path, kills: int, seed: int) -> None:
    """Kill a writing process at random moments, and check the file that it leaves."""
    draw, first = random.Random(seed), 0
    for _ in range(kills):
        child = os.fork()
        if child == 0:
            try:
                helper = writer(folder)
                for each in seconds(first, 100_000, step_s=10):
                    helper.take([each])
            finally:
                os._exit(1)
        time.sleep(0.02 + draw.random() * 0.15)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said: list[str] = []
        helper = writer(folder, said)
        store = HistoryStore(folder / FILE_NAME, HistorySettings())
        store.check()
        last = store.last_t()
        store.close()
        helper.take([])
        helper.close()
        assert said == []
        first = max(0, last - T0) + 10
    helper = writer(folder)
    helper.take(seconds(first, 2, step_s=3600))
    helper.close()
    hours = T0 + first // 3600 * 3600
    fine, middle, coarse = (sums_of(folder, tier.name, hours) for tier in TIERS)
    assert fine == middle == coarse
    slots = rows_of(folder, "SELECT count(*), min(t), max(t) FROM server_sample_10s")[0]
    assert slots[0] == (slots[2] - slots[1]) // 10 + 1 - _missing(folder)


def _missing(folder: Path) -> int:
    times = [t for (t,) in rows_of(folder, "SELECT t FROM server_sample_10s ORDER BY t")]
    return sum((b - a) // 10 - 1 for a, b in pairwise(times))


def test_killed_while_it_writes_it_leaves_a_file_that_is_whole(tmp_path: Path) -> None:
    kill_the_writer(tmp_path, 6, seed=1)


@pytest.mark.slow
def test_killed_a_thousand_times_it_leaves_a_file_that_is_whole(tmp_path: Path) -> None:
    kill_the_writer(tmp_path, 1000, seed=2)


def test_a_figure_that_sqlite_does_not_take_costs_its_slot_alone(tmp_path: Path) -> None:
    """It ended the exporter, with all that was not written yet."""
    said: list[str] = []
    helper = HistoryWriter(tmp_path, HistorySettings(), said.append, lambda _: False)
    samples = seconds(0, 40)
    assert samples[15].pool is not None
    samples[15] = replace(samples[15], pool=replace(samples[15].pool, leases=2**64))
    helper.take(samples)
    assert helper.lost == 1
    assert "the history is not kept" in said[0]
    assert said[-1] == "the history is kept again"
    assert not helper.problem
    helper.close()


def test_counters_that_leap_never_sum_up_beyond_an_integer() -> None:
    first, *others = seconds(0, 3)
    (session, *_), telemetry = first.telemetry.sessions, others[0].telemetry
    huge = replace(session, bytes_in=2**63 - 1, calls=2**63 - 1)
    others[0] = replace(others[0], telemetry=replace(telemetry, sessions=(huge,)))
    slot = slots_of([first, others[0], *seconds(10, 1)])[0]
    row = next(row for (lease, _), row in slot.leases.items() if lease == session.lease)
    assert row["bytes_in"] == row["calls"] == GROWN_MAX
