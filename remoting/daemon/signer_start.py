"""Starts the signer, the process that alone can open the CA's key, before the server listens."""

import contextlib
import logging
import os
import socket

from gpupool.remoting.daemon.login_writer import LoginWriter
from gpupool.remoting.privileges import signer_process
from gpupool.remoting.privileges.remote_vault import RemoteVault
from gpupool.remoting.privileges.signer_process import SignerFolders

STDERR = 2


def fork_signer(
    folders: SignerFolders,
    log: logging.Logger,
    login_writer: LoginWriter | None,
    *,
    has_own_user: bool = False,
) -> RemoteVault:
    """Fork the signer off, and wait until it has sealed what was in the clear.

    Must be called while the process has one thread.

    Args:
        folders: what it reads and writes; they stay the caller's.
        log: takes what it says.
        login_writer: another process of this server, if there is one.
        has_own_user: whether the server is to become another one than the signer's.

    Raises:
        GpupoolError: when it does not start.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()  # Ctrl-C is for the server.
            ours.close()
            if login_writer is not None:
                login_writer.hang_up()
            former = folders.former.descriptors if folders.former else ()
            _close_others({theirs.fileno(), folders.own, folders.state, *former})
            signer_process.serve(theirs, folders, log.info)
            code = 0
        except OSError as error:
            log.error("the signer has ended: %s", error)
        finally:
            os._exit(code)
    theirs.close()
    return RemoteVault(ours, pid, has_own_user=has_own_user)


def _close_others(needed: set[int]) -> None:
    """Close what the server has open: its lock on the state directory would outlive it."""
    for name in os.listdir("/dev/fd"):
        if (number := int(name)) > STDERR and number not in needed:
            with contextlib.suppress(OSError):  # of the listing itself
                os.close(number)
