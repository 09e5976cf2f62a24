"""Sending alerts: the settings, the bytes of a webhook, a mail, and the process that sends."""

import hashlib
import hmac
import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from email import message_from_bytes
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
import trio.testing
from tests.monitoring.health.healthy_pool import A, B, C, healthy_table

from gpupool.cli.commands.monitoring import alerts
from gpupool.monitoring.health import alert_messages
from gpupool.monitoring.health.alert_messages import NotSentError, body_of, mail_of, post, send_mail
from gpupool.monitoring.health.alert_sender import Sender, receivers
from gpupool.monitoring.health.alert_settings import (
    AlertSettings,
    Email,
    Webhook,
    find_settings,
    read_settings,
    require_readable,
)
from gpupool.pool.alert_gate import sends_alerts
from gpupool.pool.alert_log import Alert, Message
from gpupool.pool.errors import UsageError
from gpupool.pool.model.state import PoolState, ServerStatus, with_changes
from gpupool.pool.ports import RaftHealth, Role

FIRES = Alert("id1", "Disk", "critical", "a/disk/free", "0.5 GiB are free", "make room", 1000)
OVER = replace(FIRES, id="id2", ended_ms=61_000)


@dataclass
class Receiver:
    """A webhook's server on this machine."""

    url: str
    status: int = 200
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list[Any])


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            known.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
            self.send_response(known.status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        known = Receiver(f"http://127.0.0.1:{server.server_address[1]}/hook")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield known
        server.shutdown()
        thread.join()


def test_a_webhook_gets_what_alertmanager_sends_and_a_signature(
    receiver: Receiver, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    body = body_of(Message((FIRES, OVER), left_out=2), "lab")
    post(Webhook(receiver.url, str(secret)), body)
    [(headers, got)] = receiver.got
    digest = hmac.new(b"hush", got, hashlib.sha256).hexdigest()
    assert headers["x-gpupool-signature"] == f"sha256={digest}"
    said = json.loads(got)
    assert (said["version"], said["status"]) == ("4", "firing")
    assert said["commonAnnotations"] == {"note": "2 messages before this one were held back"}
    assert [each["status"] for each in said["alerts"]] == ["firing", "resolved"]
    assert said["alerts"][0]["labels"]["alertname"] == "GpupoolDisk"
    assert said["alerts"][0]["startsAt"] == "1970-01-01T00:00:01Z"
    assert said["alerts"][1]["endsAt"] == "1970-01-01T00:01:01Z"
    assert json.loads(body_of(Message((OVER,)), "lab"))["status"] == "resolved"


def test_a_channel_of_slack_gets_the_text_of_the_mail(tmp_path: Path) -> None:
    text = GOOD.replace('secret_file = "/etc/gpupool/secret"', 'format = "slack"')
    settings = settings_of(tmp_path, text)
    message = Message((FIRES, OVER), left_out=2)
    for_webhook = receivers(settings, message, "lab")["https://alerts.example/hook"]
    said = json.loads(for_webhook.args[1])
    mail = mail_of(message, "lab", settings.emails[0])
    assert said == {"text": f"{mail['Subject']}\n{mail.get_content().rstrip()}"}


def test_what_is_not_taken_is_told(receiver: Receiver) -> None:
    receiver.status = 500
    with pytest.raises(NotSentError, match="answered 500"):
        post(Webhook(receiver.url), b"{}")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with pytest.raises(NotSentError, match="refused"):
            post(Webhook(f"http://127.0.0.1:{nobody.getsockname()[1]}/"), b"{}")


@pytest.mark.parametrize("drips", [False, True])
def test_a_webhook_that_hangs_is_left_after_a_while(
    drips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that sends a byte now and then never lets a read time out."""
    monkeypatch.setattr(alert_messages, "TIMEOUT_S", 0.2)
    over = threading.Event()

    def hang(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            with suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                while not over.wait(0.02):
                    if drips:
                        connection.sendall(b"x")
            over.wait(30)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=hang, args=(listener,), daemon=True)
        thread.start()
        # A receiver that ends by itself after 30 s would be noticed as well, by the wrong sentence.
        with pytest.raises(NotSentError, match=r"127\.0\.0\.1: it took longer than 0\.2 s"):
            post(Webhook(f"http://127.0.0.1:{listener.getsockname()[1]}/"), b"{}")
        over.set()
        thread.join()


def test_a_mail_server_that_drips_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_messages, "MAIL_TIMEOUT_S", 0.2)
    over = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            while not over.wait(0.02):
                connection.sendall(b"2")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        email = Email("127.0.0.1", "pool@lab", ("ops@lab",), listener.getsockname()[1])
        with pytest.raises(NotSentError, match=r"127\.0\.0\.1: it took longer than 0\.2 s"):
            send_mail(email, mail_of(Message((FIRES,)), "lab", email))
        over.set()
        thread.join()


def test_a_mail(tmp_path: Path) -> None:
    got: list[bytes] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            for line in self.rfile:
                if line.upper().startswith(b"DATA"):
                    self.wfile.write(b"354 go on\r\n")
                    lines = iter(self.rfile.readline, b".\r\n")
                    got.append(b"".join(lines))
                self.wfile.write(
                    b"221 bye\r\n" if line.upper().startswith(b"QUIT") else b"250 ok\r\n"
                )

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        email = Email("127.0.0.1", "pool@lab", ("ops@lab", "b@lab"), server.server_address[1])
        send_mail(email, mail_of(Message((FIRES, OVER)), "lab", email))
        thread.join()
    [data] = got
    mail = message_from_bytes(data)
    assert mail["Subject"] == "[gpupool lab] critical: 0.5 GiB are free and 1 more"
    assert mail["To"] == "ops@lab, b@lab"
    assert "hint: make room" in str(mail.get_payload())


def test_mail_to_another_machine_needs_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Connection:
        def __init__(self, *_: object, **__: object) -> None:
            done.append("connect")

        def __enter__(self) -> "Connection":
            return self

        def __exit__(self, *_: object) -> None:
            done.append("quit")

        def starttls(self, **_: object) -> None:
            done.append("tls")
            raise alert_messages.smtplib.SMTPNotSupportedError("no TLS here")

    monkeypatch.setattr(alert_messages, "WatchedSmtp", Connection)
    email = Email("mail.example", "a@b", ("c@d",))
    with pytest.raises(NotSentError, match="no TLS here"):
        send_mail(email, mail_of(Message((FIRES,)), "lab", email))
    assert done == ["connect", "tls", "quit"]


# --- settings -------------------------------------------------------------------------------------

GOOD = """
credentials = "/etc/gpupool/viewer.json"
[[webhook]]
url = "https://alerts.example/hook"
secret_file = "/etc/gpupool/secret"
[[email]]
host = "mail.example"
from = "pool@lab"
to = ["ops@lab"]
"""


def settings_of(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "alerts.toml"
    path.write_text(text)
    return read_settings(path)


def test_files_that_the_servers_user_cannot_read_are_named(tmp_path: Path) -> None:
    """As of a token that root made for a server with a separate user."""
    settings = settings_of(tmp_path, GOOD)
    require_readable(settings, 51999, lambda _path, _mode: True)
    with pytest.raises(UsageError, match=r"viewer\.json is not there, or .* user 51999") as raised:
        require_readable(settings, 51999, lambda path, _mode: "viewer" not in path)
    assert raised.value.hint.startswith("chown 51999 /etc/gpupool/viewer.json")
    with pytest.raises(UsageError, match="/etc/gpupool/secret is not there"):
        require_readable(settings, 51999, lambda path, _mode: "secret" not in path)


def test_settings_are_read_and_found(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, GOOD)
    assert settings.webhooks == (Webhook("https://alerts.example/hook", "/etc/gpupool/secret"),)
    assert settings.emails == (Email("mail.example", "pool@lab", ("ops@lab",)),)
    assert settings.files()[1:] == ("/etc/gpupool/viewer.json", "/etc/gpupool/secret")
    assert find_settings(tmp_path, tmp_path / "none") == tmp_path / "alerts.toml"
    assert find_settings(tmp_path / "none", tmp_path) == tmp_path / "alerts.toml"
    assert find_settings(tmp_path / "none", tmp_path / "none") is None


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("https://alerts", "http://alerts", "a webhook is https"),
        ("credentials =", "# credentials =", "credentials must name"),
        ("secret_file =", "secret =", "secret of a"),
        ('["ops@lab"]', '"ops@lab"', "to of a"),
        ('from = "pool@lab"', "", "lacks something"),
        ("[[webhook]]", "[webhook]", "write"),
        ('from = "pool@lab"', 'from = "pool@lab\\nBcc: x"', "wrong kind"),
        ('secret_file = "/etc/gpupool/secret"', 'format = "irc"', "format is one of"),
        ("credentials", "more = 1\ncredentials", "more is not known"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, old: str, new: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        settings_of(tmp_path, GOOD.replace(old, new))
    assert why in refused.value.why


def test_the_command_sends_a_test(
    receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "alerts.toml"
    path.write_text(f'credentials = "x.json"\n[[webhook]]\nurl = "{receiver.url}"\n')
    run = alerts.test.callback
    assert run is not None
    assert run(path=str(path), folder=None) == 0
    assert json.loads(receiver.got[0][1])["alerts"][0]["labels"]["alertname"] == "GpupoolTest"
    receiver.status = 404
    assert run(path=None, folder=str(tmp_path)) == 1
    assert "not sent: 127.0.0.1 answered 404" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no alerts are set up here"):
        run(path=None, folder=str(tmp_path / "none"))


@pytest.mark.parametrize("taken_at", [1, 3, None])
async def test_eight_attempts_within_an_hour(
    taken_at: int | None, autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    tries: list[float] = []

    def attempt() -> None:
        tries.append(autojump_clock.current_time())
        if len(tries) != taken_at:
            raise NotSentError("busy")

    async def at_once(act: Callable[[], None]) -> None:
        act()  # on a thread the virtual clock would run on

    nothing = cast(Any, None)
    sender = Sender(AlertSettings(tmp_path, "x"), nothing, nothing, at_once)
    await sender.deliver("hook", partial(attempt))
    assert len(tries) == (taken_at or 8)
    assert tries[-1] - tries[0] <= 3600.0


# --- who sends ------------------------------------------------------------------------------------

HEALTH = RaftHealth(
    role=Role.FOLLOWER,
    leader=A,
    term=1,
    commit_index=1,
    applied_index=1,
    voters=(A, B, C),
    connected=(),
    majority_age_s=0.1,
    contact_age_s={},
    elections=0,
)


def with_server(state: PoolState, name: Any, **changes: Any) -> PoolState:
    server = with_changes(state.servers[name], **changes)
    return with_changes(state, servers=state.servers.set(name, server))


def test_the_first_of_those_that_can_sends() -> None:
    state = healthy_table()

    def senders(state: PoolState, health: RaftHealth = HEALTH) -> list[str]:
        return [each for each in (A, B, C) if sends_alerts(state, each, health)]

    assert senders(state) == []
    state = with_server(with_server(state, B, alerts=True), C, alerts=True)
    assert senders(state) == [B]
    assert senders(state, replace(HEALTH, majority_age_s=5.0)) == []
    assert senders(with_server(state, B, status=ServerStatus.UNREACHABLE)) == [C]


@pytest.mark.slow
def test_the_process_ends_with_its_server_and_refuses_nonsense(tmp_path: Path) -> None:
    path = tmp_path / "alerts.toml"
    path.write_text("nonsense = 1\n")
    ours, theirs = socket.socketpair()
    argv = [sys.executable, "-m", "gpupool.monitoring.health.alert_sender"]
    with ours, theirs:
        done = subprocess.run(
            [*argv, str(theirs.fileno()), str(path)],
            pass_fds=(theirs.fileno(),),
            capture_output=True,
            text=True,
            check=False,
            env=dict(os.environ),
        )
    assert done.returncode == 1
    assert "alerts: " in done.stderr
    assert "makes no sense" in done.stderr
