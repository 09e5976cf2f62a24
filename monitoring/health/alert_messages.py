"""Messages about alerts, as webhooks and mails carry them, and one attempt to send them.

The attempts block, so they are made on threads, of a process that is not the server.
"""

import hashlib
import hmac
import http.client
import json
import smtplib
import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from gpupool import __version__
from gpupool.monitoring.health.alert_settings import Email, Webhook, is_loopback
from gpupool.pool.alert_log import Alert, Message

TIMEOUT_S = 5.0
"""Of a webhook altogether; of each step of a mail."""
MAIL_TIMEOUT_S = 30.0
"""Of a mail altogether: mail servers make strangers wait on purpose."""
RETRY_AFTER_S = (5.0, 15.0, 60.0, 180.0, 540.0, 1000.0, 1800.0)
"""Between the eight attempts, which take an hour."""

SIGNATURE = "X-Gpupool-Signature"


class NotSentError(Exception):
    """A receiver has not taken a message."""


class Deadline:
    """Ends a connection that takes too long altogether, from another thread.

    A socket's own timeout is that of one read: a receiver that sends a byte now and then would hold
    a thread for ever. Resolving a name is not included; the system's resolver bounds it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._twin: socket.socket | None = None
        self.is_over = False

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()
        if self._twin is not None:
            self._twin.close()

    def connect(self, host: str, port: int) -> socket.socket:
        """Return a connection that ends with this deadline; raises OSError."""
        found = socket.create_connection((host, port), TIMEOUT_S)
        # TLS takes the descriptor over, so the deadline keeps one of its own.
        self._twin = found.dup()
        if self.is_over:
            self._end()
        return found

    def why(self, error: Exception) -> str:
        """Return the text of an error, or that it took too long, if that caused it."""
        # A read that times out may be noticed just before the deadline that it was given.
        late = self.is_over or (isinstance(error, TimeoutError) and self._seconds <= TIMEOUT_S)
        return f"it took longer than {self._seconds:g} s" if late else str(error)

    def _end(self) -> None:
        self.is_over = True
        if self._twin is not None:
            with suppress(OSError):
                self._twin.shutdown(socket.SHUT_RDWR)


class WatchedSmtp(smtplib.SMTP):
    """A mail connection with a deadline; smtplib connects and reads a greeting when it is made."""

    def __init__(self, email: Email, deadline: Deadline) -> None:
        self._deadline = deadline
        super().__init__(email.host, email.port, timeout=TIMEOUT_S)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return self._deadline.connect(host, port)


def body_of(message: Message, pool: str) -> bytes:
    """Return a message in the form of Alertmanager's webhooks, version 4."""
    firing = any(not alert.ended_ms for alert in message.alerts)
    body: dict[str, Any] = {
        "version": "4",
        "groupKey": f"gpupool/{pool}",
        "truncatedAlerts": 0,
        "status": "firing" if firing else "resolved",
        "receiver": "gpupool",
        "groupLabels": {},
        "commonLabels": {"pool": pool},
        "commonAnnotations": _left_out(message),
        "externalURL": "",
        "alerts": [_alert(alert, pool) for alert in message.alerts],
    }
    return json.dumps(body).encode()


def slack_body_of(message: Message, pool: str) -> bytes:
    """Return a message as the incoming webhooks of Slack and Mattermost take it."""
    return json.dumps({"text": "\n".join([_subject(message, pool), *_lines(message)])}).encode()


def _left_out(message: Message) -> dict[str, str]:
    if not message.left_out:
        return {}
    return {"note": f"{message.left_out} messages before this one were held back"}


def _alert(alert: Alert, pool: str) -> dict[str, Any]:
    return {
        "status": "resolved" if alert.ended_ms else "firing",
        "labels": {
            "alertname": f"Gpupool{alert.rule}",
            "severity": alert.severity,
            "subject": alert.subject,
            "pool": pool,
        },
        "annotations": {"summary": alert.text, "hint": alert.hint},
        "startsAt": _time(alert.began_ms),
        "endsAt": _time(alert.ended_ms) if alert.ended_ms else "0001-01-01T00:00:00Z",
        "generatorURL": "",
        "fingerprint": alert.id,
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def signature(secret: bytes, body: bytes) -> str:
    """Return the HMAC header that authenticates the sender of ``body``."""
    return "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()


def post(webhook: Webhook, body: bytes) -> None:
    """Send a body to a webhook, once.

    Raises:
        NotSentError: when it was not taken.
    """
    url = urlsplit(webhook.url)
    headers = {"Content-Type": "application/json", "User-Agent": f"gpupool/{__version__}"}
    host = url.hostname or ""
    is_tls = url.scheme == "https"
    kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
    connection = kind(host, url.port)
    with Deadline(TIMEOUT_S) as deadline:
        try:
            if webhook.secret_file:
                headers[SIGNATURE] = signature(_secret(webhook.secret_file), body)
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
            connection.sock = deadline.connect(host, connection.port)
            if is_tls:
                context = ssl.create_default_context()
                connection.sock = context.wrap_socket(connection.sock, server_hostname=host)
            connection.request("POST", path, body, headers)
            status = connection.getresponse().status
            if deadline.is_over:  # to http.client headers that were cut off are only short
                raise TimeoutError
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NotSentError(f"{host}: {deadline.why(error)}") from error
        finally:
            connection.close()
    if not 200 <= status < 300:
        raise NotSentError(f"{host} answered {status}")


def mail_of(message: Message, pool: str, email: Email) -> EmailMessage:
    """Return a message as a mail."""
    mail = EmailMessage()
    mail["Subject"] = _subject(message, pool)
    mail["From"] = email.sender
    mail["To"] = ", ".join(email.to)
    mail.set_content("\n".join(_lines(message)) + "\n")
    return mail


def _subject(message: Message, pool: str) -> str:
    firing = [alert for alert in message.alerts if not alert.ended_ms]
    first = message.alerts[0]
    more = f" and {len(message.alerts) - 1} more" if len(message.alerts) > 1 else ""
    word = first.severity if firing else "over"
    return f"[gpupool {pool}] {word}: {first.text[:100]}{more}"


def _lines(message: Message) -> list[str]:
    lines: list[str] = list(_left_out(message).values())
    for alert in message.alerts:
        state = f"over since {_time(alert.ended_ms)}" if alert.ended_ms else alert.severity
        lines += [f"{alert.rule} ({state}), since {_time(alert.began_ms)}", f"  {alert.text}"]
        lines += [f"  hint: {alert.hint}"] if alert.hint else []
    return lines


def send_mail(email: Email, mail: EmailMessage) -> None:
    """Send a mail, once; without TLS only to this machine.

    Raises:
        NotSentError: when it was not taken.
    """
    with Deadline(MAIL_TIMEOUT_S) as deadline:
        try:
            with WatchedSmtp(email, deadline) as connection:
                if not is_loopback(email.host):
                    connection.starttls(context=ssl.create_default_context())
                if email.user:
                    password = _secret(email.password_file).decode()
                    connection.login(email.user, password)
                connection.send_message(mail)
        except (OSError, smtplib.SMTPException, ValueError) as error:
            raise NotSentError(f"{email.host}: {deadline.why(error)}") from error


def _secret(path: str) -> bytes:
    return Path(path).read_bytes().strip()
