"""Every benchmark fits the code as it is, and says what it answers."""

from __future__ import annotations

import gzip
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(file.stem for file in FOLDER.glob("*.py"))


AXES = {"a": [1.0, 0.0], "b": [0.0, 1.0], "c": [2**-0.5, 2**-0.5]}
TASKS: dict[str, list[dict[str, Any]]] = {
    "classes": [{"text": f"{side} {i}", "label": side} for i in range(30) for side in "ab"],
    "clusters": [
        {
            "sentences": [f"{side} {i}" for i in range(30) for side in "ab"],
            "labels": ["first", "second"] * 30,
        }
    ],
    "pairs": [
        {"sentence1": f"a {i}", "sentence2": f"{'ab'[i % 2]} {i} too", "labels": 1 - i % 2}
        for i in range(20)
    ],
    "reranking": [
        {"query": f"a {i}", "positive": [f"a {i} too"], "negative": [f"b {i}", f"c {i}"]}
        for i in range(5)
    ],
    "scores": [
        {"sentence1": f"a {i}", "sentence2": f"{'bca'[i % 3]} {i} too", "score": i % 3}
        for i in range(21)
    ],
}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_imported_and_has_a_line_in_the_readme(name: str) -> None:
    assert importlib.import_module(name).__doc__
    lines = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("| `") and f"`{name}.py`" in line.split("|")[1] for line in lines)


def test_stand_ins_for_mtebs_scores(tmp_path: Path) -> None:
    """Vectors that hold the labels score the maximum."""
    from improve import Task, load_tasks

    for name, lines in TASKS.items():
        (tmp_path / name).mkdir()
        for split in ("test", "train"):
            write(tmp_path / name / f"{split}.jsonl.gz", lines)
    tasks: dict[str, Task] = {task.name: task for task in load_tasks([tmp_path])}
    assert set(tasks) == set(TASKS)
    for name, task in tasks.items():
        sides = [AXES[text.split()[0]] for text in task.texts]
        assert task.score(torch.tensor(sides)) == pytest.approx(100), name
