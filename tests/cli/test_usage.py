"""``gpupool usage`` with three real servers: exact despite dead ones, and equal in every form."""

import contextlib
import csv
import io
import json
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import running
from tests.pools import exporters_of

UNIT = 10**12
RUN = ("run", "--no-wait", "-p", "0.5", "--", "sleep", "0.3")


def idle(view: dict[str, Any]) -> bool:
    return view["leases"] == []


def one_lease(view: dict[str, Any]) -> bool:
    return len(view["leases"]) == 1


def usage(pool: Any, *arguments: str, **more: Any) -> dict[str, Any]:
    done = pool.run("usage", "--json", *arguments, **more)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def records_of(state_dir: Path) -> list[tuple[int, ...]]:
    path = state_dir / "monitoring" / "usage.db"
    if not path.exists():
        return []
    database = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        names = "number, lease, granted_at, freed_at, gpus, away"
        return database.execute(f"SELECT {names} FROM record ORDER BY number").fetchall()
    finally:
        database.close()


def everywhere(pool: Any, count: int) -> list[tuple[int, ...]]:
    """Return the records once every server's exporter has so many."""
    end = time.monotonic() + 30
    while True:
        found = [records_of(server.state_dir) for server in pool.servers.values()]
        if all(len(each) == count for each in found):
            assert found[0] == found[1] == found[2]
            return found[0]
        assert time.monotonic() < end, found
        time.sleep(0.05)


def gpu_hours(records: list[tuple[int, ...]]) -> float:
    """Count GPU-hours again, from the records of the files."""
    total = 0
    for _number, _lease, granted_at, freed_at, gpus, away in records:
        held_ms = freed_at - granted_at - sum(e - b for b, e in json.loads(str(away)))
        total += held_ms * sum(gpu[3] for gpu in json.loads(str(gpus)))
    return total / UNIT / 3_600_000


def test_usage_is_exact_and_the_same_in_every_form(live_pool: Any, tmp_path: Path) -> None:
    live_pool.wait_until(idle)
    before = usage(live_pool)["total"]["leases"]
    parts = live_pool.view()["record_count"]  # more: of a lease on several servers, one for each
    for _ in range(2):
        assert live_pool.run(*RUN).returncode == 0
    live_pool.wait_until(idle)
    records = everywhere(live_pool, parts + 2)
    found = usage(live_pool)
    assert found["schema"] == 1
    assert (found["silent"], found["missing"], found["problems"]) == ({}, [], [])
    assert found["total"]["leases"] == before + 2
    assert found["total"]["gpu_hours"] == gpu_hours(records)
    short = {each["key"]: each for each in usage(live_pool, "--by", "lease")["rows"]}[
        f"{records[-1][1]:04x}"
    ]
    assert short["busy_gpu_hours"] is None  # unknown, and not nothing
    assert short["coverage"] == 0.0
    text = live_pool.run("usage", "--csv", "--by", "lease").stdout
    titles, *rows = list(csv.reader(io.StringIO(text, newline="")))
    assert titles[2] == "usage [GPU h]"
    rows_json = {each["key"]: each for each in usage(live_pool, "--by", "lease")["rows"]}
    assert {row[0]: float(row[2]) for row in rows} == {
        key: each["gpu_hours"] for key, each in rows_json.items()
    }
    table = live_pool.run("usage", "--by", "lease", "--wasted", "--cost")
    assert "UNPRICED" in table.stdout.splitlines()[0]
    assert "unknown" in table.stdout
    assert "had no price" in table.stderr
    copy = tmp_path / "usage.db"
    source = sqlite3.connect(live_pool.servers["b"].state_dir / "monitoring" / "usage.db")
    with contextlib.closing(source), contextlib.closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    offline = usage(live_pool, "--file", str(copy), env={"GPUPOOL_CREDENTIALS": "/nowhere"})
    exact = ("key", "leases", "gpu_hours", "gib_hours", "wait_s", "wait_max_s")
    assert [[row[name] for name in exact] for row in offline["rows"]] == [
        [row[name] for name in exact] for row in found["rows"]
    ]
    name = f"{records[-1][1]:04x}"
    lease = live_pool.run("usage", "--lease", name).stdout
    assert "Emulated" in lease
    assert "busy        unknown" in lease


def test_the_capacity_that_there_was_is_told_with_what_became_of_it(live_pool: Any) -> None:
    end = time.monotonic() + 60
    while not (found := usage(live_pool, "--capacity", "--since", "1h"))["rows"]:
        assert time.monotonic() < end, found  # a slot of ten seconds is written when it is over
        time.sleep(0.5)
    assert (found["silent"], found["problems"]) == ({}, {})
    total = dict(found["total"])
    hours = total.pop("gpu_hours")
    assert hours > 0
    assert hours == pytest.approx(sum(total.values()), rel=1e-9)
    by_day = live_pool.run("usage", "--capacity", "--by", "day", "--since", "1h").stdout
    assert by_day.split()[:4] == ["DAY", "GPU-HOURS", "GRANTED", "FREE"]
    text = live_pool.run("usage", "--capacity", "--csv").stdout
    assert text.startswith("model,all [GPU h],granted [GPU h],free [GPU h]")
    priced = live_pool.run("usage", "--capacity", "--cost", "--since", "1h")
    assert "FREE COST  UNPRICED" in priced.stdout
    assert "the pool's policy had no price for any of these GPUs" in priced.stderr
    for wrong, said in (
        (("--by", "user"), "--capacity is not summed by user"),
        (("--wasted",), "--capacity is of all GPUs, and takes no --wasted"),
    ):
        refused = live_pool.run("usage", "--capacity", *wrong)
        assert refused.returncode == 2
        assert said in refused.stderr


@pytest.mark.long
def test_a_lease_that_is_not_over_counts_up_to_now(live_pool: Any) -> None:
    program = live_pool.spawn("run", "-p", "0.5", "--", "sleep", "60")
    live_pool.wait_until(one_lease)
    name = live_pool.view()["leases"][0]["name"]
    first = usage(live_pool, "--by", "lease")
    time.sleep(0.2)
    second = usage(live_pool, "--by", "lease")
    hours = [{r["key"]: r["gpu_hours"] for r in each["rows"]}[name] for each in (first, second)]
    assert 0 < hours[0] < hours[1]
    assert "not over" in live_pool.run("usage", "--lease", name).stdout
    program.terminate()
    program.wait(30)
    live_pool.wait_until(idle)


def test_a_lease_of_which_nothing_is_known_is_no_wrong_usage(live_pool: Any) -> None:
    for arguments, said in (
        (("usage", "--lease", "fffe"), "nothing is known of a lease fffe that you may see"),
        (
            ("history", "lease:fffe"),
            "the pool has no lease fffe\n  and no figures of busy of an ended",
        ),
    ):
        done = live_pool.run(*arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert said in done.stderr
        assert 'hint: "gpupool leases" shows those' in done.stderr


GONE = "grace"
"""A name that no hexadecimal number has in it, as random ids of GPUs are."""


@pytest.mark.long
def test_users_see_their_own_and_sums_of_the_others(live_pool: Any, tmp_path: Path) -> None:
    made = live_pool.run("token", "create", "--user", GONE, "--json")
    env = {"GPUPOOL_CREDENTIALS": str(tmp_path / "hers.json")}
    token = json.loads(made.stdout)["token"]
    assert live_pool.run("login", token, env=env).returncode == 0
    assert live_pool.run(*RUN).returncode == 0
    assert live_pool.run(*RUN, env=env).returncode == 0
    live_pool.wait_until(idle)
    everybody, hers = usage(live_pool), usage(live_pool, env=env)
    assert [each["key"] for each in hers["rows"]] == [GONE]
    (others,) = hers["others"]
    assert everybody["others"] == []
    whole = everybody["total"]["gpu_hours"]
    assert others["gpu_hours"] + hers["total"]["gpu_hours"] == pytest.approx(whole, abs=1e-6)
    foreign = next(r["key"] for r in usage(live_pool, "--by", "lease")["rows"])
    mine = [each["key"] for each in usage(live_pool, "--by", "lease", env=env)["rows"]]
    if foreign not in mine:
        assert live_pool.run("usage", "--lease", foreign, env=env).returncode == 1
    is_forgotten_on_every_server(live_pool)


def is_forgotten_on_every_server(live_pool: Any) -> None:
    assert GONE in [each["key"] for each in usage(live_pool)["rows"]]
    before = live_pool.run("usage", "forget", GONE)
    assert (before.returncode, "--yes" in before.stderr) == (2, True)
    done = live_pool.run("usage", "forget", GONE, "--yes")
    assert done.returncode == 0, done.stderr
    pseudonym = done.stderr.split()[-1]
    assert pseudonym.startswith("forgotten-")
    folders = [server.state_dir / "monitoring" for server in live_pool.servers.values()]
    end = time.monotonic() + 30
    while any(GONE.encode() in read(each) for each in folders):
        assert time.monotonic() < end, [GONE.encode() in read(each) for each in folders]
        time.sleep(0.1)
    names = [each["key"] for each in usage(live_pool)["rows"]]
    assert GONE not in names
    assert pseudonym in names
    assert f"user-forgotten {pseudonym}" in " ".join(live_pool.run("audit").stdout.split())
    again = live_pool.run("usage", "forget", GONE, "--yes")
    (line,) = again.stderr.splitlines()
    assert line.startswith(
        f"gpupool: no account that can be read now is of {GONE}. If one is found"
    )
    assert line.split()[-1] != pseudonym, "who comes back under the name begins anew"


def read(folder: Path) -> bytes:
    """Return all data of a server's exporter, except the history's data of GPUs."""
    names = ("usage.db", "usage.db-wal", "leases.jsonl")
    users = [str(row) for row in users_of(folder / "history.db")]
    found = [path.read_bytes() for name in names if (path := folder / name).exists()]
    return b"".join([*found, *(each.encode() for each in users)])


def users_of(path: Path) -> list[tuple[str, str]]:
    database = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        return database.execute("SELECT user, client FROM lease").fetchall()
    finally:
        database.close()


def test_history_has_what_was_measured_and_names_who_is_silent(live_pool: Any) -> None:
    end = time.monotonic() + 40
    while True:  # a slot of ten seconds is written when it is over
        done = live_pool.run("history", "b", "--metric", "memory", "--json", "--since", "1h")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        if found["series"]:
            break
        assert time.monotonic() < end
        time.sleep(0.5)
    assert (found["schema"], found["unit"], found["silent"]) == (1, "GiB", {})
    assert found["series"][0]["name"] == "b GPU 0"
    assert found["series"][0]["step_s"] == 10
    chart = live_pool.run("history", "pool", "--ascii", "--since", "1h")
    assert "pool, by " in chart.stdout
    wrong = live_pool.run("history", "b", "--metric", "nonsense")
    assert wrong.returncode == 2
    assert "busy, " in wrong.stderr


@pytest.mark.long
def test_one_server_killed_and_one_exporter_killed() -> None:
    with running() as pool:
        for _ in range(3):
            assert pool.run(*RUN).returncode == 0
        pool.wait_until(idle)
        records = everywhere(pool, 3)
        leader = pool.view()["raft"]["leader"]
        victim = next(name for name in pool.servers if name != leader)
        pool.servers[victim].end(signal.SIGKILL)
        began = time.monotonic()
        found = usage(pool)
        took_s = time.monotonic() - began
        assert found["total"]["gpu_hours"] == gpu_hours(records)
        assert (list(found["silent"]), found["missing"]) == ([victim], [])
        assert took_s < 10.0  # the dead one is not waited for; docs/results/monitoring.md has it
        strict = pool.run("usage", "--strict")
        assert strict.returncode == 3
        assert f"server {victim} did not answer" in strict.stderr
        # The grants, the leases and the server itself go on without an exporter.
        (exporter,) = exporters_of(pool.servers[leader].state_dir)
        os.kill(exporter, signal.SIGSTOP)
        assert pool.run(*RUN).returncode == 0
        pool.wait_until(idle)
        found = usage(pool)
        assert found["total"]["leases"] == 4
        os.kill(exporter, signal.SIGKILL)
        assert usage(pool)["total"]["leases"] == 4
        pool.servers[victim].start()
        pool.wait_until(pool.is_whole)
        records = everywhere(pool, 4)
        assert usage(pool)["total"]["gpu_hours"] == gpu_hours(records)
        print(f"with one of three servers killed: {took_s:.2f} s")
