"""Every control message as a frozen dataclass, one module for each service.

A client opens with ``Hello`` (or ``FetchCa``, alone, before it has a CA to trust), is answered by
``Welcome`` or ``Refused``, and then makes calls. A call carries a number of the client's choice,
and its one answer the same number; pushes from the server carry number 0. Any call may be answered
by ``Refused``. The class of each message declares its number on the wire, and that of a call the
answer and the rights: see ``declaration``. docs/results/security.md lists the rights of all.

The names of all modules are this package's own.
"""

# ruff: noqa: F403
# pyright: reportUnusedImport=false

import importlib
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from gpupool.remoting.protocol.messages import declaration, hello_messages, lease_messages

if TYPE_CHECKING:
    from gpupool.remoting.protocol.messages.admin_messages import *
    from gpupool.remoting.protocol.messages.backup_messages import *
    from gpupool.remoting.protocol.messages.declaration import *
    from gpupool.remoting.protocol.messages.hello_messages import *
    from gpupool.remoting.protocol.messages.lease_messages import *
    from gpupool.remoting.protocol.messages.lease_orders import *
    from gpupool.remoting.protocol.messages.orders import *
    from gpupool.remoting.protocol.messages.policy_messages import *
else:

    def __getattr__(name: str) -> object:
        """Return a name of a module, which is imported if it was not needed before."""
        later = (importlib.import_module(f"{__name__}.{each}") for each in declaration.LATER)
        for module in chain((declaration, hello_messages, lease_messages), later):
            if not name.startswith("_") and hasattr(module, name):
                return globals().setdefault(name, getattr(module, name))
        raise AttributeError(f"there is no message {name}")


M = TypeVar("M", bound=declaration.Message)


def all_of(base: type[M]) -> dict[int, type[M]]:
    """Return every message below a base class by its number, in the order of the numbers."""
    declaration.declare_all()
    kinds = sorted(declaration.Message.kinds.items())
    return {number: kind for number, kind in kinds if issubclass(kind, base)}
