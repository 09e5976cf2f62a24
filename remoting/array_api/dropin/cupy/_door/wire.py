"""Frames and records of the array API, on the client's side.

The worker's side is ``gpupool.remoting.array_api.server.array_wire``.

A frame is a header, a body of at most 1 MiB, and bulk bytes that are never copied into a
message. The body of CALLS and ASK is a run of records; each starts with a 32-bit code. Codes
below `FIRST_TEMPLATE` are the controls named here, all others are calls of a template.
"""

import struct

PROTOCOL = 1
HEADER = struct.Struct("<IBBHIIQ")
"""Body length, kind, flags (0), zero, request number, records, bulk length."""

MAX_BODY = 1 << 20
MAX_BULK = 1 << 44
MAX_BATCH = 1 << 16
MAX_TEMPLATES = 1 << 14
MAX_METAS = 1 << 16
SHARED_SLOTS, SHARED_SLOT = 8, 4 << 20
"""Slots of the memory shared by two ends on one machine, and the bytes of each."""

# Client to worker.
HELLO, CALLS, ASK, PUT, COLLECTED, BYE = 1, 2, 3, 4, 5, 6
# Worker to client.
WELCOME, REPLY, DESCRIBED, FAILED, COLLECT, NOTICE = 16, 17, 18, 19, 20, 21

# Controls inside a run of records.
FREE = 0  # u64 handle
CONTEXT = 1  # u32 device, u64 handle of a stream or 0
TEMPLATE = 2  # u32 length, CBOR [id, operation, outputs, [arguments], [[keyword, argument]]]
META = 3  # u32 length, CBOR [id, dtype, [shape], [strides]]
INLINE_PUT = 4  # u64 handle, u32 meta, u32 length, the array's bytes
RESET = 5  # forget all templates and metas
SEND = 6  # u32 index of another worker, u64 transfer, u64 handle: send it there, in C order
RECEIVE = 7  # u32 index, u64 transfer, u64 handle, u32 meta, u32 1 if the array exists, else 0
GROUP = 8  # u32 length: so many bytes of records are one function, which may be computed as a whole
FIRST_TEMPLATE = 16

# Ids of metas that are none.
META_OBJECT = 0  # the result is no array
META_UNKNOWN = 1  # the worker describes the result when it exists
FIRST_META = 16

FREE_RECORD = struct.Struct("<IQ")
CONTEXT_RECORD = struct.Struct("<IIQ")
SIZED_RECORD = struct.Struct("<II")
PUT_RECORD = struct.Struct("<IQII")
SEND_RECORD = struct.Struct("<IIQQ")
RECEIVE_RECORD = struct.Struct("<IIQQII")

DTYPES = "?bBhHiIlLqQefdFD"
"""NumPy's characters of the element types that CuPy computes with."""
