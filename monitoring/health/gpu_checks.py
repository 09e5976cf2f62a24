"""Checks of one server's GPUs: pure functions from readings to results. None reports success.

A reading that is not to be had leads to no result.
"""

from collections.abc import Iterator

from gpupool.monitoring.health.readings import Past, Readings, Remembered, Result
from gpupool.pool.model.ids import GpuId
from gpupool.pool.model.state import Gpu
from gpupool.pool.telemetry import GpuTelemetry, Health
from gpupool.pool.transitions.gpu_drains import AUTOMATIC
from gpupool.remoting.host.measuring.nvml import HARDWARE_XIDS

WARN, FAIL = Health.WARN, Health.FAIL

PROGRAM_XIDS = frozenset({13, 31, 43, 45, 94})
"""Errors that programs cause, mostly."""

SUSPICIOUS_XIDS = {63: "rows are remapped", 74: "an NVLink error"}
PROGRAM_LEASES, PROGRAM_USERS = 3, 2
TEN_MINUTES_S = 600.0
THROTTLED_WARN_S, THROTTLED_FAIL_S = 0.05 * TEN_MINUTES_S, 0.5 * TEN_MINUTES_S
SHUTDOWN_MARGIN_C = 3.0
CORRECTED_TIMES, CORRECTED_MIN, CORRECTED_MEAN_S = 10, 10, 3600.0
REPLAYS_A_MINUTE = 10
FOREIGN_SHARE = 0.05
LOAD = 0.5
"""The share of time in which a GPU computes that is under load."""
SLOWER = 0.9
ACTIONS = {
    1: "a reset of the GPU",
    2: "a restart of the machine",
    3: "a drain of its peers",
    4: "a drain and a reset",
}
"""Recovery actions of NVML, by number."""


def _fitted(readings: Readings) -> Iterator[tuple[GpuTelemetry, str, str]]:
    """Return each measured GPU with its name for people, and the words that drain it."""
    server = readings.server
    for measured in readings.telemetry.gpus:
        gpu = server.gpus.get(measured.gpu) if server is not None else None
        if gpu is None or server is None:
            yield measured, f"GPU {measured.gpu}", ""
        else:
            hint = f"gpupool drain {server.name} --gpu {gpu.index} --reason ..."
            yield measured, f"GPU {gpu.index}", hint


def _grown(new: float | None, old: float | None) -> float:
    return max(0.0, new - old) if new is not None and old is not None else 0.0


def _then(moment: Remembered | None, gpu: GpuId) -> GpuTelemetry | None:
    return moment.gpu(gpu) if moment is not None else None


def faults(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of GPUs that their server calls faulty: lost, hung, an error of the hardware."""
    server = readings.server
    for gpu in server.gpus.values() if server is not None else ():
        if gpu.fault or gpu.clash:
            text = f"GPU {gpu.index}: {gpu.fault or gpu.clash}"
            hint = "it is not granted; after the repair restart its server"
            yield Result("gpu-fault", gpu.id, FAIL, text, hint)


def xids(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of Xid errors of the hardware, and of programs of several users on one GPU."""
    for gpu, name, hint in _fitted(readings):
        for xid in sorted(gpu.xids):
            if gpu.xids[xid] and xid in HARDWARE_XIDS:
                text = f"{name}: Xid {xid}, {HARDWARE_XIDS[xid]}, {gpu.xids[xid]} times"
                yield Result("xid", gpu.gpu, FAIL, text, "reset the GPU, then restart its server")
            elif gpu.xids[xid] and xid in SUSPICIOUS_XIDS:
                text = f"{name}: Xid {xid}, {SUSPICIOUS_XIDS[xid]}, {gpu.xids[xid]} times"
                yield Result("xid", gpu.gpu, WARN, text, hint)
        seen = past.program_xids.get(gpu.gpu, ())
        leases, users = {each.lease for each in seen}, {each.user for each in seen}
        if len(leases) >= PROGRAM_LEASES and len(users) >= PROGRAM_USERS:
            text = (
                f"{name}: programs of {len(leases)} leases and {len(users)} users failed within "
                "24 h"
            )
            yield Result("repeated-xid", gpu.gpu, WARN, text, hint)


def recovery(readings: Readings, past: Past) -> Iterator[Result]:
    """Report NVML's recovery advice for a GPU."""
    for gpu, name, hint in _fitted(readings):
        if gpu.recovery_action:
            advice = ACTIONS.get(gpu.recovery_action, f"action {gpu.recovery_action}")
            yield Result("recovery", gpu.gpu, FAIL, f"{name}: the driver advises {advice}", hint)


def memory_errors(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of uncorrected errors, of corrected ones that become many, and of remapped rows."""
    recent = past.since(TEN_MINUTES_S, readings.now_s)
    for gpu, name, hint in _fitted(readings):
        first, then = _then(past.first, gpu.gpu), _then(recent, gpu.gpu)
        if first is not None and (count := _grown(gpu.ecc_errors, first.ecc_errors)):
            text = f"{name}: {count:.0f} uncorrectable memory errors"
            yield Result("ecc", gpu.gpu, FAIL, text, "reset the GPU, then restart its server")
        if first is not None and then is not None and past.first is not None:
            grown = _grown(gpu.ecc_corrected, then.ecc_corrected)
            all_s = readings.now_s - past.first.now_s
            now_s = readings.now_s - recent.now_s if recent is not None else 0.0
            before = _grown(then.ecc_corrected, first.ecc_corrected)
            month = readings.errors_a_second.get(gpu.gpu)
            rate = before / max(all_s - now_s, 1.0) if month is None else month
            known = all_s >= CORRECTED_MEAN_S or month is not None
            if known and grown >= CORRECTED_MIN and grown >= CORRECTED_TIMES * rate * now_s:
                text = f"{name}: {grown:.0f} corrected memory errors in {now_s / 60:.0f} minutes"
                yield Result("ecc", gpu.gpu, WARN, text, hint)
        rows = gpu.remapped_rows
        if rows.get("failed"):
            text = f"{name}: a row of its memory could not be remapped"
            yield Result("remapped-rows", gpu.gpu, FAIL, text, hint)
        elif rows.get("pending"):
            text = f"{name}: rows of its memory wait for a reset to be remapped"
            yield Result("remapped-rows", gpu.gpu, WARN, text, hint)


def heat(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of GPUs that slow down because of heat or power, or are about to turn themselves off."""
    recent = past.since(TEN_MINUTES_S, readings.now_s)
    for gpu, name, hint in _fitted(readings):
        degrees, limit = gpu.temperature_c, gpu.shutdown_c
        if degrees is not None and limit and degrees >= limit - SHUTDOWN_MARGIN_C > 0:
            text = f"{name}: at {degrees:.0f} C; it turns itself off at {limit:.0f} C"
            yield Result("temperature", gpu.gpu, FAIL, text, hint)
        if (then := _then(recent, gpu.gpu)) is None:
            continue
        slowed = {
            reason: _grown(gpu.throttled_s.get(reason), then.throttled_s.get(reason))
            for reason in ("thermal", "hw_thermal", "hw_power_brake")
        }
        hardware_s = max(slowed["hw_thermal"], slowed["hw_power_brake"])
        if (slowed_s := max(slowed.values())) > THROTTLED_WARN_S:
            reason = max(slowed, key=lambda each: slowed[each])
            status = FAIL if hardware_s > THROTTLED_FAIL_S else WARN
            text = f"{name}: slowed down ({reason}) for {slowed_s:.0f} s of the last 10 minutes"
            yield Result("throttle", gpu.gpu, status, text, hint)


def buses(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of PCIe replays and NVLink errors."""
    minute, recent = (past.since(s, readings.now_s) for s in (60.0, TEN_MINUTES_S))
    for gpu, name, hint in _fitted(readings):
        then = _then(minute, gpu.gpu)
        if then is not None:
            replays = _grown(gpu.pcie_replays, then.pcie_replays)
            if replays > REPLAYS_A_MINUTE:
                text = f"{name}: {replays:.0f} PCIe replays in a minute"
                yield Result("pcie", gpu.gpu, WARN, text, hint)
        if below := _below_its_best(gpu):
            text = f"{name}: under load its PCIe link has less than its best {below}"
            yield Result("pcie-link", gpu.gpu, WARN, text, hint)
        if (then := _then(recent, gpu.gpu)) is not None:
            errors = _grown(gpu.nvlink_errors, then.nvlink_errors)
            if errors:
                text = f"{name}: {errors:.0f} NVLink errors in 10 minutes"
                yield Result("nvlink", gpu.gpu, WARN, text, hint)
        first = _then(past.first, gpu.gpu)
        if down := _grown(first.nvlinks_up if first else None, gpu.nvlinks_up):
            text = f"{name}: {down:.0f} NVLinks that were up are down"
            yield Result("nvlink", gpu.gpu, FAIL, text, hint)


def _below_its_best(gpu: GpuTelemetry) -> str:
    """Return the deficits of a loaded GPU's PCIe link; an idle GPU lets it rest."""
    if (gpu.utilization or 0.0) < LOAD:
        return ""
    pairs = {
        "width": (gpu.pcie_width, gpu.pcie_width_max),
        "speed": (gpu.pcie_generation, gpu.pcie_generation_max),
    }
    below = [name for name, (now, best) in pairs.items() if now and best and now < best]
    return " and ".join(below)


def self_tests(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of GPUs that computed wrongly, or are slower than they were at first."""
    server = readings.server
    for gpu in server.gpus.values() if server is not None else ():
        if (test := readings.tests.get(gpu.id)) is None:
            continue
        hint = "gpupool doctor --servers tests it again; gpupool drain SERVER --gpu N stops grants"
        if test.problem:
            yield Result("self-test", gpu.id, FAIL, f"GPU {gpu.index}: {test.problem}", hint)
        elif not gpu.emulated and test.passes_a_second < SLOWER * test.first:
            slower = 1 - test.passes_a_second / test.first
            text = f"GPU {gpu.index}: {slower:.0%} slower in its self-test than in its first"
            yield Result("self-test", gpu.id, WARN, text, hint)


def foreign_use(readings: Readings, past: Past) -> Iterator[Result]:
    """Report GPUs with memory held by programs outside of the pool."""
    server = readings.server
    for gpu in server.gpus.values() if server is not None else ():
        if gpu.memory_foreign > FOREIGN_SHARE * gpu.memory_total:
            share = gpu.memory_foreign / gpu.memory_total
            text = f"GPU {gpu.index}: programs outside of the pool hold {share:.0%} of its memory"
            yield Result("foreign-use", gpu.id, WARN, text, "nvidia-smi on that server names them")


def drained(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of GPUs that were drained automatically, until a person undrains them."""
    server = readings.server
    for gpu in server.gpus.values() if server is not None else ():
        if gpu.drain_reason.startswith(AUTOMATIC):
            yield Result(
                "drained", gpu.id, WARN, *_drained_text(server.name if server else "", gpu)
            )


def _drained_text(server: str, gpu: Gpu) -> tuple[str, str]:
    cause = gpu.drain_reason.removeprefix(AUTOMATIC)
    hint = f"after the repair: gpupool undrain {server} --gpu {gpu.index}"
    return f"GPU {gpu.index} was drained: {cause}", hint
