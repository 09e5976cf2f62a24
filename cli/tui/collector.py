"""The memory of the live view: what arrived of the pool, and what the view alone knows."""

from dataclasses import replace

from gpupool.cli.tui.trends import Trends
from gpupool.pool.model.ids import ServerId
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.pool.read_model.pool_watch import PoolUpdate, PoolWatch


class Collector:
    """Takes updates as they come; time is passed in."""

    def __init__(self, interval_s: float) -> None:
        """Make an empty one, for updates that come so often."""
        self.watch = PoolWatch(interval_s)
        self.trends = Trends()
        self.ping_s: dict[ServerId, float] = {}

    def take(self, update: PoolUpdate, now: float) -> None:
        """Take the update that a subscription delivered at ``now``."""
        for telemetry in self.watch.take(update, now):
            self.trends.take(telemetry)
        snapshot = self.watch.snapshot(now)
        if snapshot is not None:
            self.trends.take_pool(snapshot)

    def snapshot(self, now: float) -> PoolSnapshot | None:
        """Return all that is known at ``now``; None before the first view."""
        known = self.watch.snapshot(now)
        return known and replace(
            known,
            ping_s=dict(self.ping_s),
            trends=dict(self.trends.gpus.points),
            pool_trend=dict(self.trends.pool.points),
        )
