"""The locked versions are those of what pyproject.toml asks for, and each has its hashes."""

import re
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
