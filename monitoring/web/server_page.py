"""The page as a server's exporter serves it: the application, its gate, and clients for people."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import trio

from gpupool import __version__
from gpupool.monitoring.http.http_frames import Targets
from gpupool.monitoring.http.token_checks import Judgement
from gpupool.monitoring.web.lent_source import LentSource, Start
from gpupool.monitoring.web.page_app import Guarded, make_app
from gpupool.monitoring.web.server_gate import Judge, ServerGate
from gpupool.pool.errors import UnreachableError
from gpupool.remoting.client.credentials import Credentials
from gpupool.remoting.client.pool_client import Pool, connect_pool
from gpupool.remoting.protocol.addresses import parse_address
from gpupool.remoting.protocol.token_text import parse_token


def server_page(
    targets: Callable[[], Targets | None], judge: Judge, start: Start, *, readonly: bool
) -> Guarded:
    """Return the application.

    Args:
        targets: the servers of the pool, as the server has told last.
        judge: returns the server's word on a token.
        start: runs a task for as long as the exporter does.
        readonly: whether the page gives no orders.
    """

    def lend(text: str, judgement: Judgement) -> LentSource:
        @asynccontextmanager
        async def connect() -> AsyncGenerator[Pool]:
            found = targets()
            if found is None:
                raise UnreachableError("the server has not said yet which servers there are")
            token = parse_token(text)
            credentials = Credentials(
                cluster_id=found.cluster_id,
                pool=found.pool,
                user=judgement.user,
                token=token.token,
                secret=token.secret,
                ca_pem=found.ca_pem.decode(),
                addresses=tuple(parse_address(each.address) for each in found.servers),
            )
            name = f"{judgement.user}@web"
            async with connect_pool(credentials, version=__version__, client=name) as pool:
                yield pool

        return LentSource(judgement.user, judgement.kind, connect, start)

    gate = ServerGate(judge, lend, trio.current_time)
    return make_app(gate, readonly=readonly)
