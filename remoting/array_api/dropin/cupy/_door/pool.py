"""All sessions of this process, and the devices of each."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import Any

from cupy._door import following, judged, peers, state, waits
from cupy._door.cuda_errors import CUDARuntimeError, NoSessionError
from cupy._door.errors import DoorError, NotConnectedError, visible
from cupy._door.older import zip_strict
from cupy._door.session import Session
from cupy._door.transport import link

VERSION = "0.1.0"

_LINALG = "door.linalg_errors"

_lock = threading.RLock()
_sessions: list[Session] = []
_devices: list[Session] = []
_pid = os.getpid()


def attach(
    connection: Any,
    agent: link.Agent | None = None,
    name: str = "the GPU server",
    introduction: dict[str, Any] | None = None,
) -> Session:
    """Greet the worker at the other end of a connected socket; its devices come after others.

    ``introduction`` tells the worker about the program's other workers.
    """
    session = Session(link.Link(connection), agent, len(_devices), len(_sessions), name)
    try:
        session.greet(VERSION, introduction)
    except BaseException:
        session.close()
        raise
    with _lock:
        if agent is not None:
            agent.sessions.append(session)
        _sessions.append(session)
        _devices.extend([session] * len(session.devices))
    if judged.linalg_raises:
        tell_of_linalg(session)
    return session


def tell_of_linalg(session: Session) -> None:
    """Tell a worker to raise, or to ignore, `linalg` errors that only the elements show."""
    if _LINALG in session.operations and session.failure is None:
        session.call(_LINALG, (judged.linalg_raises,), {})


def _open() -> None:
    path = os.environ.get("GPUPOOL_AGENT")
    if not path:
        raise NotConnectedError(
            "this `cupy` computes on GPUs of a pool, and there is no GPU session here; start the "
            "program with: gpupool run -- python ..., or gpupool emulate for an emulated GPU"
        )
    agent = link.Agent(path)
    try:
        answer = agent.open_session()
        for notice in answer.get("notices", []):
            sys.stderr.write(f"gpupool: {visible(notice)}\n")
        # Servers are skipped of which CUDA_VISIBLE_DEVICES names no device; it may name one twice.
        offers = [offer for offer in answer["sessions"] if "session" in offer]
        if not offers:
            wrong = (100, "NoDevice: no CUDA-capable device is detected")
            if not answer["sessions"]:
                wrong = (101, "InvalidDevice: invalid device ordinal")
            raise CUDARuntimeError(wrong[0], f"cudaError{wrong[1]}")
        for offer, introduction in zip_strict(offers, peers.introductions(offers)):
            made = attach(link.connect(offer), agent, str(offer["server"]), introduction)
            made.offer = offer
        if limit := os.environ.get("CUPY_GPU_MEMORY_LIMIT", "").strip():
            from cupy.cuda.memory import limit_pool

            for device in range(len(_devices)):
                with state.on(device):
                    limit_pool(limit)
        if len(offers) == 1:
            following.start(_sessions[0])
    except BaseException:
        agent.close()
        reset()
        raise


def devices() -> list[Session]:
    """Return the session of every device, by the device's number; connects at first use."""
    if not _devices:
        with _lock:
            if not _devices:
                try:
                    _open()
                except NotConnectedError as error:
                    raise NoSessionError(100, str(error)) from error
    return _devices


def current() -> Session:
    """Return the session of this thread's current device."""
    found = _devices or devices()
    number = state.local.context[0]
    if number >= len(found):
        raise DoorError(f"device {number} does not exist: there are {len(found)}")
    return found[number]


def sessions() -> list[Session]:
    """Return the sessions that are open; connects to none."""
    return list(_sessions)


def reset() -> None:
    """Forget all sessions, so that the next use opens new ones."""
    with _lock:
        _sessions.clear()
        _devices.clear()


def _after_fork() -> None:
    # The worker belongs to the parent. A byte from here would corrupt the parent's stream, so
    # the descriptors are only closed, and the child asks for a session of its own when it needs
    # one. Locks may have been held by threads that do not exist here.
    global _lock
    _lock = threading.RLock()
    peers.after_fork()
    following.after_fork()
    for session in _sessions:
        if session.agent is not None:
            session.agent.close()
        session.abandon(
            "this array belongs to the parent process: a forked process has GPU memory of its "
            "own; pass arrays between processes by pickling them or with cupy.asnumpy"
        )
    _sessions.clear()
    _devices.clear()
    state.reset()


def _at_exit() -> None:
    # The error that ends the program is known by now. Who presses Ctrl-C waits for no results.
    interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
    for session in _sessions:
        try:
            session.close(wait=not interrupted)
        except Exception as error:  # noqa: BLE001 - the process ends; all that is left is to say so
            sys.stderr.write(f"cupy: {type(error).__name__}: {visible(error)}\n")
            for note in getattr(error, "__notes__", []):
                sys.stderr.write(f"cupy: {visible(note)}\n")
    for line in waits.told(session.waits for session in _sessions):
        sys.stderr.write(f"gpupool: {line}\n")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
