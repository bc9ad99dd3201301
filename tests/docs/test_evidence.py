"""Numbers in the documentation rest on something that stays: a file of results, a benchmark, or the published data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CITED = re.compile(r"benchmarks/(?:results/)?[\w.-]+(?:/[\w.-]+)*")
MEASURED = re.compile(r"(?<![\w.])[+−-]?\d+\.\d+(?! *(?:\.|\d))")  # such as 64.3 or −0.72
OTHERWISE = {
    "atlas.md": "the published results, in the package",
    "conventions.md": "settings",
    "metrics.md": "by hand",
    "quickstart.md": "what the page's own commands print",
    "glossary.md": "examples",
    "improve.md": "tokens of prompts; its scores are in improve-results.md",
    "integrations.md": "versions, and distances that `make integrations` measures",
}
"""Pages whose numbers come from elsewhere."""

LACKING = {"small-run.md"}
"""Pages whose numbers have a command and no file of results yet. None may be added."""


def tables(text: str) -> list[str]:
    """The tables of a page, without code."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    return re.findall(r"(?:^\|.*\n?)+", text, flags=re.M)


def cited(text: str) -> set[str]:
    """Files and folders of benchmarks that a page names."""
    return {name.rstrip(".") for name in CITED.findall(text) if name.rstrip("./") != "benchmarks/results"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_results_exist(page: Path) -> None:
    missing = [name for name in cited(page.read_text(encoding="utf-8")) if "*" not in name and not (ROOT / name).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_of_numbers_name_where_they_come_from(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    numbers = sum(len(MEASURED.findall(table)) for table in tables(text))
    if numbers < 4 or page.name in {*OTHERWISE, *LACKING}:
        return
    published = "layerscope atlas reproduce" in text
    assert published or cited(text), f"{numbers} numbers in tables, and no file of benchmarks/results or benchmark is named"
