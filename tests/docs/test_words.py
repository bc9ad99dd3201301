"""The documentation stays short: limits on every page, on all of them, and on the README.

Decisions are not counted: they are read one at a time.
"""

from __future__ import annotations

from tests.docs.blocks import ROOT

PAGE, ALL, README = 1_000, 15_000, 112


def test_no_page_is_long() -> None:
    words = {
        str(page.relative_to(ROOT)): len(page.read_text(encoding="utf-8").split())
        for page in (ROOT / "docs").rglob("*.md")
        if page.parent.name != "decisions"
    }
    assert {page: count for page, count in words.items() if count > PAGE} == {}
    assert sum(words.values()) <= ALL


def test_the_readme_is_a_screen_or_two() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README
