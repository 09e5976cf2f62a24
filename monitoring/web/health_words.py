"""The findings of the page, and a pool's health in one sentence. Pure.

They are those of ``gpupool health``, with the warnings and drains that ``gpupool status`` shows.
"""

from dataclasses import replace

from gpupool.monitoring.health.pool_health import (
    PoolFinding,
    merged,
    silence_of,
    silence_words,
    worst_first,
)
from gpupool.monitoring.web.live_book import Table
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot, ServerRow
from gpupool.pool.telemetry import Finding, Health
from gpupool.pool.view import ALARM, PoolView, visible

LEVELS = {Health.OK: "ok", Health.WARN: "warn", Health.FAIL: "fail"}
NEVER = Milliseconds(0)


def findings_of(snapshot: PoolSnapshot) -> list[PoolFinding]:
    """Return known faults, and the checks that pass, the worst first."""
    view = snapshot.view
    found = list(merged(view, snapshot.heard, snapshot.awaited).findings)
    known = {(row.server, row.finding.check, row.finding.subject) for row in found}
    more = [*_warnings(view), *(each for server in snapshot.servers for each in _drains(server))]
    found += [
        replace(row, silence=silence_of(row, view))
        for row in more
        if (row.server, row.finding.check, row.finding.subject) not in known
    ]
    return sorted(found, key=worst_first)


def _warnings(view: PoolView) -> list[PoolFinding]:
    """Return the pool's warnings that are no findings of ``gpupool health``."""
    wrong = view.clock.problems if view.clock is not None else ()
    found: list[PoolFinding] = []
    for text in view.warnings:
        if text.startswith(ALARM) or "not in touch with a majority" in text:
            continue
        check, level = ("alarm", Health.FAIL) if text in wrong else ("pool", Health.WARN)
        found.append(PoolFinding("", Finding(check, "", level, NEVER, text)))
    return found


def _drains(row: ServerRow) -> list[PoolFinding]:
    server, name = row.server, visible(row.server.name)
    drains = [("", server.reason, "")] if server.state == "drain" else []
    drains += [(gpu.id, gpu.drain, f" --gpu {gpu.index}") for gpu in server.gpus if gpu.drain]
    return [
        PoolFinding(
            server.name,
            Finding(
                "drained",
                subject,
                Health.WARN,
                NEVER,
                f"it is drained: {reason}",
                f"gpupool undrain {name}{option}",
            ),
        )
        for subject, reason, option in drains
    ]


def findings_table(snapshot: PoolSnapshot, found: list[PoolFinding]) -> Table:
    """Return the findings as columns; ``key`` is the subject of an actual or possible silence."""
    view = snapshot.view
    gpus = {str(gpu.id): f"GPU {gpu.index}" for server in view.servers for gpu in server.gpus}
    each = [row.finding for row in found]
    return {
        "level": [LEVELS[finding.status] for finding in each],
        "check": [visible(finding.check) for finding in each],
        "server": [visible(row.server) for row in found],
        "subject": [visible(gpus.get(finding.subject, finding.subject)) for finding in each],
        "since": [int(finding.since) for finding in each],
        "text": [visible(finding.text) for finding in each],
        "hint": [visible(finding.hint) for finding in each],
        "silence": [silence_words(row.silence, view.now) if row.silence else "" for row in found],
        "key": [_key(row) for row in found],
    }


def _key(row: PoolFinding) -> list[str] | None:
    """Return the check, server and subject of its silence, or of one that would silence it."""
    if row.silence is not None:
        return [row.silence.check, row.silence.server, row.silence.subject]
    if row.finding.status is Health.OK or row.finding.check == "pool":
        return None
    return [row.finding.check, row.server, row.finding.subject]


def sentence(snapshot: PoolSnapshot, found: list[PoolFinding]) -> tuple[str, str]:
    """Return the worst level, and the pool's health in one sentence."""
    view = snapshot.view
    if snapshot.nobody_answers:
        return "fail", "No server answers; what you see is old."
    if not view.raft.quorum:
        return "fail", "No majority of the servers is in touch, so nothing is granted now."
    loud = [row for row in found if row.silence is None]
    failing = [row for row in loud if row.finding.status is Health.FAIL]
    warnings = sum(row.finding.status is Health.WARN for row in loud)
    servers = len(view.servers)
    if not failing and not warnings:
        return "ok", f"All is well: {_some(servers, 'server answers', 'servers answer')}, " + (
            f"{_some(snapshot.sums.gpus, 'GPU is', 'GPUs are')} fit."
        )
    if not failing:
        return "warn", f"Healthy, with {_some(warnings, 'warning', 'warnings')}."
    subjects = {row.finding.subject for row in failing if row.finding.check in ("silent", "answer")}
    down = [each for each in view.servers if each.state == "down" and each.name in subjects]
    if down:
        lost = sum(len(each.gpus) for each in down)
        verb = "does" if len(down) == 1 else "do"
        rest = len(failing) - len(down)
        more = f"; {_some(rest, 'more check fails', 'more checks fail')}" if rest else ""
        who, gpus = _names([visible(each.name) for each in down]), _some(lost, "GPU", "GPUs")
        return "fail", f"{who} {verb} not answer: {gpus} cannot be granted{more}."
    first = failing[0]
    where = f"{visible(first.server)}: " if first.server else ""
    more = f" (and {len(failing) - 1} more)" if len(failing) > 1 else ""
    return "fail", f"{where}{visible(first.finding.text)}{more}."


def _names(names: list[str]) -> str:
    if len(names) > 3:
        return f"{', '.join(names[:2])} and {len(names) - 2} more servers"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _some(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
