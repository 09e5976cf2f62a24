"""Graphs of real GPUs: calls of one stream that are captured once, and launched many times.

While a stream is capturing, its calls are noted and not run, so nothing may wait for it. A copy
from or to this process's memory is refused then, as in CuPy: the graph would use that memory later.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Callable
from typing import Any

REFUSAL = (
    "the current stream is capturing, so copies between the GPU and this program are not possible"
)
DOT_MAX = 8 << 20
"""Characters of a graph's description that are sent."""


class CudaGraphs:
    """The operations of captures and graphs, and the open captures."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self.open: dict[int, Any] = {}
        """Streams that are capturing, by their number in CUDA."""

    def operations(self) -> dict[str, Callable[..., Any]]:
        """Return name to callable."""
        null = self._cupy.cuda.Stream.null
        return {
            "cuda.stream.begin_capture": self.begin,
            "cuda.stream.end_capture": self.end,
            "cuda.stream.is_capturing": lambda made: bool((made or null).is_capturing()),
            "cuda.graph.launch": lambda graph, stream: graph.launch(stream),
            "cuda.graph.upload": lambda graph, stream: graph.upload(stream),
            "cuda.graph.dot": lambda graph, flags: graph.debug_dot_str(flags)[:DOT_MAX],
        }

    def begin(self, stream: Any, mode: int | None) -> None:
        """Begin to capture a stream."""
        stream.begin_capture(mode)
        self.open[stream.ptr] = stream

    def end(self, stream: Any) -> Any:
        """Return the graph of the capture."""
        try:
            return stream.end_capture()
        finally:  # an error ends it, too
            self.open.pop(stream.ptr, None)

    def need_no_capture(self) -> None:
        """Raise if the current stream is capturing."""
        if self.open and self._cupy.cuda.get_current_stream().is_capturing():
            raise RuntimeError(REFUSAL)
