"""Wrong and odd inputs: each is answered by one sentence, with the right exit code and a hint.

``tests/testdata/wrong-inputs.txt`` has the commands, and below each what it prints and its exit
code. ``GPUPOOL_REWRITE=1`` writes the answers anew, and you read the difference. Commands that only
find their words wrong run in this process, which saves many starts.
"""

import io
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from gpupool.cli import main
from gpupool.pool.errors import ExitCode

ANSWERS = Path(__file__).resolve().parents[1] / "testdata" / "wrong-inputs.txt"
ENTRY = re.compile(r"(?ms)^\$ gpupool ?(.*?)\n(.*?)^\[exit (\d+)\]\n")
COUNT_MIN = 136
RIGHT = {"0", "1", "2", "3", "75", "125", "126", "127"}
SLOWLY = "gpupool: asking the pool\n"
"""Said when an answer takes long, as on a busy machine."""
WARNS = "gpupool: a token was among this command's arguments"
"""Said before the answer."""
FILES = {
    "bad.toml": "[[limit]\n",
    "unknown.toml": "[limits]\ncolour = 3\n",
    "empty.toml": "",
    "plain.txt": "this is no program\n",
}


def entries() -> list[tuple[str, str, str]]:
    """Return the commands with their output and their exit codes."""
    return ENTRY.findall(ANSWERS.read_text(encoding="utf-8"))


def test_answers_have_one_sentence_and_then_reason_and_hint() -> None:
    found = entries()
    assert len(found) >= COUNT_MIN
    assert len({command for command, _, _ in found}) == len(found)
    for command, text, code in found:
        assert code in RIGHT, command
        lines = [line for line in text.splitlines() if not line.startswith(WARNS)]
        if text.startswith(("Usage:", "{")):
            continue  # a group without its command shows its help; --json has what, why and hint
        assert [line for line in lines if line.startswith("gpupool: ")] == lines[:1], command
        assert [line for line in lines[1:] if not line.startswith("  ")] == [], command
        assert len(lines[0]) <= 200, command
        assert "Traceback" not in text, command
        # Only what was wrong on the command line always has a way to write it right.
        if code == "2" and lines[0].startswith(("gpupool: invalid", "gpupool: no such")):
            assert lines[-1].startswith("  hint: "), command


@pytest.mark.long
def test_wrong_inputs_are_answered_as_recorded(
    live_pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    rewrites = os.environ.get("GPUPOOL_REWRITE")
    for name in [each for each in os.environ if each.startswith("GPUPOOL_")]:
        monkeypatch.delenv(name)
    for name, value in live_pool.env.items():
        monkeypatch.setenv(name, value)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    recorded = ANSWERS.read_text(encoding="utf-8")
    answers: list[str] = []
    for command, _, before in entries():
        capfd.readouterr()
        words = shlex.split(command)
        if before != str(int(ExitCode.USAGE)) or words[:1] == ["join"]:
            done = live_pool.run(*words, cwd=tmp_path)
            code, printed = done.returncode, done.stderr + done.stdout
        else:
            code = main.run(words)
            printed = "".join(reversed(capfd.readouterr()))  # errors first
        for path, shown in ((tmp_path, "HERE"), (live_pool.folder, "HOME")):
            printed = printed.replace(str(path), shown)
        printed = printed.replace(SLOWLY, "", 1)
        answers.append(f"$ gpupool {command}".rstrip() + f"\n{printed}[exit {int(code)}]\n")
    if rewrites:
        head = recorded.partition("$ ")[0]
        ANSWERS.write_text(head + "\n".join(answers), encoding="utf-8")
    else:
        assert "\n".join(answers) == recorded[recorded.index("$ ") :]
