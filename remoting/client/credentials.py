"""The credentials file of a user: the token, and the addresses and CA of the pool.

JSON, mode 0600 in a folder of mode 0700. A file that others may read is refused, as ssh does:
the token in it is as good as the user.
"""

import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from gpupool.pool.errors import AuthenticationError, GpupoolError, StorageError
from gpupool.pool.model.ids import TokenId
from gpupool.remoting.protocol.addresses import Address, parse_address

FILE_SIZE_MAX = 256 * 1024
SCHEMA = 1
_FIELDS = {"schema", "cluster_id", "pool", "user", "token", "secret", "ca_pem", "addresses"}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The addresses of a pool, and the token by which its servers know the user.

    ``ca_pem`` has the CA's certificate, or two while the pool exchanges its CA: older programs read
    both.
    """

    cluster_id: str
    pool: str
    user: str
    token: TokenId
    secret: bytes
    ca_pem: str
    addresses: tuple[Address, ...]

    def __repr__(self) -> str:
        """Leave the secret out, so that no log or traceback shows it."""
        return f"Credentials({self.user} of {self.pool}, token {self.token})"

    @property
    def likely(self) -> tuple[Address, ...]:
        """Return the addresses to try first: names, which servers may have too, come later."""
        return tuple(each for each in self.addresses if each.is_numeric) or self.addresses

    def trusting(self, ca_pem: str) -> "Credentials":
        """Return these credentials with other CAs."""
        return replace(self, ca_pem=ca_pem)

    def at(self, addresses: tuple[Address, ...]) -> "Credentials":
        """Return these credentials with other addresses."""
        return replace(self, addresses=addresses)


def credentials_path(environment: Mapping[str, str]) -> Path:
    """Return the path of the file: ``GPUPOOL_CREDENTIALS``, else below ``XDG_CONFIG_HOME``."""
    if given := environment.get("GPUPOOL_CREDENTIALS"):
        return Path(given)
    base = environment.get("XDG_CONFIG_HOME") or str(Path(environment.get("HOME", "~"), ".config"))
    return Path(base).expanduser() / "gpupool" / "credentials.json"


TRY = 'to try gpupool without a pool: "gpupool up"'


def load_credentials(path: Path) -> Credentials:
    """Return the credentials in ``path``.

    Raises:
        AuthenticationError: when there are none, or others may read the file.
        StorageError: when the file is not what ``save_credentials`` writes.
    """
    login = 'give a token to "gpupool login"; an operator makes one with "gpupool token create"'
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise AuthenticationError(
            "not logged in to a pool", why=f"there is no {path}", hint=f"{login}; {TRY}"
        ) from error
    except OSError as error:
        raise StorageError(f"cannot read {path}", why=error.strerror or str(error)) from error
    with os.fdopen(descriptor, "rb") as file:
        # The open file is what is judged, so that nobody can exchange it in between.
        status = os.fstat(file.fileno())
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise AuthenticationError(
                f"{path} can be read by others",
                why="anyone who reads it can act as you",
                hint=f"chmod 600 {path}; and make a new token if somebody may have read it",
            )
        data = file.read(FILE_SIZE_MAX + 1)
    try:
        return from_text(data)
    except (ValueError, GpupoolError) as error:
        raise StorageError(f"{path} is damaged", why=str(error)[:200], hint=login) from error


def from_text(data: bytes) -> Credentials:
    """Return the credentials that a file holds.

    Raises:
        ValueError: when it is not what ``to_text`` makes.
        GpupoolError: likewise.
    """
    if len(data) > FILE_SIZE_MAX:
        raise ValueError("it is too long")
    return _from_plain(json.loads(data))


def to_text(credentials: Credentials) -> str:
    """Return the content of a credentials file."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "cluster_id": credentials.cluster_id,
            "pool": credentials.pool,
            "user": credentials.user,
            "token": credentials.token,
            "secret": credentials.secret.hex(),
            "ca_pem": credentials.ca_pem,
            "addresses": [str(address) for address in credentials.addresses],
        },
        indent=2,
    )


def save_credentials(path: Path, credentials: Credentials) -> None:
    """Write the file whole or not at all, for nobody's eyes but the user's.

    Raises:
        StorageError: when it cannot be written.
    """
    text = to_text(credentials)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".credentials-")  # mode 0600
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageError(f"cannot write {path}", why=error.strerror or str(error)) from error


def keep_former(path: Path, token: TokenId) -> Path | None:
    """Move a login by another token aside, and return where it went; None when there is none.

    It may be the only copy of a token, an operator's for example.

    Raises:
        StorageError: when it cannot be moved.
    """
    if not os.path.isfile(path):  # false, too, in a folder that is closed to us
        return None
    try:
        former: str = load_credentials(path).token
    except GpupoolError:
        former = "former"
    if former == token:
        return None
    kept = path.with_name(f"{path.stem}-{former}{path.suffix}")
    try:
        path.replace(kept)
    except OSError as error:
        raise StorageError(f"cannot write {kept}", why=error.strerror or str(error)) from error
    return kept


def _from_plain(plain: object) -> Credentials:
    if not isinstance(plain, dict):
        raise ValueError("it is no JSON object")
    fields = cast("dict[str, Any]", plain)
    if fields.get("schema") != SCHEMA:
        raise ValueError("it was written by another version of gpupool")
    if fields.keys() != _FIELDS:
        raise ValueError("fields are missing or unknown")
    texts = {name: fields[name] for name in _FIELDS - {"schema", "addresses"}}
    if not all(isinstance(value, str) for value in texts.values()):
        raise ValueError("a field is no text")
    addresses = fields["addresses"]
    if not isinstance(addresses, list) or not all(
        isinstance(address, str) for address in cast("list[Any]", addresses)
    ):
        raise ValueError("addresses are no list of texts")
    return Credentials(
        cluster_id=texts["cluster_id"],
        pool=texts["pool"],
        user=texts["user"],
        token=TokenId(texts["token"]),
        secret=bytes.fromhex(texts["secret"]),
        ca_pem=texts["ca_pem"],
        addresses=tuple(parse_address(text) for text in cast("list[str]", addresses)),
    )
