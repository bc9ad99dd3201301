"""Numbers in the documentation rest on something that stays: a file of results, a benchmark, or the published data.

Each table of measured numbers names, in its own section, a file of benchmarks/results that holds them, at the precision that is
printed. On the main pages so do numbers in prose and in small tables; `PROSE` marks the files where the text does not name them.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CITED = re.compile(r"benchmarks/(?:results/)?[\w.-]+(?:/[\w.-]+)*")
MEASURED = re.compile(r"(?<!arXiv )(?<![\w.,:])[+−-]?(?:\d[\d,]*\.\d+|\d+(?= ?%))(?!\w|\.\d)")  # such as 64.3, −0.72 or 47 %
ENOUGH = 4  # numbers that make a table one of results
FOUND = 0.9  # of them; a table may have a setting, a sum or a difference of its own
MANY = 800  # numbers of a file: among more, any number is found
OTHERWISE = {
    "improve.md#What is tried": "tokens of prompts, a setting",
    "paper.md#On the published numbers": "`layerscope atlas reproduce`; tests/docs/test_paper.py reads each claim against it",
    "objective.md#Does the objective make the valley?": "`benchmarks/seeds_table.py` makes them of seeds/controlled.csv",
    "what-we-took-out.md#What we took out, and why": "decisions; what measured them went with the code",
}
"""Tables whose numbers come from elsewhere, by page and section."""
PROSE = {
    "README.md#layerscope": ["improve.txt", "heads.md"],
    "README.md#How to choose": ["export.md"],
    "index.md#The embedding model inside your language model": ["improve.txt", "improve-more.md", "heads.md"],
    "improve.md#Improve: a better and lighter embedding model from your texts": ["improve.txt", "improve-more.md"],
    "improve.md#Heads": ["heads.md"],
    "improve-results.md#How well it works": [],
    "improve-results.md#A blind test": [],
    "improve-results.md#Other tasks": [],
    "paper.md#What the paper found, what it means": ["factorial.md"],
    "paper.md#Claim by claim": ["metric_conventions.txt"],
    "paper.md#On real pairs, and beyond the paper": ["pairs.md", "robustness.md"],
}
"""Files of benchmarks/results that hold the numbers of a section beside those that it names."""
MAIN = ("README.md", "docs/index.md", "docs/improve.md", "docs/improve-results.md", "docs/paper.md")
SETTINGS = re.compile(
    r"Python ≥ [\d.]+|Apache-[\d.]+|`[^`]*`|95 % interval|30 % of its words|best 3 %|10 % of your texts|below 80 %|at most 0.3 ×"
)
"""What is no measurement: versions, code, levels and settings."""


def sections(text: str) -> list[tuple[str, str]]:
    """Heading and text of each section. Of code, the benchmarks that it names stay: commands are evidence, output is no table."""
    text = re.sub(r"```.*?```", lambda code: " ".join(CITED.findall(code[0])), text, flags=re.S)
    parts = re.split(r"^#{1,6} +", text, flags=re.M)
    return [(part.partition("\n")[0].strip(), part) for part in parts[1:]]


def tables(text: str) -> list[str]:
    """The tables of a section."""
    return re.findall(r"(?:^\|.*\n?)+", text, flags=re.M)


def prose(text: str) -> str:
    """A section without its tables of results and without settings."""
    for table in tables(text):
        if len(MEASURED.findall(table)) >= ENOUGH:
            text = text.replace(table, "")
    return SETTINGS.sub("", text)


def cited(text: str) -> set[str]:
    """Files and folders of benchmarks that a text names."""
    return {name.rstrip(".") for name in CITED.findall(text) if name.rstrip("./") != "benchmarks/results"}


def number(text: str) -> float:
    """A number as it is written in a table."""
    return abs(float(text.replace("−", "-").replace(",", "")))


@cache
def held(name: str) -> np.ndarray:
    """The size of every number in a file of results, or in those of a folder."""
    place = ROOT / name
    kept = [file for file in sorted(place.rglob("*")) if file.suffix in (".csv", ".json", ".jsonl", ".md", ".txt")]
    values: set[float] = set()
    for file in [place] if place.is_file() else kept:
        text = file.read_text(encoding="utf-8")
        plain = text if file.suffix != ".md" else re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)  # 1,030 where people read it
        values |= {abs(float(found)) for found in re.findall(r"\d+(?:\.\d+)?(?:e[+-]?\d{1,2})?", plain)}
    return np.array(sorted(values))


def missing(table: str, files: set[str]) -> list[str]:
    """The numbers of a table that no file has at their precision, as they are or as a share that is printed in percent."""
    known = np.concatenate([held(name) for name in files])
    known = np.concatenate([known, 100 * known])
    out = []
    for found in MEASURED.findall(table):
        near = 0.5001 * 10.0 ** -len(found.partition(".")[2])
        if np.abs(known - number(found)).min() > near:
            out.append(found)
    return out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_results_exist(page: Path) -> None:
    assert not [name for name in cited(page.read_text(encoding="utf-8")) if "NAME" not in name and not (ROOT / name).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_table_names_the_file_that_holds_its_numbers(page: Path) -> None:
    for heading, text in sections(page.read_text(encoding="utf-8")):
        measured = [table for table in tables(text) if len(MEASURED.findall(table)) >= ENOUGH]
        if not measured or f"{page.name}#{heading}" in OTHERWISE:
            continue
        files = {name for name in cited(text) if name.startswith("benchmarks/results/") and len(held(name)) <= MANY}
        assert files, f"section {heading!r} has a table of numbers and names no file of benchmarks/results"
        for table in measured:
            lacking, count = missing(table, files), len(MEASURED.findall(table))
            assert len(lacking) <= (1 - FOUND) * count, (
                f"{heading!r}: {lacking} of {count} numbers are in none of {sorted(files)}"
            )


@pytest.mark.parametrize("page", MAIN)
def test_numbers_in_prose_are_in_a_file_of_results(page: str) -> None:
    """All of them: there is no share that may be missing."""
    for heading, text in sections((ROOT / page).read_text(encoding="utf-8")):
        said, place = prose(text), f"{Path(page).name}#{heading}"
        if not MEASURED.search(said):
            continue
        files = {name for name in cited(text) if name.startswith("benchmarks/results/") and len(held(name)) <= MANY}
        files |= {f"benchmarks/results/{name}" for name in PROSE.get(place, ())}
        assert files, f"{place} has numbers ({MEASURED.findall(said)}) and names no file of benchmarks/results"
        assert not missing(said, files), f"{place}: {missing(said, files)} are in none of {sorted(files)}"


def test_what_is_excused_is_there() -> None:
    known = {f"{page.name}#{heading}" for page in PAGES for heading, _ in sections(page.read_text(encoding="utf-8"))}
    assert set(OTHERWISE) | set(PROSE) <= known
    assert not [name for names in PROSE.values() for name in names if len(held(f"benchmarks/results/{name}")) > MANY]


def test_a_number_is_looked_for_at_its_precision() -> None:
    files = {"benchmarks/results/improve.csv"}
    line = (ROOT / "benchmarks/results/improve.csv").read_text().splitlines()[1].split(",")[2]
    assert not missing(f"| {float(line):.1f} |", files)
    assert missing("| 123456.7 | 98765.4 % |", files) == ["123456.7", "98765.4"]
