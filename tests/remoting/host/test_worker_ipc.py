"""What code in a worker can share with other programs of the machine, beside its connection.

Each attack is tried in a worker without the property as well, where it must succeed.
"""

import ctypes
import errno

from host_kit import MakeHost
from test_worker_reach import ALL, attack, with_filter

from gpupool.remoting.worker import syscall_filter
from gpupool.remoting.worker.syscall_table import FORBIDDEN

# --- System V and queues of messages ------------------------------------------------------------

MAKERS = ("shmget", "msgget", "semget")
OF_SYSTEM_V = (
    *("shmget", "shmat", "shmctl", "shmdt", "msgget", "msgsnd", "msgrcv", "msgctl"),
    *("semget", "semop", "semtimedop", "semctl"),
)
OF_QUEUES = (
    *("mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr"),
)
MAKE = """
libc = ctypes.CDLL(None, use_errno=True)
made = libc.{call}(0, *{arguments})
answer = made if made >= 0 else errno.errorcode[ctypes.get_errno()]
"""
OWN_AND_NEW = 0o1600


def arguments_of(call: str) -> tuple[int, ...]:
    """Return what makes a private one of a page, or of one place."""
    return (OWN_AND_NEW,) if call == "msgget" else (1, OWN_AND_NEW)


@with_filter
async def test_a_worker_leaves_nothing_of_system_v_to_the_next_lease(make_host: MakeHost) -> None:
    """A segment outlived its lease, and a later lease with the same uid read it."""
    kit = await make_host()
    client, _ = await kit.connect(kit.lease())
    for call in MAKERS:
        made = MAKE.format(call=call, arguments=arguments_of(call))
        assert await attack(client, made) == "EPERM", call
    queue = "libc = ctypes.CDLL(None, use_errno=True)\nlibc.mq_open(b'/x', 0o102, 0o600, None)"
    assert await attack(client, queue + "\nanswer = ctypes.get_errno()") == str(errno.EPERM)


async def test_without_the_filter_a_worker_makes_them_all(make_host: MakeHost) -> None:
    kit = await make_host(confine=ALL - {"system-calls"})
    client, _ = await kit.connect(kit.lease())
    libc = ctypes.CDLL(None)
    for call, remove in zip(MAKERS, ("shmctl", "msgctl", "semctl"), strict=True):
        made = await attack(client, MAKE.format(call=call, arguments=arguments_of(call)))
        assert made.isdigit(), (call, made)
        place = (int(made), 0, 0, None) if remove == "semctl" else (int(made), 0, None)
        assert getattr(libc, remove)(*place) == 0  # what a worker left there stayed


def test_all_calls_of_system_v_and_of_queues_are_forbidden() -> None:
    for name in (*OF_SYSTEM_V, *OF_QUEUES):
        assert name in FORBIDDEN, name
        for architecture in syscall_filter.ARCHITECTURES:
            assert FORBIDDEN[name][architecture.column] is not None
