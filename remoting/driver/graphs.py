"""Graphs: captured from streams."""

from gpupool.remoting.driver import table
from gpupool.remoting.driver.api import CAPTURE_RELAXED
from gpupool.remoting.driver.client import WORDS, Area, Client


class Graphs(Area):
    """The graphs of a client process."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.posted = {
            table.BEGIN_CAPTURE: (2, self._begin_capture),
        }
        self.asked = {
            table.END_CAPTURE: (2, self._end_capture),
            table.GRAPH_NODES: (1, self._graph_nodes),
        }

    def _begin_capture(self, stream: int, _mode: int) -> None:
        # Other modes forbid calls to other threads; here all calls come from this one.
        self.api.runtime.streamBeginCapture(self.streams[stream], CAPTURE_RELAXED)

    def _end_capture(self, stream: int, number: int) -> bytes | None:
        graph = int(self.api.runtime.streamEndCapture(self.streams[stream]))
        if self.client.take_failure(self.client.request):
            self.api.call("cuGraphDestroy", graph)
            return None
        self.client.keep("g", number, graph)
        return b""

    def _graph_nodes(self, graph: int) -> bytes:
        outputs = self.api.call("cuGraphGetNodes", self.objects["g"][graph], 0)
        return WORDS[1].pack(int(outputs[-1]))
