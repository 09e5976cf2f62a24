"""Where things lie on this machine: the XDG folders, and systemd's when it runs us."""

import os
import pwd
import shutil
import sys
from pathlib import Path

CONFIG_NAME = "gpupool.toml"


def _home_folder(variable: str, *fallback: str) -> Path:
    """Return the XDG folder named by ``variable``; a relative value is ignored, as XDG asks."""
    value = os.environ.get(variable, "")
    return Path(value) if value.startswith("/") else Path.home().joinpath(*fallback)


def config_dir() -> Path:
    """Return the folder of the user's settings and credentials."""
    return _home_folder("XDG_CONFIG_HOME", ".config") / "gpupool"


def cache_dir() -> Path:
    """Return the folder of what can be lost, such as names for completion."""
    return _home_folder("XDG_CACHE_HOME", ".cache") / "gpupool"


def state_dir() -> Path:
    """Return the folder of a server's identity and journal."""
    if given := os.environ.get("STATE_DIRECTORY", ""):
        return Path(given.split(":")[0])  # systemd separates several by colons
    return _home_folder("XDG_STATE_HOME", ".local", "state") / "gpupool"


def playground_dir() -> Path:
    """Return the folder of the pool that ``gpupool up`` starts."""
    return _home_folder("XDG_STATE_HOME", ".local", "state") / "gpupool-up"


def program() -> str:
    """Return what a user types to run this very gpupool."""
    own = Path(sys.executable).parent / "gpupool"
    if (found := shutil.which("gpupool")) and Path(found).resolve() == own.resolve():
        return "gpupool"
    if not own.is_file():
        return f"{sys.executable} -m gpupool.cli.main"
    try:
        return str(own.relative_to(Path.cwd()))
    except (ValueError, FileNotFoundError):
        return str(own)


def runtime_dir() -> Path | None:
    """Return the user's private folder for sockets, or None when the system gives none."""
    value = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(value) if value.startswith("/") and os.path.isdir(value) else None


def config_files() -> tuple[Path, ...]:
    """Return the files that settings are read from, the strongest first."""
    files = (config_dir() / "config.toml", Path("/etc/gpupool/config.toml"))
    try:
        return (Path.cwd() / CONFIG_NAME, *files)
    except FileNotFoundError:
        return files  # the folder that we are in was removed


def default_name() -> str:
    """Return a name for this server: the host's, without its domain."""
    name = os.uname().nodename.split(".")[0]
    clean = "".join(c if c.isalnum() or c in "-_" else "-" for c in name).strip("-_")
    return clean[:63] or "server"


def user_name() -> str:
    """Return the name of the user who runs us, even when no account has their number."""
    for variable in ("LOGNAME", "USER"):
        if value := os.environ.get(variable):
            return value
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid{os.getuid()}"
