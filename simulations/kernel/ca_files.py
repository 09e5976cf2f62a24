"""The CAs on one machine's disk, without cryptography: a CA is its number and a word of chance."""

from dataclasses import dataclass, field, replace

FIRST_CA = b"1"


@dataclass(slots=True)
class CaFiles:
    """The CAs that a server trusts, the CAs that have signed its certificates, and its keys."""

    trusted: tuple[bytes, ...] = (FIRST_CA,)
    usual: bytes = FIRST_CA
    newest: bytes = FIRST_CA
    keys: set[bytes] = field(default_factory=set[bytes])

    def clone(self) -> "CaFiles":
        """Return a copy that changes apart from this one."""
        return replace(self, keys=set(self.keys))


def numbers(authorities: tuple[bytes, ...]) -> tuple[int, ...]:
    """Return the numbers of CAs."""
    return tuple(int(each.split()[0]) for each in authorities)


def trust_each_other(one: CaFiles, other: CaFiles) -> bool:
    """Return whether a link between two servers can come up: the dialler tries every pair."""
    mine, theirs = {one.usual, one.newest}, {other.usual, other.newest}
    return not mine.isdisjoint(other.trusted) and not theirs.isdisjoint(one.trusted)
