"""The manifests for Kubernetes: well-formed, consistent, and with commands that work."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpupool.cli.commands.login import command as login
from gpupool.cli.commands.run import run

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = sorted((ROOT / "examples" / "kubernetes").glob("*.yaml"))
PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
SCALAR = re.compile(r'"[^"]*"|[^\s#:{}\[\],&*!|>\'"%@`-](?:(?!: | #).)*|\{\}|-c')


def read_yaml(text: str) -> Any:
    """Return a manifest's maps, lists and plain scalars; all other YAML is refused."""
    lines = [line for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]
    value, rest = read_block([(len(x) - len(x.lstrip()), x.strip()) for x in lines], 0)
    assert not rest, rest[0]
    return value


def read_block(lines: list[tuple[int, str]], indent: int) -> tuple[Any, list[tuple[int, str]]]:
    assert lines
    assert lines[0][0] == indent, lines[0]
    items: list[Any] = []
    fields: dict[str, Any] = {}
    is_list = lines[0][1].startswith("- ")
    while lines and lines[0][0] == indent and lines[0][1].startswith("- ") is is_list:
        text = lines[0][1]
        if is_list and not re.match(r"- [\w.]+:( |$)", text):
            items.append(read_scalar(text[2:]))
            lines = lines[1:]
        elif is_list:
            value, lines = read_block([(indent + 2, text[2:]), *lines[1:]], indent + 2)
            items.append(value)
        else:
            key, colon, inline = text.partition(":")
            assert colon, text
            assert re.fullmatch(r"[\w.]+", key), text
            assert key not in fields, text
            if inline:
                assert inline[0] == " ", text
                fields[key], lines = read_scalar(inline[1:]), lines[1:]
            else:
                deeper = lines[1][0]
                assert deeper > indent or lines[1][1].startswith("- "), text
                fields[key], lines = read_block(lines[1:], deeper)
    assert not lines or lines[0][0] < indent, lines[0]
    return (items if is_list else fields), lines


def read_scalar(text: str) -> object:
    assert SCALAR.fullmatch(text), f"not a plain scalar: {text}"
    if text == "{}":
        return {}
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdigit() else text.strip('"')


def pod_spec(path: Path) -> dict[str, Any]:
    manifest = read_yaml(path.read_text(encoding="utf-8"))
    assert re.fullmatch(r"[a-z0-9-]+", manifest["metadata"]["name"])
    if manifest["kind"] == "Job":
        assert manifest["apiVersion"] == "batch/v1"
        return manifest["spec"]["template"]["spec"]
    assert (manifest["kind"], manifest["apiVersion"]) == ("Pod", "v1")
    return manifest["spec"]


def shell_line(path: Path) -> str:
    [container] = pod_spec(path)["containers"]
    shell, flag, line = container["command"]
    assert (shell, flag) == ("sh", "-c")
    return line


def test_there_are_manifests() -> None:
    assert [path.name for path in MANIFESTS] == ["job.yaml", "pod.yaml"]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_is_whole(path: Path) -> None:
    spec = pod_spec(path)
    [container] = spec["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in spec["volumes"]
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["HOME"] == mounts["home"]
    secret = next(v["secret"]["secretName"] for v in spec["volumes"] if v["name"] == "token")
    assert f"kubectl create secret generic {secret} --from-file=token" in PAGE
    assert f"< {mounts['token']}/token " in shell_line(path)
    assert spec["restartPolicy"] == "Never"


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_its_commands_are_those_of_the_command_line(path: Path) -> None:
    first, second = shell_line(path).split(" && exec ")
    words = first.partition(" < ")[0].split()
    assert words[:2] == ["gpupool", "login"]
    assert login.make_context("login", words[2:]).params["token"] == "-"
    words = second.split()
    assert words[:2] == ["gpupool", "run"]
    assert run.make_context("run", words[2:]).params["count"] == 1


def test_the_page_shows_the_job_and_a_readable_network_policy() -> None:
    assert shell_line(ROOT / "examples" / "kubernetes" / "job.yaml") in PAGE
    policy = read_yaml(PAGE.partition("```yaml\n")[2].partition("```")[0])
    assert policy["spec"]["egress"][0]["ports"] == [{"protocol": "TCP", "port": 7470}]


@pytest.mark.parametrize(
    "text",
    ["a: [1", "a: b: c", "a:\n  b: 1\n c: 2", "a: 1\na: 2", "a: |\n  x", "a: &x 1", "a: 'x", "a:x"],
)
def test_other_yaml_is_refused(text: str) -> None:
    with pytest.raises((AssertionError, IndexError)):
        read_yaml(text)


@pytest.mark.long
def test_the_line_works_with_a_real_pool(live_pool: Any, tmp_path: Path) -> None:
    done = live_pool.run("token", "create", "--user", "team-vision")
    (tmp_path / "token").write_text(done.stdout)
    tools = tmp_path / "bin"
    tools.mkdir()
    launcher = tools / "gpupool"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpupool.cli.main "$@"\n')
    launcher.chmod(0o755)
    line = shell_line(ROOT / "examples" / "kubernetes" / "job.yaml")
    line = line.replace("/run/secrets/gpupool", str(tmp_path)).replace("train.py", "-V")
    env = {k: v for k, v in live_pool.env.items() if k != "GPUPOOL_CREDENTIALS"}
    env |= {"PATH": f"{tools}:{env['PATH']}", "HOME": str(tmp_path)}
    env.pop("XDG_CONFIG_HOME", None)
    work = subprocess.run(
        ["sh", "-c", line], env=env, capture_output=True, text=True, timeout=40, check=False
    )
    assert work.returncode == 0, work.stderr
    assert work.stdout.startswith("Python 3")
    assert "logged in to pool lab as team-vision" in work.stderr
