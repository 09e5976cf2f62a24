"""Users forgotten by the accounts: the table needs a salted hash, and not the name.

An order carries the hash, and each server finds by it whose records and history it is. A server
that was away finds the order in its table when it is back.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gpupool.pool.model.bounds import Blob, Kept, KeptTime

SALT_SIZE, DIGEST_SIZE = 16, 32
FORGOTTEN_COUNT_MAX = 64
FORGOTTEN_MS = 90 * 86_400_000
"""For so long servers that are away can still do it; then the hash goes from the table, too."""


_WORD = re.compile(r"""[^\s,;:()\[\]'"]+""")


@dataclass(frozen=True, slots=True)
class ForgetUser:
    """Replace a user's name by a pseudonym in the accounts and histories."""

    salt: bytes  # drawn by who orders it, which makes a repetition known
    digest: bytes
    by: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A forgotten user, up to a record and an instant: later ones are of a new name."""

    salt: Blob
    digest: Blob
    number: Kept
    at: KeptTime

    @property
    def pseudonym(self) -> str:
        """Return the pseudonym in place of the name."""
        return pseudonym_of(self.digest)


def digest_of(salt: bytes, user: str) -> bytes:
    """Return the salted hash of a name."""
    return hashlib.sha256(salt + user.encode("utf-8", "surrogatepass")).digest()


def pseudonym_of(digest: bytes) -> str:
    """Return the name that stands in place of a forgotten one."""
    return f"forgotten-{digest[:6].hex()}"


def without_names(text: str, orders: Iterable[Forgotten]) -> str:
    """Return a text with pseudonyms in the place of forgotten names, wherever they are words.

    The reason by which a lease ended may name its user, or one who went first.
    """
    for order in orders:

        def word(found: re.Match[str], order: Forgotten = order) -> str:
            name = found[0].rstrip(".")
            return order.pseudonym + found[0][len(name) :] if _means(order, name) else found[0]

        text = _WORD.sub(word, text)
    return text


def _means(order: Forgotten, name: str) -> bool:
    return _is(order.salt, order.digest, name)


@lru_cache(maxsize=4096)
def _is(salt: bytes, digest: bytes, user: str) -> bool:
    return digest_of(salt, user) == digest


def meant(forgotten: Iterable[Forgotten], user: str) -> Sequence[Forgotten]:
    """Return the orders that mean a user, the first one first."""
    return [each for each in forgotten if _is(each.salt, each.digest, user)]
