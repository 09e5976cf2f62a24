"""The formats that traces are made of, by name."""

from collections.abc import Callable, Sequence

from gpupool.monitoring.analysis import gpu_readings, scheduler_logs
from gpupool.monitoring.analysis.csv_rows import Source
from gpupool.monitoring.analysis.local_times import zone_named
from gpupool.monitoring.analysis.trace_form import Builder, Trace, TraceError

FORMATS: dict[str, Callable[[Sequence[Source], Builder], None]] = {
    "slurm": scheduler_logs.slurm,
    "nvidia-smi": gpu_readings.nvidia_smi,
    "prometheus": gpu_readings.prometheus,
}


def read(name: str, sources: Sequence[Source], *, zone: str = "", thin_s: float = 0.0) -> Trace:
    """Return the trace that files of a format say.

    Args:
        name: of the format.
        sources: its files.
        zone: of times that name none; empty for UTC.
        thin_s: join readings to intervals of so many seconds; 0 keeps them as they are.

    Raises:
        TraceError: with what is wrong, and in which file.
    """
    found = FORMATS.get(name)
    if found is None:
        raise TraceError(f"{name!r} is no format", hint=f"the formats are {', '.join(FORMATS)}")
    zone_named(zone)
    builder = Builder(name, zone=zone or "UTC", thin_s=thin_s)
    found(sources, builder)
    return builder.trace()
