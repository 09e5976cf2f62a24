"""The sender of alerts: a process beside a server that has ``alerts.toml``, and a pool's client.

``python -m gpupool.monitoring.health.alert_sender FD FILE``: the server starts it, says each second
over FD whether it sends and whether there is a majority, and does not wait for it. It looks at the
whole pool with a viewer's credentials, as people do. It holds no key of the pool.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from gpupool import __version__
from gpupool.monitoring.health.alert_messages import (
    RETRY_AFTER_S,
    NotSentError,
    body_of,
    mail_of,
    post,
    send_mail,
    slack_body_of,
)
from gpupool.monitoring.health.alert_rules import (
    RULES,
    holding,
    is_silenced,
    wasteful_classes,
)
from gpupool.monitoring.health.alert_settings import (
    AlertSettings,
    read_settings,
    require_readable,
)
from gpupool.monitoring.health.pool_health import merged
from gpupool.pool.alert_log import (
    NO_MAJORITY,
    Alert,
    AlertLog,
    Condition,
    Message,
    alert_id,
)
from gpupool.pool.errors import GpupoolError
from gpupool.pool.history_query import EVERYBODY, HistoryQuery
from gpupool.pool.model.ids import Milliseconds
from gpupool.remoting.client.credentials import Credentials, load_credentials
from gpupool.remoting.client.pool_client import Pool, connect_pool
from gpupool.remoting.worker import sandbox

LOOK_EVERY_S = 5.0
WASTE_EVERY_S = 3600.0
WEEK_MS = 7 * 86_400_000
UNDER_WAY_MAX = 64
"""Messages that are tried again; one more pushes none out, and is lost with a line in the log."""
RESOLVER = "/run/systemd/resolve"
"""To which ``/etc/resolv.conf`` may lead."""


def receivers(settings: AlertSettings, message: Message, pool: str) -> "dict[str, partial[None]]":
    """Return one attempt for each receiver, by its name."""
    found: dict[str, partial[None]] = {}
    for webhook in settings.webhooks:
        body = slack_body_of if webhook.format == "slack" else body_of
        found[webhook.url] = partial(post, webhook, body(message, pool))
    for email in settings.emails:
        mail = mail_of(message, pool, email)
        found[f"mail to {', '.join(email.to)}"] = partial(send_mail, email, mail)
    return found


def sample_message(now_ms: int) -> Message:
    """Return the message of ``gpupool alerts test``."""
    text = "this is a test of gpupool's alerts"
    alert = Alert(alert_id("Test", "", now_ms), "Test", "warning", "test", text, "", now_ms)
    return Message((alert,))


class Sender:
    """One sender of alerts; see the module."""

    def __init__(
        self,
        settings: AlertSettings,
        credentials: Credentials,
        gate: trio.SocketStream,
        in_thread: Callable[[Callable[[], None]], Awaitable[None]] = trio.to_thread.run_sync,
    ) -> None:
        self._settings = settings
        self._credentials = credentials
        self._gate = gate
        self._in_thread = in_thread
        self._sends, self._majority = False, True
        self._under_way = 0
        self._name = "pool"
        self._wasteful: list[Condition] = []
        self._waste_due_s = 0.0
        self.log = AlertLog()

    async def run(self) -> None:
        """Send until the server is gone."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look)
            with suppress(trio.BrokenResourceError):
                while data := await self._gate.receive_some(64):
                    self._sends, self._majority = bool(data[-1] & 1), bool(data[-1] & 2)
            nursery.cancel_scope.cancel()

    async def _look(self) -> None:
        """Keep a connection to the pool, and look at it now and then."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    connecting = connect_pool(
                        self._credentials, version=__version__, client="alerts of gpupool"
                    )
                    async with connecting as pool:
                        while True:
                            await self._look_once(pool, nursery)
                            await trio.sleep(LOOK_EVERY_S)
                except* GpupoolError as errors:
                    _say(f"the pool does not answer: {errors.exceptions[0]}")
                # Nobody answers: only the server's own word is left.
                self._take([], nursery)
                await trio.sleep(LOOK_EVERY_S)

    async def _look_once(self, pool: Pool, nursery: trio.Nursery) -> None:
        view = await pool.view()
        self._name = view.name
        said = await pool.telemetry()
        health = merged(view, said)
        if trio.current_time() >= self._waste_due_s:
            self._waste_due_s = trio.current_time() + WASTE_EVERY_S
            self._wasteful = await self._look_for_waste(pool, view.now)
        wasteful = [each for each in self._wasteful if not is_silenced(each, view)]
        self._take([*holding(health, view, tuple(said.values())), *wasteful], nursery)

    async def _look_for_waste(self, pool: Pool, now_ms: int) -> list[Condition]:
        since, until = Milliseconds(now_ms - WEEK_MS), Milliseconds(now_ms)
        try:
            answer = await pool.history(HistoryQuery("sums", "class", EVERYBODY, since, until))
        except GpupoolError:
            return self._wasteful
        return wasteful_classes(each for page in answer.pages.values() for each in page.sums)

    def _take(self, conditions: list[Condition], nursery: trio.Nursery) -> None:
        if not self._majority and not any(c.rule.name == NO_MAJORITY for c in conditions):
            text = "no majority of the voters can be reached from a server"
            conditions = [*conditions, Condition(RULES[0], "quorum", text, "gpupool health")]
        now_s, now_ms = trio.current_time(), int(time.time() * 1000)
        message = self.log.look(
            conditions, now_s, now_ms, sends=self._sends, majority=self._majority
        )
        if message is None:
            return
        for name, attempt in receivers(self._settings, message, self._name).items():
            if self._under_way >= UNDER_WAY_MAX:
                _say(f"too many messages are under way: one to {name} is lost")
                continue
            self._under_way += 1
            nursery.start_soon(self.deliver, name, attempt)

    async def deliver(self, name: str, attempt: "partial[None]") -> None:
        """Make up to eight attempts within an hour, until one is taken."""
        try:
            for delay_s in (0.0, *RETRY_AFTER_S):
                await trio.sleep(delay_s)
                try:
                    await self._in_thread(attempt)
                except NotSentError as error:
                    _say(f"{name}: {error}")
                else:
                    return
            _say(f"{name}: given up")
        finally:
            self._under_way -= 1


def _say(text: str) -> None:
    """Write a line for the server's log: standard error is the server's."""
    sys.stderr.write(f"alerts: {text}\n")
    sys.stderr.flush()


def confine(settings: AlertSettings) -> None:
    """Leave this process the system's files and those that the settings name, by Landlock."""
    sandbox.set_oom_score(0)
    paths = [str(Path(each).resolve()) for each in (*sys.path, sys.prefix, sys.base_prefix) if each]
    package = Path(__file__).resolve().parents[2]
    wanted = (*paths, str(package), RESOLVER, *settings.files())
    sandbox.restrict_files([each for each in wanted if Path(each).exists()], (), (), network=False)
    os.chdir("/etc")


def main(arguments: list[str]) -> None:
    """Run a sender on the socket and the file that the command line names."""
    descriptor, path = int(arguments[0]), Path(arguments[1])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        settings = read_settings(path)
        require_readable(settings, os.geteuid())
        confine(settings)
        credentials = load_credentials(Path(settings.credentials))
        gate = trio.SocketStream(trio.socket.from_stdlib_socket(socket.socket(fileno=descriptor)))
        trio.run(Sender(settings, credentials, gate).run)
    except GpupoolError as error:
        _say(f"{error}; {error.hint}" if error.hint else str(error))
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
