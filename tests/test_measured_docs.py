"""docs/telemetry.md names everything that servers measure."""

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

TEXT = (Path(__file__).parent.parent / "docs" / "telemetry.md").read_text()
ELSEWHERE = {"gpu", "lease", "server", "at", "gpus", "sessions", "findings"}


@pytest.mark.parametrize(
    "kind", [GpuTelemetry, SessionTelemetry, HostTelemetry, ConsensusTelemetry, Telemetry]
)
def test_every_field_is_explained(kind: type) -> None:
    names = {each.name for each in fields(kind)} - ELSEWHERE
    assert {name for name in names if f"`{name}`" not in TEXT} == set()
