"""The Helm chart, rendered by Helm's own library and checked against Kubernetes' schemas."""

import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.packaging.conftest import ROOT, run

from gpupool.cli.commands.join import command as join
from gpupool.cli.commands.run import run as run_command

pytestmark = pytest.mark.slow

CHART = ROOT / "packaging" / "helm" / "gpupool"
ALL = {
    "server": {"firstNode": "node-a", "emulate": "2:8G", "runtimeClassName": ""},
    "witness": {"enabled": True, "storageClassName": "fast"},
    "example": {"enabled": True},
    "image": {"pullSecrets": ["registry"]},
}
RENDER = """
import json, sys, yaml, kubernetes_validate
from helm_python.chart import Chart, lint
chart, values, versions = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
report = lint(chart, values, strict=True)
assert not report["errors"] and all(m["severity"] < 2 for m in report["messages"]), report
with Chart.load(chart) as loaded:
    texts = loaded.render(values, name="pool", namespace="gpus")
found = [d for name, text in texts.items() if name.endswith(".yaml")
         for d in yaml.safe_load_all(text) if d]
for each in found:
    for version in versions:
        kubernetes_validate.validate(each, version, strict=True)
print(json.dumps(found))
"""
VERSIONS = ("1.29", "1.34")


def render(tools: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Return the rendered objects by kind, after lint and schemas accepted them."""
    found = json.loads(run(tools, "-c", RENDER, CHART, json.dumps(values), *VERSIONS))
    return {each["kind"]: each for each in found}


def container(found: dict[str, Any]) -> dict[str, Any]:
    return found["spec"]["template"]["spec"]["containers"][0]


def test_the_defaults_are_one_daemon_set(tools: Path) -> None:
    found = render(tools, {})
    assert set(found) == {"DaemonSet"}
    server = container(found["DaemonSet"])
    assert server["readinessProbe"]["httpGet"] == {
        "path": "/healthz",
        "port": "gpupool",
        "scheme": "HTTPS",
    }
    assert "privileged" not in server["securityContext"]


def test_all_parts_have_commands_that_exist(tools: Path) -> None:
    found = render(tools, ALL)
    assert set(found) == {"DaemonSet", "Service", "StatefulSet", "Job"}
    for kind in ("DaemonSet", "StatefulSet"):
        words = [
            word.replace("$(NODE_NAME)", "node-a").replace("$(NODE_ADDRESS)", "10.0.0.1")
            for word in container(found[kind])["args"]
        ]
        join.make_context("join", [*words, "--token", "t"])
    run_command.make_context("run", list(container(found["Job"])["args"]))
    unit = (ROOT / "packaging" / "gpupool-keeper@.service").read_text(encoding="utf-8")
    for name in container(found["DaemonSet"])["securityContext"]["capabilities"]["add"]:
        assert f"CAP_{name}" in unit


@pytest.mark.parametrize(
    ("node", "state", "secrets", "expected"),
    [
        ("node-a", (), (), "join --name x"),
        ("node-b", ("identity.json",), ("token",), "join --name x"),
        ("node-b", ("other.json",), ("token",), "join --token-file {1}/token --name x"),
        ("node-b", (), ("token",), "join --token-file {1}/token --name x"),
        ("node-b", (), ("node-b", "token"), "join --token-file {1}/node-b --name x"),
        ("node-b", (), (), ""),
    ],
)
def test_a_server_takes_the_right_token(
    tools: Path,
    tmp_path: Path,
    node: str,
    state: tuple[str, ...],
    secrets: tuple[str, ...],
    expected: str,
) -> None:
    script = container(render(tools, ALL)["DaemonSet"])["command"][2]
    folders = [tmp_path / name for name in ("state", "secrets", "bin")]
    for folder in folders:
        folder.mkdir()
    for folder, names in zip(folders, (state, secrets, ()), strict=True):
        for name in names:
            (folder / name).write_text('{"complete": true}', encoding="utf-8")
    for name, text in (("gpupool", 'echo "$@"'), ("sleep", "exit 9")):
        program = folders[2] / name
        program.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        program.chmod(0o755)
    done = subprocess.run(
        ["sh", "-euc", script.replace("/run/secrets/gpupool", str(folders[1])), "-", "--name", "x"],
        env={
            "PATH": f"{folders[2]}:{os.environ['PATH']}",
            "NODE_NAME": node,
            "FIRST_NODE": "node-a",
            "STATE_DIRECTORY": str(folders[0]),
        },
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.stdout.strip() == expected.format(*folders)
    assert ("no token for node-b yet" in done.stderr) is not bool(expected)


def test_wrong_values_are_refused(tools: Path) -> None:
    with pytest.raises(AssertionError, match="emulate"):
        render(tools, {"server": {"emulate": "much"}})


def test_the_chart_has_the_version_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (CHART / "Chart.yaml").read_text(encoding="utf-8")
    assert f'\nversion: {project["version"]}\nappVersion: "{project["version"]}"\n' in text
