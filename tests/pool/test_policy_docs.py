"""docs/policy.md has an example that is a policy; each test of its features exists."""

import re
from pathlib import Path

from tests.pool.policy_kit import parse

from gpupool.pool.policy.policy_document import RULE_KEYS

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")
FEATURES = (ROOT / "docs" / "results" / "policy.md").read_text(encoding="utf-8")


def test_the_example_is_a_policy() -> None:
    [example] = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    policy = parse(example)
    assert len(policy.rules) > 10
    assert (len(policy.windows), len(policy.reservations)) == (2, 1)


def test_every_key_is_described() -> None:
    named = set(re.findall(r"`([a-z_]+)`", TEXT))
    for keys in RULE_KEYS.values():
        assert set(keys) <= named


def test_every_test_of_the_table_exists() -> None:
    rows = re.findall(r"\| `(tests/[\w/]+\.py)::(\w+)` \|", FEATURES)
    assert len(rows) > 30
    for file, name in rows:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", source, re.MULTILINE), f"{file}::{name}"
