"""Records a conversation of clients and servers: ``python -m tests.golden.record_conversation``.

It was run once, at commit 70ed747; see ``tests/testdata/golden/README``.
"""

from contextlib import suppress
from dataclasses import replace

import trio
import trio.testing
from tests.golden.conversations import FILE, TappedCluster
from tests.golden.recorded import GOLDEN
from tests.remoting.control.control_cluster import (
    FAR_FUTURE,
    Cluster,
    request,
    secret_of,
    server_id,
    token_id,
)

from gpupool.pool.errors import ConflictError, DeniedError, GpupoolError, NotNowError, UsageError
from gpupool.pool.model import commands
from gpupool.pool.model.ids import LeaseId
from gpupool.pool.model.state import Filter, Operator, TokenKind
from gpupool.pool.transitions.backup import make_backup, to_file
from gpupool.pool.transitions.policy_versions import pack_text
from gpupool.remoting.client.enrolment import join_pool, login
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.protocol.token_text import format_token, hash_secret
from gpupool.remoting.transport.pki import create_key_and_csr

HEAD = """\
# What clients of commit 70ed747 said to its servers, and what these answered, in virtual time.
# Never to be recorded anew; see tests/testdata/golden/README and tests/golden/conversations.py.
"""
POLICY = (
    "[defaults]\nmax_gpus = 2\nmax_lease_time = '20s'\n[class.lab]\nusers = ['a*']\npriority = 3\n"
)
NEWCOMER = "gpu-9"


async def found(cluster: Cluster) -> None:
    """Make the pool of the conversation: two servers, and a token for a third."""
    await cluster.start([2, 1], users=("ada", "bob"))
    secret = hash_secret(secret_of(NEWCOMER))
    token = token_id(NEWCOMER)
    cluster.commit(
        commands.CreateToken(token, TokenKind.SERVER, NEWCOMER, secret, FAR_FUTURE, "root")
    )


async def converse(cluster: Cluster) -> None:
    """Run clients through all their actions."""
    await login(format_token(cluster.token_text("ada")), client="ada@test", dial=cluster.dial)
    async with cluster.client("ada") as ada, cluster.client("bob") as bob:
        await use(ada, bob)
    async with cluster.client("root") as root:
        await look(root)
        await operate(root)
        await restore(root, cluster)
        async with cluster.client("ada") as ada:
            hold = await ada.allocate(request(ada, 1, 0.5), wait_s=0)
            await hold.wait_lost()  # by the policy
        async with cluster.client("bob"):
            await root.operate(m.RevokeToken(token_id("bob")))
            await trio.sleep(1)
    await join(cluster)


async def use(ada: Pool, bob: Pool) -> None:
    """Ask, wait, claim, cancel, attach, open sessions, release, and be refused."""
    near = (Filter("gpu.memory", Operator.AT_LEAST, (str(40 << 30),)),)
    asked = replace(request(ada, 1, 0.5), filters=near, idle_timeout_s=3600.0)
    async with await ada.allocate(asked, wait_s=0) as hold:
        await hold.open_session("arrays", "train.py", settings={"CUDA_MODULE_LOADING": "LAZY"})
    await trio.sleep(1)  # until its memory is free
    async with await ada.allocate(request(ada, 3, 1.0, across=True), wait_s=0) as hold:
        await hold.open_session("cuda", "train.py")
        for count, wait_s in ((1, 0), (2, 3)):
            with suppress(NotNowError):
                await bob.allocate(request(bob, count), wait_s=wait_s)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_two, bob)
            await trio.sleep(2)
            await hold.release("done")
    with suppress(DeniedError):
        await ada.operate(m.DrainServer("gpu-1", "not an operator"))
    await ada.check_policy("ada", request(ada, 1, 0.5))


async def wait_for_two(bob: Pool) -> None:
    async with await bob.allocate(request(bob, 2), wait_s=60) as hold:
        with trio.move_on_after(2):
            await hold.wait_lost()


async def look(root: Pool) -> None:
    """Ask for the pool's state, once and again."""
    await root.view()
    await root.telemetry()
    async with root.subscribe(0.5) as updates:
        for _ in range(3):
            await updates.receive()


async def operate(root: Pool) -> None:
    """Perform the calls of operators."""
    text = await root.create_token(TokenKind.USER, "cy", 3600.0)
    assert text
    tokens = await root.list_tokens()
    await root.operate(m.RevokeToken(tokens[-1].token))
    await root.operate(m.DrainServer("gpu-1", "new fan"))
    await root.operate(m.DrainServer("gpu-1", None))
    await root.operate(m.LabelServer("gpu-2", {"rack": "r3"}, ("room",)))
    version = await root.put_policy(pack_text(POLICY), 0)
    assert version == 1
    with suppress(ConflictError):
        await root.put_policy(pack_text(POLICY + "# again\n"), 0)
    await root.policy()
    await root.policy_history()
    await root.check_policy("ada", request(root), pack_text(POLICY))
    async with await root.allocate(request(root, 1, 0.25), wait_s=0) as hold:
        await root.operate(m.EndLease(hold.lease, "by order"))
        await hold.wait_lost()
    with suppress(UsageError):
        await root.operate(m.EndLease(LeaseId(4711), "there is none"))
    await root.audit()
    await root.backup()
    await trio.sleep(1)


async def restore(root: Pool, cluster: Cluster) -> None:
    """Be refused: the pool already has a policy."""
    with suppress(GpupoolError):
        await root.restore(to_file(make_backup(cluster.state)))


async def join(cluster: Cluster) -> None:
    """Admit a server, and remove it again."""
    _key, csr = create_key_and_csr(server_id(9))
    await join_pool(
        format_token(cluster.token_text(NEWCOMER, TokenKind.SERVER)),
        server=server_id(9),
        name=NEWCOMER,
        address=Address(NEWCOMER, 7470),
        witness=True,
        csr_pem=csr,
        version="0.1.0",
        dial=cluster.dial,
    )
    async with cluster.client("root", servers=["gpu-1"]) as root:
        await root.operate(m.RemoveServer(NEWCOMER))


async def record() -> str:
    """Return the text of the conversation."""
    async with trio.open_nursery() as nursery:
        cluster = TappedCluster(nursery)
        await found(cluster)
        cluster.zero = trio.current_time()
        await converse(cluster)
        nursery.cancel_scope.cancel()
    return HEAD + "".join(f"{event.line()}\n" for event in cluster.events)


if __name__ == "__main__":
    clock = trio.testing.MockClock(autojump_threshold=0)
    (GOLDEN / FILE).write_text(trio.run(record, clock=clock), encoding="utf-8")
