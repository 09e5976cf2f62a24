"""The order that has the accounts forget a user."""

from gpupool.pool.errors import UsageError
from gpupool.pool.model import commands
from gpupool.pool.model.commands import Command
from gpupool.pool.model.forgetting import SALT_SIZE, digest_of, pseudonym_of
from gpupool.pool.view import visible
from gpupool.remoting.protocol.message_family import Rights, message
from gpupool.remoting.protocol.messages.orders import Issue, NumberedOrder


@message(65, rights=Rights.OPERATOR)
class ForgetUser(NumberedOrder):
    """Have the accounts and histories of all servers know a user by a pseudonym alone.

    The name goes no further than the server that takes the order; its number salts the hash.
    """

    user: str
    order: bytes = b""

    def check(self) -> None:
        """Refuse an order without a name, or without a number."""
        if not self.user or len(self.order) != SALT_SIZE:
            raise UsageError("this order names a user, and has a number")

    def command(self, issue: Issue) -> Command:
        """Return the command, which has the hash."""
        return commands.ForgetUser(self.order, digest_of(self.order, self.user), issue.by)

    def outcome(self, note: str) -> str:
        """Return the pseudonym."""
        del note
        name = pseudonym_of(digest_of(self.order, self.user))
        return f"the accounts and histories know {visible(self.user)} as {name}"
