"""What SECURITY.md and docs/reliability.md promise is tested: every promise names a test, and every test that is named exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.blocks import ROOT

SECURITY, RELIABILITY = ROOT / "SECURITY.md", ROOT / "docs" / "reliability.md"


def defined() -> set[str]:
    found: set[str] = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        found |= set(re.findall(r"^def (test_\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE))
    return found


def section(page: Path, title: str) -> str:
    return page.read_text(encoding="utf-8").split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_every_promise_names_a_test() -> None:
    promises = re.split(r"^- ", section(RELIABILITY, "How layerscope ensures it"), flags=re.MULTILINE)[1:]
    promises += [line for line in section(SECURITY, "What is promised").splitlines() if line.startswith("| ")][1:]
    assert len(promises) > 20
    assert [promise for promise in promises if not re.search(r"`test_\w+`", promise)] == []


def test_every_test_that_is_named_exists() -> None:
    text = SECURITY.read_text(encoding="utf-8") + RELIABILITY.read_text(encoding="utf-8")
    assert set(re.findall(r"`(test_\w+)`", text)) - defined() == set()
    assert [path for path in re.findall(r"\btests/[\w/]+\.py\b", text) if not (ROOT / path).is_file()] == []


def test_every_attack_names_a_command_that_runs_something() -> None:
    """Tests by file, and by words of which each is part of a test's name there; or one of the tools of tests/faults."""
    rows = [line for line in section(SECURITY, "What was attacked").splitlines() if line.startswith("| ")][1:]
    rows += [line for line in section(RELIABILITY, "What was measured").splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    tools = {path.stem for path in (ROOT / "tests" / "faults").glob("*.py")}
    for row in rows:
        command = row.rstrip(" |").rsplit("| ", 1)[1].strip("`")
        files = re.findall(r"\b((?:tests|benchmarks)/[\w/]+\.py)\b", command)
        tool = re.match(r"(?:python -m tests\.faults)?\.(\w+) ", command)
        assert files or command.startswith("--only") or (tool and tool[1] in tools), row
        names = " ".join(name for file in files for name in re.findall(r"def (test_\w+)", (ROOT / file).read_text("utf-8")))
        for words in re.findall(r'-k (?:"([^"]+)"|(\w+))', command):
            assert all(word in names for word in "".join(words).split(" or ")), row
