"""The formats that traces are made of, by name, and what each takes for granted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpupool.monitoring.analysis import alibaba_traces, gpu_readings, scheduler_logs
from gpupool.monitoring.analysis.csv_rows import Source
from gpupool.monitoring.analysis.local_times import zone_named
from gpupool.monitoring.analysis.trace_form import Builder, Trace, TraceError

SACCT = (
    "sacct -a -P -S 2026-10-01 -E now "
    "-o JobID,User,Account,Submit,Start,End,State,ReqTRES,AllocTRES"
)


@dataclass(frozen=True, slots=True)
class Format:
    """How the files of one format are read."""

    read: Callable[[Sequence[Source], Builder], None]
    zone: str = "UTC"  # of its times, where they name none
    dated: bool = True  # its times are dates, and not seconds since the beginning of the trace


FORMATS: dict[str, Format] = {
    "slurm": Format(scheduler_logs.slurm),
    "nvidia-smi": Format(gpu_readings.nvidia_smi),
    "prometheus": Format(gpu_readings.prometheus),
    "philly": Format(scheduler_logs.philly, zone="America/Los_Angeles"),
    "helios": Format(scheduler_logs.helios, zone="Asia/Shanghai"),
    "pai2020": Format(alibaba_traces.pai2020, zone="Asia/Shanghai"),
    "openb2023": Format(alibaba_traces.openb2023, dated=False),
    "dlrm2025": Format(alibaba_traces.dlrm2025, dated=False),
}


def read(name: str, sources: Sequence[Source], *, zone: str = "", thin_s: float = 0.0) -> Trace:
    """Return the trace that files of a format say.

    Args:
        name: of the format.
        sources: its files.
        zone: of times that name none; empty for the format's own.
        thin_s: join readings to intervals of so many seconds; 0 keeps them as they are.

    Raises:
        TraceError: with what is wrong, and in which file.
    """
    found = FORMATS.get(name)
    if found is None:
        raise TraceError(f"{name!r} is no format", hint=f"the formats are {', '.join(FORMATS)}")
    zone_named(zone or found.zone)
    builder = Builder(name, zone=zone or found.zone, dated=found.dated, thin_s=thin_s)
    found.read(sources, builder)
    return builder.trace()
