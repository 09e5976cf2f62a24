"""The first commands of a new pool, the text for its creator, and another operator's token."""

import logging
import os
import secrets
import sys
import time
from dataclasses import dataclass, field

from gpupool.consensus.driver import RaftDriver
from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.commands import Command, CreatePool, CreateToken, JoinServer
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.state import TokenKind
from gpupool.pool.model.units import DAY_MS
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.remoting.client.credentials import Credentials
from gpupool.remoting.daemon.login_writer import SaveLogin, save_login
from gpupool.remoting.daemon.server_identity import ServerIdentity
from gpupool.remoting.daemon.state_dir import CA_CERTIFICATE, StateDir
from gpupool.remoting.local.files import user_name
from gpupool.remoting.protocol.addresses import Address, parse_address
from gpupool.remoting.protocol.token_text import (
    SHORT_SIZE,
    TokenText,
    format_token,
    new_token,
)
from gpupool.remoting.server.committer import Committer
from gpupool.remoting.transport.authority.ca_bundle import newest_of
from gpupool.remoting.transport.pki import fingerprint

FIRST_COMMIT_S = 10.0
SERVER_TOKEN_USES = 8
"""Servers that the first token lets in; a pool has seven voters at most."""

TOKENS_FILE = "new-tokens.txt"
"""In the state directory, mode 0600."""

VALID_MS = {
    TokenKind.SERVER: 3_600_000,
    TokenKind.USER: 365 * DAY_MS,
    TokenKind.OPERATOR: 10 * 365 * DAY_MS,
}
"""How long the first tokens are good."""


@dataclass(slots=True)
class PoolBootstrap:
    """The server that creates a pool, and the tokens that were made for its user."""

    identity: ServerIdentity
    address: str
    data_encryption: str
    log: logging.Logger
    tokens: dict[TokenKind, str] = field(default_factory=dict[TokenKind, str], repr=False)
    logged_in: str = ""  # a sentence
    is_logged_in: bool = False
    save_login: SaveLogin = save_login

    def print_welcome(self, state: StateDir) -> None:
        """Print the commands to type next, once."""
        lines = [
            "",
            f"Pool {self.identity.pool} is up on {self.address}.",
            self.logged_in,
            *([] if self.is_logged_in else self._operator_lines()),
            "",
            f"On each further GPU server (lets {SERVER_TOKEN_USES} servers in, within 1 hour):",
            f"  echo {self.tokens[TokenKind.SERVER]} | gpupool join --token -",
            "",
            f"On each client, as user {user_name()} (good for 365 days):",
            f"  echo {self.tokens[TokenKind.USER]} | gpupool login -",
            "",
            "Leave this running: the server lives as long as this command. In another terminal:",
            "  gpupool status",
            "  gpupool run -n 1 -p 0.5 -- python train.py",
            'More tokens: "gpupool token create", for servers with --server --uses N.',
            "",
        ]
        show_secrets("\n".join(lines), state, log=self.log)

    def _operator_lines(self) -> list[str]:
        """Say how to log in where nothing could be written, as in the closed home of a service."""
        return [
            "",
            f"As an operator, {user_name()}:",
            f"  echo {self.tokens[TokenKind.OPERATOR]} | gpupool login -",
        ]


def show_secrets(text: str, state: StateDir, *, log: logging.Logger) -> None:
    """Print a text with tokens on a terminal; elsewhere keep it in a file for its owner's eyes.

    What a service prints is in the journal, which others read and log collectors carry away.
    """
    if sys.stdout.isatty():
        sys.stdout.write(f"{text}\n")
        return
    path = state.path / TOKENS_FILE
    state.write(TOKENS_FILE, text.lstrip("\n").encode())
    sys.stdout.write(f"The pool's new tokens are in {path}; remove it when they are used.\n")
    log.warning("new tokens, and the commands that use them, are in %s", path)


async def bootstrap_pool(founder: PoolBootstrap, committer: Committer, state: StateDir) -> None:
    """Commit the first commands of a pool; repeated by a start after an interrupted one.

    Raises:
        GpupoolError: when they cannot be committed.
    """
    identity = founder.identity
    now_ms = time.time_ns() // 1_000_000

    async def commit(command: Command) -> None:
        decision = await committer.commit(command, timeout_s=FIRST_COMMIT_S)
        if decision.result is None or not decision.result.ok:
            raise GpupoolError("the pool could not be created", why=decision.why)

    await commit(CreatePool(identity.cluster_id, identity.pool, founder.data_encryption))
    await commit(
        JoinServer(identity.server, identity.name, founder.address, identity.witness, None)
    )
    ca_pem = state.read(CA_CERTIFICATE)
    addresses = (parse_address(founder.address),)
    for kind in VALID_MS:
        command, text = _new_token(identity, kind, ca_pem, addresses, now_ms)
        await commit(command)
        founder.tokens[kind] = format_token(text)
        if kind is TokenKind.OPERATOR:
            _log_in(founder, text, ca_pem)


async def make_operator(
    founder: PoolBootstrap,
    replicated_log: RaftDriver,
    committer: Committer,
    machine: PoolMachine,
    state: StateDir,
) -> None:
    """Make an operator's token for a pool that has lost all of them, and print it once.

    The user who runs a server holds the pool's keys, so this gives them nothing new. It goes on
    until a majority commits the token.
    """
    identity, ca_pem = founder.identity, state.read(CA_CERTIFICATE)
    while not await replicated_log.barrier(timeout_s=FIRST_COMMIT_S):
        founder.log.warning("the operator's token waits for a majority of the pool's servers")
    servers = sorted(machine.state.servers.values(), key=lambda each: each.id != identity.server)
    addresses = tuple(parse_address(each.address) for each in servers)
    now_ms = max(machine.state.now, time.time_ns() // 1_000_000)
    command, text = _new_token(identity, TokenKind.OPERATOR, ca_pem, addresses, now_ms)
    while True:
        decision = await committer.commit(command, timeout_s=FIRST_COMMIT_S)
        if decision.result is not None:
            break
        founder.log.warning("the operator's token is not made yet: %s", decision.why)
    if not decision.result.ok:
        founder.log.warning("the operator's token is refused: %s", decision.why)
        return
    use = f"\nAs an operator, {user_name()}:\n  echo {format_token(text)} | gpupool login -\n"
    show_secrets(use, state, log=founder.log)
    founder.log.warning("made an operator's token for %s: %s", user_name(), command.token)


def _new_token(
    identity: ServerIdentity,
    kind: TokenKind,
    ca_pem: bytes,
    addresses: tuple[Address, ...],
    now_ms: int,
) -> tuple[CreateToken, TokenText]:
    """Return the command that makes a token of this machine's user, and the token."""
    text = new_token(
        kind, secrets.token_bytes(SHORT_SIZE), fingerprint(newest_of(ca_pem)), addresses
    )
    expires_at = Milliseconds(now_ms + VALID_MS[kind])
    uses = SERVER_TOKEN_USES if kind is TokenKind.SERVER else 1
    command = CreateToken(
        text.token, kind, user_name(), text.secret_hash, expires_at, identity.name, uses
    )
    return command, text


def _log_in(founder: PoolBootstrap, token: TokenText, ca_pem: bytes) -> None:
    """Make the creator of the pool its operator on this machine.

    The user of a service is nobody who types commands, so its operator's token is shown.
    """
    if os.environ.get("STATE_DIRECTORY"):
        founder.logged_in = f"Nobody is logged in here: {user_name()} is the user of a service."
        return
    credentials = Credentials(
        cluster_id=founder.identity.cluster_id,
        pool=founder.identity.pool,
        user=user_name(),
        token=token.token,
        secret=token.secret,
        ca_pem=ca_pem.decode(),
        addresses=token.addresses,
    )
    try:
        founder.logged_in = founder.save_login(credentials)
        founder.is_logged_in = True
    except GpupoolError as error:
        founder.log.warning("nobody is logged in: %s", error)
        founder.logged_in = f"Nobody is logged in here: {error}"
