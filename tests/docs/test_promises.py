"""What SECURITY.md and docs/reliability.md promise is tested: every sentence has its tests in
`promises.txt`, and they exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

SECURITY, RELIABILITY = ROOT / "SECURITY.md", ROOT / "docs" / "reliability.md"


TESTS = {
    name
    for folder in (ROOT / "tests", *ROOT.glob("packages/*/tests"))
    for file in folder.rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE)
}


def section(page: Path, title: str) -> str:
    return page.read_text(encoding="utf-8").split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def sentences(page: Path) -> list[str]:
    """What a page says in sentences: without code, headings and tables of figures, whose rows name
    their commands."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found: list[str] = []
    for block in re.split(r"\n\s*\n|\n(?=- |\||#)", text):
        words = " ".join(block.split())
        if words.startswith("|"):
            cells = words.strip("| ").split(" | ")
            words = cells[1] if len(cells) == 2 else ""
        if words and not words.startswith("#"):
            words = re.sub(r"^- (\*\*[^*]+\.\*\* )?", "", words)  # a list's mark and its title
            found += re.split(r"(?<=[.!?])\s+(?=[A-Z`*])", words)
    return [sentence for sentence in found if sentence != "promise"]


def promises() -> dict[str, str]:
    """Each sentence of the list beside this file, with the names below it."""
    lines = (
        (Path(__file__).parent / "promises.txt")
        .read_text(encoding="utf-8")
        .split("\n\n", 1)[1]
        .split("\n")
    )
    lines = [line for line in lines if line]
    assert [line for line in lines[::2] if line.startswith(" ")] + [
        line for line in lines[1::2] if line[:2] != "  "
    ] == []
    return dict(zip(lines[::2], [line.strip() for line in lines[1::2]], strict=True))


def test_every_sentence_has_its_tests() -> None:
    said, known = sentences(SECURITY) + sentences(RELIABILITY), promises()
    assert len(said) > 40
    assert [
        sentence for sentence in said if sentence not in known
    ] == []  # new: write down what checks it
    assert [sentence for sentence in known if sentence not in said] == []  # no longer said
    names = {
        name for told in known.values() if not re.match("nothing: .", told) for name in told.split()
    }
    assert {name for name in names if not (name in TESTS or (ROOT / name).is_file())} == set()
    text = SECURITY.read_text(encoding="utf-8") + RELIABILITY.read_text(encoding="utf-8")
    assert [
        path
        for path in re.findall(r"\b(?:packages/[\w-]+/)?tests/[\w/]+\.(?:py|txt)\b", text)
        if not (ROOT / path).is_file()
    ] == []


@pytest.mark.parametrize("added", ["It never fails.", "It never fails"])
def test_a_new_sentence_is_noticed(added: str, tmp_path: Path) -> None:
    for place in ("**Whole files.** Every", "YAML tags are refused."):
        page = next(
            page for page in (SECURITY, RELIABILITY) if place in page.read_text(encoding="utf-8")
        )
        (tmp_path / "page.md").write_text(
            page.read_text(encoding="utf-8").replace(place, f"{added} {place}"), encoding="utf-8"
        )
        assert set(sentences(tmp_path / "page.md")) - set(promises())


def test_every_attack_names_a_command_that_runs_something() -> None:
    """Tests by file, and by words of which each is part of a test's name there; or one of the tools
    of tests/faults."""
    rows = [
        line
        for line in section(SECURITY, "What was attacked").splitlines()
        if line.startswith("| ")
    ][1:]
    assert len(rows) > 15
    tools = {path.stem for path in (ROOT / "tests" / "faults").glob("*.py")}
    for row in rows:
        command = row.rstrip(" |").rsplit("| ", 1)[1].strip("`")
        files = re.findall(r"\b((?:(?:packages/[\w-]+/)?tests|benchmarks)/[\w/]+\.py)\b", command)
        tool = re.match(r"(?:python -m tests\.faults)?\.(\w+) ", command)
        assert files or command.startswith("--only") or (tool and tool[1] in tools), row
        names = " ".join(
            name
            for file in files
            for name in re.findall(r"def (test_\w+)", (ROOT / file).read_text("utf-8"))
        )
        for words in re.findall(r'-k (?:"([^"]+)"|(\w+))', command):
            assert all(word in names for word in "".join(words).split(" or ")), row
