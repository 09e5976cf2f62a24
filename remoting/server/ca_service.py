"""The call that exchanges the pool's CA, and the requests of a voter for the keys of its CAs.

``RetireCa`` ends the exchange, and is an order.
"""

import itertools
from functools import partial

from gpupool.pool.errors import DeniedError, GpupoolError
from gpupool.pool.model import commands
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.results import Result
from gpupool.pool.transitions.authorities import fingerprint_of, short_name
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.server.actions import AskKey, MakeCa
from gpupool.remoting.server.service_context import Client, Handler, ServiceContext
from gpupool.remoting.transport.authority.ca_store import NextCa


class CaService:
    """See the module."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._numbers = itertools.count(1)
        self._under_way: dict[int, tuple[Client, int, bytes]] = {}
        self._keys_at, self._linked = float("-inf"), tuple[ServerId, ...]()

    def handlers(self) -> dict[type[m.Call], Handler]:
        """Return the handler of each call that is served here."""
        return {m.RotateCa: self._rotate}

    def _rotate(self, client: Client, call: int, message: m.RotateCa) -> None:
        # Another server may have exchanged the CA, and the table here may not have it yet.
        begin = partial(self._begin, client, call, message.ca)
        self._context.when_current(client, call, begin)

    def _begin(self, client: Client, call: int, signer: bytes) -> None:
        known = [fingerprint_of(each) for each in self._context.state.authorities]
        if len(known) > 1 and signer == known[0]:
            self._context.answer(client, call, m.Done("the CA was exchanged already"))
            return
        if len(known) > 1 or (known and signer != known[0]):
            raise DeniedError(
                "the CA is not exchanged",
                why="two are trusted already" if len(known) > 1 else "another one signs now",
                hint="gpupool ca status shows them; gpupool ca retire drops the older one",
            )
        number = next(self._numbers)
        self._under_way[number] = client, call, signer
        self._context.actions.append(MakeCa(number))

    def made(self, number: int, result: NextCa | GpupoolError) -> None:
        """Propose the CA that a ``MakeCa`` has made, or say why there is none."""
        client, call, signer = self._under_way.pop(number)
        try:
            if isinstance(result, GpupoolError):
                raise result
            if fingerprint_of(result.old) != signer:
                raise DeniedError("the CA is not exchanged", why="another one signs now")
            command = commands.RotateCa(result.old, result.new, client.user, result.keepers)
            then = partial(_rotated, result)
            self._context.propose_for(client, call, command, then)
        except GpupoolError as error:
            self._context.answer(client, call, m.refused(error))

    def ask_for_keys(self, now: float) -> None:
        """Ask all possible holders for the CA's keys now and then, and at once after they connect.

        They are the other voters, and servers that have them by the table: a vote may have moved.
        """
        context, state = self._context, self._context.state
        me = state.servers.get(context.me.id)
        if me is None or not me.voter or context.authorities.has_keys():
            self._linked = ()
            return
        before, self._linked = self._linked, context.consensus.health().connected
        if due := self._keys_at <= now:
            self._keys_at = now + context.settings.key_every_s
        new, servers = set(self._linked).difference(before), state.servers.values()
        may = [each.id for each in servers if each is not me and (each.voter or each.has_keys)]
        context.actions.extend(AskKey(each) for each in may if due or each in new)


def _rotated(made: NextCa, result: Result) -> m.Message:
    if not result.ok:
        raise DeniedError("the CA is not exchanged", why=result.why)
    note = f"CA {short_name(fingerprint_of(made.new))} signs now"
    if made.without:
        note += f"; these voters get its key when they are back: {', '.join(made.without)}"
    return m.Done(note)
