"""The promises of SECURITY.md and of docs/results.md are tested: `promises.txt` names the tests of
every sentence, and they exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

SECURITY, RESULTS = ROOT / "SECURITY.md", ROOT / "docs" / "results.md"
PROMISES = "What you can rely on"


TESTS = {
    name
    for folder in (ROOT / "tests", *ROOT.glob("packages/*/tests"))
    for file in folder.rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE)
}


def section(page: Path, title: str) -> str:
    return page.read_text(encoding="utf-8").split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def promising_texts() -> list[str]:
    """Return the texts that promise something: a whole page, and a section of another one."""
    return [SECURITY.read_text(encoding="utf-8"), section(RESULTS, PROMISES)]


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, without code, headings and tables of figures."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
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
    """Return the names of the tests of each sentence in the list beside this file."""
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
    written = [sentence for text in promising_texts() for sentence in sentences(text)]
    known = promises()
    assert len(written) > 40
    assert [sentence for sentence in written if sentence not in known] == []
    assert [sentence for sentence in known if sentence not in written] == []
    names = {
        name
        for tests in known.values()
        if not re.match("nothing: .", tests)
        for name in tests.split()
    }
    assert {name for name in names if not (name in TESTS or (ROOT / name).is_file())} == set()
    text = "".join(promising_texts())
    assert [
        path
        for path in re.findall(r"\b(?:packages/[\w-]+/)?tests/[\w/]+\.(?:py|txt)\b", text)
        if not (ROOT / path).is_file()
    ] == []


@pytest.mark.parametrize("added", ["It never fails.", "It never fails"])
def test_a_new_sentence_is_noticed(added: str) -> None:
    for place in ("**Whole files.** Every", "YAML tags are refused."):
        text = next(text for text in promising_texts() if place in text)
        assert set(sentences(text.replace(place, f"{added} {place}"))) - set(promises())


def test_every_attack_names_a_command_that_runs_something() -> None:
    """Each row of the table names a file of tests with words of their names, or a tool of
    tests/faults."""
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
