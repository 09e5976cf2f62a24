"""The worker process: it executes the calls of one client process, and reaches its lease alone.

Started as ``python -P -m gpupool.remoting.worker.worker_main CONTROL_FD KEEPER_FD PARENT_PID``. It
confines itself as its privileged helper says, waits warm for a session, does the handshake with the
client itself, and hands the connection to the door. The end of the connection, or of the host, ends
the process: after ``os._exit`` the kernel and the driver free everything at once.
"""

import contextlib
import faulthandler
import importlib
import os
import queue
import socket
import ssl
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpupool.pool.errors import AuthenticationError, GpupoolError, ProtocolError
from gpupool.remoting.devices.cuda_objects import cupy_bindings
from gpupool.remoting.protocol import handshake, worker_messages
from gpupool.remoting.transport.data_connection import read_exactly
from gpupool.remoting.transport.session_stream import PlainStream, SessionStream, TlsStream
from gpupool.remoting.worker import launch_gate, namespaces, sandbox, syscall_filter
from gpupool.remoting.worker.client_handshake import (
    HANDSHAKE_TIMEOUT_S,
    accept_client,
    set_options,
    wait_hangup,
)
from gpupool.remoting.worker.peer_links import INTRODUCTION, Links
from gpupool.remoting.worker.self_confinement import confine_self
from gpupool.remoting.worker.session_report import SessionReport
from gpupool.remoting.worker.worker_channel import BudgetClient, HostGoneError, WorkerChannel

HANDSHAKE_COUNT_MAX = 8
"""Handshakes at a time: an unauthenticated peer that saw the session's name can block only
these."""

LOG_TEXT_MAX = 128 * 1024
"""Characters that a door may log: more than the host logs of one worker."""

KEEPALIVE_LINK = (1, 1, 3)
"""As ``KEEPALIVE_CLIENT``, for another worker: a copy waits for it, so it has 4 s."""

PRELOADED = (
    *("numpy", "numpy.fft", "numpy.linalg", "numpy.random", "numpy.polynomial", "numpy.ma"),
    *("numpy.lib.stride_tricks", "cbor2", "importlib.metadata", "encodings.idna", "unicodedata"),
)
"""Imported while warm, so that no session waits for it."""

PRELOADED_DEVICES = ("gpupool.remoting.devices.base", "gpupool.remoting.devices.emulated")

PRELOADED_CUDA = (*cupy_bindings.MODULES, "cuda.bindings.driver")

PRELOADED_CUPY = (
    *("cupy", "cupyx", "cupyx.scipy.sparse", "cupyx.scipy.special", "cupyx.scipy.fft"),
    "gpupool.remoting.devices.cuda",
)
"""By workers that may serve the array door: CuPy maps 180 MB of CUDA's libraries."""

EXIT_DONE, EXIT_FAILED = 0, 1

if TYPE_CHECKING:
    from gpupool.remoting.worker.certificate import WorkerContext

Door = Callable[[Any, Sequence[Any], Any, Callable[[str], None], Links], None]
AcceptTls = Callable[[socket.socket, tuple[bytes, bytes], bytes], SessionStream | None]
"""A door's own end of TLS: the connection, the worker's identity, the ticket; None: it has none."""

TLS_BEGINS = bytes([handshake.TLS_FIRST_BYTE])


def main(arguments: Sequence[str]) -> None:
    """Run one worker; never returns."""
    faulthandler.enable()
    *descriptors, parent_pid = (int(text) for text in arguments)
    sandbox.die_with_parent(parent_pid)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    channel, helper = (WorkerChannel(socket.socket(fileno=each)) for each in descriptors)
    try:
        confine, start = worker_messages.Confine(), helper.receive()
        if isinstance(start, worker_messages.Confine):
            confine, start = start, helper.receive()
        assert isinstance(start, worker_messages.Start)
        context, ready = _prepare(start, confine, parent_pid)
        helper.send(ready)
        channel.send(ready)
        Worker(channel, helper, start, context, parent_pid, ready.confinement, confine).run()
    except HostGoneError:
        os._exit(worker_messages.EXIT_HOST_GONE)
    except BaseException as error:  # noqa: BLE001 - the last place where it can be told
        traceback.print_exc()
        # A refusal of the machine, as of room on its disk, is no bug of ours.
        said = error.strerror if isinstance(error, OSError) else ""
        why = f"its machine says: {said}" if said else f"bug: {error!r}"
        _try_send(channel, worker_messages.Ended(worker_messages.shortened(why), failed=True))
        os._exit(EXIT_FAILED)


def _prepare(
    start: worker_messages.Start, confine: worker_messages.Confine, parent_pid: int
) -> tuple["WorkerContext", worker_messages.Ready]:
    """Confine this process and import modules for later; return its TLS context and report."""
    own_uid = start.own_uid and (not start.expose or namespaces.expose(start.expose))
    holds = confine_self(start, confine, own_uid=own_uid)
    problem = _preload(start)
    # Imported here and not above, where it would slow down everything before the confinement.
    from gpupool.remoting.worker import kernel_permission
    from gpupool.remoting.worker.certificate import worker_context

    kernel_permission.decide(holds, cuda=start.cuda)

    context, fingerprint = worker_context(Path(start.directory))
    sandbox.die_with_parent(parent_pid)
    if sandbox.hide_memory():
        holds.append("not-dumpable")
    return context, worker_messages.Ready(fingerprint, tuple(holds), problem)


def _preload(start: worker_messages.Start) -> str:
    """Import modules for sessions, without touching a GPU; return the error of CUDA, if any."""
    doors = [path.partition(":")[0] for path in start.doors.values()]
    cuda = (*PRELOADED_CUDA, *(PRELOADED_CUPY if "arrays" in start.doors else ()))
    wanted = (*PRELOADED, *PRELOADED_DEVICES, *doors, *(cuda if start.cuda else ()))
    cuda_problem = ""
    for name in wanted:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - CuPy raises all kinds on a broken installation
            # Only a session that needs it may fail for it, and it will say so.
            if name.partition(".")[0] in ("cupy", "cupy_backends"):
                cuda_problem = f"CuPy cannot be imported on this server: {error}"
                break
            sys.stderr.write(f"not preloaded: {name}: {error}\n")
    return cuda_problem


class Worker:
    """One worker from the moment in which it is warm."""

    def __init__(
        self,
        channel: WorkerChannel,
        helper: WorkerChannel,
        start: worker_messages.Start,
        context: "WorkerContext",
        parent_pid: int,
        confinement: Sequence[str],
        confine: worker_messages.Confine,
    ) -> None:
        self._channel, self._helper = channel, helper
        self._confine, self._confinement = confine, confinement
        self._listener_to: socket.socket | None = None
        self._doors = start.doors
        self._parent_pid = parent_pid
        self._context = context
        self._assign: worker_messages.Assign | None = None
        self._testing = False
        self._budget: BudgetClient | None = None
        self._prepared = threading.Event()
        self._measured = threading.Event()
        self._handshakes = threading.BoundedSemaphore(HANDSHAKE_COUNT_MAX)
        self._log_left = LOG_TEXT_MAX
        self._winner = threading.Lock()  # held for good by the client's connection
        self._dialled: queue.SimpleQueue[socket.socket | str] = queue.SimpleQueue()
        self._peers = Links(self._dial, lambda ids: channel.send(worker_messages.Expecting(ids)))

    def run(self) -> None:
        """Carry out the host's messages until it closes its end."""
        while True:
            message = self._channel.receive()
            if isinstance(message, worker_messages.Assign):
                self._assigned(message)
            elif isinstance(message, worker_messages.Connection):
                self._connection(self._channel.take_descriptor(), message)
            elif isinstance(message, worker_messages.CheckGpu):
                self._test(message)
            elif isinstance(message, worker_messages.Proceed):
                self._measured.set()
            elif isinstance(message, worker_messages.TakeTurns):
                launch_gate.of_worker().attach(self._channel.take_descriptor())
            elif isinstance(message, worker_messages.SendListener):
                self._listener_to = self._channel.take_descriptor()
            elif isinstance(message, worker_messages.Dialled):
                self._dialled.put(message.reason or self._channel.take_descriptor())
            else:
                raise ProtocolError("unexpected message", why=type(message).__name__)

    def _test(self, test: worker_messages.CheckGpu) -> None:
        """Test a GPU: with the means of a warm worker, and nothing of any client."""
        if self._assign is not None or self._testing:
            raise ProtocolError("a worker serves one session")
        self._testing = True
        os.environ["CUDA_VISIBLE_DEVICES"] = "" if test.emulated else test.uuid
        from gpupool.remoting.worker import self_test

        self._start_thread(lambda: self._channel.send(self_test.run(test)))

    def _assigned(self, assign: worker_messages.Assign) -> None:
        if self._assign is not None or self._testing:
            raise ProtocolError("a worker serves one session")
        budget = self._channel.take_descriptor()
        if "own-uid" in self._confinement:
            self._become(assign.uid)
        emulated = all(device.emulated for device in assign.devices)
        if emulated:
            self._helper.close()
        else:
            spilled: Any = importlib.import_module("gpupool.remoting.driver_api.executor.spilled")
            spilled.serve(self._helper.detach())
        if "system-call-filter" in self._confinement:
            tcp = bool(self._confine.ports) and assign.servers > 1
            asks = tcp and "lease-addresses" in self._confinement
            if asks and self._listener_to is None:
                raise ProtocolError("nobody makes the sockets of this worker")
            few = emulated and "few-calls" in self._confine.properties
            syscall_filter.install(few=few, tcp=tcp, listener_to=self._listener_to)
            self._listener_to = None
        if emulated:
            sandbox.limit_data(sum(device.memory for device in assign.devices))
        self._assign = assign
        self._budget = BudgetClient(budget)
        os.environ |= assign.settings | {"CUDA_VISIBLE_DEVICES": assign.cuda_visible}
        self._channel.send(worker_messages.Assigned())
        self._start_thread(self._make_contexts)

    def _become(self, uid: int) -> None:
        """Become the user that the privileged helper names, regardless of the server.

        Raises:
            ProtocolError: when the server names another one.
            PermissionError: when the change did not happen.
        """
        message = self._helper.receive()
        if isinstance(message, worker_messages.JoinNetwork):
            with self._helper.take_file() as network:
                namespaces.join_network(network.fileno())
            message = self._helper.receive()
        if not isinstance(message, worker_messages.Become) or message.uid != uid:
            raise ProtocolError(
                "this worker is to be another user", why="its privileged helper says so"
            )
        sandbox.become(message.uid, message.uid, message.groups)
        sandbox.die_with_parent(self._parent_pid)
        sandbox.hide_memory()

    def _make_contexts(self) -> None:
        """Create the CUDA contexts, so that their overhead is measured before anything else."""
        assert self._assign is not None
        ordinals = [device.ordinal for device in self._assign.devices if not device.emulated]
        if ordinals:
            if self._assign.door == "cuda" and self._assign.servers > 1:
                slices: Any = importlib.import_module(
                    "gpupool.remoting.driver_api.executor.memory.address_slices"
                )
                slices.confine(self._assign.place, self._assign.servers)
            runtime, _ = cupy_bindings.load()
            for ordinal in reversed(ordinals):  # ends on the first device, the current one
                runtime.setDevice(ordinal)
                runtime.free(0)
            self._channel.send(worker_messages.ContextReady())
            self._measured.wait()
        self._prepared.set()

    def _connection(self, sock: socket.socket, what: worker_messages.Connection) -> None:
        if self._assign is None or not self._handshakes.acquire(blocking=False):
            sock.close()
            self._channel.send(worker_messages.Rejected("too many handshakes at a time"))
            return
        self._start_thread(lambda: self._serve_connection(sock, what.lane, plain=what.plain))

    def _serve_connection(self, sock: socket.socket, lane: bytes, *, plain: bool) -> None:
        assert self._assign is not None
        # A descriptor of its own: ``ssl`` takes the other one out of ``sock``.
        line = sock.dup()
        deadline = threading.Timer(HANDSHAKE_TIMEOUT_S, _hang_up, (line,))
        deadline.daemon = True
        deadline.start()
        try:
            set_options(sock)
            if lane:
                self._accept_lane(sock, lane, plain=plain)
                return
            if self._winner.locked():
                self._accept_peer(sock, plain=plain)
                return
            stream, sock = self._accept(sock, self._assign, plain=plain)
            if not self._winner.acquire(blocking=False):
                raise AuthenticationError("data connection refused", why="there is one already")
            # Only now: a client that was accepted but came second must hear of its refusal.
            stream.send_buffers([handshake.ACCEPTED])
        except (OSError, GpupoolError) as error:
            sock.close()
            _hang_up(line)
            self._channel.send(worker_messages.Rejected(worker_messages.shortened(str(error))))
            return
        finally:
            deadline.cancel()
            line.close()
            self._handshakes.release()
        self._serve(stream, sock)

    def _accept(
        self, sock: socket.socket, assign: worker_messages.Assign, *, plain: bool
    ) -> tuple[SessionStream, socket.socket]:
        """Do the handshake of the client, by the door's own TLS where it has one.

        Raises:
            GpupoolError: when the client did not prove that it knows the ticket.
            OSError: when the connection broke.
        """
        sock.settimeout(HANDSHAKE_TIMEOUT_S)
        if sock.recv(1, socket.MSG_PEEK) == TLS_BEGINS:
            module, _, _ = self._doors[assign.door].partition(":")
            accept: AcceptTls | None = getattr(importlib.import_module(module), "accept_tls", None)
            sock.setblocking(True)
            stream = accept(sock, self._context.identity, assign.ticket) if accept else None
            if stream is not None:
                return stream, sock
        proven = accept_client(sock, self._context, assign, plain=plain)
        return _stream(proven), proven

    def _accept_lane(self, sock: socket.socket, lane: bytes, *, plain: bool) -> None:
        """Do the handshake of a further connection of the client, which the door takes over.

        Raises:
            GpupoolError: when it is none.
            OSError: when the connection broke.
        """
        ids, take = self._peers.lane_ids, self._peers.take_lane
        if self._assign is None or ids is None or take is None or lane not in ids:
            raise AuthenticationError("data connection refused", why="nobody asked for it")
        ticket = handshake.lane_ticket(self._assign.ticket, lane)
        identity: tuple[bytes, bytes] | None = self._context.identity
        sock.settimeout(HANDSHAKE_TIMEOUT_S)
        if sock.recv(1, socket.MSG_PEEK) != TLS_BEGINS:
            expected = replace(self._assign, session=lane, ticket=ticket)
            sock, identity = accept_client(sock, self._context, expected, plain=plain), None
        sock.setblocking(True)
        take(ids.index(lane), sock, identity, ticket)

    def _accept_peer(self, sock: socket.socket, *, plain: bool) -> None:
        """Do the handshake with another worker of the client, which has introduced them.

        Raises:
            GpupoolError: when it is none.
            OSError: when the connection broke.
        """
        assert self._assign is not None
        set_options(sock, KEEPALIVE_LINK)
        if not self._peers.key:
            raise AuthenticationError("data connection refused", why="there is one already")
        expected = replace(self._assign, ticket=self._peers.key)
        proven = accept_client(sock, self._context, expected, plain=plain)
        try:
            proven.sendall(handshake.ACCEPTED)
            (index,) = INTRODUCTION.unpack(read_exactly(proven, INTRODUCTION.size))
            self._peers.accept(index, _stream(proven))
        except BaseException:
            proven.close()
            raise

    def _dial(self, server: str) -> socket.socket:
        """Ask the host to connect to another server of the lease; raise OSError if it cannot."""
        self._channel.send(worker_messages.Dial(server))
        dialled = self._dialled.get()
        if isinstance(dialled, str):
            raise OSError(dialled)
        set_options(dialled, KEEPALIVE_LINK)
        return dialled

    def _serve(self, stream: SessionStream, sock: socket.socket) -> None:
        """Run the door until the client has gone, then end the process."""
        from gpupool.remoting.devices.base import DeviceSpec

        assert self._assign is not None
        self._peers.may_encrypt = stream.transport == "tls"
        self._channel.send(worker_messages.Connected(stream.transport))
        self._start_thread(lambda: self._watch_hangup(sock.fileno()))
        report = SessionReport(stream, sock, self._peers, self._channel.send)
        self._start_thread(report.run)
        self._prepared.wait()
        devices = [
            DeviceSpec(
                index=device.index,
                uuid=device.uuid,
                name=device.name,
                memory=device.memory,
                emulated=device.emulated,
                ordinal=device.ordinal,
            )
            for device in self._assign.devices
        ]
        door = self._find_door(self._assign.door)
        door(stream, devices, self._budget, self._log, self._peers)
        stream.close()
        report.send_last()
        self._end("the client has closed", failed=False)

    def _find_door(self, name: str) -> Door:
        module, _, function = self._doors[name].partition(":")
        return getattr(importlib.import_module(module), function)

    def _watch_hangup(self, descriptor: int) -> None:
        """End the process when the client hangs up while the door is busy and does not read."""
        wait_hangup(descriptor)
        self._end("the client has gone", failed=False)

    def _log(self, text: str) -> None:
        self._log_left -= len(text)
        if self._log_left < 0:
            return  # The host would not log it either.
        self._channel.send(worker_messages.Log(worker_messages.shortened(text)))

    def _start_thread(self, target: Callable[[], None]) -> None:
        def run() -> None:
            try:
                target()
            except HostGoneError:
                os._exit(worker_messages.EXIT_HOST_GONE)
            except BaseException as error:  # noqa: BLE001 - ends this process, with its reason
                traceback.print_exc()
                self._end(f"{type(error).__name__}: {error}", failed=True)

        threading.Thread(target=run, daemon=True).start()

    def _end(self, reason: str, *, failed: bool) -> None:
        _try_send(self._channel, worker_messages.Ended(worker_messages.shortened(reason), failed))
        os._exit(EXIT_FAILED if failed else EXIT_DONE)


def _stream(sock: socket.socket) -> SessionStream:
    return TlsStream(sock) if isinstance(sock, ssl.SSLSocket) else PlainStream(sock)


def _hang_up(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # It is closed already, by the client or the handshake.
        sock.shutdown(socket.SHUT_RDWR)


def _try_send(channel: WorkerChannel, message: worker_messages.WorkerMessage) -> None:
    try:
        channel.send(message)
    except HostGoneError:
        os._exit(worker_messages.EXIT_HOST_GONE)


if __name__ == "__main__":
    main(sys.argv[1:])
