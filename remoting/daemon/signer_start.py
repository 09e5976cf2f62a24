"""Starts the signer, the process that alone can open the CA's key, before the server listens."""

import contextlib
import logging
import os
import socket

from gpupool.remoting.privileges import signer_process
from gpupool.remoting.privileges.forked import fork
from gpupool.remoting.privileges.remote_vault import RemoteVault
from gpupool.remoting.privileges.signer_process import SignerFolders

STDERR = 2


def fork_signer(
    folders: SignerFolders,
    log: logging.Logger,
    *,
    has_own_user: bool = False,
) -> RemoteVault:
    """Fork the signer off, and wait until it has sealed what was in the clear.

    Must be called while the process has one thread.

    Args:
        folders: what it reads and writes; they stay the caller's.
        log: takes what it says.
        has_own_user: whether the server is to become another one than the signer's.

    Raises:
        GpupoolError: when it does not start.
    """

    def serve(sock: socket.socket) -> None:
        os.setsid()  # Ctrl-C is for the server.
        former = folders.former.descriptors if folders.former else ()
        _close_others({sock.fileno(), folders.own, folders.state, *former})
        try:
            signer_process.serve(sock, folders, log.info)
        except OSError as error:
            log.error("the signer has ended: %s", error)
            raise

    return RemoteVault(*fork(socket.SOCK_SEQPACKET, serve), has_own_user=has_own_user)


def _close_others(needed: set[int]) -> None:
    """Close what the server has open: its lock on the state directory would outlive it."""
    for name in os.listdir("/dev/fd"):
        if (number := int(name)) > STDERR and number not in needed:
            with contextlib.suppress(OSError):  # of the listing itself
                os.close(number)
