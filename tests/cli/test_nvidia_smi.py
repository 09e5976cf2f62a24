"""``nvidia-smi`` of a lease: its forms, and the words and exit codes that scripts go by.

The words of refusals and headings are those of driver 580.159 on an H200, 2026-11-29.
"""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.cli.test_smi_query import DEVICES

from gpupool.cli.commands.monitoring import nvidia_smi, smi_report
from gpupool.remoting.program import smi_query

TOOL = Path(smi_query.__file__).with_name("tools") / "nvidia-smi"


@pytest.fixture(autouse=True)
def agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer as an agent of a lease with two GPUs and this process in it."""

    def answer(_path: str) -> dict[str, object]:
        fields: dict[str, object] = {"driver": "580.159.04", "cuda": "13.0"}
        return fields | {"devices": DEVICES, "processes": [os.getpid()]}

    monkeypatch.setattr(nvidia_smi, "ask_agent", answer)


def say(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = nvidia_smi.main(list(words))
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("--bogus", 255, "ERROR: Option --bogus is not recognized. Please run"),
        ("bogus", 255, "ERROR: Option bogus is not recognized. Please run 'nvidia-smi -h'.\n\n"),
        ("--query-apps=pid", 255, "ERROR: Option --query-apps=pid is not recognized. Please run"),
        ("-f", 255, "ERROR: Option -f is missing its value. Please run"),
        ("-i 7", 6, "No devices were found\n"),
        ("-q -d BOGUS", 2, "Failed to parse --display/-d flags\n"),
        ("-d MEMORY", 2, "Invalid combination of input arguments. Specify -q/--query and -d/--di"),
        ("-x", 2, "Invalid combination of input arguments. Specify -q/--query and -x/--xml-form"),
        ("--query-gpu=bogus --format=csv", 2, 'Field "bogus" is not a valid field to query.\n\n'),
        ("--query-compute-apps=bogus", 2, 'Field "bogus" is not a valid field to query.\n\n'),
        ("--query-gpu=name --format=bogus", 2, "Format modifier is not recognized.\n"),
        ("-l 0", 2, "Provided [-l(ms) | --loop(-ms)=] value is incorrect. Loop frequency must be"),
        ("-pm 1", 4, "Unable to change them"),
        ("-B", 0, "No excluded devices found.\n"),
        ("mig -lgi", 0, ""),
        ("nvlink -s", 0, ""),
        ("-L", 0, "GPU 0: NVIDIA H200 (UUID: GPU-00)\nGPU 1"),
        ("--query-gpu=name,clocks.sm,pstate,driver_version --format=csv,noheader,nounits -i 1", 0,
         "NVIDIA H200, [N/A], [N/A], 580.159.04\n"),
        ("--query-gpu=clocks.sm -i 0", 0, "clocks.current.sm [MHz]\n[N/A]\n"),
        ("--query-accounted-apps=pid --format=csv", 0, ""),
    ],
)  # fmt: skip
def test_words_and_codes(
    words: str, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, said = say(capsys, *words.split())
    assert (found, said[: len(text)]) == (code, text)


def test_a_report_has_what_is_known_and_na_for_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, said = say(capsys, "-q")
    lines = said.splitlines()
    assert code == 0
    assert lines[1] == "==============NVSMI LOG=============="
    for line in (
        "Driver Version                                         : 580.159.04",
        "Attached GPUs                                          : 2",
        "GPU 00000000:01:00.0",
        "    GPU UUID                                           : GPU-11",
        "    Fan Speed                                          : N/A",
        "        Total                                          : 20480 MiB",
        "        Used                                           : 5120 MiB",
        "        GPU                                            : 42 %",
        "        GPU Current Temp                               : 34 C",
        "        Average Power Draw                             : 122.35 W",
        f"        Process ID                                     : {os.getpid()}",
    ):
        assert line in lines, line
    # As gpu-burn asks, and each other word of -d.
    said = say(capsys, "-q", "-d", "TEMPERATURE", "-i", "0")[1]
    assert "GPU Current Temp" in said
    assert "FB Memory" not in said
    for kind in dict(smi_report.sections(xml=False)):
        assert say(capsys, "-q", "-d", kind)[0] == 0


def test_xml(capsys: pytest.CaptureFixture[str]) -> None:
    tree = ElementTree.fromstring(say(capsys, "-q", "-x")[1])
    gpu = tree.findall("gpu")[0]
    assert tree.findtext("attached_gpus") == "2"
    assert gpu.get("id") == "00000000:00:00.0"
    assert gpu.findtext("fb_memory_usage/used") == "5120 MiB"
    assert gpu.findtext("processes/process_info/pid") == str(os.getpid())
    assert gpu.findtext("gpu_power_readings/average_power_draw") == "122.35 W"


def test_programs(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = say(capsys, "--query-compute-apps=pid,used_memory,gpu_uuid,gpu_name", "-i", "0")
    assert (code, said) == (
        0,
        "pid, used_gpu_memory [MiB], gpu_uuid, gpu_name\n"
        f"{os.getpid()}, 5120 MiB, GPU-00, NVIDIA H200\n",
    )


def test_monitors(capsys: pytest.CaptureFixture[str]) -> None:
    assert say(capsys, "dmon", "-c", "1", "-s", "pu")[1].splitlines() == [
        "# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa ",
        "# Idx      W      C      C      %      %      %      %      %      % ",
        "    0    122     34      -     42      -      -      -      -      - ",
        "    1      -     34      -      -      -      -      -      -      - ",
    ]
    lines = say(capsys, "pmon", "-c", "1")[1].splitlines()
    assert lines[:2] == [
        "# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command        ",
        "# Idx           #    C/G      %      %      %      %      %      %    name           ",
    ]
    assert lines[2].split()[:3] == ["0", str(os.getpid()), "C"]
    said = say(capsys, "topo", "-m")[1]
    assert said.startswith(
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tSYS\t"
    )


def test_a_loop_says_its_heading_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(nvidia_smi.time, "sleep", wait)
    code, said = say(capsys, "--loop-ms=300", "--query-gpu=index", "-i", "0")
    assert (code, said, waits) == (0, "index\n0\n0\n0\n", [0.3] * 3)
    waits.clear()
    assert say(capsys, "-l", "5", "-q", "-d", "TEMPERATURE")[1].count("NVSMI LOG") == 3
    assert waits == [5.0] * 3


def test_each_field_of_the_real_one_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    fields = [line.strip('"') for line in say(capsys, "--help-query-gpu")[1].splitlines()]
    assert len(fields) > 250
    code, said = say(capsys, f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "-i", "0")
    assert (code, len(said.split(", "))) == (0, len(fields))


def test_a_file_and_the_tool(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = tmp_path / "log"
    assert say(capsys, "-q", "-f", str(made)) == (0, "")
    assert "NVSMI LOG" in made.read_text()
    # Without an agent, as where its lease has ended.
    env = {"GPUPOOL_PYTHON": sys.executable, "GPUPOOL_AGENT": str(tmp_path / "none")}
    done = subprocess.run([str(TOOL), "-L"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr
    assert done.stdout.startswith("NVIDIA-SMI has failed because it couldn't communicate with")
