"""Players that take turns in benchmarks: a failure is no figure, and harms no other player."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "benchmarks"))

import cuda_workloads
import lupine
from cuda_workloads import Mode, Result, table_lines
from players import Player, Turns, take_turns
from results import Results, read

pytestmark = pytest.mark.process

PROGRAM = """
import os, sys
for line in sys.stdin:
    word, name, *steps = line.split()
    if name == "broken" and word == "make":
        print("FAILED no such function")
    elif name == "fatal" and word == "play":
        sys.stderr.write("a sticky error\\n")
        os.abort()
    elif name == "silent" and word == "make":
        continue
    elif name == "wrong":
        print("READY " + sys.argv[1] if word == "make" else "MS 5.0")
    else:
        print("READY 7.5" if word == "make" else f"MS {1000.0 * int(steps[0])}")
    sys.stdout.flush()
"""


def left() -> float:
    return 60.0


@pytest.fixture
def player(tmp_path: Path) -> Callable[..., Player]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def make(name: str, value: str = "7.5") -> Player:
        words = [sys.executable, "-S", "-E", str(program), value]
        return Player(name, words, dict(os.environ), tmp_path / f"{name}.log")

    return make


def test_a_player_that_fails_is_new_for_the_next_workload(player: Callable[..., Player]) -> None:
    players = [player("native"), player("other")]
    try:
        broken = take_turns("broken", players, 2, left)
        assert broken.failures == dict.fromkeys(("native", "other"), "no such function")
        fatal = take_turns("fatal", players[1:], 2, left)
        assert fatal.failures == {"other": "it was ended by signal 6; a sticky error"}
        assert fatal.median("other") is None
        good = take_turns("good", players, 3, left)
    finally:
        for each in players:
            each.stop()
    assert good.failures == {}
    assert good.times == dict.fromkeys(("native", "other"), [1000.0] * 3)


def test_a_result_that_is_not_the_native_one_is_no_figure(player: Callable[..., Player]) -> None:
    players = [player("native"), player("other", "0.0"), player("near", "7.51")]
    try:
        turns = take_turns("wrong", players, 1, left, at_once=False)
    finally:
        for each in players:
            each.stop()
    assert turns.failures == {"other": "gives 0, not 7.5"}
    assert (turns.median("near"), turns.median("other")) == (5.0, None)


def test_a_player_that_says_nothing_is_ended(player: Callable[..., Player]) -> None:
    only = player("native")
    turns = take_turns("silent", [only], 1, lambda: 1.0)
    assert turns.failures == {"native": "no answer within 1 s"}
    only.stop()


def test_a_proxy_passes_on_several_connections(tmp_path: Path) -> None:
    """A pool's client has one for control and more for data."""
    peer = tmp_path / "peer"
    source = Path(cuda_workloads.__file__).with_name("peer.c")
    subprocess.run(["gcc", "-pthread", "-o", str(peer), str(source)], check=True)
    with socket.create_server(("127.0.0.1", 0)) as target:
        words = [str(peer), "proxy", str(target.getsockname()[1]), "1000"]
        proxy = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert proxy.stdout is not None
        with proxy.stdout as said:
            address = ("127.0.0.1", int(said.readline()))
        pairs: list[tuple[socket.socket, socket.socket]] = []
        for _ in range(2):
            near = socket.create_connection(address)
            pairs.append((near, target.accept()[0]))
        for near, far in pairs[::-1]:
            near.sendall(b"ask")
            assert far.recv(3, socket.MSG_WAITALL) == b"ask"
            far.sendall(b"told")
            assert near.recv(4, socket.MSG_WAITALL) == b"told"
        proxy.kill()
        proxy.wait()
        for each in (end for pair in pairs for end in pair):
            each.close()


def found(row: str, times: dict[str, list[float]], **failures: str) -> lupine.Found:
    rows = {each.name: each for each in lupine.ROWS}
    return lupine.Found.of(rows[row], Turns(row, times, failures))


@pytest.mark.parametrize(
    ("row", "native", "theirs", "ours", "ahead"),
    [
        ("down_4", 0.005, 0.050, 0.040, "yes"),
        ("down_4", 0.005, 0.050, 0.060, "no"),
        ("launches", 3.0, 7.0, 4.0, "yes"),
        ("launches", 3.0, 4.0, 7.0, "no"),
        ("launches", 3.0, 0.0, 7.0, "yes"),
        ("launches", 3.0, 4.0, 0.0, "no"),
        ("launches", 0.0, 4.0, 3.0, "-"),
    ],
)
def test_ahead_is_at_least_as_fast(
    row: str, native: float, theirs: float, ours: float, ahead: str
) -> None:
    """A time of 0 stands for a side that fails."""
    times: dict[str, list[float]] = {"native": [native], "Lupine": [theirs], "gpupool": [ours]}
    failures = {side: "it failed" for side, (ms,) in times.items() if not ms}
    outcome = found(row, times, **failures)
    assert outcome.ahead == ahead
    assert [side for side, value in outcome.figures.items() if value == "it failed"] == [*failures]


def test_a_table_has_rates_and_reasons(tmp_path: Path) -> None:
    times = {"native": [2.0, 3.0, 4.0], "gpupool": [4.0]}
    outcome = found("launches", times, Lupine="CUBLAS_STATUS_EXECUTION_FAILED")
    outcome.add_to(Results("lupine.py", tmp_path / "some.csv"))
    (row,) = read(tmp_path / "some.csv")
    assert (row.native, row.remote, row.unit) == ("333333", "250000", "launches/s")
    table = [*lupine.lines([outcome])]
    assert table[2].endswith("| launches/s | 3.333e+05 | fails | 2.5e+05 | yes |")
    assert table[3:] == ["launches, Lupine: CUBLAS_STATUS_EXECUTION_FAILED"]


def test_every_row_is_a_workload_of_its_program() -> None:
    programs = lupine.PROGRAMS
    calls = (programs / "calls.cu").read_text()
    models = (programs / "workloads_models.py").read_text()
    models += (programs / "workloads_calls.py").read_text()
    for row in lupine.ROWS:
        there = f'{{"{row.name}",' in calls if row.program == "calls" else row.name in models
        assert there, row.name


def test_there_are_thirty_workloads_and_bars_are_theirs() -> None:
    names = [name for names in cuda_workloads.WORKLOADS.values() for name in names]
    assert len(names) == len(set(names)) == 30
    assert set(cuda_workloads.BARS) | cuda_workloads.ALONE <= set(names)
    assert cuda_workloads.chosen("masks,jax_jit")["torch"] == ["masks"]
    with pytest.raises(ValueError, match="no such workload: nothing"):
        cuda_workloads.chosen("nothing,masks")


def test_every_workload_is_in_the_program() -> None:
    folder = cuda_workloads.PROGRAM.parent
    text = "".join(path.read_text() for path in folder.glob("workloads*.py"))
    for names in cuda_workloads.WORKLOADS.values():
        assert all(f"def {name}() -> Made:" in text for name in names)


def test_a_figure_below_its_bar_is_marked(tmp_path: Path) -> None:
    modes = [Mode("now", 0), Mode("before", 0), Mode("now", 10000), Mode("now", 300, is_tls=True)]
    assert [mode.name for mode in modes] == ["now", "before", "now+10000", "tls+300"]
    times = {"native": [8.0], "now": [10.0], "before": [80.0], "now+10000": [800.0]}
    turns = Turns("masks", times | {"tls+300": [40.0]}, {"before": "no answer"})
    result = Result.of(turns, modes)
    assert result.missed == ("tls+300",)
    row = table_lines([result], modes)[2]
    assert row == "| masks | 8.000 | 80 of 75 | - of 75 | 1 | 20 of 25! |"
    cuda_workloads.add_rows([result], modes, Results("x", tmp_path / "some.csv"))
    rows = [(each.case, each.remote, each.budget) for each in read(tmp_path / "some.csv")]
    assert rows == [
        ("masks", "80", "75 %"),
        ("masks, 10000 us added", "1", ""),
        ("masks, 300 us added, TLS", "20", "25 %"),
    ]


def test_several_delays_are_one_run() -> None:
    assert cuda_workloads.delays("0,300,2000,10000") == [0, 300, 2000, 10000]
    with pytest.raises(ValueError, match="invalid literal"):
        cuda_workloads.delays("0.3")


def test_lupine_runs_by_its_own_library_and_no_local_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/some/where")
    server = lupine.LupineServer(tmp_path, tmp_path / "log")
    env = server.environment(5)
    assert env["LD_LIBRARY_PATH"] == f"{tmp_path}:/some/where"
    assert (env["LUPINE_SERVER"], env["LUPINE_DISABLE_LOCAL"]) == ("127.0.0.1:5", "1")
    with pytest.raises(FileNotFoundError):
        server.need()
    server.stop()


def test_a_copy_of_lupine_without_git_says_its_commit(tmp_path: Path) -> None:
    assert lupine.revision(tmp_path) == "unknown"
    (tmp_path / "COMMIT").write_text("7fbd364\n")
    assert lupine.revision(tmp_path) == "7fbd364"
