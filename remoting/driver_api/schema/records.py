"""The table of records: the content of each, in the order of their numbers, from 1 on.

A field is a word of 64 bits unless it says otherwise. Handles are the numbers that the client gave
to what it made; a ``place`` is a device or a green context, as SET_DEVICE names it.
"""

from gpupool.remoting.driver_api.schema.layout import WORD, Record, asked, items, posted, rest, text

SHARED = "token:u64[4]"
"""In place of a handle; see ``packaging/driver_api``."""

JIT = "options:u64[6]"
"""Of the options of the compiler that are passed on: one more than each value, or 0."""

TARGET, SOURCE = "target:u64[7]", "source:u64[7]"
"""Ends of a copy of arrays: kind, array or address, corner, pitch and rows."""

LAUNCH = "function stream grid:u32[3] block:u32[3] shared:u32 bytes:u32"
BINDING = "reference to target more:u64[5]"

PARAMS_SIZE = 256
"""Of CUgraphNodeParams."""

EDGE_SIZE, FRONT_SIZE = 24, 16
"""Bytes of two nodes and an edge's data, and of one node and an edge's data."""

ATTRIBUTE_SIZE = 64
"""Of CUlaunchAttributeValue."""

BOXES_SIZE = 200
"""Of CUDA_MEMCPY3D."""

LAUNCH_ATTRIBUTE_SIZE = 72
BATCH_OPERATION_SIZE = 48
DECOMPRESSION_SIZE = 64
PIECE_SIZE, EARLY_PIECE_SIZE = 32, 40
OPERATION_SIZE = 72
"""Of NCCL: communicator, kind, source, target, count, type, reduction, peer, stream."""

LAYOUTS = 2
"""Version of the record layouts, by which two ends notice a difference."""

RECORDS: tuple[Record, ...] = (
    # A session, its device, launches and copies.
    asked("HELLO", "protocol interface", reply="request"),
    posted("SET_DEVICE", "place"),
    posted("LAUNCH", LAUNCH, tail=items("parameters", bytes=1)),
    posted(
        "LAUNCH_EX",
        f"{LAUNCH} count",
        tail=items("attributes", count=LAUNCH_ATTRIBUTE_SIZE, bytes=1),
    ),
    posted("COPY_IN", "target size stream", tail=items("data", size=1), bulk=True),
    asked("COPY_OUT", "source size stream", reply="request"),
    posted("DOWNLOAD", "source size stream number"),
    asked("DRAIN", "unused"),
    # Memory.
    asked("ALLOCATE", "size", reply="address"),
    asked("ALLOCATE_ASYNC", "size pool stream", reply="address"),
    posted("FREE", "address"),
    posted("FREE_ASYNC", "address stream"),
    asked("MEMORY_INFO", reply="left total"),
    asked("POOL_GET", "pool attribute", reply="value"),
    asked("POOL_SET", "pool attribute value"),
    asked("POOL_DEFAULT", "pool device"),
    asked("POOL_CREATE", "pool device size_max kinds"),
    posted("POOL_DESTROY", "pool"),
    asked("POOL_USE", "device pool"),
    posted("POOL_TRIM", "pool size"),
    asked("POOL_SET_ACCESS", "pool device flags"),
    asked("POOL_GET_ACCESS", "pool device", reply="flags"),
    # Images, and what is in them.
    asked("LOAD_LIBRARY", "module size", bulk=True),
    asked("LOAD_MODULE", "module size", bulk=True),
    asked("LOAD_KNOWN", "module library size digest:u64[4]"),
    posted("UNLOAD_LIBRARY", "module"),
    posted("UNLOAD_MODULE", "module"),
    asked("LIBRARY_MODULE", "library module"),
    asked("FIND_KERNEL", "library kernel", tail=text("name")),
    asked("FIND_FUNCTION", "module function", tail=text("name")),
    asked("FIND_GLOBAL", "module", tail=text("name")),
    asked("ENUMERATE", "module", reply="request"),
    asked("FUNCTION_ATTRIBUTES", "function device", reply="bytes"),
    posted("SET_FUNCTION_ATTRIBUTE", "function device attribute value:i64"),
    asked("OCCUPANCY", "function block shared flags unused", reply="blocks"),
    asked("OCCUPANCY_SHARED", "function blocks block unused unused_too", reply="size"),
    asked(
        "OCCUPANCY_CLUSTERS",
        f"{LAUNCH} potential count",
        tail=items("attributes", count=LAUNCH_ATTRIBUTE_SIZE),
    ),
    # Streams and events.
    asked("SYNC_STREAM", "stream"),
    asked("SYNC_EVENT", "event"),
    asked("SYNC_DEVICE", "device"),
    asked("QUERY_STREAM", "stream"),
    asked("QUERY_EVENT", "event"),
    posted("RECORD_EVENT", "event stream flags", late=True),
    posted("WAIT_EVENT", "stream event flags"),
    # Captures.
    posted("BEGIN_CAPTURE", "stream mode graph"),
    asked("END_CAPTURE", "stream graph"),
    posted("BEGIN_CAPTURE_TO", "stream mode graph count", tail=items("nodes", count=FRONT_SIZE)),
    posted("CAPTURE_DEPENDENCIES", "stream flags count", tail=items("nodes", count=FRONT_SIZE)),
    # The library sends a word more than that, of zeros.
    posted("CAPTURE_COPY", "stream", tail=items("copy", BOXES_SIZE + WORD)),
    asked("CAPTURE_ALLOCATE", "stream graph size node", reply="address"),
    posted("CAPTURE_FREE", "stream graph address"),
    # Graphs.
    posted("GRAPH_CREATE", "graph"),
    posted("GRAPH_DESTROY", "graph"),
    posted("GRAPH_CLONE", "original graph"),
    asked("GRAPH_FIND", "original clone", reply="node"),
    posted(
        "GRAPH_NODE",
        "graph node edges children size",
        tail=items("described", PARAMS_SIZE, edges=FRONT_SIZE, children=8, size=1),
    ),
    asked(
        "GRAPH_ALLOCATE",
        "graph node edges children size",
        tail=items("described", PARAMS_SIZE, edges=FRONT_SIZE, children=8, size=1),
    ),
    posted("GRAPH_REMOVE", "node"),
    posted("GRAPH_EDGES", "graph removes count", tail=items("edges", count=EDGE_SIZE)),
    posted("GRAPH_SET", "node executable size", tail=items("params", PARAMS_SIZE, size=1)),
    posted("GRAPH_SET_CHILD", "executable node graph"),
    posted("GRAPH_SET_ATTRIBUTE", "node attribute", tail=items("value", ATTRIBUTE_SIZE)),
    asked("GRAPH_GET_ATTRIBUTE", "node attribute", reply="bytes"),
    posted("GRAPH_COPY_ATTRIBUTES", "to of"),
    asked("GRAPH_CONDITION", "graph context initial flags", reply="condition"),
    asked("GRAPH_READ", "graph stream first", reply="request"),
    asked("GRAPH_INSTANTIATE", "executable graph flags stream", reply="result node"),
    asked("GRAPH_UPDATE", "executable graph", reply="result node of"),
    posted("GRAPH_ENABLE", "executable node enabled"),
    posted("GRAPH_LAUNCH", "executable stream"),
    posted("GRAPH_EXEC_DESTROY", "executable"),
    asked("GRAPH_GET_MEMORY", "device attribute", reply="value"),
    asked("GRAPH_SET_MEMORY", "device attribute value"),
    asked("GRAPH_TRIM", "device"),
    # Slots: memory of the worker in place of the client's, for graphs.
    posted("SLOT_MAKE", "slot size"),
    posted("SLOT_WRITE", "slot offset size", tail=items("data", size=1), bulk=True),
    posted("SLOT_READ", "executable stream count", tail=items("pieces", count=PIECE_SIZE)),
    posted("SLOT_FREE", "slot"),
    posted("COPY_2D"),  # neither end has it any more; its number stays
    posted(
        "COPY_3D",
        "target target_pitch target_slice source source_pitch source_slice"
        " width height depth stream",
    ),
    posted("RESET_DEVICE", "device"),
    asked("TENSOR_MAP", tail=rest("words")),
    # Memory of the host that kernels use.
    asked("MAP_HOST", "number size wish", bulk=True),
    posted("MAP_WRITE", "number first size masked", bulk=True),
    asked("MAP_FREE", "number"),
    asked("MAP_SHARED", f"number size wish {SHARED}", reply="address"),
    asked("GET_LIMIT", "limit", reply="value"),
    asked("SET_LIMIT", "limit value"),
    # Virtual memory management.
    asked("VIRTUAL_CREATE", "physical size device kinds"),
    posted("VIRTUAL_RELEASE", "physical"),
    asked("VIRTUAL_RESERVE", "size alignment wish", reply="address"),
    posted("VIRTUAL_RETURN", "address size"),
    asked("VIRTUAL_MAP", "address size physical"),
    posted("VIRTUAL_UNMAP", "address size"),
    asked("VIRTUAL_ACCESS", "address size device flags"),
    # The linker.
    asked("LINK_CREATE", f"link {JIT}"),
    asked("LINK_ADD", "link kind size", tail=text("name"), bulk=True),
    asked("LINK_COMPLETE", "link", reply="request"),
    posted("LINK_DESTROY", "link"),
    # Host functions.
    posted("HOST_CALL", "stream call waits", late=True),
    posted("HOST_NODE", "stream call"),
    posted("HOST_DONE", "ticket"),
    # Values in memory, events of contexts, access among devices.
    posted("STREAM_VALUES", "stream count flags", tail=items("values", count=BATCH_OPERATION_SIZE)),
    posted("CONTEXT_EVENT", "device event waits"),
    asked("PEER_ACCESS", "device on"),
    # Arrays, textures and surfaces.
    asked("ARRAY_CREATE", "array width height depth format channels flags levels"),
    posted("ARRAY_DESTROY", "array"),
    asked("ARRAY_LEVEL", "array mipmap level"),
    posted("ARRAY_COPY", f"{TARGET} {SOURCE} width height depth stream"),
    posted("ARRAY_WRITE", f"{TARGET} width rows stream", bulk=True),
    asked("ARRAY_READ", f"{SOURCE} width rows stream", reply="request"),
    asked("TEXTURE_CREATE", "surface array viewed", tail=rest("description")),
    posted("TEXTURE_DESTROY", "surface value"),
    # Managed memory.
    asked("MANAGED_ALLOCATE", "number size wish", reply="address"),
    posted("MANAGED_FREE", "number address size"),
    asked("MANAGED_READ", "address size device at_once", reply="request"),
    posted("MANAGED_WRITE", "address size", bulk=True),
    asked("FIND_MANAGED", "module", tail=text("name")),
    # Sharing with other processes; a token takes the place of a handle.
    asked("IPC_EXPORT", "address size", reply="token token_1 token_2 token_3"),
    asked("IPC_OPEN", f"flags {SHARED}", reply="address size"),
    posted("IPC_CLOSE", "address"),
    asked("IPC_EXPORT_EVENT", "event", reply="token token_1 token_2 token_3"),
    asked("IPC_OPEN_EVENT", f"event {SHARED}"),
    asked("IPC_EXPORT_PHYSICAL", "physical size", reply="token token_1 token_2 token_3"),
    asked("IPC_IMPORT_PHYSICAL", f"physical {SHARED}", reply="size device"),
    asked("IPC_EXPORT_POOL", "pool", reply="token token_1 token_2 token_3"),
    asked("IPC_IMPORT_POOL", f"pool {SHARED}", reply="device"),
    asked("IPC_EXPORT_POINTER", "address", reply="token token_1 token_2 token_3"),
    asked("IPC_IMPORT_POINTER", f"pool {SHARED}", reply="address size"),
    asked("SETTLE"),
    # Copies from server to server.
    asked("PEER_INTRODUCE", "index count", tail=rest("workers")),
    asked("PEER_CONNECT", "index", reply="request"),
    asked("PEER_SEND", "number index source size stream", reply="later"),
    asked("PEER_RECEIVE", "number index target size stream", reply="later"),
    # Texture and surface references.
    asked("REFERENCE_FIND", "module reference surface", tail=text("name")),
    asked("REFERENCE_CREATE", "reference"),
    posted("REFERENCE_DESTROY", "reference"),
    posted("REFERENCE_BIND", BINDING),
    asked("REFERENCE_PLACE", BINDING, reply="offset"),
    asked("REFERENCE_SET", "reference what first second"),
    asked("REFERENCE_GET", "reference what", reply="first second"),
    # What few programs need.
    asked("LAUNCH_TOGETHER", "count flags", tail=rest("launches")),
    asked("ARRAY_ASK", "array what device", reply="bytes"),
    asked("ARRAY_PLANE", "array owner plane", reply="bytes"),
    asked("PEER_ATOMICS", "device peer count", tail=items("operations", count=4)),
    asked("DECOMPRESS", "stream count", tail=items("operations", count=DECOMPRESSION_SIZE)),
    asked("LOAD_COMPILED", f"module library size {JIT}", bulk=True),
    asked("LINK_SAID", "link", reply="request"),
    posted("PEER_CUT", "index"),
    # Green contexts.
    asked("GREEN_RESOURCE", "device place kind", reply="bytes"),
    asked("GREEN_SPLIT", "resource wanted flags least", reply="request"),
    asked("GREEN_DESCRIBE", "description count", tail=items("resources", count=8)),
    asked("GREEN_CREATE", "place description device flags"),
    asked("GREEN_DESTROY", "place"),
    asked("GREEN_STREAM", "place stream flags priority:i64"),
    posted("GREEN_EVENT", "place event waits"),
    # From here on a client asks first whether the worker knows them: see KNOWN_RECORDS.
    asked("END_EVENT", "event start", reply="status elapsed"),
    posted("AWAIT_STREAM", "stream"),
    # Collectives of NCCL, by the worker's own libnccl.so.2.
    asked("NCCL_ASK", "what communicator first second", tail=rest("data")),
    posted("NCCL_POST", "count", tail=items("operations", count=OPERATION_SIZE)),
    # Further connections for large copies; the answer is two numbers for them and how many.
    asked("LANES", "count", reply="request"),
    # Graphs with copies to the host before host nodes: each such node of an executable that is made
    # or updated, with a copy before it; and the bytes of these copies, of the next launch.
    posted("GRAPH_EARLY", "executable count", tail=items("pairs", count=16)),
    posted("SLOT_EARLY", "executable count", tail=items("pieces", count=EARLY_PIECE_SIZE)),
    asked("AWAIT_DEVICE"),
)

BASE_RECORDS = 156
"""So many every worker knows that a client of today meets; their names are a part of PROTOCOL."""

KNOWN_RECORDS = 1 << 16
"""GET_LIMIT of this limit, which CUDA does not have, answers the number of the last record that the
worker knows, and above 32 bits how many calls; an older worker, that there is no such limit."""

BY_NAME = {record.name: record for record in RECORDS}
NUMBERS = {record.name: at + 1 for at, record in enumerate(RECORDS)}
