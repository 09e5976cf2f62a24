"""The documents agree with the program."""

import builtins
import errno
import os
import re
import runpy
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from gpupool.cli.main import COMMANDS
from gpupool.remoting.worker import syscall_table

ROOT = Path(__file__).resolve().parent.parent


def reference() -> str:
    made: str = runpy.run_path(str(ROOT / "packaging" / "reference.py"))["reference"]()
    return made


def test_cli_reference_is_what_help_says() -> None:
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    # In a process of its own, because click keeps what other tests made of a command's options.
    argv = [sys.executable, str(ROOT / "packaging" / "reference.py")]
    made = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert written.rstrip("\n") == made.rstrip("\n"), "write it anew with: make docs"


def test_readme_names_the_two_targets() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in text
        assert f"\n{target}:" in makefile


@pytest.mark.parametrize(
    ("page", "least"), [("docs/results/security.md", 40), ("tests/attacks/README.md", 30)]
)
def test_every_test_that_a_page_about_attacks_names_exists(page: str, least: int) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    files = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
    sources = "\n".join(path.read_text(encoding="utf-8") for path in files.values())
    known = {*files, *re.findall(r"^ *(?:async )?def (test_\w+)", sources, re.MULTILINE)}
    named = set(re.findall(r"\btest_\w+(?:\.py)?", text))
    assert len(named) > least
    assert named <= known, named - known


def threats_without_a_test(text: str) -> list[str]:
    """Return the threats of a page with a defence that names no test and no folder of tests."""
    tables = re.findall(r"^\| threat \| defence \|\n\|[- |]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [row.split(" | ", 1) for table in tables for row in table.splitlines()]
    assert len(rows) > 20 or text.count("\n") < 20
    return [row[0].removeprefix("| ") for row in rows if not re.search("`test_|`tests/", row[1])]


def test_every_threat_of_the_auditors_page_has_a_test() -> None:
    sample = "| threat | defence |\n| --- | --- |\n| a | b |\n| c | d (`test_e`) |\n"
    assert threats_without_a_test(sample) == ["a"]
    page = ROOT / "docs" / "results" / "security.md"
    assert threats_without_a_test(page.read_text("utf-8")) == []


def test_every_command_has_a_help_text() -> None:
    text = reference()
    assert [n for n in COMMANDS if n != "help" and f"## gpupool {n}\n" not in text] == []


def test_the_service_file_runs_a_command_that_exists() -> None:
    text = (ROOT / "packaging" / "gpupool.service").read_text(encoding="utf-8")
    command = re.search(r"^ExecStart=\S*/gpupool (\w+)", text, re.M)
    assert command is not None
    assert command[1] in COMMANDS


UNITS = ("gpupool.service", "gpupool-keeper@.service")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_service_files(tmp_path: Path) -> None:
    for name in (*UNITS, "gpupool-keeper.socket"):
        text = (ROOT / "packaging" / name).read_text(encoding="utf-8")
        for program in ("/opt/gpupool/bin/gpupool", "/opt/gpupool/bin/python"):
            text = text.replace(program, shutil.which("true") or "")
        (tmp_path / name).write_text(text)
    units = [str(tmp_path / name) for name in (*UNITS, "gpupool-keeper.socket")]
    done = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize(("name", "most"), [(UNITS[0], 20), (UNITS[1], 30)])
def test_the_services_are_as_closed_as_the_page_says(name: str, most: int) -> None:
    unit = str(ROOT / "packaging" / name)
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={most}", unit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_helpers_service_lets_workers_do_what_their_own_filter_lets_them() -> None:
    """Workers cannot do more than their helper's service: not even confine themselves."""
    listed = subprocess.run(
        ["systemd-analyze", "syscall-filter"], capture_output=True, text=True, check=True
    ).stdout
    groups: dict[str, set[str]] = {}
    for block in re.split(r"\n(?=@)", listed):
        name, *rest = block.splitlines()
        groups[name] = {line.strip() for line in rest if re.match(r"    [@a-z]", line)}

    def calls_of(name: str) -> set[str]:
        return {call for each in groups.get(name, ()) for call in calls_of(each)} or {name}

    unit = (ROOT / "packaging" / UNITS[1]).read_text(encoding="utf-8")
    lines = re.findall(r"^SystemCallFilter=(.*)$", unit, re.MULTILINE)
    assert lines
    assert not any("~" in line for line in lines)
    lets = calls_of("@default").union(*(calls_of(word) for line in lines for word in line.split()))
    setters = {"adjtimex", "clock_adjtime"}  # of clocks, which a service must not set
    assert syscall_table.ALLOWED.keys() - lets == setters


def test_examples_keep_their_lines() -> None:
    text = reference()
    assert "\\b" not in text
    lines = [line.strip() for line in text.splitlines()]
    assert "gpupool run -- python train.py                  one whole GPU" in lines


# --- what contributors read -----------------------------------------------------------------------

GUIDES = [
    *(ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG")),
    ROOT / "docs" / "reading.md",
]
PATH = re.compile(r"(?:\.?[\w-]+/)+[\w.*-]*|[\w-]+\.(?:md|toml|py)|\.[a-z-]+(?:\.yaml)?")
"""A slash within it, or the name of a file that stands at the root."""
MADE = {".venv", ".venv/bin/python", "consensus/peers", "consensus/forgotten"}
"""By make, and by a server in its state directory."""
OUTSIDE = {"/dev/shm", "/proc/self", "generated_records.h", "src/gpupool/..."}
"""Of the system, or a plan that the record itself says was changed."""
RECORDS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
NAMING = [*GUIDES, *RECORDS]
PROSE = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


ROOMS = ("cli", "consensus", "monitoring", "pool", "remoting", "simulations", "tests", "docs")


def exists(name: str, *, within_rooms: bool = False) -> bool:
    """Return whether a path is there; a module may have become a package, or be one.

    Within rooms, it may be the end of a path: a chapter about a folder leaves out the folder.
    """
    if "*" in name:
        return any(ROOT.glob(name))
    if (ROOT / name).exists() or (ROOT / f"{name}.py").exists():
        return True
    return within_rooms and any(any((ROOT / room).rglob(name.rstrip("/"))) for room in ROOMS)


def paths_in(text: str) -> set[str]:
    """Return words like paths in the backticks of a document, outside of blocks of code."""
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return {word for word in re.findall(r"`([^`\s]+)`", outside) if PATH.fullmatch(word)}


def test_what_looks_like_a_path() -> None:
    text = "`pool/model`, `docs/results/*.csv`, `a b/c`, `README.md`, `--json`, `.github`, `vX.Y.Z`"
    assert paths_in(text) == {"pool/model", "docs/results/*.csv", "README.md", ".github"}
    assert exists("pool/model")
    assert exists("pool/model/commands")
    assert exists("docs/results/*.csv")
    assert not exists("pool/steward.py", within_rooms=True)
    assert not exists("model/commands.py")
    assert exists("model/commands.py", within_rooms=True)


@pytest.mark.parametrize("guide", NAMING, ids=lambda path: path.name)
def test_paths_that_guides_name_exist(guide: Path) -> None:
    named = paths_in(guide.read_text(encoding="utf-8"))
    within_rooms = guide.name == "ARCHITECTURE.md" or guide in RECORDS
    lost = {name for name in named - MADE - OUTSIDE if not exists(name, within_rooms=within_rooms)}
    assert lost == set()


@cache
def defined() -> dict[str, list[set[str]]]:
    """Return each name that the code defines, with the parameters of each function of that name."""
    found: dict[str, list[set[str]]] = {}
    files = [path for room in ROOMS[:-1] for path in (ROOT / room).rglob("*") if path.is_file()]
    for path in files:
        if path.suffix == ".py":
            text = path.read_text(encoding="utf-8")
            for name, parameters in re.findall(r"\bdef (\w+)\(([^)]*)\)", text):
                words = set(re.findall(r"(\w+)\s*(?=[:,=)]|$)", parameters))
                found.setdefault(name, []).append(words)
            names = re.findall(r"(?m)^ *(?:class )?([A-Za-z_]\w*)(?:\(|:| =)", text)
            names += re.findall(r'"(GPUPOOL_[A-Z_]+)"', text)  # variables of the environment
        elif path.suffix in (".c", ".h"):
            text = path.read_text(encoding="utf-8")
            names = re.findall(r"\b(cu[A-Z]\w*|gp_\w+)\b", text)
            names += re.findall(r'getenv\("(\w+)"\)', text)
        else:
            continue
        for name in names:
            found.setdefault(name, [])
    return found


def is_defined(text: str) -> bool:
    """Return whether the code has a name such as ``Grant``, ``state.Grant`` or ``apply(state)``."""
    qualified, _, parameters = text.rstrip(")").partition("(")
    name = qualified.rpartition(".")[2]
    if name not in defined():
        return any(hasattr(module, name) for module in (builtins, errno, os))
    named = set(filter(None, re.split(r"[, ]+", parameters)))
    return not named or any(named <= each for each in defined()[name])


NAME = re.compile(r"(?:\w+\.)*(?=\w*[A-Z_]\w)[A-Za-z]\w+|(?:\w+\.)*[A-Za-z]\w+\([\w, ]*\)")


def test_what_looks_like_a_name() -> None:
    named = [word for word in ("Grant", "gp_hooks", "apply(state)", "top") if NAME.fullmatch(word)]
    assert named == ["Grant", "gp_hooks", "apply(state)"]
    assert is_defined("Grant")
    assert is_defined("apply(state, envelope)")
    assert not is_defined("apply(steward)")
    assert not is_defined("Steward")


@pytest.mark.parametrize("guide", NAMING, ids=lambda path: path.name)
def test_names_that_guides_use_are_defined(guide: Path) -> None:
    outside = re.sub(r"```.*?```", "", guide.read_text(encoding="utf-8"), flags=re.DOTALL)
    words = re.findall(r"`([^`]+)`", outside)
    assert {word for word in words if NAME.fullmatch(word) and not is_defined(word)} == set()


@pytest.mark.parametrize("guide", NAMING, ids=lambda path: path.name)
def test_commands_that_guides_give_exist(guide: Path) -> None:
    text = guide.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```.*?```|`[^`]+`", text, re.DOTALL))
    targets = set(re.findall(r"(?m)(?:^|`)make ([a-z-]+)", code))
    assert targets <= set(re.findall(r"(?m)^([a-z-]+):", makefile))
    assert set(re.findall(r"`gpupool\s+([a-z]+)", code)) <= {*COMMANDS, "token"}
    for module in re.findall(r"-m gpupool\.([\w.]+)", code):
        assert exists(module.replace(".", "/")), module


@pytest.mark.parametrize("document", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_documents_lead_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = {link for link in re.findall(r"\]\(([^)\s]+)\)", text) if ":" not in link}
    lost = {link for link in links if not leads_somewhere(document, link)}
    assert lost == set()


def leads_somewhere(document: Path, link: str) -> bool:
    """Return whether the file of a link exists, and has the heading that the link names."""
    name, _, anchor = link.partition("#")
    target = document.parent / name if name else document
    return target.exists() and (not anchor or anchor in anchors(target))


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub and the site make them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", each).lower().replace(" ", "-") for each in headings}


def test_a_link_needs_its_heading() -> None:
    page = ROOT / "docs" / "admin.md"
    assert leads_somewhere(page, "operations.md#the-cas-key-leaked-what-now")
    assert not leads_somewhere(page, "operations.md#the-ca-key-leaked")
    assert not leads_somewhere(page, "operation.md")


def test_the_index_of_documents_lists_each() -> None:
    for folder in (ROOT / "docs", ROOT / "docs" / "results"):
        text = (folder / "README.md").read_text(encoding="utf-8")
        for path in folder.glob("*.md"):
            assert path.name == "README.md" or f"({path.name})" in text, path


WORDS_MAX = 55_000
"""Of all pages outside of the laboratory, as ``wc -w`` counts. It only goes down."""


def test_the_pages_outside_of_the_laboratory_stay_short() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    counts = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").split())
        for path in pages
        if "results" not in path.parts
    }
    longest = sorted(counts.items(), key=lambda each: -each[1])[:10]
    assert sum(counts.values()) <= WORDS_MAX, longest


def test_the_laboratory_stands_apart() -> None:
    """Neither the menu nor a page that the program makes leads to it; the site builds it."""
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    menu = config.partition("\nnav:")[2]
    assert "results/" not in menu
    assert "\n  /results/\n" in config.partition("\nnav:")[0]


def test_the_index_of_decisions_lists_each_with_its_title() -> None:
    index = (ROOT / "docs" / "adr" / "README.md").read_text(encoding="utf-8")
    numbers = [path.name[:4] for path in RECORDS]
    assert len(set(numbers)) == len(numbers), "a number is given once"
    assert len(numbers) == 15, "docs/adr/README.md and docs/reading.md say so"
    for path in RECORDS:
        assert path.name in index, f"{path.name} is missing from docs/adr/README.md"
    for path in (ROOT / "docs" / "adr" / "smaller").iterdir():
        assert f"(smaller/{path.name})" in index


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_each_decision_has_all_of_its_parts(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.match(rf"# 0*{int(path.name[:4])}[.:] \S", text)
    status = re.search(r"(?m)^(?:Status: |## Status\n+)(\w+)", text)
    assert status is not None
    assert status[1].lower() in {"proposed", "accepted", "superseded", "rejected"}
    headings = re.findall(r"(?m)^## (.*)$", text)
    assert [name for name in headings if name != "Status"][:3] == [
        "Context",
        "Decision",
        "Consequences",
    ]


# --- workflows ------------------------------------------------------------------------------------

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_that_exist_and_pin_actions(workflow: Path) -> None:
    text = workflow.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?m)^([a-z-]+):", makefile))
    called = set(re.findall(r"\bmake ([a-z-]+)", text))
    assert called <= targets, called - targets
    for action in re.findall(r"uses: (\S+)", text):
        assert re.search(r"@[0-9a-f]{40}$", action), f"{action} names no commit"
    assert "permissions:" in text
    # Without "shell: bash" there is no pipefail, and a pipe succeeds when its last command does.
    steps = re.split(r"(?m)^      - ", text)
    pipes = [step for step in steps if "| tee" in step]
    assert all("shell: bash" in step for step in pipes), pipes
    assert "\t" not in text


def test_the_workflow_tests_each_python_that_the_project_names() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    matrix = re.search(r"python: (\[.*\])", text)
    assert matrix is not None
    assert re.findall(r"\d\.\d+", matrix[1]) == ["3.11", "3.12", "3.13", "3.14"]


def test_the_client_tests_of_the_makefile_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.search(r"(?m)^CLIENT_TESTS := (.*)$", makefile)
    assert found is not None
    for path in found[1].split():
        assert (ROOT / path).exists(), path


def test_versions_agree() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "packaging" / "version.py")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
