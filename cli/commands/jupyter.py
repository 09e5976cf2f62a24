"""``gpupool jupyter``: a Jupyter kernel that runs on GPUs of the pool."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any, cast

import click

from gpupool.cli.lib.options import pool_options, request_options
from gpupool.pool.errors import GpupoolError, UsageError
from gpupool.pool.values import duration_text, size_text
from gpupool.remoting.local.terminal import say
from gpupool.remoting.program.lease_source import Wanted

MARKER = "gpupool"
"""The key in a kernel's metadata by which gpupool knows the kernels that it may replace."""

NAME = re.compile(r"[a-z0-9._-]{1,63}")
IDLE_TIMEOUT_S = 1800.0


@click.group()
def command() -> None:
    """Install or remove a Jupyter kernel that runs on GPUs of the pool.

    The kernel asks for GPUs when a notebook first uses one. It gives them back when it ends, or
    when they are unused for its idle timeout. Its arrays on the GPUs are lost then; restart the
    kernel to get GPUs again.
    """


@command.command()
@request_options
@click.option("--name", default="gpupool", show_default=True, help="Name of the kernel.")
@click.option("--display-name", help="Name in notebooks.  [default: from the request]")
@click.option("--python", help="The kernel's Python, which has ipykernel.  [default: on the PATH]")
@click.option(
    "--door",
    type=click.Choice(["auto", "arrays", "cuda"]),
    default="auto",
    show_default=True,
    help='How the kernel reaches its GPUs; see "gpupool help run".',
)
@pool_options
@click.pass_context
def install(
    ctx: click.Context,
    wanted: Wanted,
    credentials: str | None,
    name: str,
    display_name: str | None,
    python: str | None,
    door: str,
) -> None:
    r"""Install a kernel for this user.

    \b
      gpupool jupyter install -n 1 -p 0.5
      gpupool jupyter install --name big -n 4 --idle-timeout 2h

    The default of --idle-timeout is 30 minutes.
    """
    interpreter = shutil.which(python or "python3")
    if interpreter is None:
        raise UsageError(f"there is no {python or 'python3'}", hint="--python names it")
    folder = kernel_dir(name)
    found = _metadata(folder)
    if folder.exists() and MARKER not in found:
        raise GpupoolError(
            f"there is a kernel {name} already, which is not ours",
            why=str(folder),
            hint="--name gives this one another name",
        )
    idle_timeout_s = wanted.idle_timeout_s or IDLE_TIMEOUT_S
    asked = request_arguments(wanted, idle_timeout_s)
    if credentials is not None:
        asked += ["--credentials", os.path.abspath(credentials)]
    spec = {
        "argv": [
            *(os.path.abspath(sys.executable), "-m", "gpupool.cli.main"),
            *("run", "--lazy", "--quiet", "--door", door, *asked, "--"),
            *(interpreter, "-m", "ipykernel_launcher", "-f", "{connection_file}"),
        ],
        "display_name": display_name or f"Python on {request_text(wanted)}",
        "language": "python",
        # Jupyter asks the kernel by a message to interrupt itself, without a signal through us.
        "interrupt_mode": "message",
        "metadata": {"debugger": True, MARKER: True},
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "kernel.json"
        path.write_text(json.dumps(spec, indent=1) + "\n")
    except OSError as error:
        why = f"{folder}: {error.strerror or error}"
        raise GpupoolError("the kernel cannot be installed", why=why) from error
    say(f"gpupool: kernel {name} is installed in {folder}")
    say(f"  notebooks show it as {spec['display_name']!r}")
    say(f"  it gives its GPUs back when unused for {duration_text(idle_timeout_s)}")
    if not _has_ipykernel(interpreter):
        say(f"  {interpreter} has no ipykernel yet: {interpreter} -m pip install ipykernel")


@command.command()
@click.option("--name", default="gpupool", show_default=True, help="Name of the kernel.")
def remove(name: str) -> None:
    """Remove a kernel that "gpupool jupyter install" made."""
    folder = kernel_dir(name)
    if not folder.exists():
        raise UsageError(f"there is no kernel {name}", why=f"{folder} does not exist")
    if MARKER not in _metadata(folder):
        raise GpupoolError(f"kernel {name} is not ours", why=str(folder))
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise GpupoolError(f"kernel {name} cannot be removed", why=str(error)) from error
    say(f"gpupool: kernel {name} is removed")


def kernel_dir(name: str) -> Path:
    """Return the folder in which Jupyter looks for a kernel of this user.

    Raises:
        UsageError: when Jupyter does not allow this name.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name for a kernel", hint="small letters, digits, dots and dashes"
        )
    if given := os.environ.get("JUPYTER_DATA_DIR"):
        return Path(given) / "kernels" / name
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Jupyter" / "kernels" / name
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "jupyter" / "kernels" / name


def request_arguments(wanted: Wanted, idle_timeout_s: float) -> list[str]:
    """Return the options of ``gpupool run`` that make the same request."""
    from gpupool.pool.scheduling.filters import filter_text

    arguments = ["--count", str(wanted.count)]
    if wanted.share:
        arguments += ["--share", repr(wanted.share)]
    if wanted.memory:
        arguments += ["--memory", f"{wanted.memory >> 20}MiB"]
    else:
        arguments += ["--fraction", repr(wanted.fraction)]
    arguments += ["--placement", wanted.placement.value, "--idle-timeout", f"{idle_timeout_s:g}s"]
    if wanted.across:
        arguments.append("--across")
    if wanted.preemptible:
        arguments.append("--preemptible")
    for server in wanted.servers:
        arguments += ["--server", server]
    for each in wanted.filters:
        arguments += ["--filter", filter_text(each)]
    if wanted.wait_s is not None:
        arguments += ["--wait", f"{wanted.wait_s:g}s"] if wanted.wait_s else ["--no-wait"]
    return arguments


def request_text(wanted: Wanted) -> str:
    """Return the request in words, such as ``2 x 0.5 GPU`` for half of 2 GPUs."""
    size = size_text(wanted.memory) if wanted.memory else f"{wanted.fraction:g} GPU"
    plain = wanted.fraction == 1.0 and not wanted.memory
    if plain:
        return f"{wanted.count} GPU{'s' if wanted.count > 1 else ''}"
    return f"{wanted.count} x {size}" if wanted.count > 1 else size


def _metadata(folder: Path) -> dict[str, object]:
    try:
        spec: Any = json.loads((folder / "kernel.json").read_text())
    except (OSError, ValueError):
        return {}
    found: Any = cast("dict[str, Any]", spec).get("metadata") if isinstance(spec, dict) else None
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def _has_ipykernel(interpreter: str) -> bool:
    import subprocess

    code = "import importlib.util as u, sys; sys.exit(u.find_spec('ipykernel') is None)"
    done = subprocess.run([interpreter, "-c", code], capture_output=True, timeout=30, check=False)
    return done.returncode == 0
