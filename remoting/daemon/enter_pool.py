"""Enters a pool: creates a new one, joins one by a token, or resumes from the state directory.

A new server writes its identity first (``StateDir.begin``) and its log last (``finish``), so that a
start that was interrupted is repeated under the same id.
"""

import logging
import os
import secrets
from dataclasses import replace
from datetime import UTC, datetime

import trio

from gpupool import __version__
from gpupool.consensus.storage.store import bootstrap, open_storage
from gpupool.pool.errors import GpupoolError, StorageError, UsageError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import TokenKind
from gpupool.remoting.client.enrolment import JoinedPool, ask_pool, join_pool
from gpupool.remoting.daemon.join_options import JoinOptions
from gpupool.remoting.daemon.listen_address import hosts_of
from gpupool.remoting.daemon.server_identity import Member, ServerIdentity
from gpupool.remoting.daemon.state_dir import (
    CA_CERTIFICATE,
    CA_KEY,
    CERTIFICATE,
    NEXT_CERTIFICATE,
    StateDir,
)
from gpupool.remoting.host.inventory import Inventory
from gpupool.remoting.host.measuring.nvml import PynvmlNvml
from gpupool.remoting.host.suspension.room import Room
from gpupool.remoting.privileges.remote_vault import RemoteVault
from gpupool.remoting.protocol.addresses import Address, parse_address
from gpupool.remoting.protocol.signer_messages import CreateCa
from gpupool.remoting.protocol.token_text import format_token, parse_token
from gpupool.remoting.transport.authority.ca_bundle import issuer_of, keys_of
from gpupool.remoting.transport.authority.ca_key import AuthoritySigner
from gpupool.remoting.transport.pki import (
    Authority,
    cluster_id_of,
    create_key_and_csr,
    validity_of,
)


async def check_options(options: JoinOptions) -> None:
    """Check the requirements of a new server.

    Raises:
        GpupoolError: when it can be none.
    """
    if options.token and parse_token(options.token).kind is not TokenKind.SERVER:
        raise UsageError(
            "this token lets a user log in, and no server join",
            hint='"gpupool token create --server" makes one for a server',
        )
    await _check_names(options)
    if options.web is not None and options.web.site is not None:
        await trio.to_thread.run_sync(options.web.site.check)
    if options.suspend_spill is not None:
        await trio.to_thread.run_sync(Room(0, lambda: (0, 0), options.suspend_spill).check)
    if not options.witness and options.emulate is None:
        await trio.to_thread.run_sync(require_gpu, options.gpus)


async def _check_names(options: JoinOptions) -> None:
    """Raise ``UsageError`` for a name among the addresses that stands for none."""
    for given, use in (
        (options.address, "name a server of the pool by an address, or by a name that is known"),
        (options.advertise, "--advertise takes a name or an address by which all find this server"),
    ):
        if given is not None and not await trio.to_thread.run_sync(hosts_of, given.host):
            why = "neither DNS nor the hosts file of this machine has an address for it"
            raise UsageError(f"{given.host} is not known here", why=why, hint=use)


def require_gpu(only: tuple[str, ...]) -> None:
    """Look for a GPU on this machine, or for all of ``only``; blocks while the driver wakes them.

    Raises:
        GpupoolError: when there is none.
    """
    inventory = Inventory.discover("", PynvmlNvml(), only=only)
    if not inventory.gpus() or (only and inventory.problem):
        raise no_gpu_error(inventory)


def no_gpu_error(inventory: Inventory) -> GpupoolError:
    """Return the error of a server that is no witness and has no GPU."""
    return GpupoolError(
        "this machine has no GPU to offer",
        why=inventory.problem,
        hint="--witness joins without GPUs, --emulate 2 offers two emulated ones",
    )


async def enter_pool(
    state: StateDir,
    options: JoinOptions,
    address: str,
    vault: RemoteVault,
    log: logging.Logger,
) -> None:
    """Create this server's identity, in a new pool or in one that exists; or resume it."""
    if not state.is_new:
        assert state.identity is not None
        _check_resumed(state.identity, options, log)
        try:
            await _check_names(options)
        except UsageError as error:  # DNS may start later than this server
            log.warning("%s; %s", error, error.hint)
        return
    name = options.name or os.uname().nodename.split(".")[0][:63] or "server"
    if options.token:
        await _join_pool(state, options, name, address, log)
    else:
        _create_pool(state, options, name, address, vault)


def _check_resumed(identity: ServerIdentity, options: JoinOptions, log: logging.Logger) -> None:
    """Report options that are useless for a server that is in a pool already.

    Raises:
        UsageError: the token is one of another pool.
    """
    if options.token:
        if parse_token(options.token).cluster_id not in ("", identity.cluster_id):
            raise UsageError(
                f"the server in {options.state_dir} is in pool {identity.pool}, "
                "and this token is of another pool",
                hint="for another pool: another --state-dir, or "
                '"gpupool leave" and then an empty one',
            )
        log.info("this server is already in pool %s; the token is not used", identity.pool)
    if options.name and options.name != identity.name:
        log.warning("this server is %s already; --name is not used", identity.name)


def _create_pool(
    state: StateDir, options: JoinOptions, name: str, address: str, vault: RemoteVault
) -> None:
    server = ServerId(secrets.token_hex(6))
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    # The CA of a former pool goes with its id, by which clients know that it is theirs.
    authority = vault.former
    cluster_id = cluster_id_of(authority) if authority else secrets.token_hex(16)
    identity = ServerIdentity(
        server=server,
        cluster_id=cluster_id,
        pool=options.pool_name,
        name=name,
        witness=options.witness,
        founder=True,
        members=(Member(server, address),),
    )
    state.begin(identity)
    if authority is None:
        authority = Authority(*vault.ask(CreateCa(identity.cluster_id, now_ms, 1, b"")))
    key, csr = create_key_and_csr(server)
    state.write(CA_CERTIFICATE, authority.certificate_pem)
    state.write(CA_KEY, authority.key_pem)
    signer = AuthoritySigner(authority, vault, lambda: now_ms)
    state.write_certificate(signer.sign(server, csr), key)
    storage = open_storage(state.path, create=True)
    try:
        bootstrap(storage, server)
    finally:
        storage.close()
    state.finish(identity)


async def _join_pool(
    state: StateDir, options: JoinOptions, name: str, address: str, log: logging.Logger
) -> None:
    token = parse_token(options.token)
    if options.address is not None:
        token = replace(token, addresses=(options.address, *token.addresses))
    begun = state.identity
    # An attempt whose answer was lost is repeated under the same id, which is safe.
    server = begun.server if begun is not None else ServerId(secrets.token_hex(6))
    identity = ServerIdentity(
        server=server,
        cluster_id=token.cluster_id,
        pool="",
        name=name,
        witness=options.witness,
        founder=False,
    )
    state.begin(identity)
    key, csr = create_key_and_csr(server)
    joined = await join_pool(
        format_token(token),
        server=server,
        name=name,
        address=parse_address(address),
        witness=options.witness,
        csr_pem=csr,
        version=__version__,
    )
    _settle(state, identity, key, joined)
    log.info("admitted to pool %s as %s (%s)", joined.pool, name, server)


async def rejoin_pool(
    state: StateDir, token_text: str, address: Address, name: str, *, force: bool
) -> None:
    """Make the server that lives here a new member of its pool, with a new id.

    Without ``force`` it is refused while the server may start as the member that it is.

    Nothing of the old one is touched before the pool has admitted the new one. Then all of it is
    replaced; only the name, the address to listen on and whether it is a witness stay. The new one
    removes the old one from the pool once it runs.

    Raises:
        UsageError: the token is of another pool, or of a user; or nothing is wrong.
        GpupoolError: the pool does not admit it.
    """
    old = state.identity
    assert old is not None
    token = parse_token(token_text)
    if token.kind is not TokenKind.SERVER or token.cluster_id not in ("", old.cluster_id):
        raise UsageError(
            f"this token lets no server join pool {old.pool}",
            hint='"gpupool token create --server" there makes one',
        )
    if not force and not _is_lost(state):
        # Only the pool knows that it has removed this server, or trusts its CA no more.
        members, ca_pem = await ask_pool(token_text, version=__version__, cluster_id=old.cluster_id)
        if old.server in members and is_trusted(state, ca_pem, datetime.now(UTC)):
            raise UsageError(
                f"nothing seems to be wrong with {old.name}",
                why="the pool still has it, and it may start as the member that it is",
                hint="to replace it by a new member all the same: --force",
            )
    server = ServerId(secrets.token_hex(6))
    key, csr = create_key_and_csr(server)
    joined = await join_pool(
        token_text,
        server=server,
        name=name,
        address=address,
        witness=old.witness,
        csr_pem=csr,
        version=__version__,
        cluster_id=old.cluster_id,
    )
    identity = replace(
        old, server=server, name=name, founder=False, complete=False, former=old.server
    )
    state.begin_again(identity)
    _settle(state, identity, key, joined)


def _is_lost(state: StateDir) -> bool:
    """Return whether the journal here says that this server may not go on as itself."""
    try:
        storage = open_storage(state.path)
    except StorageError:
        return True
    lost = storage.superblock.floor is not None
    storage.close()
    return lost


def is_trusted(state: StateDir, ca_pem: bytes, now: datetime) -> bool:
    """Return whether a pool with these CAs believes the server that lives here.

    One whose certificate has ended signs itself another, if it has the CA's key.
    """
    signed = [
        certificate
        for name in (CERTIFICATE, NEXT_CERTIFICATE)
        if issuer_of(certificate := state.read(name), ca_pem) is not None
    ]
    now_ms = int(now.timestamp() * 1000)
    is_good = any(validity_of(each).ends_ms > now_ms for each in signed)
    return is_good or bool(signed and keys_of(state.read(CA_KEY)))


def _settle(state: StateDir, identity: ServerIdentity, key: bytes, joined: JoinedPool) -> None:
    """Write a pool's answer to a new server, which lives here from now on."""
    members = tuple(Member(m.server, m.address) for m in joined.members)
    state.write(CA_CERTIFICATE, joined.ca_pem)
    if joined.ca_key_pem:
        state.write(CA_KEY, joined.ca_key_pem)
    state.write_certificate(joined.certificate_pem, key)
    open_storage(state.path, create=True).close()
    state.finish(replace(identity, cluster_id=joined.cluster_id, pool=joined.pool, members=members))
