"""docs/telemetry.md names everything that servers measure, and all words of a fault script."""

from dataclasses import fields
from pathlib import Path

import pytest

from gpupool.pool.telemetry import (
    ConsensusTelemetry,
    GpuTelemetry,
    HostTelemetry,
    SessionTelemetry,
    Telemetry,
)
from gpupool.remoting.devices import fault_script

TEXT = (Path(__file__).parent.parent / "docs" / "telemetry.md").read_text()
ELSEWHERE = {"gpu", "lease", "server", "at", "gpus", "sessions", "findings"}


@pytest.mark.parametrize(
    "kind", [GpuTelemetry, SessionTelemetry, HostTelemetry, ConsensusTelemetry, Telemetry]
)
def test_every_field_is_explained(kind: type) -> None:
    names = {each.name for each in fields(kind)} - ELSEWHERE
    assert {name for name in names if f"`{name}`" not in TEXT} == set()


def test_every_word_of_a_fault_script_is_named() -> None:
    words = {*fault_script.FAST, *fault_script.SLOW, *fault_script.FLAGS}
    words |= {f"{table}." for table in fault_script.TABLES}
    section = TEXT[TEXT.index("## Faults of emulated GPUs") :]
    assert {word for word in words if f"`{word}" not in section} == set()


def test_the_script_of_the_docs_is_one() -> None:
    section = TEXT[TEXT.index("## Faults of emulated GPUs") :]
    script = section[section.index("```toml") + 7 :].partition("```")[0]
    assert [entry.second for entry in fault_script.parse_script(script)] == [0, 30, 60]
