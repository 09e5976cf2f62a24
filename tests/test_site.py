"""What the site is built of: its copy of a page has links that hold there."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "build_site", ROOT / "packaging" / "site" / "build_site.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "the unit (`packaging/gpupool.service`)"),
        ("https://x.org/g", "[the unit](https://x.org/g/blob/HEAD/packaging/gpupool.service)"),
    ],
)
def test_links_lead_to_pages_of_the_site_or_to_the_repository(
    site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, told: str
) -> None:
    monkeypatch.setattr(site, "ROOT", tmp_path)
    page = tmp_path / "docs" / "adr" / "one.md"
    page.parent.mkdir(parents=True)
    links = [
        "[the unit](../../packaging/gpupool.service)",
        "[the map](../../ARCHITECTURE.md#floors)",
        "[users](../user.md)",
        "[here](#below)",
        "[elsewhere](https://example.org/a.md)",
    ]
    code = "```\n[users](../../ARCHITECTURE.md)\n```\n"
    page.write_text("\n".join(links) + "\n" + code, encoding="utf-8")
    assert site.with_links_of_the_site(page, url) == "\n".join([
        told,
        "[the map](../project/architecture.md#floors)",
        *links[2:],
        code,
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("word", "guide"),
    [
        ("queue", "user.md"),
        ("out of memory", "user.md"),
        ("detach", "user.md"),
        ("logs", "user.md"),
        ("quota", "policy.md"),
        ("reservation", "policy.md"),
        ("email", "health.md"),
        ("firewall", "troubleshooting.md"),
    ],
)
def test_the_words_of_users_stand_in_guides_that_the_search_shows(
    site: ModuleType, word: str, guide: str
) -> None:
    assert word in (ROOT / "docs" / guide).read_text(encoding="utf-8").lower()
    assert site.search_front_matter(Path(guide)) == ""
    assert "exclude: true" in site.search_front_matter(Path("adr/0010-a.md"))


def test_a_list_stands_apart_from_its_paragraph(site: ModuleType) -> None:
    text = "Words:\n- one\n- two\n  lines\n\n1. a\n2. b\n"
    assert site.with_lists_apart(text) == "Words:\n\n- one\n- two\n  lines\n\n1. a\n2. b\n"


def test_what_a_page_fetches_from_elsewhere_is_found(
    site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "SITE", tmp_path)
    (tmp_path / "a.html").write_text(
        '<link rel="stylesheet" href="//fonts.example/css"><script src="own.js"></script>'
        '<a href="https://example.org">a link</a><img src="https://example.org/a.png">'
    )
    found = ["a.html: //fonts.example/css", "a.html: https://example.org/a.png"]
    assert list(site.requests_to_elsewhere()) == found
