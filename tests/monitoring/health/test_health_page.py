"""The page about health has the table of the checks as the code has it."""

import os
import re
from pathlib import Path

from gpupool.monitoring.health.check_table import rows
from gpupool.pool.automatic_drains import SIGN_NAMES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "health.md"
BETWEEN = re.compile(r"(<!-- checks: .*? -->\n\n).*?(\n<!-- end -->)", re.DOTALL)


def table() -> str:
    lines = ["| check | of | warns | fails | every |", "| --- | --- | --- | --- | --- |"]
    lines += ["| " + " | ".join((f"`{row[0]}`", *row[1:])) + " |" for row in rows()]
    return "\n".join(lines) + "\n"


def test_the_table_is_the_codes() -> None:
    """``make docs`` writes it anew, by GPUPOOL_REWRITE=1."""
    text = PAGE.read_text("utf-8")
    wanted = BETWEEN.sub(lambda found: found[1] + table() + found[2], text)
    if os.environ.get("GPUPOOL_REWRITE"):
        PAGE.write_text(wanted, "utf-8")
    assert PAGE.read_text("utf-8") == wanted
    assert table() in wanted


def test_every_sign_is_named() -> None:
    assert all(f"`{name}`" in PAGE.read_text("utf-8") for name in SIGN_NAMES)
