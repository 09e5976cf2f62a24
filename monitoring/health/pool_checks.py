"""Checks of the whole pool, from the table of any server: pure, as ``gpu_checks``.

Every server says the same of the pool, so whoever asks all of them keeps one of each finding.
"""

from collections import Counter
from collections.abc import Iterator

from gpupool.monitoring.health.readings import Past, Readings, Result
from gpupool.pool.model.state import ServerStatus, TokenKind, Waiting
from gpupool.pool.model.units import DAY_MS, HOUR_MS
from gpupool.pool.scheduling.filters import admitted, fitting_cards
from gpupool.pool.telemetry import Health
from gpupool.pool.view import MISSING_HINT, has_quorum

WARN, FAIL = Health.WARN, Health.FAIL

BACKUP_WARN_DAYS = 7
WAITING_WARN_MS, WAITING_FAIL_MS = HOUR_MS, 24 * HOUR_MS
VERSIONS_MS = DAY_MS
START_S = 5.0
TOKEN_WARN_MS = 14 * DAY_MS


def quorum(readings: Readings, past: Past) -> Iterator[Result]:
    """Tell of a pool that grants nothing, or would after one more loss."""
    health, me = readings.health, readings.telemetry.server
    if not has_quorum(health):
        if past.first is None or readings.now_s - past.first.now_s < START_S:
            return  # a server that has just started looks for the others
        text = "no majority of the voters can be reached from here: nothing is granted"
        yield Result("quorum", "", FAIL, text, MISSING_HINT)
        return
    voters = len(health.voters)
    if voters == 1 or me != health.leader:
        return  # one server alone has no margin to lose; the leader knows whom it reaches
    reached = {me} | (set(health.connected) & set(health.voters)) - set(health.unfit)
    if len(reached) - (voters // 2 + 1) < 1:
        text = f"{len(reached)} of {voters} voters: the loss of one more stops all grants"
        hint = "start the missing servers, or let another one join"
        yield Result("quorum", "", WARN, text, hint)
    elif voters % 2 == 0:
        text = f"{voters} voting servers tolerate as many failures as {voters - 1}"
        hint = "let one more server join; gpupool join --witness needs no GPU"
        yield Result("quorum", "", WARN, text, hint)


def silent(readings: Readings, past: Past) -> Iterator[Result]:
    """Report servers without contact, and servers with a different table."""
    servers = readings.state.servers
    for server in servers.values():
        if server.status is ServerStatus.UNREACHABLE:
            text = f"{server.name} does not answer; its leases stay charged"
            hint = f"start it; if it is lost for good: gpupool leave {server.name}"
            yield Result("silent", server.name, FAIL, text, hint)
    for each in readings.health.diverged:
        name = servers[each].name if each in servers else each
        text = f"the table of {name} differs from that of the others"
        yield Result("table", name, FAIL, text, "check its memory and disk, then gpupool rejoin")


def versions(readings: Readings, past: Past) -> Iterator[Result]:
    """Report servers with different versions of gpupool or of the driver."""
    up = [each for each in readings.state.servers.values() if each.status is ServerStatus.UP]
    settled = [each for each in up if each.changed_at <= readings.at - VERSIONS_MS]
    known = {each.version for each in settled}
    if len(known) > 1:
        text = f"for more than a day servers have had gpupool {', '.join(sorted(known))}"
        yield Result("versions", "gpupool", WARN, text, "update the older ones")
    drivers = Counter(each.driver_version for each in up if each.driver_version and each.gpus)
    if len(drivers) > 1:
        text = "servers have the drivers " + ", ".join(
            f"{driver} ({count})" for driver, count in sorted(drivers.items())
        )
        yield Result("versions", "driver", WARN, text, "gpupool status -w shows which")


def waiting(readings: Readings, past: Past) -> Iterator[Result]:
    """Report a request that has waited long, and fitting GPUs that are not granted."""
    state = readings.state
    oldest = min(state.waiting.values(), key=lambda each: each.since, default=None)
    if oldest is None:
        return
    waited_ms = readings.at - oldest.since
    what = f"the oldest request has waited for {waited_ms / HOUR_MS:.1f} h"
    if waited_ms > WAITING_FAIL_MS:
        yield Result("waiting", "", FAIL, what, "gpupool leases shows why")
    elif waited_ms > WAITING_WARN_MS and (names := _withheld(readings, oldest)):
        text = f"{what}, and fitting GPUs are drained or down on {', '.join(names[:5])}"
        yield Result("waiting", "", WARN, text, "gpupool status shows why they are")


def _withheld(readings: Readings, entry: Waiting) -> list[str]:
    """Return the servers with GPUs that would fit a request and are not granted now."""
    found: list[str] = []
    for server in readings.state.servers.values():
        gpus = admitted(entry.request, server)
        held = [gpu for gpu in gpus if gpu.unfit or not server.grantable]
        if fitting_cards(held, entry.request):
            found.append(server.name)
    return found


def tokens(readings: Readings, past: Past) -> Iterator[Result]:
    """Report operators with a last token that ends soon."""
    last: dict[str, int] = {}
    for token in readings.state.tokens.values():
        if token.kind is TokenKind.OPERATOR and not token.refusal(readings.at):
            last[token.user] = max(last.get(token.user, 0), token.expires_at)
    if not last:
        if readings.state.tokens:
            hint = "restart a server with --operator-token"
            yield Result("tokens", "", FAIL, "no operator has a valid token", hint)
        return
    for user, expires_at in last.items():
        if expires_at < readings.at + TOKEN_WARN_MS:
            days = (expires_at - readings.at) / DAY_MS
            text = f"the last token of operator {user} ends in {days:.0f} days"
            hint = f"gpupool token create --operator --user {user}"
            yield Result("tokens", user, WARN, text, hint)


def backup(readings: Readings, past: Past) -> Iterator[Result]:
    """Report a pool without a recent backup of its policy, tokens and labels."""
    state = readings.state
    joined = [server.joined_at for server in state.servers.values() if server.joined_at]
    since = state.backup_at or min(joined, default=readings.at)
    days = (readings.at - since) / DAY_MS
    if days > BACKUP_WARN_DAYS:
        text = f"the newest backup is {days:.0f} days old"
        if not state.backup_at:
            text = f"the pool is {days:.0f} days old, and no backup was made"
        yield Result("backup", "", WARN, text, "gpupool backup FILE, once a day")
