"""The locked versions are those of pyproject.toml's requirements, and each has its hashes."""

import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def listed(name: str) -> list[str]:
    """Return the requirements of a list that no table of pyproject.toml holds."""
    text = (ROOT / "requirements" / f"{name}.in").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


ASKED: dict[str, list[str]] = {
    "server": PROJECT["project"]["dependencies"],
    "dev": [
        *PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"]["dev"],
    ],
    "browser": PROJECT["project"]["optional-dependencies"]["browser"],
    "docs": PROJECT["dependency-groups"]["docs"],
    "release": listed("release"),
    "build": [*PROJECT["build-system"]["requires"], *listed("build")],
    "wheels": listed("wheels"),
    "audit": listed("audit"),
    **{
        name: [
            *PROJECT["project"]["dependencies"],
            *PROJECT["project"]["optional-dependencies"][name],
        ]
        for name in ("emulate", "cuda12", "cuda13")
    },
}


def locked(name: str) -> dict[str, list[str]]:
    """Return the versions of each package: there may be several, for several Pythons."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for package, version, rest in re.findall(r"(?m)^([\w.-]+)==(\S+)(.*(?:\n .*)*)", text):
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", rest), f"{package} has no hash"
        found.setdefault(canonicalize_name(package), []).append(version)
    assert len(re.findall(r"(?m)^[^#\s]", text)) == sum(map(len, found.values()))
    return found


@pytest.mark.parametrize("name", ASKED)
def test_the_locked_versions_are_what_is_asked_for(name: str) -> None:
    versions = locked(name)
    for text in ASKED[name]:
        wanted = Requirement(text)
        found = versions.get(canonicalize_name(wanted.name), [])
        assert found, f'{wanted.name} is not in requirements/{name}.txt: "make lock" writes it'
        assert all(wanted.specifier.contains(each) for each in found), (text, found)


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def installations(text: str) -> list[str]:
    """Return the commands of a text by which pip installs, each on one line."""
    joined = re.sub(r"\s*\\\n\s*", " ", text)
    return re.findall(r"\bpipx? install\b[^;&|\n]*", joined)


def compares_hashes(command: str) -> bool:
    """Return whether pip compares the hashes of all that a command has it fetch."""
    if "--no-deps" in command:
        return "--no-build-isolation" in command
    builds = "--only-binary :all:" not in command or "--no-binary" in command
    return "--require-hashes" in command and (not builds or "--no-build-isolation" in command)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_workflow_installs_locked_versions(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.search(r'(?m)^env:\n  LOCKED: "1"', text)
    # sudo drops the variables of the workflow.
    for line in re.findall(r"(?m)^.*\bsudo env .*\bmake .*$", text):
        assert "LOCKED=1" in line
    # What they install themselves would have no list; make has one for each of its targets.
    assert installations(text) == []
    # A tag can be moved to another commit.
    actions = re.findall(r"(?m)^\s*(?:- )?uses: (\S+)", text)
    assert actions
    assert [each for each in actions if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", each)] == []


def test_images_have_what_the_lists_have() -> None:
    found = installations((ROOT / "packaging" / "Dockerfile").read_text(encoding="utf-8"))
    assert len(found) == 4
    assert [each for each in found if not compares_hashes(each)] == []
    lists = [re.findall(r"-r \"?requirements/([\w${}]+)\.txt", each) for each in found]
    assert lists == [["build"], ["server"], [], ["${EXTRAS}"]]


@pytest.mark.parametrize(
    ("command", "good"),
    [
        ("pip install 'pip-audit==2.*'", False),
        ('pip install --no-cache-dir "/src[cuda12]"', False),
        ("pip install --no-deps .", False),  # what builds it comes from elsewhere
        ("pip install --require-hashes -r a.txt", False),  # likewise
        ("pip install --require-hashes --only-binary :all: -r a.txt", True),
        ("pip install --no-deps --no-build-isolation .", True),
    ],
)
def test_a_command_that_compares_no_hashes_is_told(command: str, good: bool) -> None:
    text = "RUN x && {} && y".format(command.replace(" -r", " \\\n  -r"))
    assert installations(text) == [f"{command} "]
    assert compares_hashes(command) is good


def test_the_advisories_of_each_locked_list_are_read() -> None:
    text = (ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8")
    assert "- run: make audit\n" in text
    command = ["make", "--dry-run", "--always-make", "audit"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "for list in requirements/*.txt; do" in done.stdout
    assert "pip-audit --require-hashes --requirement $list || exit 1" in done.stdout


def root_only(path: Path) -> bool:
    """Return whether a file has tests that are left out for users other than root."""
    text = path.read_text(encoding="utf-8")
    return bool(re.search(r"geteuid\(\) (!=|==) 0|\bimport as_root\b", text))


def test_a_workflow_runs_as_root_what_only_root_can_run() -> None:
    ci = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert '- run: sudo env "PATH=$PATH" LOCKED=1 make root-tests\n' in ci
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = re.search(r"(?m)^ROOT_TESTS := ((?:.*\\\n)*.*)$", makefile)
    assert named is not None
    listed_tests = [ROOT / each for each in named[1].replace("\\\n", " ").split()]
    assert [each for each in listed_tests if not each.exists()] == []
    found = [path for path in (ROOT / "tests").rglob("test_*.py") if root_only(path)]
    # make test-packages runs those of packaging as root each night; of a GPU there is none in CI.
    others = [ROOT / "tests" / "packaging", ROOT / "tests" / "gpu"]
    left = [
        path
        for path in found
        if not any(path.is_relative_to(each) for each in [*listed_tests, *others])
    ]
    assert len(found) > 10
    assert left == []


@pytest.mark.parametrize(("target", "name"), [("installed", "emulate"), ("installed-dev", "dev")])
def test_what_is_installed_in_ci_has_the_hashes_of_its_list(
    target: str, name: str, tmp_path: Path
) -> None:
    command = ["make", "--dry-run", "--always-make", f"VENV={tmp_path}", f"{tmp_path}/{target}"]
    for locked_too in ("", "1"):
        done = subprocess.run(
            [*command, f"LOCKED={locked_too}"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        lines = [line for line in done.stdout.splitlines() if "--require-hashes" in line]
        found = [re.findall(r"requirements/(\w+)\.txt", line) for line in lines]
        assert found == ([["build"], [name]] if locked_too else [])
        assert ("--no-build-isolation" in done.stdout) is bool(locked_too)


def test_what_packages_build_from_source_has_its_hashes() -> None:
    spec = importlib.util.spec_from_file_location("packages", ROOT / "packaging" / "packages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text: str = module.with_hashes(module.SOURCE_ONLY)
    assert text.startswith(f"{module.SOURCE_ONLY}==")
    assert re.search(r"--hash=sha256:[0-9a-f]{64}\n\Z", text)
