"""The pictures of the web page in docs/images: one program draws them, and pages show them."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/web.md")
BYTES_MAX = 100_000


def test_every_picture_is_drawn_by_the_program_is_shown_and_is_small() -> None:
    path = ROOT / "packaging" / "site" / "web_pictures.py"
    spec = importlib.util.spec_from_file_location("web_pictures", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kept = {each.stem: each for each in (ROOT / "docs" / "images").glob("web-*.png")}
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    shown = set(re.findall(r"images/(web-[a-z]+)\.png", text))
    assert set(module.PICTURES) == kept.keys() == shown
    assert [name for name, each in kept.items() if each.stat().st_size > BYTES_MAX] == []
