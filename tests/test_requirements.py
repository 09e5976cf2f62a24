"""The locked versions are those of what pyproject.toml asks for, and each has its hashes."""

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
    """Return what a list that no table of pyproject.toml holds asks for."""
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


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_workflow_installs_locked_versions(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.search(r'(?m)^env:\n  LOCKED: "1"', text)
    # sudo drops the variables of the workflow.
    for line in re.findall(r"(?m)^.*\bsudo env .*\bmake .*$", text):
        assert "LOCKED=1" in line


def test_the_advisories_of_each_locked_list_are_read() -> None:
    text = (ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8")
    audited = set(re.findall(r"pip-audit .*--requirement requirements/(\w+)\.txt", text))
    assert audited == {path.stem for path in (ROOT / "requirements").glob("*.txt")}


@pytest.mark.parametrize(("target", "name"), [("installed", "server"), ("installed-dev", "dev")])
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
