"""Numbers in the documentation rest on something that stays: a file of results, a benchmark, or the
published data.

Measured numbers of the core are in the README, in docs/results.md and in benchmarks/results, and in
no other page. Each table of numbers names, in its own section, a file of results that holds them at
the precision that is printed. So do numbers in prose and in small tables; `PROSE` lists the files
where the text does not name them, `STATED` single numbers that nobody measured. Decisions are not
checked: they record what was known when they were made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "results.md",
    *sorted(ROOT.glob("packages/*/docs/**/*.md")),
]
"""Pages with measured numbers."""
OTHERS = [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if page.parent.name != "decisions" and page not in PAGES
]
"""Pages without measured numbers."""
RESULTS = ("benchmarks/results", "packages/layerscope-paper/results")
CITED = re.compile(
    r"(?:benchmarks/(?:results/)?|packages/layerscope-paper/results/|(?:\.\./)+results/)[\w.-]+(?:/[\w.-]+)*"
)
MEASURED = re.compile(
    r"(?<!arXiv )(?<![\w.,:])[+−-]?(?:\d[\d,]*\.\d+|\d+(?= ?%))(?!\w|\.\d)"
)  # such as 64.3, −0.72 or 47 %
ENOUGH = 4  # numbers that make a table one of results
FOUND = 0.9  # of them; a table may have a setting, a sum or a difference of its own
MANY = 800  # numbers of a file: among more, any number is found
OTHERWISE = {
    "images.md#Images": "settings",
    "paper.md#On the published numbers": "`layerscope-paper reproduce`; packages/layerscope-paper/tests/test_paper_page.py reads each claim against it",
    "objective.md#Does the objective make the valley?": "means of seeds/controlled.csv",
}
"""Tables whose numbers come from elsewhere, by page and section."""
PROSE = {
    "paper.md#The main finding": ["factorial.md"],
    "paper.md#Claim by claim": ["metric_conventions.txt"],
    "paper.md#On real pairs, and beyond the paper": ["pairs.md", "robustness.md"],
    "atlas.md#The paper's tables and figures, recomputed": ["reproduce-table2.txt"],
    "correlation.md#Why the chance level matters": ["correlate-pythia-410m.txt"],
    "correlation.md#What chance is": ["correlate-pythia-410m.txt"],
    "alpha.md#alpha: entropy as a function of its order": ["studies/alpha.txt"],
    "compare.md#compare: any models against a base": ["studies/compare.txt"],
    "compare.md#Does the objective make the valley?": ["studies/compare-controlled.txt"],
    "extreme.md#extreme: repetition, noise, length": ["studies/extreme.txt"],
    "objective.md#Results": ["seeds/tables.txt"],
    "one-token-two-models.md#The pair on worked solutions (Fig. 5)": ["one-token-two-models.md"],
    "pairs.md#Antibodies: does the objective make the valley? (Fig. 2)": ["pairs.md"],
    "pairs.md#Reactions: what does fine-tuning change? (Fig. 13)": ["pairs.md"],
    "penalties.md#penalties: training with compressed middle layers": ["penalties.md"],
    "reasoning.md#reasoning: prompt entropy along the sequence": ["studies/reasoning.txt"],
    "reasoning.md#Cost": ["studies/prefix.txt"],
    "scale.md#scale: sizes of a family": ["studies/scale.txt"],
    "sublayers.md#sublayers: the steps inside a block": ["studies/sublayers.txt"],
    "theory.md#Results": ["studies/theory.txt"],
}
"""Files of benchmarks/results that hold the numbers of a section beside those that it names."""
STATED = {
    "atlas.md#Two conventions for a score": ("60", "a setting"),
    "correlation.md#What chance is": ("0.82", "what was simulated"),
    "correlation.md#Over tasks and over models": (
        "45 0.05 7 80",
        "packages/layerscope-paper/tests/test_correlation_pooled.py simulates them",
    ),
    "correlation.md#The columns": ("0.05", "a level"),
    "alpha.md#alpha: entropy as a function of its order": ("0.05", "a setting"),
    "objective.md#Does the objective make the valley?": ("8.7", "how much text there is"),
    "objective.md#Results": ("5", "what counts as a valley"),
    "penalties.md#penalties: training with compressed middle layers": ("0.05", "a setting"),
    "theory.md#Why": ("1.89 1.65", "arithmetic"),
}
"""Numbers in prose that were not measured, by page and section, and what they are."""
NUMBERS_OF_SETTINGS = {
    "choose.md": "95",
    "evaluate.md": "95",
    "export.md": "6.2",
    "improve.md": "0.97 1.5",
}
"""Numbers of other pages that are settings, by page."""
SETTINGS = re.compile(
    r"Python (?:≥ )?[\d.]+|Apache-[\d.]+|wav2vec 2\.0|torch [\d.]+|transformers [\d.]+|Section [\d.]+|`[^`]*`"
    r"|95 % (?:interval|band|quantile|of the resamples|of such choices|of equally good|for all|over)|(?:\*\*|are |\()95 %"
    r"|\(2 % by default\)|budget of 2 %|at least 5 %|5 % level|30 % of its words|best 3 %|10 % of your texts|below 80 %"
    r"|at most 0.3 ×"
)
"""What is no measurement anywhere: versions, code, levels and settings."""


def sections(text: str) -> list[tuple[str, str]]:
    """Return heading and text of each section, with code replaced by the benchmarks it names."""
    text = re.sub(r"```.*?```", lambda code: " ".join(CITED.findall(code[0])), text, flags=re.S)
    pieces = re.split(r"^#{1,6} +", text, flags=re.M)
    return [(piece.partition("\n")[0].strip(), piece) for piece in pieces[1:]]


def tables(text: str) -> list[str]:
    """Return the tables of a section."""
    return re.findall(r"(?:^\|.*\n?)+", text, flags=re.M)


def prose(text: str) -> str:
    """Return a section without its tables of results and without settings."""
    for table in tables(text):
        if len(MEASURED.findall(table)) >= ENOUGH:
            text = text.replace(table, "")
    return SETTINGS.sub("", text)


def cited(text: str) -> set[str]:
    """Return the files and folders of benchmarks and of results that a text names."""
    return {
        re.sub(r"^(\.\./)+", "packages/layerscope-paper/", name.rstrip("."))
        for name in CITED.findall(text)
        if name.rstrip("./") not in RESULTS
    }


def results_of(names: Iterable[str]) -> set[str]:
    """Return the files that hold results, and few enough numbers."""
    return {name for name in names if name.startswith(RESULTS) and len(held(name)) <= MANY}


def place_of(name: str) -> str:
    """Return the path of a file of results, given its name in a folder of results."""
    return next(f"{folder}/{name}" for folder in RESULTS if (ROOT / folder / name).exists())


def number(text: str) -> float:
    """Return the size of a number that is written as in a table."""
    return abs(float(text.replace("−", "-").replace(",", "")))


@cache
def held(name: str) -> np.ndarray:
    """Return the size of every number in a file of results, or in those of a folder."""
    place = ROOT / name
    files = [
        file
        for file in sorted(place.rglob("*"))
        if file.suffix in (".csv", ".json", ".jsonl", ".md", ".txt")
    ]
    values: set[float] = set()
    for file in [place] if place.is_file() else files:
        text = file.read_text(encoding="utf-8")
        plain = (
            text if file.suffix != ".md" else re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
        )  # 1,030 where people read it
        values |= {
            abs(float(digits)) for digits in re.findall(r"\d+(?:\.\d+)?(?:e[+-]?\d{1,2})?", plain)
        }
    return np.array(sorted(values))


def missing(text: str, files: set[str]) -> list[str]:
    """Return the numbers that no file has at their precision, also as a share in percent."""
    known = np.concatenate([held(name) for name in files])
    shares = np.concatenate([known, 100 * known])
    out = []
    for match in re.finditer(rf"({MEASURED.pattern})(?: ?(%))?", text):
        near = 0.5001 * 10.0 ** -len(match[1].partition(".")[2])
        if np.abs((shares if match[2] or "|" in text else known) - number(match[1])).min() > near:
            out.append(match[1])
    return out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_results_exist(page: Path) -> None:
    assert not [
        name
        for name in cited(page.read_text(encoding="utf-8"))
        if "NAME" not in name and not (ROOT / name).exists()
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_table_names_the_file_that_holds_its_numbers(page: Path) -> None:
    for heading, text in sections(page.read_text(encoding="utf-8")):
        measured = [table for table in tables(text) if len(MEASURED.findall(table)) >= ENOUGH]
        if not measured or f"{page.name}#{heading}" in OTHERWISE:
            continue
        files = results_of(cited(text))
        assert files, (
            f"section {heading!r} has a table of numbers and names no file of benchmarks/results"
        )
        for table in measured:
            lacking, count = missing(table, files), len(MEASURED.findall(table))
            assert len(lacking) <= (1 - FOUND) * count, (
                f"{heading!r}: {lacking} of {count} numbers are in none of {sorted(files)}"
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_numbers_in_prose_are_in_a_file_of_results(page: Path) -> None:
    """All of them: there is no share that may be missing."""
    for heading, text in sections(page.read_text(encoding="utf-8")):
        place = f"{page.name}#{heading}"
        stated = STATED.get(place, ("", ""))[0].split()
        said = MEASURED.sub(
            lambda found, stated=stated: "" if found[0] in stated else found[0], prose(text)
        )
        if not MEASURED.search(said):
            continue
        files = results_of(cited(text))
        files |= {place_of(name) for name in PROSE.get(place, ())}
        assert files, (
            f"{place} has numbers ({MEASURED.findall(said)}) and names no file of benchmarks/results"
        )
        assert not missing(said, files), (
            f"{place}: {missing(said, files)} are in none of {sorted(files)}"
        )


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: str(page.relative_to(ROOT)))
def test_other_pages_have_no_measured_numbers(page: Path) -> None:
    """Such numbers belong into docs/results.md; settings are in code marks or listed."""
    settings = NUMBERS_OF_SETTINGS.get(page.name, "").split()
    text = SETTINGS.sub("", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S))
    assert set(MEASURED.findall(text)) - set(settings) == set()


def test_differences_between_layers_are_those_of_the_stored_scores() -> None:
    table = pd.read_csv(ROOT / place_of("factorial-mteb.csv"))
    plain = table[(table["task"] == "STSBenchmark") & (table["readout"] == "mean")]
    large, small = (
        plain[plain["model"] == name].set_index("layer")["score"]
        for name in ("smollm2-135m", "minilm-l6")
    )
    found = [large[24] - large[30], large.max() - large[30], small[6] - small[5]]
    assert [f"{value:.1f}" for value in found] == ["11.6", "15.0", "16.9"]


def test_listed_exceptions_exist() -> None:
    known = {
        f"{page.name}#{heading}"
        for page in PAGES
        for heading, _ in sections(page.read_text(encoding="utf-8"))
    }
    assert set(OTHERWISE) | set(PROSE) | set(STATED) <= known
    text = {
        f"{page.name}#{heading}": prose(part)
        for page in PAGES
        for heading, part in sections(page.read_text(encoding="utf-8"))
    }
    assert not [
        (place, n)
        for place, (several, _) in STATED.items()
        for n in several.split()
        if n not in MEASURED.findall(text[place])
    ]
    assert not [
        name for names in PROSE.values() for name in names if len(held(place_of(name))) > MANY
    ]


def test_a_number_is_looked_for_at_its_precision() -> None:
    files = {"benchmarks/results/improve.csv"}
    line = (ROOT / "benchmarks/results/improve.csv").read_text().splitlines()[1].split(",")[2]
    assert not missing(f"| {float(line):.1f} |", files)
    assert missing("| 123456.7 | 98765.4 % |", files) == ["123456.7", "98765.4"]


@pytest.mark.parametrize("place", RESULTS)
def test_every_result_says_where_it_comes_from(place: str) -> None:
    """By its own words, or in the index: a command, a date and a commit."""
    folder = ROOT / place
    index = (folder / "README.md").read_text()
    rows = [line.split("|")[1:5] for line in index.splitlines() if line.startswith("| `")]
    told = {name for files, *_ in rows for name in re.findall("`(.+?)`", files)}
    assert all(
        re.search(r"`.+`", row[1]) and re.search(r"\d{4}-\d\d-\d\d, [0-9a-f]{8}", row[3])
        for row in rows
    )
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {
        "README.md"
    }
    assert told <= files
    for name in sorted(files - told):
        text = (folder / name).read_text()
        dated = re.search(r"2026-\d\d-\d\d|\d\d? November 2026", text) or name.endswith(".csv")
        assert dated, name
        assert re.search(r"\b(?=[0-9a-f]*[a-f])[0-9a-f]{7,8}\b", text), name
