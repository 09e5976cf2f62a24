"""Graphs: captured from streams or built node by node.

Nodes have the client's numbers. Those that a capture or a clone makes get theirs when the client
asks for the graph, from a block of numbers that it sends along.
"""

import ctypes
import struct
from dataclasses import dataclass, field
from typing import Any

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.api import (
    CAPTURE_RELAXED,
    ILLEGAL_STATE,
    INVALID_VALUE,
    CudaError,
)
from gpupool.remoting.driver_api.executor.client_state import WORDS, Client, HandlerGroup
from gpupool.remoting.driver_api.executor.direct import Direct
from gpupool.remoting.driver_api.executor.graphs import node_params
from gpupool.remoting.driver_api.executor.graphs.node_params import (
    COPY_SIZE,
    PARAMS_SIZE,
    Translator,
)

NODES_MAX = 65536
"""Nodes of one graph that a client may ask for."""

CAPTURING = 1
"""Of CUstreamCaptureStatus."""

EDGES_MAX = 1 << 20
EDGES_AT_ONCE = 4096
CHILDREN_MAX = 64
ATTRIBUTE_SIZE = 64
NODE = struct.Struct("<5Q")
EDGE = struct.Struct("<QQ8s")
FRONT = struct.Struct("<Q8s")
COPIES = {
    (True, False): "cuMemcpyHtoDAsync_v2",
    (False, True): "cuMemcpyDtoHAsync_v2",
    (False, False): "cuMemcpyDtoDAsync_v2",
    (True, True): "cuMemcpyAsync",
}
"""By whether the source, and whether the target, is the host's memory."""


@dataclass(slots=True)
class Node:
    """A node that the client has a number for."""

    handle: int
    graph: int
    children: list[int] = field(default_factory=list[int])  # graphs within it


@dataclass(slots=True)
class Allocation:
    """Memory that a node of a graph allocates."""

    address: int
    size: int
    device: int


@dataclass(slots=True)
class Graph:
    """State of a graph beside CUDA's handle."""

    numbers: dict[int, int] = field(default_factory=dict[int, int])  # by a node's handle


class Graphs(HandlerGroup):
    """The graphs of a client process."""

    def __init__(self, client: Client, direct: Direct, translator: Translator) -> None:
        super().__init__(client)
        self._direct = direct
        self._translator = translator
        self.nodes: dict[int, Node] = {}
        self.known: dict[int, Graph] = {}
        self._issued: set[int] = set()  # nodes that the launcher knows
        self._begun: set[int] = set()  # graphs that a capture has made, and not yet ended
        self._with_memory = False  # some node of some graph allocates or frees
        self.methods = {
            "BEGIN_CAPTURE": self._begin_capture,
            "BEGIN_CAPTURE_TO": self._begin_capture_to,
            "CAPTURE_DEPENDENCIES": self._capture_dependencies,
            "CAPTURE_COPY": self._capture_copy,
            "CAPTURE_FREE": self._capture_free,
            "GRAPH_CREATE": self._create,
            "GRAPH_DESTROY": self._destroy,
            "GRAPH_CLONE": self._clone,
            "GRAPH_NODE": self._add,
            "GRAPH_REMOVE": self._remove,
            "GRAPH_EDGES": self._edges,
            "GRAPH_SET_ATTRIBUTE": self._set_attribute,
            "GRAPH_COPY_ATTRIBUTES": self._copy_attributes,
            "END_CAPTURE": self._end_capture,
            "CAPTURE_ALLOCATE": self._capture_allocate,
            "GRAPH_ALLOCATE": self._add_allocation,
            "GRAPH_FIND": self._find,
            "GRAPH_GET_ATTRIBUTE": self._get_attribute,
            "GRAPH_CONDITION": self._condition,
            "GRAPH_READ": self._read,
        }

    def handle(self, number: int) -> int:
        """Return CUDA's handle of a graph."""
        return self.objects["g"][number]

    def number(self, graph: int, node: int) -> int:
        """Return the client's number of a node, 0 when it has none."""
        return self.known[graph].numbers.get(node, 0) if graph in self.known else 0

    def memory_of(self, handle: int) -> tuple[list[Allocation], list[int]]:
        """Return the allocations of a CUDA graph's nodes, and the addresses that they free.

        Of this the driver is asked: what a client says of its graphs might be wrong.
        """
        allocations, freed = list[Allocation](), list[int]()
        for node in self._nodes_of(handle) if self._with_memory else ():
            kind = ctypes.c_int(0)
            self._direct.call("cuGraphNodeGetType", node, kind)
            if kind.value == node_params.GRAPH:
                inner = self.memory_of(self._child(node))
                allocations += inner[0]
                freed += inner[1]
            elif kind.value in (node_params.ALLOCATE, node_params.FREE):
                params = node_params.Params(
                    bytearray(self._translator.from_cuda(kind.value, node)[0])
                )
                if kind.value == node_params.FREE:
                    freed.append(params.word(node_params.UNION))
                    continue
                address = params.word(node_params.ALLOCATE_ADDRESS)
                size = params.word(node_params.ALLOCATE_BYTES)
                device = params.index(node_params.ALLOCATE_DEVICE)
                allocations.append(Allocation(address, size, device))
        return allocations, freed

    def _nodes_of(self, handle: int) -> list[int]:
        count = ctypes.c_size_t(0)
        self._direct.call("cuGraphGetNodes", handle, None, count)
        found = (ctypes.c_uint64 * max(count.value, 1))()
        if count.value:
            self._direct.call("cuGraphGetNodes", handle, found, count)
        return list(found)[: count.value]

    def _keep_graph(self, number: int, handle: int) -> None:
        self.client.keep("g", number, handle)
        self.known[number] = Graph()

    def _keep_node(self, graph: int, number: int, handle: int) -> Node:
        numbers = self.known[graph].numbers
        if number in self.nodes or len(numbers) >= NODES_MAX:
            raise RemoteProtocolError("a node that cannot be made", why=str(number))
        self.nodes[number] = made = Node(handle, graph)
        numbers[handle] = number
        return made

    def _forget(self, graph: int) -> None:
        """Drop the numbers of a graph's nodes and of the graphs within them."""
        for number in self.known.pop(graph, Graph()).numbers.values():
            self._end_issuing(number)
            for child in self.nodes.pop(number).children:
                self._forget(child)
        self.objects["g"].pop(graph, None)

    def issue(self, number: int) -> None:
        """Register a changed graph node with the launcher: mostly the same nodes change again."""
        if self.client.launcher is not None and number not in self._issued:
            self._issued.add(number)
            self.client.launcher.keep("n", number, self.nodes[number].handle)

    def _end_issuing(self, number: int) -> None:
        if number in self._issued:
            self._issued.discard(number)
            self.client.end_issuing("n", number)

    # --- capture ----------------------------------------------------------------------------------

    def _begin_capture(self, stream: int, _mode: int, graph: int) -> None:
        # Other modes forbid calls to other threads; here all calls come from this one.
        with self.client.captures.lock:
            self.api.runtime.streamBeginCapture(self.streams[stream], CAPTURE_RELAXED)
            self.client.captures.begin(stream)
        self._keep_graph(graph, self._captured(stream)[1])
        self._begun.add(graph)

    def _begin_capture_to(
        self, stream: int, _mode: int, graph: int, count: int, front: memoryview
    ) -> None:
        nodes, data = self._node_list(count, front)
        handle = self.streams[stream]
        with self.client.captures.lock:
            self._direct.call(
                "cuStreamBeginCaptureToGraph", handle, self.handle(graph), nodes, data, count,
                CAPTURE_RELAXED,
            )  # fmt: skip
            self.client.captures.begin(stream)

    def _end_capture(self, stream: int, number: int) -> bytes | None:
        own = number in self._begun
        self._begun.discard(number)
        self.client.captures.end(stream)
        try:
            graph = int(self.api.runtime.streamEndCapture(self.streams[stream]))
        except self.api.errors:
            if own:
                self._forget(number)
            self.client.forget_failure()  # this error tells of the spoiled capture
            raise
        if self.objects["g"].get(number) != graph:
            raise RemoteProtocolError("a capture that ends in another graph")
        if not self.client.take_failure():
            return b""
        if own:
            self._forget(number)
            self._direct.call("cuGraphDestroy", graph)
        return None

    def _captured(self, stream: int) -> tuple[int, int, list[tuple[int, bytes]]]:
        """Return the status of a capture, its graph, and the dependencies of its next node."""
        status, count = ctypes.c_int(0), ctypes.c_size_t(0)
        serial, graph = ctypes.c_uint64(0), ctypes.c_uint64(0)
        nodes, data = ctypes.c_uint64(0), ctypes.c_uint64(0)
        self._direct.call(
            "cuStreamGetCaptureInfo_v3", self.streams[stream], status, serial, graph, nodes, data,
            count,
        )  # fmt: skip
        front: list[tuple[int, bytes]] = []
        for at in range(count.value):
            node = ctypes.c_uint64.from_address(nodes.value + 8 * at).value
            edge = ctypes.string_at(data.value + 8 * at, 8) if data.value else bytes(8)
            front.append((node, edge))
        return status.value, graph.value, front

    def _node_list(self, count: int, front: memoryview) -> tuple[Any, Any]:
        """Return handles and edge data of nodes that a record names."""
        if count > EDGES_AT_ONCE:
            raise RemoteProtocolError("malformed record")
        handles, data = (ctypes.c_uint64 * max(count, 1))(), bytearray()
        for at, (number, edge) in enumerate(FRONT.iter_unpack(front)):
            handles[at] = self.nodes[number].handle
            data += edge
        return handles, bytes(data)

    def _capture_dependencies(self, stream: int, flags: int, count: int, front: memoryview) -> None:
        nodes, data = self._node_list(count, front)
        self._direct.call(
            "cuStreamUpdateCaptureDependencies_v2", self.streams[stream], nodes, data, count, flags
        )

    def _capture_copy(self, stream: int, copy: memoryview) -> None:
        made = self._translator.copy_to_cuda(bytes(copy[:COPY_SIZE]))
        width, height, depth = node_params.EXTENT.unpack_from(made, 2 * node_params.BOX_SIZE)
        source = node_params.BOX.unpack_from(made)
        target = node_params.BOX.unpack_from(made, node_params.BOX_SIZE)
        handle = self.streams[stream]
        plain = all(box[4] != node_params.IN_ARRAY for box in (source, target))
        if height != 1 or depth != 1 or not plain:
            self._direct.call("cuMemcpy3DAsync_v2", made, handle)
            return
        # Of both sides, the address is in the field of their kind. The node is of the same kinds,
        # which the program may not change later.
        of, to = (box[5] if box[4] == node_params.ON_HOST else box[6] for box in (source, target))
        name = COPIES[source[4] == node_params.ON_HOST, target[4] == node_params.ON_HOST]
        self._direct.call(name, to, of, width, handle)

    def _check_captured(self, stream: int, graph: int) -> None:
        """Raise CudaError unless a stream captures into a graph: else memory were not counted."""
        if self._captured(stream)[:2] != (CAPTURING, self.handle(graph)):
            raise CudaError(ILLEGAL_STATE, "cuMemAllocAsync")
        self._with_memory = True

    def _capture_allocate(self, stream: int, graph: int, size: int, number: int) -> bytes:
        self._check_captured(stream, graph)
        address = self._direct.get("cuMemAllocAsync", size, self.streams[stream])
        _, _, front = self._captured(stream)
        if len(front) == 1:
            self._keep_node(graph, number, front[0][0])
        return WORDS[1].pack(address)

    def _capture_free(self, stream: int, graph: int, address: int) -> None:
        self._check_captured(stream, graph)
        self.api.runtime.freeAsync(address, self.streams[stream])

    # --- building ---------------------------------------------------------------------------------

    def _create(self, number: int) -> None:
        self._keep_graph(number, self._direct.get("cuGraphCreate", 0))

    def _destroy(self, number: int) -> None:
        handle = self.handle(number)
        self._forget(number)
        self._direct.call("cuGraphDestroy", handle)

    def _clone(self, original: int, number: int) -> None:
        self._keep_graph(number, self._direct.get("cuGraphClone", self.handle(original)))

    def _find(self, original: int, clone: int) -> bytes:
        node, graph = self.nodes[original].handle, self.handle(clone)
        found = self._direct.get("cuGraphNodeFindInClone", node, graph)
        return WORDS[1].pack(self.number(clone, found))

    def _add(
        self, graph: int, number: int, edges: int, children: int, _size: int, described: memoryview
    ) -> None:
        self._add_node(graph, number, edges, children, described)

    def _add_allocation(
        self, graph: int, number: int, edges: int, children: int, _size: int, described: memoryview
    ) -> bytes:
        params = self._add_node(graph, number, edges, children, described)
        if params.kind != node_params.ALLOCATE:
            raise RemoteProtocolError("a node that nobody needs to wait for")
        return WORDS[1].pack(params.word(node_params.ALLOCATE_ADDRESS))

    def _add_node(
        self, graph: int, number: int, edges: int, children: int, described: memoryview
    ) -> node_params.Params:
        if edges > EDGES_AT_ONCE or children > CHILDREN_MAX:
            raise RemoteProtocolError("malformed record")
        rest = bytes(described)
        on, data = (ctypes.c_uint64 * max(edges, 1))(), bytearray()
        for at in range(edges):
            node, edge = FRONT.unpack_from(rest, at * 16)
            on[at] = self.nodes[node].handle
            data += edge
        start = edges * 16
        numbers = struct.unpack_from(f"<{children}Q", rest, start)
        start += children * 8
        given = rest[start : start + PARAMS_SIZE]
        params = self._translator.to_cuda(given, rest[start + PARAMS_SIZE :])
        handle = self._direct.get(
            "cuGraphAddNode_v2", self.handle(graph), on, bytes(data) if any(data) else None, edges,
            params.pointer(),
        )  # fmt: skip
        made = self._keep_node(graph, number, handle)
        self._note(made, params, numbers)
        return params

    def _note(self, made: Node, params: node_params.Params, numbers: tuple[int, ...]) -> None:
        """Remember the graphs within a new node, and whether it takes or gives memory."""
        kind = params.kind
        if kind == node_params.GRAPH and len(numbers) == 1:
            child = self._child(made.handle)
            if self.objects["g"].get(numbers[0]) == child:  # the graph itself has moved there
                made.children.append(numbers[0])
            else:
                self._keep_within(made, numbers[0], child)
        elif kind == node_params.CONDITIONAL:
            bodies = params.word(node_params.CONDITIONAL_BODIES)
            for at, number in enumerate(numbers):
                self._keep_within(made, number, ctypes.c_uint64.from_address(bodies + 8 * at).value)
        elif kind in (node_params.ALLOCATE, node_params.FREE):
            self._with_memory = True

    def _child(self, node: int) -> int:
        found = ctypes.c_uint64(0)
        self._direct.call("cuGraphChildGraphNodeGetGraph", node, found)
        return found.value

    def _keep_within(self, node: Node, number: int, handle: int) -> None:
        self._keep_graph(number, handle)
        node.children.append(number)

    def _remove(self, number: int) -> None:
        node = self.nodes[number]
        self._direct.call("cuGraphDestroyNode", node.handle)
        del self.nodes[number]
        self._end_issuing(number)
        del self.known[node.graph].numbers[node.handle]
        for child in node.children:
            self._forget(child)

    def _edges(self, graph: int, removes: int, count: int, edges: memoryview) -> None:
        if count > EDGES_AT_ONCE:
            raise RemoteProtocolError("malformed record")
        start, end = (ctypes.c_uint64 * max(count, 1))(), (ctypes.c_uint64 * max(count, 1))()
        data = bytearray()
        for at, (one, other, edge) in enumerate(EDGE.iter_unpack(edges)):
            start[at], end[at] = self.nodes[one].handle, self.nodes[other].handle
            data += edge
        name = "cuGraphRemoveDependencies_v2" if removes else "cuGraphAddDependencies_v2"
        given = bytes(data) if any(data) else None
        self._direct.call(name, self.handle(graph), start, end, given, count)

    def _condition(self, graph: int, context: int, initial: int, flags: int) -> bytes:
        made = self._direct.get(
            "cuGraphConditionalHandleCreate",
            self.handle(graph),
            self._translator.context(context),
            initial,
            flags,
        )
        return WORDS[1].pack(made)

    # --- attributes -------------------------------------------------------------------------------

    def _set_attribute(self, node: int, attribute: int, value: memoryview) -> None:
        handle = self.nodes[node].handle
        self._direct.call("cuGraphKernelNodeSetAttribute", handle, attribute, bytes(value))

    def _get_attribute(self, node: int, attribute: int) -> bytes:
        value = ctypes.create_string_buffer(ATTRIBUTE_SIZE)
        handle = self.nodes[node].handle
        self._direct.call("cuGraphKernelNodeGetAttribute", handle, attribute, value)
        return value.raw

    def _copy_attributes(self, to: int, of: int) -> None:
        handles = self.nodes[to].handle, self.nodes[of].handle
        self._direct.call("cuGraphKernelNodeCopyAttributes", *handles)

    # --- telling the client -----------------------------------------------------------------------

    def _read(self, graph: int, stream: int, first: int) -> bytes:
        """Return all of a graph: nodes, edges, and the dependencies of a capture's next node."""
        status, front = 0, list[tuple[int, bytes]]()
        if stream:
            status, _, front = self._captured(stream)
        handles = self._nodes_of(self.handle(graph))
        if len(handles) > NODES_MAX:
            raise CudaError(INVALID_VALUE, "cuGraphGetNodes")
        numbers = self.known[graph].numbers
        fresh = iter(range(first, first + 2 * NODES_MAX))
        body = bytearray()
        for handle in handles:
            if handle not in numbers:
                self._keep_node(graph, next(fresh), handle)
            body += self._describe(numbers[handle], fresh)
        edges = self._edge_list(self.handle(graph))
        for start, end, data in edges:
            body += EDGE.pack(numbers[start], numbers[end], data)
        for node, data in front:
            body += FRONT.pack(numbers[node], data)
        head = WORDS[4].pack(status, len(handles), len(edges), len(front))
        return head + bytes(body)

    def _describe(self, number: int, fresh: Any) -> bytes:
        node = self.nodes[number]
        kind = ctypes.c_int(0)
        self._direct.call("cuGraphNodeGetType", node.handle, kind)
        if kind.value == node_params.GRAPH and not node.children:
            child = self._child(node.handle)
            self._keep_within(node, next(fresh), child)
        params, data = self._translator.from_cuda(kind.value, node.handle)
        children = node.children
        head = struct.pack(f"<3Q{len(children)}Q", number, len(children), len(data), *children)
        return head + params + data + bytes(-len(data) % 8)

    def _edge_list(self, graph: int) -> list[tuple[int, int, bytes]]:
        count = ctypes.c_size_t(0)
        self._direct.call("cuGraphGetEdges_v2", graph, None, None, None, count)
        if not count.value:
            return []
        if count.value > EDGES_MAX:
            raise CudaError(INVALID_VALUE, "cuGraphGetEdges")
        start, end = (ctypes.c_uint64 * count.value)(), (ctypes.c_uint64 * count.value)()
        data = ctypes.create_string_buffer(8 * count.value)
        self._direct.call("cuGraphGetEdges_v2", graph, start, end, data, count)
        pieces = [data.raw[at : at + 8] for at in range(0, 8 * count.value, 8)]
        return list(zip(start, end, pieces, strict=True))
