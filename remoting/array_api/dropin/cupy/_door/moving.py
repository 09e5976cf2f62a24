"""A session that goes on with another server's worker, at one place in the program's order.

What happens
    1. The new worker greets. No lock is held until then.
    2. The program's calls wait: for the locks of large copies, and then for the sender's lock.
       So every record is either run by the old worker or sent to the new one, and none twice.
    3. The old worker says whether all that it has can be sent, and connects to the new one.
    4. It sends its arrays and objects, and keeps them. The new worker makes them anew, by the
       same handles.
    5. `commit` asks the pool. Up to here the session is the old worker's, whatever fails.
    6. The session takes over the new connection. Numbers of templates and metas begin anew, those
       of handles and calls go on. The old connection is closed, and the old worker ends.

`go_on` runs in a thread of its own, or in one that holds none of these locks.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

from cupy._door import judged, peers, pool, state
from cupy._door.errors import DoorError, visible
from cupy._door.session import Session
from cupy._door.transport import link
from cupy._door.transport.receiver import Reply

GREET_S = 60.0
"""How long the new worker may take to answer at all."""
LOCK_S = 30.0
"""How long other threads' copies and calls may hold a move up."""
STATE_S = 600.0
"""How long the state may be under way."""


class MoveRefusedError(DoorError):
    """A session stays where it is, and nothing has changed for the program."""


def go_on(
    session: Session, offer: dict[str, Any], commit: Callable[[], None] = lambda: None
) -> None:
    """Move a session with all its worker's state to the worker of an offer.

    Args:
        session: alone in its process.
        offer: of a worker that has no client yet, as the agent gives it.
        commit: asks whether the session may go on there; raises if it may not.

    Raises:
        MoveRefusedError: it goes on where it was.
    """
    if session.offer is None or len(pool.sessions()) != 1:
        raise MoveRefusedError("a program with GPUs of several servers stays on them")
    if "peer.prepare" not in session.operations:
        raise MoveRefusedError(f"server {session.name} runs an older gpupool, without this move")
    introductions = peers.introductions([session.offer, offer])
    arrival = _greeted(session, offer, introductions[1])
    try:
        with _still(session):
            _prepare(session, introductions[0])
            _transfer(session, arrival)
            try:
                commit()
            except Exception as error:
                raise MoveRefusedError(visible(error)) from error
            _take_over(session, arrival, offer)
        if judged.linalg_raises:
            pool.tell_of_linalg(session)  # it is a setting of the worker's, and has not moved
    except BaseException:
        if session.offer is not offer:
            arrival.lose("the session stays with another worker")
            arrival.close(wait=False)
        raise


def _greeted(session: Session, offer: dict[str, Any], introduction: Any) -> Session:
    """Return a session with the new worker, which nobody else knows."""
    name = visible(offer["server"])
    try:
        connection = link.Link(link.connect(offer))
    except (OSError, DoorError) as error:
        raise MoveRefusedError(f"cannot reach server {name}: {visible(error)}") from error
    # Without the agent: that the new worker fails says nothing of the lease.
    arrival = Session(connection, None, session.first_device, session.index, name)
    late = threading.Timer(GREET_S, arrival.lose, ("its worker does not answer",))
    late.daemon = True
    late.start()
    try:
        arrival.greet(pool.VERSION, introduction)
        missing = session.operations.keys() - arrival.operations.keys()
        if missing:
            example = sorted(missing)[0]
            raise MoveRefusedError(f"server {name} runs another gpupool, which lacks {example}")
        if len(arrival.devices) != len(session.devices):
            raise MoveRefusedError(f"server {name} gave another number of devices")
    except BaseException as error:
        arrival.close(wait=False)
        if isinstance(error, (MoveRefusedError, KeyboardInterrupt)):
            raise
        raise MoveRefusedError(f"server {name} does not greet: {visible(error)}") from error
    finally:
        late.cancel()
    return arrival


@contextlib.contextmanager
def _still(session: Session) -> Generator[None]:
    """Block all other threads before their next call or copy."""
    until = time.monotonic() + LOCK_S
    parts: Any = session
    lock = parts._sender.lock
    with contextlib.ExitStack() as held:
        quiet = session.shared is None or held.enter_context(session.shared.still(LOCK_S))
        if not quiet or not lock.acquire(timeout=max(0.0, until - time.monotonic())):
            raise MoveRefusedError(f"the program was busy with one copy for {LOCK_S:.0f} s")
        held.callback(lock.release)
        if session.failure is not None:
            raise session.failure
        # Templates of this side's own questions are of the default stream, on the first device.
        with state.on(session.first_device):
            yield


def _prepare(session: Session, introduction: Any) -> None:
    """Tell the old worker to connect to the new one."""
    try:
        why = session.ask("peer.prepare", (introduction, 1), own_error=True)
    except Exception as error:
        if session.failure is not None:
            raise
        raise MoveRefusedError(visible(error)) from error
    if why:
        raise MoveRefusedError(visible(why))


def _transfer(session: Session, arrival: Session) -> None:
    """Copy the state of the old worker to the new one; the old worker keeps it."""
    until = time.monotonic() + STATE_S
    leaving = session.begin("peer.depart", (1,))
    try:
        arriving = arrival.begin("peer.arrive", (0,))
        _await(arrival, arriving, until)
        arrival.answer(arriving, own_error=True)
        problem = ""
    except Exception as error:  # noqa: BLE001 - after any failure the session stays
        problem = visible(error) or type(error).__name__
        # The old worker may be about to send: the end of its link wakes it.
        arrival.lose(problem)
        arrival.close(wait=False)
    try:
        session.answer(leaving, own_error=True)
    except Exception as error:
        if session.failure is not None:
            raise
        problem = problem or visible(error) or type(error).__name__
    if problem:
        raise MoveRefusedError(f"its state could not be sent: {problem}")


def _await(arrival: Session, arriving: Reply, until: float) -> None:
    """Wait for an answer of the new worker, which hears of it when the old one cannot go on."""
    parts: Any = arrival
    while not arriving.done:
        if time.monotonic() > until:
            raise MoveRefusedError(f"it takes longer than {STATE_S:.0f} s")
        parts._receiver.wait(arriving)


def _take_over(session: Session, arrival: Session, offer: dict[str, Any]) -> None:
    """Let a session have the connection, the numbers and the devices of another one."""
    ours: Any = session
    theirs: Any = arrival
    receiver = ours._receiver
    old = ours._connection.link
    # Threads that wait for an answer have it by now, and read at most until the next turn.
    with receiver.reading:
        receiver.use(theirs._connection.link)
        ours._sender.use(theirs._connection.link)
        ours._connection.link = theirs._connection.link
        session.offer, session.name = offer, arrival.name
        ours._handles.begin_anew()
        ours._queue.forget_context()
        ours._heed(arrival.server, pool.VERSION)
        session.forget_room()
        if session.shared is not None:
            session.shared.move(arrival.shared)
        elif arrival.shared is not None:
            arrival.shared.serve(session)
            session.shared = arrival.shared
    old.shut_down()
    old.close()
