"""``nvidia-smi`` for programs of a lease (``remoting/program/tools/nvidia-smi``).

Its forms, words and exit codes are nvidia-smi's (driver 580), because scripts read them.
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import cast

from gpupool.pool.errors import GpupoolError, UnreachableError, UsageError
from gpupool.pool.values import size_text

INVALID, NO_PERMISSION, NO_DEVICE, NO_DRIVER, UNKNOWN = 2, 4, 6, 9, 255
ANSWER_S = 5.0
LINE_LENGTH_MAX = 64 * 1024
WIDTHS = (4, 24, 14, 17, 6, 6, 7)
TITLES = ("GPU", "Name", "Server", "Memory", "Util", "Temp", "Power")
COMMANDS = ("dmon", "pmon", "topo", "nvlink", "mig")
SEE_HELP = "Please run 'nvidia-smi -h'"
FILTERS = {
    "--display": ("-d/--display", "a filtered"),
    "--xml-format": ("-x/--xml-format", "an XML"),
}
"""Options that require ``-q``."""


class Refusal(Exception):
    """An error message of nvidia-smi, and its exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def options_known(command: str) -> dict[str, tuple[str, str]]:
    """Return the long name and the kind of each option, by its names, as a sub-command has them."""
    from gpupool.remoting.program.smi_query import words_of

    found: dict[str, tuple[str, str]] = {}
    for line in words_of("options.txt").splitlines():
        name, short, kind = line.split()
        if command or not kind.startswith("sub-"):  # those of sub-commands come last
            found |= dict.fromkeys((name, short), (name, kind.removeprefix("sub-")))
    return found


def parse(words: list[str]) -> tuple[str, dict[str, str]]:
    """Return the sub-command, or "", and the options by their long names.

    Raises:
        Refusal: for what nvidia-smi does not take.
    """
    rest, options = list(words), dict[str, str]()
    command = rest.pop(0) if rest and rest[0] in COMMANDS else ""
    known = options_known(command)
    while rest and command not in ("nvlink", "mig"):
        word, equals, value = rest.pop(0).partition("=")
        name, kind = known.get(word, (word, ""))
        if kind == "change":
            why = "the settings of a GPU are its server's: Insufficient Permissions"
            raise Refusal(NO_PERMISSION, f"Unable to change them, {why}")
        if kind == "value" and not equals:
            if rest and not (name == "--loop" and rest[0].startswith("-")):
                value = rest.pop(0)
            elif name != "--loop":
                why = f"ERROR: Option {word} is missing its value. {SEE_HELP} for help.\n"
                raise Refusal(UNKNOWN, why)
        elif not kind:
            why = f"ERROR: Option {word}{equals}{value} is not recognized. {SEE_HELP}.\n"
            raise Refusal(UNKNOWN, why)
        options[name] = value
    return command, options


def pause_of(command: str, options: dict[str, str]) -> float:
    """Return the seconds between readings, 0 for a single one."""
    if command in ("dmon", "pmon"):
        return float(_number(options.get("--delay", ""), 1))
    for name, scale in (("--loop", 1), ("--loop-ms", 1000)):
        if name in options:
            number = _number(options[name], 5 * scale)
            if number == 0:
                why = "Provided [-l(ms) | --loop(-ms)=] value is incorrect. Loop frequency must be"
                raise Refusal(INVALID, f"{why} greater than 0.\n")
            return number / scale
    return 0


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isdecimal() else otherwise


class Answer:
    """The nvidia-smi output for the lease at one time.

    Args:
        fields: as the agent has told them.
        first: with headings, which come once.
    """

    def __init__(self, options: dict[str, str], fields: dict[str, object], *, first: bool) -> None:
        from gpupool.remoting.program.smi_query import chosen

        self._options = options
        self._fields = fields
        self._first = first
        self._processes = cast("list[int]", fields.get("processes", []))
        self._devices = cast("list[dict[str, object]]", fields["devices"])
        self._driver, self._cuda = str(fields["driver"]), str(fields["cuda"])
        if "--id" in options:
            try:
                self._devices = list(chosen(self._devices, options["--id"]))
            except UsageError:
                raise Refusal(NO_DEVICE, "No devices were found") from None

    def lines(self, command: str) -> list[str]:
        """Return them.

        Raises:
            Refusal: for what nvidia-smi refuses.
        """
        from gpupool.cli.commands.monitoring import smi_report

        if command == "dmon":
            letters = self._options.get("--select", "puc")
            if {*letters} - {*smi_report.COLUMNS}:
                raise Refusal(INVALID, f"Metric set '{letters}' is invalid.")
            return smi_report.dmon_lines(self._devices, letters, heads=self._first)
        if command == "pmon":
            return smi_report.pmon_lines(self._devices, self._processes, heads=self._first)
        if command:
            return smi_report.topology_lines(self._devices) if command == "topo" else []
        kinds = smi_report.kinds_of(self._options.get("--display", ""))
        if kinds is None:
            raise Refusal(INVALID, "Failed to parse --display/-d flags")
        if "--query" in self._options:
            versions, xml = (self._driver, self._cuda), "--xml-format" in self._options
            return smi_report.report(self._devices, versions, self._processes, kinds, xml=xml)
        for name in FILTERS.keys() & self._options.keys():
            option, kind = FILTERS[name]
            why = f"Invalid combination of input arguments. Specify -q/--query and {option} to run"
            raise Refusal(INVALID, f"{why} {kind} query.  {SEE_HELP} for help.\n")
        try:
            return self._simple()
        except UsageError as error:
            wrong = "Format modifier is not recognized."
            raise Refusal(INVALID, wrong if "--format" in str(error) else f"{error}.\n") from None

    def _simple(self) -> list[str]:
        from gpupool.remoting.program import smi_query

        options = self._options
        form = options.get("--format", "csv") + ("" if self._first else ",noheader")
        if "--help" in options:
            return smi_query.words_of("help.txt").splitlines()
        if "--query-gpu" in options:
            return smi_query.query(self._devices, self._driver, options["--query-gpu"], form)
        if "--query-compute-apps" in options:
            asked = options["--query-compute-apps"]
            return smi_query.query_apps(self._devices, self._processes, asked, form)
        if "--list-gpus" in options:
            return smi_query.listed(self._devices)
        if "--list-excluded-gpus" in options:
            return ["No excluded devices found."]
        if "--version" in options:
            driver, cuda = self._driver, self._cuda
            names = ("NVIDIA-SMI version", "NVML version", "DRIVER version", "CUDA Version")
            found = (driver, driver.rpartition(".")[0], driver, cuda)
            return [f"{name:<20}: {text}" for name, text in zip(names, found, strict=True)]
        for name, known in (("gpu", smi_query.fields_known()), ("compute-apps", smi_query.APPS)):
            if f"--help-query-{name}" in options:
                return [f'"{field.partition(" ")[0]}"' for field in known]
        if any(name.startswith("--query-") for name in options):
            return []  # no accounted programs, retired pages, or clocks to be set
        fields = self._fields | {"devices": self._devices}
        return smi_lines(fields, os.environ.get("GPUPOOL_LEASE", ""))


def ask_agent(path: str) -> dict[str, object]:
    """Return the data of ``gpupool run`` on the lease of this process.

    Raises:
        GpupoolError: when it does not answer, or cannot.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(ANSWER_S)
            sock.connect(path)
            sock.sendall(b'{"op":"nvml"}\n')
            line = sock.makefile("rb").readline(LINE_LENGTH_MAX)
        fields = cast("dict[str, object]", json.loads(line))
    except (OSError, ValueError) as error:
        raise UnreachableError("gpupool run does not answer", why=str(error)) from error
    if not fields.pop("ok", False):
        raise GpupoolError(str(fields.get("what")), why=str(fields.get("why", "")))
    return fields


def smi_lines(fields: dict[str, object], lease: str) -> list[str]:
    """Return a table in nvidia-smi's shape."""
    rule = "+" + "+".join("-" * (width + 2) for width in WIDTHS) + "+"
    versions = [f"Driver Version: {fields['driver']}"] if fields["driver"] else []
    versions += [f"CUDA Version: {fields['cuda']}"] if fields["cuda"] else []
    head = "   ".join(["gpupool smi", f"lease {lease}", *versions])
    lines = ["+" + "-" * (len(rule) - 2) + "+", f"| {head:{len(rule) - 4}} |", rule]
    lines += [_row(TITLES), rule.replace("-", "=")]
    devices = cast("list[dict[str, object]]", fields["devices"])
    lines += [_row(_cells(device)) for device in devices]
    return [*lines, rule]


def _row(cells: tuple[str, ...]) -> str:
    texts = [f" {c[:w]:{w}} " for c, w in zip(cells, WIDTHS, strict=True)]
    return "|" + "|".join(texts) + "|"


def _cells(device: dict[str, object]) -> tuple[str, ...]:
    def reading(key: str, scale: float, unit: str) -> str:
        value = device[key]
        return f"{value * scale:.0f}{unit}" if isinstance(value, int | float) else "-"

    used, memory = cast("int", device["used"]), cast("int", device["memory"])
    return (
        str(device["index"]),
        str(device["name"]),
        str(device["server"]),
        f"{size_text(used)} / {size_text(memory)}",
        reading("utilization", 100, "%"),
        reading("temperature_c", 1, "C"),
        reading("power_w", 1, "W"),
    )


def main(words: list[str]) -> int:
    """Run, and return the exit code."""
    try:
        return _run(words)
    except Refusal as refusal:
        sys.stdout.write(f"{refusal}\n")
        return refusal.code
    except GpupoolError as error:
        why = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"
        sys.stdout.write(f"{why}: {error}\n")
        return NO_DRIVER
    except KeyboardInterrupt:
        return 0


def _run(words: list[str]) -> int:
    command, options = parse(words)
    pause, left, first = pause_of(command, options), _number(options.get("--count", ""), 0), True
    name = options.get("--filename")
    while True:
        fields = ask_agent(os.environ.get("GPUPOOL_AGENT", ""))
        lines = Answer(options, fields, first=first).lines(command)
        text = "".join(f"{line}\n" for line in lines)
        if name is None:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            with Path(name).open("w" if first else "a", encoding="utf-8") as file:
                file.write(text)
        left, first = left - 1, False
        if not pause or left == 0:
            return 0
        time.sleep(pause)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # it ends where nobody reads on
    sys.exit(main(sys.argv[1:]))
