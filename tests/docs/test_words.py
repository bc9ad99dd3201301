"""The documentation stays short: limits for the README, for each page and for all pages together.

Decisions, the page on the architecture and generated pages are not counted.
"""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT

DOCS = ROOT / "docs"
PAGES, PAGE, ALL = 12, 1_400, 10_000
README_LINES, README_WORDS = 90, 700
TERMS = 25


def count_words() -> dict[str, int]:
    """Return the words of every page and of every tutorial's text."""
    pages = {
        page.relative_to(DOCS).as_posix(): page.read_text(encoding="utf-8")
        for page in DOCS.rglob("*.md")
        if page.parent.name != "decisions" and page.name != "architecture.md"
    }
    for script in (DOCS / "tutorials").glob("*.py"):
        lines = script.read_text(encoding="utf-8").splitlines()
        pages[f"tutorials/{script.name}"] = "\n".join(
            line for line in lines if line.startswith("#")
        )
    return {page: len(text.split()) for page, text in pages.items()}


def test_no_page_is_long() -> None:
    words = count_words()
    assert {page: count for page, count in words.items() if count > PAGE} == {}
    assert sum(words.values()) <= ALL
    assert len([page for page in words if "/" not in page and page != "index.md"]) == PAGES


def test_each_page_begins_with_its_use() -> None:
    for page in DOCS.glob("*.md"):
        if page.name not in ("index.md", "architecture.md"):
            paragraph = page.read_text(encoding="utf-8").split("\n\n")[1]
            assert paragraph.startswith("After this page"), page.name


def test_the_readme_is_a_screen_or_two() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= README_LINES
    assert len(text.split()) <= README_WORDS


def test_the_glossary_is_short() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    assert 10 < len(re.findall(r"^- \*\*", text, re.MULTILINE)) <= TERMS
