"""Graphs: calls of one stream that were captured, and that one call launches again."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import Any

from cupy._door.calls import Remote, remote_of


class Graph(Remote):
    """The CUDA graph of `cupy.cuda.Stream.end_capture`. It lives in the worker."""

    __slots__ = ()

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise NotImplementedError("a graph is made by the capture of a stream alone")

    def launch(self, stream: Any = None) -> None:
        """Run the calls again, on the current stream by default. Nothing waits."""
        self._gp_session.call("cuda.graph.launch", (self, remote_of(stream)), {})

    def upload(self, stream: Any = None) -> None:
        """Bring the graph to the GPU before its first launch."""
        self._gp_session.call("cuda.graph.upload", (self, remote_of(stream)), {})

    def debug_dot_str(self, flags: int = 0) -> str:
        """Return the graph in the language of Graphviz."""
        return self._gp_session.ask("cuda.graph.dot", (self, int(flags)))
