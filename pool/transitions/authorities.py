"""The pool's CAs in the table: the trusted certificates, and the one that signs.

A table without any means the CA of the servers' state directories, as it is until the first
exchange. ``RotateCa`` adds the next one, which signs from then on; both are trusted until
``RetireCa`` drops the older one. So at most two are ever trusted, and the last one signs.

Nothing here reads a certificate: this package knows no cryptography. The server that proposes a
CA has made it, and every server checks it before it trusts it.
"""

import hashlib

from gpupool.pool.model.commands import ReportIssuer, RetireCa, RotateCa
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.state import PoolState, Server, with_changes
from gpupool.pool.transitions.kept_records import emit_event, record

CA_SIZE_MAX = 4096
"""Of a CA's certificate; ours have 400 bytes."""

NAME_COUNT_MAX = 8
"""Servers that a refusal names."""


def fingerprint_of(certificate: bytes) -> bytes:
    """Return the SHA-256 of a certificate in DER, by which tokens and people name a CA."""
    return hashlib.sha256(certificate).digest()


def short_name(fingerprint: bytes) -> str:
    """Return a CA's fingerprint as people read it: its first 16 hex digits."""
    return fingerprint.hex()[:16]


def not_moved(state: PoolState) -> tuple[Server, ...]:
    """Return the servers that have not said that their certificate is of the CA that signs."""
    if not state.authorities:
        return ()
    signer = fingerprint_of(state.authorities[-1])
    return tuple(server for server in state.servers.values() if server.issuer != signer)


def rotate_ca(state: PoolState, command: RotateCa) -> Step:
    """Trust a second CA, which signs from now on."""
    known = state.authorities
    if command.new in known:
        return state, Result(ok=True, why="the CA was exchanged already")
    if len(known) > 1:
        return state, refuse(
            RefusalKind.CONFLICT,
            "two CAs are trusted already; drop the older one first (gpupool ca retire)",
        )
    if not command.old or not command.new or command.old == command.new:
        return state, refuse(RefusalKind.INVALID, "an exchange takes two certificates")
    if max(len(command.old), len(command.new)) > CA_SIZE_MAX:
        return state, refuse(RefusalKind.INVALID, f"a CA has at most {CA_SIZE_MAX} bytes")
    if known and known[0] != command.old:
        return state, refuse(RefusalKind.CONFLICT, "the CA was exchanged meanwhile")
    state = with_changes(state, authorities=(command.old, command.new))
    state = _without_new_key(state, command.keepers)
    name = short_name(fingerprint_of(command.new))
    text = f"beside {short_name(fingerprint_of(command.old))}"
    state = record(state, "ca-rotated", by=command.by, subject=name, text=text)
    text = f"CA {name} signs now (by {command.by})"
    return emit_event(state, "ca-rotated", state.name, text), Result(ok=True)


def _without_new_key(state: PoolState, keepers: tuple[ServerId, ...]) -> PoolState:
    """Note the servers without a key from now on: they may say so after another one has left."""
    servers = state.servers
    for server in servers.values() if keepers else ():
        if server.has_keys and server.id not in keepers:
            servers = servers.set(server.id, with_changes(server, has_keys=False))
    return with_changes(state, servers=servers)


def retire_ca(state: PoolState, command: RetireCa) -> Step:
    """Trust the CA that does not sign no more, once no server needs it, or by force."""
    known = state.authorities
    named = [each for each in known if fingerprint_of(each) == command.ca]
    if len(known) < 2:
        if named:
            return state, refuse(RefusalKind.CONFLICT, "this CA is the only one")
        return state, Result(ok=True, why="this CA is not trusted")
    if not named:
        return state, refuse(RefusalKind.NEVER, "the pool does not know this CA")
    if named[0] == known[-1]:
        return state, refuse(RefusalKind.CONFLICT, "this CA signs; the older one can be dropped")
    behind = [server.name for server in not_moved(state)]
    names = ", ".join(behind[:NAME_COUNT_MAX])
    if len(behind) > NAME_COUNT_MAX:
        names += f" and {len(behind) - NAME_COUNT_MAX} more"
    if behind and not command.force:
        return state, refuse(
            RefusalKind.CONFLICT, f"certificates of the older CA are still used by {names}"
        )
    state = with_changes(state, authorities=known[1:])
    name = short_name(command.ca)
    text = f"although {names} used it" if behind else ""
    state = record(state, "ca-retired", by=command.by, subject=name, text=text)
    text = f"CA {name} is trusted no more (by {command.by})"
    why = f"{names} must join anew (gpupool rejoin)" if behind else ""
    return emit_event(state, "ca-retired", state.name, text), Result(ok=True, why=why)


def report_issuer(state: PoolState, command: ReportIssuer) -> Step:
    """Note the CA that has signed a server's certificate."""
    server = state.servers.get(command.server)
    if server is None or server.incarnation != command.incarnation:
        return state, refuse(RefusalKind.CONFLICT, "not the current incarnation")
    if command.issuer not in {fingerprint_of(each) for each in state.authorities}:
        return state, refuse(RefusalKind.CONFLICT, "the pool does not trust this CA")
    if server.issuer != command.issuer:
        server = with_changes(server, issuer=command.issuer)
        state = with_changes(state, servers=state.servers.set(server.id, server))
    return state, Result(ok=True)


def moves_on(trusted: tuple[int, ...], table: tuple[int, ...]) -> bool:
    """Return whether a table's CAs come after those that a server trusts; both by number.

    Each exchange counts one up. A server that starts applies its log anew, and passes tables that
    it has left behind: of these it trusts nothing.
    """
    return bool(table) and (table[-1], table[0]) > (trusted[-1], trusted[0])
