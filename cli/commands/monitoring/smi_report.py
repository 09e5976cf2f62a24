"""``nvidia-smi -q``, ``dmon``, ``pmon`` and ``topo -m`` of a lease, as nvidia-smi writes them.

The files of ``remoting/program/smi/`` have its words; what no server reports is N/A, as of a GPU
without it.
"""

import time
from collections.abc import Mapping, Sequence
from functools import cache

from gpupool.remoting.program.smi_query import MEASURED, NOT_MEASURED, process_name, words_of

Device = Mapping[str, object]


@cache
def sections(*, xml: bool) -> tuple[tuple[str, str], ...]:
    """Return the parts of a report on a device, each behind the word of ``-d`` that asks for it.

    A row of ``report.txt`` is ``tag|name|value``, the value ``N/A`` if none is there; ``/`` ends
    one with rows below it. A row without a tag stands in the text alone, one without a name in XML.
    """
    parts = words_of("report.txt").removeprefix("#").split("\n#")
    halves = (part.partition("\n") for part in parts)
    found = ((kind, _lines(rows.splitlines(), xml=xml)) for kind, _, rows in halves)
    return tuple((kind, "\n".join(lines)) for kind, lines in found if lines)


def _lines(rows: Sequence[str], *, xml: bool) -> list[str]:
    lines: list[str] = []
    ends: list[str] = []  # of the elements around the row
    for row in rows:
        text = row.lstrip()
        depth = (len(row) - len(text)) // 4
        while len(ends) > depth:
            lines.append(ends.pop())
        tag, name, value = (*text.removesuffix("/").split("|"), "", "")[:3]
        has_rows = text.endswith("/")
        if "|" not in text:
            lines.append(text)  # made whole by each of the two
        elif xml and tag:
            begin = "\t" * (depth + 2) + f"<{tag}>"
            end = f"</{tag}>"
            lines.append(begin if has_rows else f"{begin}{value or 'N/A'}{end}")
            if has_rows:
                ends.append("\t" * (depth + 2) + end)
        elif name and not xml:
            begin = " " * 4 * (depth + 1) + name
            lines.append(begin if has_rows else f"{begin:<55}: {value or 'N/A'}")
    return lines + ends[::-1]


def _values(device: Device, processes: Sequence[int], *, xml: bool) -> dict[str, str]:
    def value(field: str, unit: str) -> str:
        found = MEASURED[field](device)
        return "N/A" if found == NOT_MEASURED else f"{found} {unit}".strip()

    domain, bus, slot = [*str(device["bus_id"]).split(":"), "", ""][:3]
    each = f"{int(value('memory.used', '')) // max(len(processes), 1)} MiB"
    rows: list[str] = []
    for pid in map(str, processes):
        tags = (
            ("pid", pid),
            ("type", "C"),
            ("process_name", process_name(pid)),
            ("used_memory", each),
        )
        if xml:
            inner = "".join(f"\t\t\t\t<{tag}>{text}</{tag}>\n" for tag, text in tags)
            rows.append(f"\t\t\t<process_info>\n{inner}\t\t\t</process_info>\n")
        else:
            names = ("    Process ID", "        Type", "        Name", "        Used GPU Memory")
            rows += [
                f"    {name:<51}: {text}\n" for name, (_, text) in zip(names, tags, strict=True)
            ]
    empty = f"\t\t<processes>\n{''.join(rows)}\t\t</processes>"
    text = "\n".join(["    Processes", "".join(rows).rstrip("\n")])
    none = f"{'    Processes':<55}: None"
    return {
        "name": str(device["name"]),
        "uuid": str(device["uuid"]),
        "index": str(device["index"]),
        "bus_id": str(device["bus_id"]),
        "domain": domain[-4:],
        "bus": bus,
        "slot": slot.partition(".")[0],
        "total": value("memory.total", ""),
        "used": value("memory.used", ""),
        "free": value("memory.free", ""),
        "load": value("utilization.gpu", "%"),
        "heat": value("temperature.gpu", "C"),
        "power": value("power.draw", "W"),
        "limit": value("power.limit", "W"),
        "memory_heat": value("temperature.memory", "C"),
        "clock": value("clocks.current.sm", "MHz"),
        "empty": "\n\t\t",
        "none": "\n\t\t\tNone\n\t\t",
        "processes": empty if xml else text if rows else none,
    }


def report(
    devices: Sequence[Device],
    versions: tuple[str, str],
    processes: Sequence[int],
    kinds: Sequence[str],
    *,
    xml: bool,
) -> list[str]:
    """Return the lines of ``-q``, or only of the sections that ``-d`` names."""
    now, count = time.strftime("%a %b %e %H:%M:%S %Y"), str(len(devices))
    driver, cuda = (version or "N/A" for version in versions)
    if xml:
        lines = ['<?xml version="1.0" ?>', "<nvidia_smi_log>"]
        heads = {"timestamp": now, "driver_version": driver, "cuda_version": cuda}
        heads["attached_gpus"] = count
        lines += [f"\t<{tag}>{text}</{tag}>" for tag, text in heads.items()]
    else:
        lines = ["", "==============NVSMI LOG==============", ""]
        texts = (("Timestamp", now), ("Driver Version", driver), ("CUDA Version", cuda))
        lines += [f"{name:<55}: {text}" for name, text in texts]
        lines += ["", f"{'Attached GPUs':<55}: {count}"]
    for device in devices:
        bus = device["bus_id"]
        lines.append(f'\t<gpu id="{bus}">' if xml else f"GPU {bus}")
        values = _values(device, processes, xml=xml)
        for kind, text in sections(xml=xml):
            if not kinds or kind in kinds:
                lines += text.rstrip("\n").format_map(values).split("\n")
        lines.append("\t</gpu>" if xml else "")
    return [*lines, "</nvidia_smi_log>"] if xml else lines


# By the letter of -s: the columns, their units, and the field that is read.
COLUMNS = {
    "p": "pwr:W:power.draw gtemp:C:temperature.gpu mtemp:C:temperature.memory",
    "u": "sm:%:utilization.gpu mem:%: enc:%: dec:%: jpg:%: ofa:%:",
    "c": "mclk:MHz: pclk:MHz:clocks.current.sm",
    "v": "pviol:%: tviol:bool:",
    "m": "fb:MB:memory.used bar1:MB: ccpm:MB:",
    "e": "sbecc:errs: dbecc:errs: pci:errs:",
    "t": "rxpci:MB/s: txpci:MB/s:",
}


def dmon_lines(devices: Sequence[Device], chosen: str, *, heads: bool) -> list[str]:
    """Return a reading of ``dmon``, below its two lines of headings if ``heads``."""
    columns = [one.split(":") for letter in chosen for one in COLUMNS[letter].split()]
    rows = [["# gpu", *(c[0] for c in columns)], ["# Idx", *(c[1] for c in columns)]]
    rows = rows if heads else []
    for device in devices:
        found = [MEASURED[c[2]](device) if c[2] else NOT_MEASURED for c in columns]
        cells = ["-" if cell == NOT_MEASURED else cell.partition(".")[0] for cell in found]
        rows.append([f"{device['index']:>5}", *cells])
    return [first + "".join(f"{cell:>7}" for cell in cells) + " " for first, *cells in rows]


def pmon_lines(devices: Sequence[Device], processes: Sequence[int], *, heads: bool) -> list[str]:
    """Return a reading of ``pmon``."""
    names = ("type", "sm", "mem", "enc", "dec", "jpg", "ofa")
    rows = [("# gpu", "pid", *names, "command"), ("# Idx", "#", "C/G", *"%%%%%%", "name")]
    rows = rows if heads else []
    for device in devices:
        for pid in processes or ("-",):
            kind, name = ("C", process_name(str(pid)).rpartition("/")[2]) if processes else "--"
            rows.append((f"{device['index']:>5}", str(pid), kind, *"------", name[:14]))
    return [
        f"{a:>5}{b:>12}" + "".join(f"{c:>7}" for c in rest[:-1]) + f"    {rest[-1]:<15}"
        for a, b, *rest in rows
    ]


def topology_lines(devices: Sequence[Device]) -> list[str]:
    """Return ``topo -m``: nobody reports more than that two GPUs are not one."""
    names = [f"GPU{device['index']}" for device in devices]
    lines = ["\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for name in names:
        cells = [" X " if name == other else "SYS" for other in names]
        lines.append("\t".join([name, *cells, "N/A", "N/A", "", "N/A"]))
    return [*lines, *words_of("topology.txt").splitlines()]


def kinds_of(text: str) -> list[str] | None:
    """Return the words of ``-d``; None: one of them is none."""
    kinds = [kind.strip() for kind in text.split(",") if kind.strip()]
    known = {kind for xml in (False, True) for kind, _ in sections(xml=xml)}
    return kinds if known - {""} | {"VOLTAGE", "GSP_FIRMWARE_VERSION"} >= {*kinds} else None
