"""A worker that answers nonsense after a correct greeting: a word about the server, no escapes."""

import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import cbor2
import pytest

HEADER = struct.Struct("<IBBHIIQ")
ASK = 3
WELCOME, REPLY, DESCRIBED, FAILED, COLLECT, NOTICE = 16, 17, 18, 19, 20, 21
ESCAPE = "\x1b]0;own\x07\x1b[31m\u009b"
NONSENSE = "the server sent something that makes no sense"


def framed(kind: int, body: bytes, request: int = 0, bulk: int = 0) -> bytes:
    return HEADER.pack(len(body), kind, 0, 0, request, 0, bulk) + body


def said(value: object, kind: int = REPLY) -> Callable[[int], bytes]:
    """Return a function that answers a request with one value."""
    return lambda request: framed(kind, cbor2.dumps(value), request if kind == REPLY else 0)


class Worker:
    """The other end: a welcome, then one answer to each question."""

    def __init__(
        self, theirs: socket.socket, welcome: object, answer: Callable[[int], bytes]
    ) -> None:
        self._socket = theirs
        self._welcome = welcome
        self._answer = answer
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _take(self) -> tuple[int, int]:
        head = self._socket.recv(HEADER.size, socket.MSG_WAITALL)
        if len(head) < HEADER.size:
            raise ConnectionError
        length, kind, _, _, request, _, bulk = HEADER.unpack(head)
        for size in (length, bulk):
            if size:
                self._socket.recv(size, socket.MSG_WAITALL)
        return kind, request

    def _run(self) -> None:
        try:
            _, request = self._take()
            self._socket.sendall(framed(REPLY, cbor2.dumps(self._welcome), request))
            while True:
                kind, request = self._take()
                if kind == ASK:
                    self._socket.sendall(self._answer(request))
        except (ConnectionError, OSError):
            pass


def program(cp: Any, worker_of: Callable[[socket.socket], Worker]) -> BaseException | None:
    """Use the worker's first device; return the program's error, or None."""
    ours, theirs = socket.socketpair()
    pool = cp._door.pool
    pool.devices()
    before = len(pool._devices)
    error: BaseException | None = None
    session = array = None
    with theirs, ours:
        worker = worker_of(theirs)
        try:
            session = pool.attach(ours)
            with cp.cuda.Device(before):
                array = cp.arange(8)
                float((array * 2).sum())
                cp.asnumpy(cp.nonzero(array)[0])
                cp.cuda.Device(before).mem_info  # noqa: B018 - asks the worker
        except BaseException as found:  # noqa: BLE001 - the test looks at it
            error = found
        del array
        if session is not None:
            pool._sessions.remove(session)
            del pool._devices[before:]
            session.close()
    worker.thread.join(5)
    assert not worker.thread.is_alive()
    return error


def welcome(cp: Any, **changed: object) -> dict[str, object]:
    names = [name for name, _ in sorted(operations(cp).items(), key=lambda item: item[1])]
    devices = [{"name": "x", "memory": 1 << 30}]
    made: dict[str, object] = {"protocol": 1, "version": "0.1.0"}
    return made | {"operations": names, "devices": devices} | changed


def operations(cp: Any) -> dict[str, int]:
    return cp._door.pool.devices()[0].operations


WELCOMES: dict[str, object] = {
    "no object": 5,
    "nothing": None,
    "an error": {"error": ["KeyError", ESCAPE, None]},
    "no operations": {"operations": None},
    "numbers as operations": {"operations": [5]},
    "no list of operations": {"operations": {}},
    "no devices": {"devices": None},
    "a number of devices": {"devices": 5},
    "a text of devices": {"devices": "x"},
    "numbers as devices": {"devices": [5]},
    "devices without memory": {"devices": [{}]},
    "memory that is no number": {"devices": [{"name": "x", "memory": "much"}]},
    "lists as devices": {"devices": [[]]},
    "too many devices": {"devices": [{"name": "x", "memory": 1}] * 100000},
}


@pytest.mark.parametrize("name", WELCOMES)
def test_a_welcome_that_makes_no_sense_is_said_of_the_server(cp: Any, name: str) -> None:
    changed = WELCOMES[name]
    whole = {**welcome(cp), **changed} if isinstance(changed, dict) else changed
    if name == "an error":
        whole = changed
    error = program(cp, lambda theirs: Worker(theirs, whole, said({"value": None})))
    assert NONSENSE in str(error)
    assert isinstance(error, cp._door.errors.DoorError)


@pytest.mark.parametrize("protocol", [2, None, ESCAPE, 1 << 63])
def test_another_protocol_is_named_without_escapes(cp: Any, protocol: object) -> None:
    other = welcome(cp, protocol=protocol, version=ESCAPE)
    error = program(cp, lambda theirs: Worker(theirs, other, said({"value": None})))
    assert "install the same version" in str(error)
    assert "\x1b" not in str(error)


def raw(body: bytes, kind: int = REPLY, bulk: int = 0) -> Callable[[int], bytes]:
    return lambda request: framed(kind, body, request, bulk)


def value(*parts: object) -> Callable[[int], bytes]:
    """Return a function that answers with a value in the wire's form."""
    return said({"value": list(parts)})


ANSWERS: dict[str, Callable[[int], bytes]] = {
    "too deep": raw(b"\x81" * 100000),
    "2^60 items": raw(b"\x9b" + struct.pack(">Q", 1 << 60)),
    "2^60 letters": raw(b"\x7b" + struct.pack(">Q", 1 << 60)),
    "endless bulk": raw(cbor2.dumps({"value": ["w"]}), bulk=1 << 40),
    "bulk for nobody": raw(cbor2.dumps({"value": 1}), bulk=1 << 40),
    "an unknown kind": raw(b"\xf6", 99),
    "a notice of nothing": said(5, NOTICE),
    "a notice of a list": said([{}], NOTICE),
    "descriptions of nothing": said(5, DESCRIBED),
    "short descriptions": said([[1, 2, 3]], DESCRIBED),
    "a failure of nothing": said(None, FAILED),
    "a failure without a number": said(["x", "KeyError", "y", None], FAILED),
    **{f"the answer {answer}": said(answer) for answer in (5, None, [1, 2])},
    **{f"the error {error}": said({"error": error})
       for error in ([], ["KeyError"], [5, 5, 5], "x", [[], "x", None])},
    "a short handle": value("h", 5),
    "an object array": value("h", 0, "|O", [1], [8], 0),
    "a structure": value("h", 0, "i4,i4", [1], [8], 0),
    "a negative shape": value("h", 0, "<f8", [-1], [8], 0),
    "a huge shape": value("h", 0, "<f8", [1 << 62, 1 << 62], [8, 8], 0),
    "shape and strides that differ": value("h", 0, "<f8", [1, 2], [8], 0),
    "a device that is none": value("h", 0, "<f8", [1], [8], 99),
    "an empty list": value(),
    "half a complex": value("c", 1),
    "an object without a number": value("o", "x"),
    "many tuples": value("t", ["t"] * 50),
    "no bytes": value("w"),
    "a number for bytes": said({"value": 2**63}),
    "nothing for bytes": said({"value": None}),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_makes_no_sense_ends_the_session_with_a_sentence(cp: Any, name: str) -> None:
    error = program(cp, lambda theirs: Worker(theirs, welcome(cp), ANSWERS[name]))
    assert NONSENSE in str(error), repr(error)
    assert isinstance(error, cp.cuda.runtime.CUDARuntimeError)


def test_what_a_server_says_reaches_the_program_without_escapes(cp: Any) -> None:
    whole = welcome(cp)
    kinds = ("KeyError", "SystemExit", "OutOfMemoryError", "CompileException", ESCAPE)
    for kind in kinds:
        answer = said({"error": [kind, f"why: {ESCAPE}\nsecond line", None]})
        error = program(cp, lambda theirs, answer=answer: Worker(theirs, whole, answer))
        assert isinstance(error, Exception)
        assert "why" in str(error) and "\x1b" not in str(error) and "\u009b" not in str(error)
    lost = program(cp, lambda theirs: Worker(theirs, whole, said({"lost": ESCAPE}, NOTICE)))
    assert "arrays of this session are gone" in str(lost)
    assert "\x1b" not in str(lost) and "\x07" not in str(lost)


def test_notices_of_the_agent_are_written_without_escapes(
    cp: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = object.__new__(cp._door.transport.link.Agent)
    agent.lost = ""
    agent._take({"op": "notice", "text": ESCAPE})
    agent._take({"op": "lost", "what": ESCAPE})
    assert "\x1b" not in capsys.readouterr().err + agent.lost
