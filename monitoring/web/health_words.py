"""What is wrong with a pool, as findings, and its health in one sentence. Pure."""

from dataclasses import dataclass, replace
from typing import Protocol

from gpupool.monitoring.health.pool_health import silence_words
from gpupool.monitoring.web.pool_source import Snapshot
from gpupool.pool.telemetry import Health
from gpupool.pool.view import ALARM, MISSING_HINT, PoolView, ServerView, visible

OK, WARN, FAIL = "ok", "warn", "fail"
LEVELS = {Health.OK: OK, Health.WARN: WARN, Health.FAIL: FAIL}
ORDER = (FAIL, WARN, OK)


Key = tuple[str, str, str]
"""What a silence is of: a check, a server, a subject."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding, of the servers' own checks or of what the table says."""

    level: str
    check: str
    server: str  # its name, or empty for the pool
    subject: str
    since: int  # by the pool's time; 0: not known
    text: str
    hint: str = ""
    silence: str = ""  # in words; empty: nobody has silenced it
    about: str = ""  # what the subject is called in silences, where that is another name
    key: Key | None = None
    """What silences it: of one that is silenced, that silence; None: nothing does."""


class Looked(Protocol):
    """A snapshot that is looked at."""

    @property
    def snapshot(self) -> Snapshot:
        """Return the snapshot."""
        ...

    @property
    def view(self) -> PoolView:
        """Return its view."""
        ...

    @property
    def age_s(self) -> float:
        """Return how old that is."""
        ...

    def stale_since(self, server: ServerView) -> int:
        """Return since when a server is silent; 0 when it is not."""
        ...


def problems_of(moment: Looked) -> list[Problem]:
    """Return what is known to be wrong, and the checks that pass, the worst first."""
    view = moment.view
    found: list[Problem] = []
    if not view.raft.quorum:
        text = "no majority of the voters is in touch: nothing is granted"
        found.append(Problem(FAIL, "quorum", "", "", 0, text, MISSING_HINT))
    for server in view.servers:
        found += _of_server(moment, server)
    clock = view.clock.problems if view.clock is not None else ()
    for text in view.warnings:
        alarm = text.startswith(ALARM)
        if not view.raft.quorum and "not in touch with a majority" in text:
            continue  # said above
        level = FAIL if alarm or text in clock else WARN
        found.append(Problem(level, "pool", "", "", 0, text.removeprefix(ALARM)))
    found = [_silenced(each, view) for each in found]
    return sorted(
        found,
        key=lambda each: (bool(each.silence), ORDER.index(each.level), each.server, each.check),
    )


def _silenced(problem: Problem, view: PoolView) -> Problem:
    keys = _keys(problem)
    for silence in view.silences:
        if any(silence.covers(*each) for each in keys):
            key = silence.check, silence.server, silence.subject
            return replace(problem, silence=silence_words(silence, view.now), key=key)
    return replace(problem, key=keys[0] if keys else None)


def _keys(problem: Problem) -> list[Key]:
    """Return what ``gpupool health`` calls a finding of this page; the first is silenced."""
    server, about = problem.server, problem.about or problem.subject
    if problem.level == OK:
        return []
    if problem.check == "contact":
        return [("silent", "", server), ("answer", server, server)]
    if problem.check == "gpu":
        return [("gpu-fault", server, about)]
    if problem.check == "pool":
        return [("alarm", "", "")] if problem.level == FAIL else []
    return [(problem.check, server, about)]


def _of_server(moment: Looked, server: ServerView) -> list[Problem]:
    found: list[Problem] = []
    name, since = visible(server.name), moment.stale_since(server)
    if server.state == "down" or since:
        level, text = FAIL, "it does not answer; nothing is granted there"
        if server.state != "down":
            level, text = WARN, "it has no connection with this page"
        hint = f"look at it: journalctl -u gpupool, on {name}"
        silent = since if since > 1 else int(server.silent_since)
        found.append(Problem(level, "contact", name, "", silent, text, hint))
    elif server.state == "drain":
        hint = f"gpupool undrain {name}"
        text = f"it is drained: {server.reason}"
        found.append(Problem(WARN, "drained", name, "", 0, text, hint))
    found += [
        Problem(FAIL, "gpu", name, f"GPU {gpu.index}", 0, gpu.fault, about=gpu.id)
        for gpu in server.gpus
        if gpu.fault
    ]
    found += [
        Problem(
            WARN,
            "drained",
            name,
            f"GPU {gpu.index}",
            0,
            f"it is drained: {gpu.drain}",
            f"gpupool undrain {name} --gpu {gpu.index}",
            about=gpu.id,
        )
        for gpu in server.gpus
        if gpu.drain
    ]
    measured = moment.snapshot.telemetry.get(server.id)
    if measured is not None and not since:
        index = {str(gpu.id): f"GPU {gpu.index}" for gpu in server.gpus}
        found += [
            Problem(
                LEVELS[each.status],
                each.check,
                name,
                index.get(each.subject, each.subject),
                int(each.since),
                each.text,
                each.hint,
                about=each.subject,
            )
            for each in measured.findings
        ]
    return found


def sentence(moment: Looked, found: list[Problem]) -> tuple[str, str]:
    """Return the worst level, and the pool's health in one sentence."""
    view = moment.view
    if not moment.snapshot.connected:
        return FAIL, "No server answers; what you see is old."
    if not view.raft.quorum:
        return FAIL, "No majority of the servers is in touch, so nothing is granted now."
    failing = [each for each in found if each.level == FAIL and not each.silence]
    warning = [each for each in found if each.level == WARN and not each.silence]
    count, gpus = len(view.servers), sum(len(each.gpus) for each in view.servers)
    if not failing and not warning:
        return OK, f"All is well: {_some(count, 'server answers', 'servers answer')}, " + (
            f"{_some(gpus, 'GPU is', 'GPUs are')} fit."
        )
    down = [each.server for each in failing if each.check == "contact"]
    if down:
        lost = sum(len(s.gpus) for s in view.servers if visible(s.name) in down)
        who = _names(down)
        verb = "does" if len(down) == 1 else "do"
        rest = len(failing) - len(down)
        more = f"; {_some(rest, 'more check fails', 'more checks fail')}" if rest else ""
        cannot = "cannot be granted"
        return FAIL, f"{who} {verb} not answer: {_some(lost, 'GPU', 'GPUs')} {cannot}{more}."
    if not failing:
        return WARN, f"Healthy, with {_some(len(warning), 'warning', 'warnings')}."
    first = failing[0]
    where = " ".join(each for each in (first.server, first.subject) if each)
    more = f" (and {len(failing) - 1} more)" if len(failing) > 1 else ""
    return FAIL, f"{where}{': ' if where else ''}{visible(first.text)}{more}."


def _names(names: list[str]) -> str:
    if len(names) > 3:
        return f"{', '.join(names[:2])} and {len(names) - 2} more servers"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _some(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
