"""Health panel of the live view: ``gpupool health`` from local data. Pure."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from gpupool.cli.lib.columns import Glyphs
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.pool.telemetry import Health
from gpupool.pool.values import duration_text
from gpupool.pool.view import visible

if TYPE_CHECKING:
    from gpupool.monitoring.health.pool_health import PoolFinding, PoolHealth

STYLES = {Health.WARN: "yellow", Health.FAIL: "bold red"}


def health_of(snapshot: PoolSnapshot) -> "PoolHealth":
    """Return the merged findings without those of servers that do not answer now."""
    from gpupool.monitoring.health.pool_health import merged  # only where it is shown

    return merged(snapshot.view, snapshot.heard, snapshot.awaited)


def health_lines(snapshot: PoolSnapshot, glyphs: Glyphs) -> list[Text]:
    """Return lines of the pool's health findings."""
    health = health_of(snapshot)
    verdict = "not healthy" if health.count(Health.FAIL) else "healthy"
    counts = f"{health.count(Health.FAIL)} fail, {health.count(Health.WARN)} warn"
    counts += f", {health.silenced} silenced" if health.silenced else ""
    answer = f"{health.answered} of {health.servers} servers answer"
    lines = [Text(f" Health: {verdict}; {counts}; {answer}", "bold"), Text("")]
    return [*lines, *finding_lines(health.findings, health.at, glyphs)]


def finding_lines(rows: "Iterable[PoolFinding]", at: int, glyphs: Glyphs) -> list[Text]:
    """Return findings with their hints."""
    from gpupool.monitoring.health.pool_health import line, silence_words

    lines: list[Text] = []
    for row in rows:
        finding = row.finding
        ago = duration_text(max(0.0, (at - finding.since) / 1000))
        text = Text.assemble(
            (f" {finding.status.name.lower():<5}", STYLES.get(finding.status, "")),
            f" {_shown(finding.check, glyphs):<14} {_shown(line(row), glyphs)} (for {ago})",
        )
        lines.append(text)
        if row.silence is not None:
            text.stylize("dim")
            words = silence_words(row.silence, at)
            lines.append(Text(f"{'':22}{_shown(words, glyphs)}", "dim"))
        elif finding.hint:
            lines.append(Text(f"{'':22}hint: {_shown(finding.hint, glyphs)}", "dim"))
    return lines


def _shown(text: str, glyphs: Glyphs) -> str:
    text = visible(text)
    return text.encode("ascii", "replace").decode() if glyphs.ascii else text
