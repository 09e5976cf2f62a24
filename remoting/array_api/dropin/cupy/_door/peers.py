"""Transfers between workers, which keep array data from passing through the program."""

from __future__ import annotations

import itertools
import os
import secrets
import sys
import threading
from typing import Any

from cupy._door import state, wire
from cupy._door.errors import DoorError, visible
from cupy._door.meta import Meta
from cupy._door.older import zip_strict
from cupy._door.session import Session

_lock = threading.RLock()
"""Held while a transfer is announced to both ends, so that all workers get all transfers in one
order. In different orders, two workers would wait for each other for ever."""
_telling = False


def after_fork() -> None:
    """Make a lock that no thread of the parent holds."""
    global _lock, _telling
    _lock, _telling = threading.RLock(), False


def introductions(offers: list[dict[str, Any]]) -> list[dict[str, Any] | None]:
    """Return an introduction for each worker: the others' addresses, and new keys for the links."""
    if len(offers) < 2 or not all("server_id" in offer for offer in offers):
        return [None] * len(offers)
    keys = [secrets.token_bytes(32) for _ in offers]
    others = [
        [
            offer["server_id"],
            offer["server"],
            bytes.fromhex(offer["session"]),
            bytes.fromhex(offer["certificate_sha256"]),
            offer["encryption"],
            key,
        ]
        for offer, key in zip_strict(offers, keys)
    ]
    return [
        {"key": key, "others": [*others[:at], None, *others[at + 1 :]]}
        for at, key in enumerate(keys)
    ]


def connected(origin: Session, target: Session) -> itertools.count[int] | None:
    """Return the numbers of transfers from one worker to another; None where they cannot meet.

    The first time, this waits until ``origin`` has done what was queued, and has connected.
    """
    try:
        return origin.transfers[target.index]
    except KeyError:
        pass
    why = ""
    if not origin.introduced or not target.introduced:
        why = "they have not been introduced"
    elif os.environ.get("GPUPOOL_PEER_COPIES", "1") in ("", "0"):
        why = "GPUPOOL_PEER_COPIES is 0"
    elif "peer.connect" not in origin.operations or "peer.connect" not in target.operations:
        why = "a server is too old for it"
    else:
        with state.on(origin.first_device):
            why = visible(origin.ask("peer.connect", (target.index,)))
    if why and os.environ.get("GPUPOOL_VERBOSE", "") not in ("", "0"):
        sys.stderr.write(
            f"gpupool: copies from {origin.name} to {target.name} pass through this machine: "
            f"{why}\n"
        )
    return origin.transfers.setdefault(target.index, None if why else itertools.count())


def move(source: Any, target: Session, handle: int, meta: Meta, *, existing: bool) -> int | None:
    """Send the elements of ``source``, in C order, from its worker to the worker of ``target``.

    Args:
        source: an array of another session.
        target: whose current device of this thread gets the elements, in memory order.
        handle: of the array there: a new one, or one that exists.
        meta: the dtype, shape and strides of that array; dense, with as many bytes as ``source``.
        existing: whether it exists.

    Returns:
        the number of its device; None if the workers cannot reach each other: nothing was done.
    """
    origin: Session = source._gp_session
    numbers = connected(origin, target)
    if numbers is None:
        return None
    told = False
    global _telling
    try:
        with _lock:
            if _telling:
                # Only a destructor or a signal's handler in the middle of a copy gets here.
                raise DoorError("a destructor cannot copy between GPU servers at this moment")
            for session in (origin, target):
                if session.failure is not None:
                    raise session.failure
            number = next(numbers)
            record = wire.SEND_RECORD.pack(wire.SEND, target.index, number, source._gp_handle)
            try:
                _telling = True
                with state.on(source._gp_device):
                    told = True
                    origin.post(record)
                device = target.take(origin.index, number, handle, meta, existing=existing)
                told = False
            finally:
                _telling = False
    except BaseException:
        if told and origin.failure is None and target.failure is None:
            # An interrupt between the two: one worker would wait for the other for ever. Where a
            # session is lost, its worker is, and the other one notices.
            for session in (origin, target):
                session.lose("a copy between GPU servers was interrupted half-way")
        raise
    target.check_room(device)
    return device
