"""Errors in three lines or as JSON, exit codes, logs of one line, and help that comes at once."""

import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.conftest import gpu, pool, server

from gpupool.cli.lib.output import error_lines
from gpupool.cli.main import COMMANDS, run
from gpupool.pool.errors import GpupoolError, NotNowError, first_error
from gpupool.pool.model.ids import GpuId, LeaseId, ServerId
from gpupool.pool.model.plain import to_plain
from gpupool.pool.model.state import Partition, TokenKind
from gpupool.remoting.local.logs import JsonFormatter, TextFormatter
from gpupool.remoting.program.program_run import waiting_text


def test_an_error_is_what_why_and_what_next() -> None:
    error = GpupoolError("cannot reach the pool", why="refused", hint="gpupool doctor")
    assert error_lines(error) == [
        "gpupool: cannot reach the pool",
        "  refused",
        "  hint: gpupool doctor",
    ]
    assert error_lines(GpupoolError("that is all")) == ["gpupool: that is all"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "-n", "0", "true"], "0 GPUs cannot be had"),
        (["run", "-p", "0", "true"], "0 is no share of a GPU"),
        (["run", "-p", "1.5", "true"], "1.5 is no share of a GPU"),
        (["run", "-m", "8", "true"], "is not a size"),
        (["run", "-p", "0.5", "-m", "1G", "true"], "exclude each other"),
        (["run", "--wait", "1m", "--no-wait", "true"], "exclude each other"),
        (["run", "-n"], '"gpupool run --help" shows what can be written'),
        (["run", "--bogus", "true"], "no such option"),
        (["run"], "missing argument"),
        (["stauts"], "Did you mean 'status'?"),
        (["join", "10.0.0.4"], "joining a pool needs a token"),
        (["join", "--witness", "--emulate", "2"], "a witness offers no GPU"),
        (["join", "--listen", "host:port"], "not an address"),
        (["kill", "xyz"], "not the name of a lease"),
        (["run", "--lease", "b", "-n", "2", "true"], "--count and --lease exclude each other"),
        (["run", "--lease", "b", "--lazy", "true"], "--lazy and --lease exclude each other"),
        (["run", "--idle-timeout", "1s", "true"], "an idle timeout is at least 2 s"),
        (["alloc", "--time", "0s"], "--time is at least 1s"),
        (["alloc", "-p", "0"], "0 is no share of a GPU"),
        (["release"], "no lease was given"),
        (["run", "--gpus", "2", "true"], "here it is -n"),
        (["leases", "--gpus", "2"], '"gpupool leases --help" shows what can be'),
        (["status", "-d"], '"gpupool status --help" shows what can be'),
        (["token", "create", "--ttl", "3d"], "here it is --expires"),
        (["-V"], "here it is --version"),
        (["release", "b", "--all"], "--all releases all leases"),
        (["release", "x"], "not the name of a lease"),
        (["token", "create", "--server", "--operator"], "names no user"),
        (["drain", "a", "--reason", " "], "needs a reason"),
        (["run", "--server", ",", "true"], "--server names no server"),
        (["policy", "check", "/"], "invalid value for 'FILE': File '/' is a directory"),
    ],
)
def test_wrong_usage_is_2_and_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    text = capsys.readouterr().err
    assert text.startswith("gpupool: ")
    assert sentence in text
    assert "Traceback" not in text
    assert len(text.splitlines()) <= 3


@pytest.mark.parametrize(
    ("redirected", "code", "text"),
    [
        ("version >&-", 0, ""),
        ("version > /dev/full", 1, "gpupool: cannot write the output\n  no space left on device\n"),
        ("run -- nope <&- >&-", 127, "gpupool: cannot find the program 'nope'\n"),
        ("run -- nope 2>&-", 127, ""),
    ],
)
def test_outputs_that_are_closed_or_full(redirected: str, code: int, text: str) -> None:
    command = f'"{sys.executable}" -m gpupool.cli.main {redirected}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr[: len(text)]) == (code, text)
    assert "Traceback" not in done.stderr


def test_a_wrong_value_that_nobody_typed_says_where_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpupool.toml").write_text("[run]\ncount = 'x'\n")
    assert run(["run", "true"]) == 2
    assert f"it comes from a settings file: {tmp_path}/gpupool.toml\n" in capsys.readouterr().err
    monkeypatch.setenv("GPUPOOL_RUN_COUNT", "y")
    assert run(["run", "true"]) == 2
    assert "it comes from $GPUPOOL_RUN_COUNT\n" in capsys.readouterr().err
    assert run(["run", "-n", "z", "true"]) == 2
    assert "it comes from" not in capsys.readouterr().err


def test_arguments_behind_the_program_are_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    # 127 shows that the program was looked for: nothing before it was complained about.
    for arguments in (["no-such-program", "-n", "0"], ["--", "no-such-program", "--bogus"]):
        assert run(["run", *arguments]) == 127
        assert "cannot find the program" in capsys.readouterr().err


def test_errors_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPOOL_CREDENTIALS", "/nowhere/credentials.json")
    assert run(["status", "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == 1
    assert body["error"]["code"] == "authentication"
    assert body["error"]["hint"]


def test_failures_of_run_have_a_code_of_their_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPOOL_CREDENTIALS", "/nowhere/credentials.json")
    assert run(["run", "true"]) == 125
    assert "not logged in" in capsys.readouterr().err


def test_a_group_without_a_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for group in ("token", "jupyter"):
        assert run([group]) == 2
        assert capsys.readouterr().err.startswith(f"Usage: gpupool {group} ")


def test_a_log_file_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPOOL_LOG", "/nowhere/run.log")
    assert run(["status"]) == 2
    assert "/nowhere/run.log: No such file or directory" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    short = capsys.readouterr().out
    assert short.index("Examples:") < short.index("Commands:")
    assert run(["help", "run"]) == 0
    assert "Run PROGRAM on GPUs" in capsys.readouterr().out
    assert run(["help", "token", "create"]) == 0
    assert "--expires" in capsys.readouterr().out
    assert run(["help", "nothing"]) == 2


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    assert "Usage: gpupool" in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    code = "import sys\n"
    code += "from gpupool.cli.main import run\nrun(['--help'])\n"
    code += "heavy = {'trio', 'rich', 'cbor2', 'numpy', 'pysyncobj', 'cryptography', 'ssl'}\n"
    code += "print(sorted(heavy & sys.modules.keys()), file=sys.stderr)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


# click asks Bash for its version.
@pytest.mark.parametrize("shell", [pytest.param("bash", marks=pytest.mark.process), "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "_GPUPOOL_COMPLETE" in capsys.readouterr().out


def test_groups_of_errors_become_the_one_that_matters() -> None:
    ours, bug = NotNowError("busy"), ValueError("a bug")
    nested = BaseExceptionGroup("", [ExceptionGroup("", [ours]), KeyboardInterrupt()])
    assert isinstance(first_error(nested), KeyboardInterrupt)
    assert first_error(ExceptionGroup("", [ours, ExceptionGroup("", [bug])])) is bug
    assert first_error(ours) is ours


def test_plain_values() -> None:
    value = {1: (TokenKind.USER, b"\x01", None)}
    assert to_plain(value) == {"1": ["user", "01", None]}
    part = Partition(ServerId("a"), GpuId("GPU-1"), 7)
    lease = replace(pool(server(0, ())).leases[0], id=LeaseId(0x7F3A), partitions=(part,))
    assert to_plain(lease)["id"] == "7f3a"  # as commands take it: 32570 would be another lease
    assert to_plain(replace(gpu(0, 0), leases=(LeaseId(19), LeaseId(20))))["leases"] == [
        "0013",
        "0014",
    ]
    assert to_plain(part) == {"server": "a", "gpu": "GPU-1", "memory": 7}
    assert to_plain([1.5, float("inf"), float("nan")]) == [1.5, None, None]  # JSON has neither


def record(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("gpupool.server", logging.INFO, "", 0, text, arguments, None)


def test_a_log_line_is_one_line() -> None:
    line = TextFormatter().format(record("user %s joined", "eve\n2026 info all is well\x1b[31m"))
    assert "\n" not in line
    assert "\x1b" not in line
    body = json.loads(JsonFormatter().format(record("two\nlines")))
    assert body["message"] == "two\nlines"
    assert body["part"] == "server"
    assert body["level"] == "info"


def test_waiting_text() -> None:
    assert waiting_text("", 0.4) == "asking the pool"
    assert waiting_text("waiting for 2 GPUs", 61.0) == "waiting for 2 GPUs, 61 s"
    assert waiting_text("waiting for 2 GPUs", 3723.0) == "waiting for 2 GPUs, 1h02m"


def test_nothing_of_a_server_reaches_the_terminal_raw() -> None:
    hostile = "\x1b]0;own\x07\x1b[31mred\x9b2J\x7f"
    lines = error_lines(GpupoolError(hostile, why=f"one\n{hostile}", hint=hostile))
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)
    assert "red" in lines[0]


def test_a_program_waits_for_no_module_that_its_run_does_not_need() -> None:
    # Each of these takes 5 to 30 ms of every start; that of a program may add 250.
    late = ["cryptography", "gpupool.pool.view", "gpupool.pool.model.commands", "rich"]
    late += ["gpupool.pool.policy.rulebook", "gpupool.pool.telemetry", "gpupool.pool.transitions"]
    code = "import sys, gpupool.cli.main, gpupool.cli.commands.run\n"
    code += "import gpupool.remoting.program.program_run\n"
    code += f"print(sorted(set({late!r}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_top_waits_for_no_module_that_changes_a_pool() -> None:
    # Rules and commands are for servers, a negotiation is for those who want GPUs.
    late = ["gpupool.pool.model.commands", "gpupool.pool.reconcile", "gpupool.pool.transitions"]
    late += ["gpupool.pool.policy.rulebook", "gpupool.remoting.client.negotiation"]
    late += ["gpupool.remoting.protocol.messages.orders", "cryptography"]
    code = "import sys, gpupool.cli.main, gpupool.cli.tui.live_view\n"
    code += "import gpupool.remoting.protocol.messages as m\n"
    code += "m.GetView, m.SubscribeTelemetry, m.TelemetryUpdate\n"
    code += f"print(sorted(set({late!r}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
