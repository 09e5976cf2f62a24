"""Every command against a lying server: no text of the server commands the terminal.

The answers are made from the table of messages, and the commands are those of the command line, so
that new ones are tried as well.
"""

import dataclasses
import shlex
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
import trio
from tests.golden.samples import full
from tests.hostile_texts import HOSTILE, MARK, RAW, hostile
from trio.testing import memory_stream_pair

from gpupool.cli import main
from gpupool.pool.clock_view import ClockView
from gpupool.pool.model.ids import ServerId, TokenId
from gpupool.pool.model.state import TokenKind
from gpupool.pool.record_query import GroupSum, RecordPage
from gpupool.pool.transitions.policy_versions import pack_text
from gpupool.pool.view import AuthorityView, PoolView, SilenceView
from gpupool.remoting.client import enrolment, pool_client
from gpupool.remoting.client.credentials import Credentials, save_credentials
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.protocol.connection import Connection, End
from gpupool.remoting.protocol.token_text import format_token, new_token
from gpupool.remoting.transport.connections import GONE
from gpupool.remoting.transport.message_stream import MessageStream
from gpupool.remoting.transport.pki import create_ca, fingerprint

HERE = Address("127.0.0.1", 7470)
SERVER, CLUSTER = ServerId("a" * 32), "cluster-1"
POLICY = "# \x9b31m\u202e hostile\n"

ASK_NOBODY = {
    "alerts", "analyze", "completion", "config", "demo", "door", "down", "emulate", "help", "join",
    "jupyter", "logout", "policy check", "recover", "rejoin", "simulate", "up", "use", "version",
}  # fmt: skip
"""Commands that read this machine alone, or start a separate server."""

OTHERS = {"alloc", "restore", "shell", "web"}
"""Commands that ask from another process, for a backup's file, or for ever."""

WORDS = {
    "run": "--no-wait -- true", "release": "1", "history": "pool", "label": "a x=y",
    "move": "1 --to 0", "health history": "", "health silence": "xid --reason why",
    "health unsilence": "xid", "policy apply": "FILE",
    "policy explain": "", "backup": "OUT", "ca retire": "--yes", "ca rotate": "--yes",
    "login": "TOKEN", "usage forget": "ada --yes", "leave": "a --yes",
    "drain": "a --reason why",
}  # fmt: skip
"""The words of commands that take others than ``words_for`` gives."""


SAYS_NOTHING = {"history", "token create"}
"""Commands that show figures, and self-made values."""


class LyingServer:
    """Answers each call as its declaration says, with texts that would command a terminal."""

    def __init__(self, ca_pem: bytes, *, refuses: type[m.Message] | None = None) -> None:
        self._ca_pem = ca_pem
        self._refuses = refuses
        self.asked: set[type[m.Message]] = set()

    async def dial(self, _address: Address, _context: object) -> trio.abc.Stream:
        """Return the client's end of a connection."""
        near, far = memory_stream_pair()
        trio.lowlevel.spawn_system_task(self._serve, far)
        return near

    async def _serve(self, stream: trio.abc.Stream) -> None:
        served = MessageStream(stream, Connection(End.SERVER))
        try:
            while (received := await served.receive()) is not None:
                number, call = received
                self.asked.add(type(call))
                await served.send(number, self._answer(call))
                if isinstance(call, m.Subscribe):
                    await served.send(0, hostile(full(m.Update, "1")))
        except GONE:
            pass

    def _answer(self, call: m.Message) -> m.Message:
        if self._refuses is not None and isinstance(call, self._refuses):
            return hostile(m.Refused("denied", "what", "why", "hint"))
        match call:
            case m.FetchCa():
                return m.CaCertificate(self._ca_pem)
            case m.Hello():
                name = hostile("name")
                members = (m.Member(SERVER, name, str(HERE), voter=True),)
                return m.Welcome(
                    m.PROTOCOL, name, SERVER, name, CLUSTER, name, name, TokenKind.OPERATOR, members
                )
            case m.Ask():
                return hostile(m.Offered(None, full(m.Offered, "1").refusal))
            case m.GetView():
                view = dataclasses.replace(
                    full(PoolView, "1"),
                    clock=full(ClockView, "1.clock"),
                    authorities=(full(AuthorityView, "1.ca"),),
                    silences=(full(SilenceView, "1.silence"),),
                )
                return hostile(m.ViewNow(view))
            case m.GetUsage():
                page = full(RecordPage, "1")
                whole = GroupSum("")
                groups = tuple(dataclasses.replace(whole, key=HOSTILE + k) for k in "ab")
                return m.UsageIs(dataclasses.replace(hostile(page), groups=groups, whole=whole))
            case m.GetPolicy():
                return m.PolicyIs(1, hostile("by"), full(m.PolicyIs, "1").at, pack_text(POLICY))
            case m.Call():
                kind = call.declared.answered_by
                assert kind is not None
                assert issubclass(kind, m.Answer)
                return hostile(full(kind, "1"))
            case _:
                raise AssertionError(call)


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command that asks a pool, groups taken apart."""

    def walk(command: click.Command, words: str) -> Iterator[tuple[str, click.Command]]:
        if not isinstance(command, click.Group):
            yield words, command
            return
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            path = f"{words} {name}".strip()
            if found is not None and path not in ASK_NOBODY | OTHERS:
                yield from walk(found, path)
        if command.invoke_without_command and words:
            yield words, command

    yield from walk(main.cli, "")


def words_for(name: str, command: click.Command) -> str:
    """Return words that the command takes."""
    if name in WORDS:
        return WORDS[name]
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    return " ".join("1" if each.type.name == "lease" else "a" for each in arguments)


COMMANDS = dict(commands())
STARTS_PROCESSES = {
    name: pytest.param(name, marks=pytest.mark.process) for name in ("run", "policy edit", "doctor")
}


@pytest.fixture
def lied_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LyingServer]:
    """Return a function that makes commands of this process ask a lying server."""
    ca = create_ca(CLUSTER, datetime.now(UTC)).certificate_pem

    def start(refuses: type[m.Message] | None = None) -> LyingServer:
        server = LyingServer(ca, refuses=refuses)
        monkeypatch.setattr(
            pool_client, "connect_pool", partial(connect_pool, dial=server.dial, timeout_s=5.0)
        )
        monkeypatch.setattr(enrolment, "login", partial(login, dial=server.dial))
        return server

    connect_pool, login = pool_client.connect_pool, enrolment.login
    file = tmp_path / "credentials.json"
    save_credentials(
        file, Credentials(CLUSTER, "lab", "ada", TokenId("t"), bytes(16), ca.decode(), (HERE,))
    )
    token = format_token(new_token(TokenKind.USER, bytes(16), fingerprint(ca), (HERE,)))
    (tmp_path / "FILE").write_text("")
    (tmp_path / "TOKEN").write_text(token)
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("GPUPOOL_CREDENTIALS", str(file))
    monkeypatch.setenv("EDITOR", "true")
    return start


def printed_by(name: str, capfd: Any, *more: str) -> str:
    """Return a command's output."""
    words = words_for(name, COMMANDS[name])
    token = Path("TOKEN").read_text()
    main.run([*name.split(), *(token if w == "TOKEN" else w for w in shlex.split(words)), *more])
    return "".join(capfd.readouterr())


@pytest.mark.parametrize("name", [STARTS_PROCESSES.get(each, each) for each in COMMANDS])
def test_no_command_prints_what_commands_a_terminal(
    name: str, lied_to: Callable[..., LyingServer], capfd: Any
) -> None:
    for refuses in (None, m.Call, m.Hello):
        server = lied_to(refuses)
        printed = printed_by(name, capfd)
        assert RAW.findall(printed) == []
        assert server.asked, printed
        # A refusal is shown by every command, and what was asked for by each that shows a view.
        shows = any("--json" in each.opts for each in COMMANDS[name].params)
        if refuses is not None or (shows and name not in SAYS_NOTHING):
            assert MARK in printed
        if shows:
            printed = printed_by(name, capfd, "--json")
            assert RAW.findall(printed) == []
