"""``gpupool doctor``: checks the path from here to the pool, with a hint for each fault."""

import os
import ssl
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import click

from gpupool.cli.lib.options import json_option, pool_options
from gpupool.cli.lib.output import invocation, print_json, run_async
from gpupool.pool.errors import ExitCode, GpupoolError
from gpupool.pool.values import duration_text
from gpupool.pool.view import ALARM, MISSING_HINT, visible
from gpupool.remoting.local.logins import connected, credentials_file, stored_credentials

if TYPE_CHECKING:
    from gpupool.pool.view import PoolView
    from gpupool.remoting.client.credentials import Credentials
    from gpupool.remoting.program.door_choice import DoorChoice
    from gpupool.remoting.protocol.addresses import Address
    from gpupool.remoting.transport.message_stream import MessageStream

SKEW_MAX_S = 5.0
"""A clock that is further off is called wrong, as servers have it among themselves."""

CLOCKS_HINT = "gpupool clock shows the clocks of all servers"

CONFINEMENT_TIMEOUT_S = 5.0

GOOD, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    result: str  # "ok", "warn" or "fail"
    text: str
    hint: str = ""
    servers: tuple[str, ...] = ()  # of which it is true


@click.command()
@click.option(
    "--servers",
    is_flag=True,
    help="Each server tests its links and idle GPUs, too; operators only.",
)
@click.option(
    "--bandwidth",
    is_flag=True,
    help="The servers measure the network between them, too; operators only.",
)
@pool_options
@json_option
def command(credentials: str | None, servers: bool, bandwidth: bool, as_json: bool) -> int:
    """Check the path from here to the pool, with a hint for each fault.

    It checks the credentials, every server, the quorum, the clocks, and the doors of this machine.
    It exits with 3 when the pool answers and a check fails, with 1 when no server answers.

    With --servers each server also tests its idle GPUs, by a computation whose result is known, and
    sends 64 KiB to every server that it has a link with; this takes up to half a minute. Earlier
    findings of servers are shown as well, see gpupool health.

    With --bandwidth each two servers send each other data for a second, as fast as they can. Each
    server is in one pair at a time, so this takes a second for each server of the pool, and a
    minute at most. A link warns below 80 % of its slower interface, or of the median of all links,
    and fails below 20 %.
    """
    findings, reached = run_async(
        partial(examine, credentials, servers=servers, bandwidth=bandwidth)
    )
    if as_json:
        print_json(healthy=all(f.result != FAIL for f in findings), findings=findings)
    else:
        for finding in grouped(findings):
            color = {GOOD: "green", WARN: "yellow", FAIL: "red"}[finding.result]
            mark = click.style(f"{finding.result:<5}", fg=color)
            where = f"{', '.join(finding.servers)}: " if finding.servers else ""
            click.echo(f"{mark} {finding.check:<12} {where}{finding.text}")
            if finding.hint:
                click.echo(f"{'':19}hint: {finding.hint}")
    if all(finding.result != FAIL for finding in findings):
        return ExitCode.DONE
    return ExitCode.UNHEALTHY if reached else ExitCode.FAILED


def grouped(findings: list[Finding]) -> list[Finding]:
    """Return the findings with those alike of several servers as one."""
    servers: dict[Finding, tuple[str, ...]] = {}
    for each in findings:
        alike = replace(each, servers=())
        servers[alike] = (*servers.get(alike, ()), *each.servers)
    return [replace(each, servers=names) for each, names in servers.items()]


async def examine(
    given: str | None, *, servers: bool = False, bandwidth: bool = False
) -> tuple[list[Finding], bool]:
    """Return all findings, and whether any server answered.

    Args:
        given: where the credentials are; None: where login wrote them.
        servers: whether servers test themselves, too.
        bandwidth: whether servers measure the ways between them, too.
    """
    findings: list[Finding] = []
    reached = False
    path = credentials_file(given)
    try:
        credentials = stored_credentials(given)
    except GpupoolError as error:
        findings.append(Finding("login", FAIL, str(error), error.hint))
    else:
        text = f"user {credentials.user} of pool {credentials.pool} ({path})"
        findings.append(Finding("login", GOOD, text))
        reached, more = await _pool(given, credentials)
        findings += more
        if servers and reached:
            findings += await _servers_test(given)
        if bandwidth and reached:
            findings += await _servers_measure(given)
    findings.append(await _door())
    findings.append(_runtime())
    return findings, reached


async def _pool(given: str | None, credentials: "Credentials") -> tuple[bool, list[Finding]]:
    from gpupool.remoting.protocol.addresses import parse_address
    from gpupool.remoting.transport.authority.certificate_renewal import CERTIFICATE_OF

    view: PoolView | None = None
    findings: list[Finding] = []
    addresses = dict.fromkeys(credentials.addresses)
    try:
        async with connected(given) as pool:
            view = await pool.view()
    except GpupoolError as error:
        findings.append(Finding("pool", FAIL, str(error), error.hint))
    names: dict[Address, str] = {}
    if view is not None:
        names = {parse_address(server.address): server.name for server in view.servers}
        addresses = dict.fromkeys(names)
    findings += await _all_servers(list(addresses), names, credentials)
    if view is not None:
        findings.append(_quorum(view))
        findings.append(_clock(view.now))
        wrong = view.clock.problems if view.clock is not None else ()
        findings += [Finding("clocks", FAIL, problem, CLOCKS_HINT) for problem in wrong]
        # Each server says of its own certificate what is wrong with it; see ``_own``.
        others = [
            warning
            for warning in view.warnings
            if warning not in wrong and not warning.startswith(CERTIFICATE_OF)
        ]
        for warning in others[:5]:
            result = FAIL if warning.startswith(ALARM) else WARN
            findings.append(Finding("pool", result, warning.removeprefix(ALARM)))
    return any(f.check == "server" and f.result == GOOD for f in findings), findings


async def _servers_test(given: str | None) -> list[Finding]:
    """Run the checks of all servers, and return their findings, new and earlier."""
    from gpupool.monitoring.health.pool_health import line, merged

    try:
        async with connected(given) as pool:
            answer = await pool.run_checks()
            view, said = await pool.view(), await pool.telemetry()
    except GpupoolError as error:
        return [Finding("servers", FAIL, str(error), error.hint)]
    results = (GOOD, WARN, FAIL)
    names = {server.id: server.name for server in view.servers}
    found = [
        Finding(
            each.check,
            results[each.status],
            visible(f"{names.get(server, server)}: {each.text}"),
            each.hint,
        )
        for server, checked in answer.findings.items()
        for each in checked
    ]
    tested = {
        (server, each.check, each.subject) for server, c in answer.findings.items() for each in c
    }
    ids = {name: server for server, name in names.items()}
    found += [
        Finding(
            row.finding.check, results[row.finding.status], line(row), visible(row.finding.hint)
        )
        for row in merged(view, said).findings
        if (ids.get(row.server), row.finding.check, row.finding.subject) not in tested
    ]
    hint = "only operators may have servers test themselves; is it of an earlier version?"
    found += [
        Finding("servers", WARN, visible(f"{names.get(server, server)} tests nothing: {why}"), hint)
        for server, why in answer.silent.items()
    ]
    return sorted(found, key=lambda each: -results.index(each.result))


async def _servers_measure(given: str | None) -> list[Finding]:
    """Measure bandwidth between servers, and return the paths slower than usual."""
    from statistics import median

    from gpupool.monitoring.health.bandwidth_rules import judged, speed_text

    try:
        async with connected(given) as pool:
            view, answer = await pool.view(), await pool.measure_bandwidth()
    except GpupoolError as error:
        return [Finding("bandwidth", FAIL, str(error), error.hint)]
    names = {server.id: visible(server.name) for server in view.servers}
    found: list[Finding] = []
    for each in judged(answer.ways, {server.id: server.link_speed for server in view.servers}):
        way = f"{names.get(each.way.source)} to {names.get(each.way.target)}"
        than = "the slower interface has" if each.of_interface else "most ways carry"
        text = f"{way}: {speed_text(each.way.bits_s / 1e6)}, and {than} "
        text += speed_text(each.expected_mbit_s)
        hint = 'compare cables, switch ports and the MTU on the way; "gpupool health" has errors'
        found.append(Finding("bandwidth", (GOOD, WARN, FAIL)[each.status], text, hint))
    for (source, target), why in answer.failed.items():
        text = visible(f"{names.get(source)} to {names.get(target)} was not measured: {why}")
        found.append(Finding("bandwidth", WARN, text))
    for server, why in answer.silent.items():
        text = visible(f"{names.get(server, server)} measures nothing: {why}")
        found.append(Finding("bandwidth", WARN, text, "are all servers up, and of one version?"))
    if answer.ways:
        speeds = [way.bits_s / 1e6 for way in answer.ways]
        least, most, usual = map(speed_text, (min(speeds), max(speeds), median(speeds)))
        text = f"{len(speeds) // 2} pairs of servers: {least} to {most}, {usual} in the median"
        left = f"; {answer.pairs_left} others were not tried" if answer.pairs_left else ""
        found.append(Finding("bandwidth", GOOD, text + left))
    elif not found:
        found.append(Finding("bandwidth", GOOD, "there are no two servers to measure between"))
    return sorted(found, key=lambda each: -(GOOD, WARN, FAIL).index(each.result))


async def _all_servers(
    addresses: "list[Address]", names: "dict[Address, str]", credentials: "Credentials"
) -> list[Finding]:
    import trio

    found: dict[Address, list[Finding]] = {}

    async def examine_one(address: "Address") -> None:
        found[address] = await _server(address, names.get(address, ""), credentials)

    async with trio.open_nursery() as nursery:
        for address in addresses[:64]:
            nursery.start_soon(examine_one, address)
    return [finding for address in addresses for finding in found.get(address, [])]


async def _server(address: "Address", name: str, credentials: "Credentials") -> list[Finding]:
    """Connect to one server as ``run`` would; return the time taken and the workers' sandbox."""
    from gpupool import __version__
    from gpupool.remoting.protocol.sessions import DOCTOR
    from gpupool.remoting.transport.client_tls import client_context
    from gpupool.remoting.transport.dial import Greeting, connect

    started = time.monotonic()
    greeting = Greeting(credentials.token, credentials.secret, __version__, DOCTOR)
    try:
        context: ssl.SSLContext = client_context(credentials.ca_pem.encode())
        connection, welcome = await connect(
            address, context, greeting, cluster_id=credentials.cluster_id
        )
        took_ms = (time.monotonic() - started) * 1000
        confined = await _own(connection, welcome.server_name)
    except GpupoolError as error:
        what = f"{name} at {address}" if name else str(address)
        hint = error.hint or "does a firewall stand between?"
        return [Finding("server", FAIL, f"{what}: {error.why or error.what}", hint)]
    text = f"{welcome.server_name} at {address}, gpupool {welcome.version}, {took_ms:.0f} ms"
    if welcome.version != __version__:
        hint = f"this is {__version__}; the same version on both sides is best"
        return [Finding("server", WARN, text, hint), *confined]
    return [Finding("server", GOOD, text), *confined]


async def _own(connection: "MessageStream", name: str) -> list[Finding]:
    """Query one server for its worker sandbox and certificate warnings, and disconnect."""
    import trio

    from gpupool.remoting.protocol import messages as m
    from gpupool.remoting.protocol.sessions import SIGNER_OPEN, WORKERS_HAVE, WORKERS_LACK
    from gpupool.remoting.transport.authority.certificate_renewal import CERTIFICATE_OF

    answer: m.Message | None = None
    try:
        with trio.move_on_after(CONFINEMENT_TIMEOUT_S):
            await connection.send(2, m.GetView())
            while (received := await connection.receive()) is not None:
                if received[0] == 2:
                    answer = received[1]
                    break
    except (GpupoolError, trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    finally:
        await connection.aclose()
    said = answer.view.warnings if isinstance(answer, m.ViewNow) else ()
    hint = "its log says why; a server whose certificate has ended comes back by gpupool rejoin"
    found = [Finding("certificate", WARN, t, hint) for t in said if t.startswith(CERTIFICATE_OF)]
    if SIGNER_OPEN in said:
        hint = "start the server as root, or by the units for systemd"
        found.append(Finding("signer", WARN, SIGNER_OPEN, hint, (name,)))
    lacking = [text.removeprefix(WORKERS_LACK) for text in said if text.startswith(WORKERS_LACK)]
    if lacking:
        hint = "the systemd units enable full sandboxing; -v says which parts are missing"
        count = len(lacking)
        parts = "1 part" if count == 1 else f"{count} parts"
        text = f"the workers' sandbox lacks {parts} of what this kernel could do"
        if invocation().verbose:
            text = f"the workers' sandbox lacks {'; '.join(lacking)}"
        return [*found, Finding("workers", WARN, text, hint, (name,))]
    holds = [text.removeprefix(WORKERS_HAVE) for text in said if text.startswith(WORKERS_HAVE)]
    if not holds and isinstance(answer, m.ViewNow):
        # Only a worker that runs says what holds; a server starts its first one late.
        text = "none has run yet, so their sandbox is not known"
        found.append(Finding("workers", GOOD, text, servers=(name,)))
    return found + [Finding("workers", GOOD, f"confined by {t}", servers=(name,)) for t in holds]


def _quorum(view: "PoolView") -> Finding:
    reached, voters = view.raft.reached(view.answered_by), len(view.raft.voters)
    if view.raft.quorum:
        return Finding("quorum", GOOD, f"{reached} of {voters} voters, leader {view.raft.leader}")
    text = f"{reached} of {voters} voters: nothing can be granted"
    return Finding("quorum", FAIL, text, MISSING_HINT)


def _clock(their_ms: int) -> Finding:
    skew_s = time.time() - their_ms / 1000
    if abs(skew_s) > SKEW_MAX_S:
        ahead = "ahead of" if skew_s > 0 else "behind"
        text = f"this machine is {duration_text(abs(skew_s))} {ahead} the pool"
        return Finding("clock", WARN, text, "set the time, with chrony or systemd-timesyncd")
    return Finding("clock", GOOD, f"within {max(abs(skew_s), 0.1):.1f} s of the pool")


async def _door() -> Finding:
    import shutil

    import trio

    from gpupool.remoting.program.door_choice import choose_door, cuda_library

    python = shutil.which("python3") or shutil.which("python")
    if python is None:
        return Finding("door", WARN, "no python3 is on the PATH")
    choice = await trio.to_thread.run_sync(choose_door, "auto", python, [python], os.environ)
    return door_finding(choice, built=cuda_library().exists())


def door_finding(choice: "DoorChoice", *, built: bool) -> Finding:
    """Return the finding on both doors here, where Python programs would get ``choice``."""
    text = f"python3 on the PATH: {choice.door or 'no'} door, {choice.why}"
    if not built and sys.platform == "linux":
        hint = "install a wheel, or gcc and gpupool again"
        return Finding("door", WARN, f"{text}; the CUDA door is not built", hint)
    result = GOOD if choice.door and not choice.warning else WARN
    return Finding("door", result, text, choice.warning)


def _runtime() -> Finding:
    from gpupool.remoting.local.files import private_dir

    try:
        with private_dir() as folder:
            return Finding("runtime", GOOD, f"sockets go to {folder.parent}")
    except OSError as error:
        hint = "set XDG_RUNTIME_DIR or TMPDIR to a folder of your own"
        return Finding("runtime", FAIL, f"no folder for sockets: {error}", hint)
