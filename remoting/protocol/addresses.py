"""Addresses as people write them: ``10.0.0.4:7470``, ``gpu-a``, ``[fd00::4]:7470``."""

from dataclasses import dataclass

from gpupool.pool.errors import UsageError

PORT_DEFAULT = 7470
HOST_LENGTH_MAX = 253  # of a DNS name, RFC 1035


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A host and a TCP port."""

    host: str
    port: int = PORT_DEFAULT

    def __str__(self) -> str:
        """Return ``host:port``, with brackets around an IPv6 host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_numeric(self) -> bool:
        """Return whether the host is an address of IPv4 or IPv6, and no name."""
        return ":" in self.host or self.host.replace(".", "").isdigit()


def parse_address(text: str) -> Address:
    """Return the address that ``text`` names; the port may be left out.

    Raises:
        UsageError: when it is none.
    """
    host, port = text.strip(), ""
    if host.startswith("["):
        host, bracket, port = host[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise _not_an_address(text)
        port = port[1:]
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
        if not port:
            raise _not_an_address(text)
    number = int(port) if port.isascii() and port.isdigit() else (0 if port else PORT_DEFAULT)
    if not 0 < number < 65536 or not 0 < len(host) <= HOST_LENGTH_MAX:
        raise _not_an_address(text)
    if not host.isprintable() or any(each in host for each in " /[]@"):
        raise _not_an_address(text)
    try:
        host.encode("idna")  # as whoever connects there does, who expects no other error
    except UnicodeError as error:
        raise _not_an_address(text) from error
    return Address(host, number)


def parse_listen(text: str) -> Address:
    """Return where to listen: ``HOST``, ``HOST:PORT`` or ``:PORT``; port 0 takes a free one.

    Without a host it is every address of this machine.

    Raises:
        UsageError: when it is none.
    """
    host, colon, port = text.rpartition(":")
    if not host and colon:
        text = "0.0.0.0" + text  # noqa: S104  a server is there to be reached
    if port == "0" and colon:
        return Address(parse_address(text[:-1] + "1").host, 0)
    return parse_address(text)


def _not_an_address(text: str) -> UsageError:
    return UsageError(
        f"{text[:80]!r} is not an address", hint="write host, host:port or [IPv6]:port"
    )
