"""Messages between a host and a worker about its GPU turns, over a separate socket pair.

Each packet is one message of a fixed size, because some of them are on the way of a program's next
launch. Both ends are always of the same build. The host takes nothing in them on trust: a worker
that says what it may not, or too much, is killed.
"""

import struct

TURN_MESSAGE = struct.Struct("<HHI")
"""A device in the order of ``Assign``; an order or a word; a number."""

CLOSE, OPEN, WATCH = range(3)
"""Orders to a worker. The number of ``CLOSE`` comes back with ``DRAINED``."""

WANT, IDLE, DRAINED = range(3)
"""Words of a worker. Its launches wait; it has had none for a while; all its work is over."""
