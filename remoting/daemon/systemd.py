"""The service manager's side of a server: its runtime directory, and sd_notify(3)."""

import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import ServerId
from gpupool.remoting.host.remove_tree import remove_tree
from gpupool.remoting.local.files import make_folder

FOLDER_PREFIX = "gpupool-server-"
ROOM_POLL_S = 10.0


def make_runtime_dir(server: ServerId) -> Path:
    """Make the folder of this server's socket for programs on the same machine.

    Workers have other uids than the server, so it cannot be in the state directory.
    """
    given = os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    path = Path(given or tempfile.gettempdir()) / f"gpupool-{server}"
    try:
        path.mkdir(mode=0o711)
    except FileExistsError:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            # Somebody else's, in a folder where everybody may write.
            # The descriptor that holds it locked stays open for as long as this server lives.
            path, _held = make_folder(Path(tempfile.gettempdir()), FOLDER_PREFIX)
        else:
            remove_tree(path)
            path.mkdir(mode=0o711, exist_ok=True)
    except OSError as error:
        raise GpupoolError(f"cannot make {path}", why=error.strerror or str(error)) from error
    path.chmod(0o711)
    return path


def await_room(has_room: Callable[[], bool], say: Callable[[str], None]) -> None:
    """Wait until a disk has room, where a service manager would start this server again and again.

    Without one, do nothing: a person is told at once.
    """
    if not os.environ.get("NOTIFY_SOCKET", "") or has_room():
        return
    text = "the disk of the state directory is full: this server starts once there is room"
    say(text)
    while not has_room():
        notify_systemd(f"STATUS={text}\nEXTEND_TIMEOUT_USEC={int(6 * ROOM_POLL_S * 1e6)}")
        time.sleep(ROOM_POLL_S)
    notify_systemd("STATUS=")


def notify_systemd(state: str) -> None:
    """Report a state to the service manager (sd_notify(3)); without one, do nothing."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where:
        return
    if where.startswith("@"):
        where = "\0" + where[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        try:
            manager.sendto(state.encode(), where)
        except OSError:
            return  # it is the manager's loss; the server works without it
