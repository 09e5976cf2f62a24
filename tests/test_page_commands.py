"""Commands and messages that the pages show are those of the program."""

import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.page_blocks import blocks_of, pages

from gpupool.cli.main import cli

ROOT = Path(__file__).resolve().parent.parent
RECORDS = {"adr", "results"}
"""Folders of past decisions and observations, which are not rewritten."""
GENERATED = ("cli.md", "errors.md")
PAGES = [
    ROOT / "README.md",
    *(
        path
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if not RECORDS & set(path.relative_to(ROOT / "docs").parts) and path.name not in GENERATED
    ),
]
FOLLOWED = ("README.md", "start.md", "environments.md")
"""Pages that tests/packaging/test_newcomer.py follows in a bare system."""
ENDS = {"|", "&&", ";", "||", ">", "&"}


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of ours in the code of a page."""
    code = re.findall(r"```(?:sh|shell)?\n(.*?)```", text, re.DOTALL)
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    code += [" ".join(span.split()) for span in re.findall(r"`(gpupool [^`]+)`", outside)]
    for line in "\n".join(code).replace("\\\n", " ").splitlines():
        for part in re.split(r"\$\(|\)", line):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:  # prose, or a string that goes on
                continue
            begins = [at for at, word in enumerate(words) if word == "gpupool"]
            for at in begins:
                if at == 0 or words[at - 1] in {*ENDS, "exec", "sudo"}:
                    behind = words[at + 1 :]
                    ends = [behind.index(end) for end in ENDS if end in behind]
                    yield behind[: min(ends, default=len(behind))]


def fault_of(words: list[str]) -> str:
    """Return the fault in the words behind ``gpupool``, else nothing."""
    command: click.Command = cli
    context = click.Context(cli, info_name="gpupool")
    known = {"-h", "--help", "--version"}
    valued: set[str] = set()
    for index, word in enumerate(words):
        if word == "--":
            break
        if word.startswith("-") and " " not in word and word != "-":  # a value may begin so
            if word.partition("=")[0] not in known and word[:2] not in known:
                return f"gpupool {' '.join(words[:index])} has no {word}"
        elif isinstance(command, click.Group) and words[max(0, index - 1)] not in valued:
            found = command.get_command(context, word)
            if found is None:
                return "" if word in ("...", "COMMAND") else f"no command {word}"
            command, context = found, click.Context(found, info_name=word, parent=context)
            names = [name for each in found.params for name in (*each.opts, *each.secondary_opts)]
            known = {"-h", "--help", *names}
            options = [each for each in found.params if isinstance(each, click.Option)]
            valued = {name for each in options if not each.is_flag for name in each.opts}
    return ""


def test_faults_are_found() -> None:
    lines = [
        "```sh",
        "echo x | gpupool join --token -  # --no",
        "x=$(gpupool alloc --tme 8h)",
        "```",
    ]
    spans = "`gpupool rm a`, `gpupool usage --by user`, `gpupool usage --wasted user`"
    found = list(commands_in("\n".join([*lines, spans])))
    assert found[:3] == [["join", "--token", "-"], ["alloc", "--tme", "8h"], ["rm", "a"]]
    assert [fault_of(words) for words in found] == [
        "",
        "gpupool alloc has no --tme",
        "no command rm",
        "",
        "no command user",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_of_a_page_exist(page: Path) -> None:
    words = list(commands_in(page.read_text(encoding="utf-8")))
    assert [fault for each in words if (fault := fault_of(each))] == []


def test_each_block_says_how_it_is_followed() -> None:
    for page in pages():
        for block in blocks_of(page):
            assert block.kind in ("tested", "followed", "untested"), f"{page.name}: {block.script}"
            assert bool(block.reason) == (block.kind == "untested"), f"{page.name}: {block.script}"
            if page.name not in FOLLOWED:
                assert block.kind != "followed", f"{page.name}: {block.script}"


def test_commands_stand_in_blocks_of_the_shell() -> None:
    """Only those say how they are followed."""
    for page in pages():
        if page.name in GENERATED:
            continue
        text = page.read_text(encoding="utf-8")
        for language, block in re.findall(r"(?ms)^ *```(\w*)\n(.*?)^ *```$", text):
            begins = re.search(r"(?m)^ *(?:\$ )?gpupool [a-z]", block)
            assert not begins or language == "sh", f"{page.name}: {block}"


def test_commands_of_the_charts_notes_exist() -> None:
    path = ROOT / "packaging" / "helm" / "gpupool" / "templates" / "NOTES.txt"
    commands = re.findall(
        r"(?m)^ +kubectl .* -- gpupool (.*?)(?: > \w+)?$", path.read_text("utf-8")
    )
    assert [command.split()[:2] for command in commands] == [["token", "create"]] * 2
    assert [fault for each in commands if (fault := fault_of(each.split()))] == []


def test_messages_of_the_troubleshooting_page_are_those_of_the_program() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    others = [(ROOT / path).read_text(encoding="utf-8") for path in SAY_MORE]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(ROOT / "packaging" / "site"), *sys.path])
        rows = importlib.import_module("error_sentences").all_rows()
    assert any(not hint for _, hint in rows)  # prose.py reads those as well
    known = "\n".join([*(f"{sentence} {hint}" for sentence, hint in rows), *others])
    shown = [row.partition(" | ")[0] for row in re.findall(r"(?m)^\| (`.*)$", page)]
    messages = [each for row in shown for each in re.findall(r"`([^`]+)`", row) if " " in each]
    assert len(messages) > 20
    for message in messages:
        parts = [part.strip(" :,") for part in re.split(r"\.\.\.|NAME|, and ", message)]
        assert [part for part in parts if part not in known] == [], message


SAY_MORE = (
    "remoting/daemon/systemd.py",
    "pool/read_model/pool_snapshot.py",
    "pool/clock_view.py",
    "pool/refused_orders.py",
    "pool/transitions/servers.py",
    "cli/commands/monitoring/usage.py",
    "pool/model/commands.py",
    "remoting/server/lease_service.py",
    "remoting/program/program_run.py",
    "remoting/program/door_choice.py",
    "remoting/transport/peer_dial.py",
    "remoting/transport/peer_transport.py",
)
"""Modules with messages that are no errors."""
