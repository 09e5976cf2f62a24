"""The identity of a server, and its form in ``identity.json``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from gpupool.pool.model.ids import ServerId

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Member:
    """A member and its last known address, for a start before the table is loaded."""

    server: ServerId
    address: str
    name: str = ""
    more: tuple[str, ...] = ()  # addresses

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return all addresses."""
        return (self.address, *self.more)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The identity of this server, which never changes."""

    server: ServerId
    cluster_id: str
    pool: str
    name: str
    witness: bool
    founder: bool  # made the pool, and so begins with a vote
    members: tuple[Member, ...] = ()
    complete: bool = False
    listen: str = ""  # as --listen said last; a start without the option does the same
    former: ServerId | None = None  # this machine's id before "gpupool rejoin", to be removed

    def encoded(self) -> dict[str, object]:
        """Return the object for the file."""
        body: dict[str, object] = {
            "schema": SCHEMA,
            "server": self.server,
            "cluster_id": self.cluster_id,
            "pool": self.pool,
            "name": self.name,
            "witness": self.witness,
            "founder": self.founder,
            "members": {member.server: member.address for member in self.members},
            "complete": self.complete,
            "listen": self.listen,
        }
        more = {each.server: [each.name, *each.more] for each in self.members if each.name}
        if more:
            body["more"] = more  # older programs pass it over
        if self.former is not None:
            body["former"] = self.former
        return body


def identity_of(body: object) -> ServerIdentity:
    """Return the identity from a body of ``encoded``, or of an older build.

    Raises:
        ValueError: when it makes no sense; and so do KeyError and TypeError.
    """
    if not isinstance(body, dict):
        raise TypeError("it is no object")
    fields = cast("Mapping[str, Any]", body)
    if fields["schema"] != SCHEMA:
        raise ValueError("it was written by another version of gpupool")
    texts = [fields[name] for name in ("server", "cluster_id", "pool", "name", "listen")]
    former = fields.get("former")
    if not isinstance(former, str | None):
        raise TypeError("a name is no text")
    flags = [fields[name] for name in ("witness", "founder", "complete")]
    members = cast("Mapping[str, Any]", fields["members"])
    more: dict[str, list[str]] = {each: [""] for each in members} | fields.get("more", {})
    names = (text for each in members for text in more[each])
    if not all(isinstance(text, str) for text in (*texts, *members, *members.values(), *names)):
        raise TypeError("a name is no text")
    if not all(isinstance(flag, bool) for flag in flags):
        raise TypeError("a flag is neither true nor false")
    return ServerIdentity(
        server=ServerId(texts[0]),
        cluster_id=texts[1],
        pool=texts[2],
        name=texts[3],
        witness=flags[0],
        founder=flags[1],
        members=tuple(
            Member(ServerId(each), address, "".join(more[each][:1]), tuple(more[each][1:]))
            for each, address in members.items()
        ),
        complete=flags[2],
        listen=texts[4],
        former=None if former is None else ServerId(former),
    )
