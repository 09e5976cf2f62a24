"""The private copy of pysyncobj's core: loaded, audited, and cut off from the world.

pysyncobj 0.3.17 as it ships executes code that any peer sends, and reads the time and chance of the
process. ``library.py`` builds on this copy instead.

- The copy of the module ``pysyncobj.syncobj`` is loaded here, and only that copy is changed: its
  clock, randomness, journal, poller, serializer and pickle. The package that others may import
  stays as it is.
- At import the sources of all methods that are overridden or relied on are compared with the
  audited ones; another version of the library is refused rather than trusted.
- ``pickle`` is replaced by a closed CBOR codec. None of the remaining code paths reaches it; the
  replacement is there so that one that was overlooked still could not execute anything.

**Time and chance.** The library reads both from module globals. Here these globals ask the core
that is being stepped (a context variable that ``Stepping`` sets), so that many cores with clocks
and seeds of their own can live in one process.
"""

import hashlib
import importlib.util
import inspect
from contextvars import ContextVar, Token
from types import ModuleType

from gpupool.consensus.protocol import closed_cbor
from gpupool.pool.model.ids import Plain
from gpupool.pool.ports import Randomness

# First 16 hex digits of the SHA-256 of each method's source in pysyncobj 0.3.17, for the methods
# that are overridden (their callers rely on what they do) and those that run as they are.
AUDITED = {
    "__init__": "09df12cd7fd7d727",
    "_onTick": "cc9eb08232d005ba",
    "_checkCommandsToApply": "a386a8079361d204",
    "_applyCommand": "827f207d515b2d64",
    "_doDestroy": "8a6c9f892614a4b9",
    "_SyncObj__applyLogEntries": "073db677773b5a2d",
    "_SyncObj__doApplyCommand": "1ea7aa506e950d0a",
    "_SyncObj__onMessageReceived": "ddfe34b6c0282179",
    "_SyncObj__callErrCallback": "6037c14ef64c2763",
    "_SyncObj__sendNextNodeIdx": "68aaeefc267b8896",
    "_SyncObj__generateRaftTimeout": "92ed37d3620e781a",
    "_SyncObj__onNodeConnected": "2655afb481b4c69b",
    "_SyncObj__onNodeDisconnected": "a81c0475ba2218cc",
    "_SyncObj__getCurrentLogIndex": "e5af22ca246686bd",
    "_SyncObj__getCurrentLogTerm": "1cb8867e6a13d397",
    "_SyncObj__getPrevLogIndexTerm": "6766914806ae2311",
    "_SyncObj__getEntries": "e29c4b33293b2101",
    "_SyncObj__deleteEntriesFrom": "3b23c411bb903d36",
    "_SyncObj__deleteEntriesTo": "b7b29988856a66b3",
    "_SyncObj__onBecomeLeader": "5a3fd97bc17dc1cf",
    "_SyncObj__setCurrentTerm": "0ad5bf456ac06bd3",
    "_SyncObj__setState": "2c1f239f7bd79b39",
    "_SyncObj__onLeaderChanged": "53b7685e1d897887",
    "_SyncObj__sendAppendEntries": "9cb9073128c392fa",
    "_SyncObj__connectedToAnyone": "acd40e9e3ac6c4cc",
    "_SyncObj__changeCluster": "66b42884f9d2dbd1",
    "_SyncObj__doChangeCluster": "247d4d4101b8cd3c",
    "_SyncObj__parseChangeClusterRequest": "b2d5d695b12e592f",
    "_SyncObj__tryLogCompaction": "c2f8a0ec14cc7312",
    "_SyncObj__loadDumpFile": "ec66e83905de703b",
    "_SyncObj__updateClusterConfiguration": "e2de42f3d1a46c96",
    "_SyncObj__onSetCodeVersion": "17b050edb193c853",
    "_isLeader": "56c32c31db26cdc0",
}


class Stepping:
    """One core's clock and randomness; the library sees them inside its ``with`` block."""

    __slots__ = ("_tokens", "now", "randomness")

    def __init__(self, randomness: Randomness) -> None:
        self.now = 0.0
        self.randomness = randomness
        self._tokens: list[Token[Stepping]] = []  # of this core's ``with`` blocks, the inner last

    def __enter__(self) -> None:
        self._tokens.append(_ACTIVE.set(self))

    def __exit__(self, *_error: object) -> None:
        _ACTIVE.reset(self._tokens.pop())


_ACTIVE: ContextVar[Stepping] = ContextVar("the core that is being stepped")


class _LibraryRng:
    """Replaces the library's module global ``random``."""

    def random(self) -> float:
        return _ACTIVE.get().randomness.random()


class _NoPoller:
    """Replaces the library's poller: there are no sockets here."""

    def poll(self, _timeout_s: float) -> None:
        return


class _NoSerializer:
    """Replaces the library's snapshot writer: ``snapshot.py`` does that work."""

    def __init__(self, *_arguments: object) -> None:
        return


class _ClosedPickle:
    """Replaces the library's ``pickle``: plain values as strict CBOR, nothing executable."""

    def dumps(self, value: Plain, protocol: int | None = None) -> bytes:
        del protocol
        return closed_cbor.encode(value)

    def loads(self, data: bytes) -> Plain:
        return closed_cbor.decode(data)


def _load_library() -> ModuleType:
    """Return a copy of ``pysyncobj.syncobj`` that nobody else can see, with our globals in it."""
    spec = importlib.util.find_spec("pysyncobj.syncobj")
    if spec is None or spec.loader is None:
        raise ImportError("pysyncobj is not installed")
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    replacements: dict[str, object] = {
        "monotonicTime": lambda: _ACTIVE.get().now,
        "random": _LibraryRng(),
        "pickle": _ClosedPickle(),
        "createJournal": lambda journal: journal,  # type: ignore[reportUnknownLambdaType]
        "createPoller": lambda _kind: _NoPoller(),  # type: ignore[reportUnknownLambdaType]
        "Serializer": _NoSerializer,
        "PIPE_NOTIFIER_ENABLED": False,
    }
    for name, replacement in replacements.items():
        if not hasattr(library, name):
            raise ImportError(f"pysyncobj has no {name}: this is not version 0.3.17")
        setattr(library, name, replacement)
    return library


def check_library(base: type) -> None:
    """Raise ``ImportError`` unless all audited methods of ``base`` are those of 0.3.17."""
    for name, expected in AUDITED.items():
        method = base.__dict__.get(name)
        source = inspect.getsource(method) if inspect.isfunction(method) else ""
        digest = hashlib.sha256(source.encode()).hexdigest()
        if not digest.startswith(expected):
            raise ImportError(
                f"pysyncobj's {name} is not the audited one of version 0.3.17; "
                "install pysyncobj==0.3.17"
            )


LIBRARY = _load_library()
check_library(LIBRARY.SyncObj)
