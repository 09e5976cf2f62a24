"""When the table is exempt from the search for garbage, and when everything is visited."""

import pytest

from gpupool.consensus import garbage


class FakeCollector:
    """A collector that counts; ``new`` objects are not exempt yet."""

    def __init__(self) -> None:
        self.new = self.frozen = self.collections = 0

    def freeze(self) -> None:
        self.frozen += self.new
        self.new = 0

    def unfreeze(self) -> None:
        self.new += self.frozen
        self.frozen = 0

    def get_freeze_count(self) -> int:
        return self.frozen

    def collect(self) -> int:
        self.collections += 1
        self.new //= 2  # half of it was garbage
        return self.new


def test_everything_is_visited_when_twice_as_much_is_exempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collector = FakeCollector()
    monkeypatch.setattr(garbage, "gc", collector)
    exempt = garbage.Exemption()
    for new, frozen, collections in ((100, 100, 0), (100, 200, 0), (1, 201, 0), (0, 100, 1)):
        collector.new = new
        exempt()
        assert (collector.frozen, collector.collections) == (frozen, collections)
    # The limit is now twice what was left then.
    for new, frozen, collections in ((101, 201, 1), (0, 100, 2)):
        collector.new = new
        exempt()
        assert (collector.frozen, collector.collections) == (frozen, collections)
