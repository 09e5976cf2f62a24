"""A signer that the service manager's privileged helper starts, out of reach of the server's user.

Before its first call to the privileged helper the server sends a packet with a descriptor of its
state directory, and those of a former pool's CA if there is one. The privileged helper answers with
the socket of a signer that it has forked off, whose secret and record lie in the privileged
helper's own directory.
"""

import os
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path

from gpupool.pool.errors import GpupoolError
from gpupool.remoting.privileges import signer_process
from gpupool.remoting.privileges.forked import fork
from gpupool.remoting.privileges.former_ca import FILE_COUNT_MAX, FormerCa
from gpupool.remoting.privileges.remote_vault import RemoteVault
from gpupool.remoting.privileges.signer_process import SignerFolders
from gpupool.remoting.transport.descriptor_passing import receive_with_descriptors

WANTED = b"a signer"
"""No call of ``helper_messages`` begins so."""

ANSWER_TIMEOUT_S = 20.0
_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7)


def ask_for_signer(
    helper: socket.socket, state: int, former: FormerCa | None = None
) -> RemoteVault:
    """Ask a privileged helper to start a signer for the server with this state directory.

    Raises:
        GpupoolError: when it does not.
    """
    helper.settimeout(ANSWER_TIMEOUT_S)
    try:
        socket.send_fds(helper, [WANTED], [state, *(former.descriptors if former else ())])
        packet, descriptors = receive_with_descriptors(helper, len(WANTED) + 1, 1)
    except OSError as error:
        raise GpupoolError("the privileged helper starts no signer", why=str(error)) from error
    if packet != WANTED or len(descriptors) != 1:
        for each in descriptors:
            os.close(each)
        raise GpupoolError("the privileged helper starts no signer", why="its log says why")
    return RemoteVault(socket.socket(fileno=descriptors[0]), -1, has_own_user=True)


def start_if_wanted(server: socket.socket, own: Path | None, say: Callable[[str], None]) -> None:
    """Fork a signer off, if the server asks for one first. Must be called with one thread.

    Args:
        server: its packet socket.
        own: the privileged helper's directory, for the signer's secret and record.
        say: takes a line.
    """
    if server.recv(len(WANTED) + 1, socket.MSG_PEEK) != WANTED:
        return
    room = 1 + FILE_COUNT_MAX
    _packet, descriptors = receive_with_descriptors(server, len(WANTED) + 1, room)
    ours = -1
    try:
        reason = _refusal(server, own, descriptors)
        if reason or own is None:
            say(f"no signer is started: {reason}")
        else:
            ours = _fork(server, own, descriptors, say)
        socket.send_fds(server, [WANTED], [ours] if ours >= 0 else [])
    finally:
        for each in (*descriptors, *([ours] if ours >= 0 else [])):
            os.close(each)


def _refusal(server: socket.socket, own: Path | None, descriptors: list[int]) -> str:
    """Return why no signer may have this directory: its files are read and written as root."""
    if own is None:
        return "the privileged helper has no directory for its secret"
    if len(descriptors) == 2 or not 1 <= len(descriptors) <= 1 + FILE_COUNT_MAX:
        return "no state directory came"
    raw = server.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(raw)
    status = os.fstat(descriptors[0])
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != uid:
        return "the state directory is not the server's"
    return ""


def _fork(server: socket.socket, own: Path, given: list[int], say: Callable[[str], None]) -> int:
    """Return the server's end of the signer's socket, as a descriptor.

    Args:
        server: its packet socket.
        own: the privileged helper's directory.
        given: descriptors of the server's state directory, and of the files of a former CA.
        say: takes a line.
    """
    former = FormerCa(given[1], given[2], tuple(given[3:])) if len(given) > 1 else None

    def serve(sock: socket.socket) -> None:
        server.close()
        try:
            folder = os.open(own, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            signer_process.serve(sock, SignerFolders(folder, given[0], former), say)
        except OSError as error:
            say(f"the signer has ended: {error}")
            raise

    return fork(socket.SOCK_SEQPACKET, serve)[0].detach()
