"""The file ``alerts.toml``: receivers of alerts. Secrets stand in separate files."""

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from gpupool.pool.errors import UsageError

T = TypeVar("T")

FILE = "alerts.toml"
SYSTEM_FOLDER = Path("/etc/gpupool")
RECEIVERS_MAX = 16
FORMATS = ("alertmanager", "slack")


@dataclass(frozen=True, slots=True)
class Webhook:
    """A receiver of JSON over HTTPS: Alertmanager's, or a text as Slack and Mattermost take it."""

    url: str
    secret_file: str = ""  # signs each body by HMAC-SHA256
    format: str = "alertmanager"


@dataclass(frozen=True, slots=True)
class Email:
    """A receiver of mail."""

    host: str
    sender: str
    to: tuple[str, ...]
    port: int = 587
    user: str = ""
    password_file: str = ""


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """All of the file."""

    path: Path
    credentials: str  # of a viewer, to look at the pool
    webhooks: tuple[Webhook, ...] = ()
    emails: tuple[Email, ...] = ()

    def files(self) -> tuple[str, ...]:
        """Return every file that the sending needs."""
        secrets = [each.secret_file for each in self.webhooks]
        secrets += [each.password_file for each in self.emails]
        return tuple(name for name in (str(self.path), self.credentials, *secrets) if name)


def require_readable(
    settings: AlertSettings, user: int, access: Callable[[str, int], bool] = os.access
) -> None:
    """Refuse files that the server's user cannot read: root made them, and the server is not root.

    Raises:
        UsageError: for the first of them; it names the command that helps.
    """
    for path in settings.files():
        if not access(path, os.R_OK):
            raise UsageError(
                f"alerts cannot be sent: {path} is not there, or not for this server's user {user}",
                hint=f"chown {user} {path}, and let that user into the folders above it",
            )


def find_settings(state_dir: Path, system: Path = SYSTEM_FOLDER) -> Path | None:
    """Return where the file is: in a server's state directory, else in the system's folder."""
    found = [folder / FILE for folder in (state_dir, system)]
    return next((path for path in found if path.is_file()), None)


def read_settings(path: Path) -> AlertSettings:
    """Read the file.

    Raises:
        UsageError: when it cannot be read or makes no sense.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read", why=str(error)) from error
    if unknown := data.keys() - {"credentials", "webhook", "email"}:
        raise _wrong(path, f"{min(unknown)} is not known; it may have credentials, webhook, email")
    credentials = data.get("credentials", "")
    if not isinstance(credentials, str) or not credentials:
        raise _wrong(path, "credentials must name the file of a viewer's credentials")
    webhooks = tuple(_made(Webhook, each, path) for each in _tables(data, "webhook", path))
    emails = tuple(_made(Email, each, path) for each in _tables(data, "email", path))
    if not 0 < len(webhooks) + len(emails) <= RECEIVERS_MAX:
        raise _wrong(path, f"there must be 1 to {RECEIVERS_MAX} receivers: [[webhook]], [[email]]")
    for webhook in webhooks:
        url = urlsplit(webhook.url)
        plain = url.scheme == "http" and is_loopback(url.hostname or "")
        if not url.hostname or not (url.scheme == "https" or plain):
            raise _wrong(path, f"a webhook is https://HOST/..., not {webhook.url!r}")
        if webhook.format not in FORMATS:
            raise _wrong(path, f"format is one of {', '.join(FORMATS)}, not {webhook.format!r}")
    return AlertSettings(path, credentials, webhooks, emails)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _wrong(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} makes no sense", why=why, hint='"gpupool alerts --help" has an example'
    )


def _tables(data: Mapping[str, Any], name: str, path: Path) -> list[dict[str, Any]]:
    found = data.get(name, [])
    if not isinstance(found, list):
        raise _wrong(path, f"write [[{name}]]")
    tables = cast("list[object]", found)
    if not all(isinstance(each, dict) for each in tables):
        raise _wrong(path, f"write [[{name}]]")
    return cast("list[dict[str, Any]]", found)


def _made(kind: type[T], table: dict[str, Any], path: Path) -> T:
    given = {("sender" if name == "from" else name): value for name, value in table.items()}
    if isinstance(given.get("to"), list):
        given["to"] = tuple(str(each) for each in given["to"])
    name = kind.__name__.lower()
    wanted = {each.name: each.type for each in fields(cast(Any, kind))}
    if unknown := given.keys() - wanted.keys():
        raise _wrong(path, f"{min(unknown)} of a [[{name}]] is not known")
    for key, value in given.items():
        right = {"to": tuple, "port": int}.get(key, str)
        if type(value) is not right or (isinstance(value, str) and not value.isprintable()):
            raise _wrong(path, f"{key} of a [[{name}]] is of the wrong kind")
    try:
        return kind(**given)
    except TypeError as error:
        raise _wrong(path, f"a [[{name}]] lacks something: {error}") from error
