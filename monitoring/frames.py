"""The messages between a server and its exporter, over their socket pair; pure code.

Those for HTTP are in ``http/http_frames``, and the sample of each second is in ``sample``. Both
ends are always of the same build, so numbers and fields change freely; the exporter's answers are
decoded as strictly as a stranger's all the same, since it is the process that strangers will reach.
"""

from gpupool.pool.history_query import HistoryPage, HistoryQuery
from gpupool.pool.model.bounds import Number
from gpupool.pool.model.forgetting import Forgotten
from gpupool.pool.record_query import RecordPage, RecordQuery
from gpupool.remoting.protocol.message_family import FrameFamily, Message, message

EXPORTER = FrameFamily("observer", size_max=8 << 20)

PAGE_SIZE_MAX = 4 << 20
"""Of a page in an answer; one that is larger is made shorter."""


class ServerMessage(Message, family=EXPORTER):
    """A message from the server."""

    __slots__ = ()


class ExporterMessage(Message, family=EXPORTER):
    """A message from the exporter."""

    __slots__ = ()


@message(1)
class RecordsWritten(ServerMessage):
    """``leases.jsonl`` has new lines."""


@message(7)
class Forget(ServerMessage):
    """All users recently forgotten by the pool."""

    users: tuple[Forgotten, ...]


@message(2)
class Asked(ServerMessage):
    """A question, with a number of the server's choice."""

    number: Number
    query: RecordQuery


@message(3)
class Answered(ExporterMessage):
    """The answer to the question of this number."""

    number: Number
    page: RecordPage


@message(5)
class HistoryAsked(ServerMessage):
    """A history query, with a number of the server's choice."""

    number: Number
    query: HistoryQuery


@message(6)
class HistoryAnswered(ExporterMessage):
    """The answer to the question of this number."""

    number: Number
    page: HistoryPage
