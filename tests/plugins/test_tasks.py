"""A task that another package adds is evaluated by its name, like one of the package's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import layerscope
from layerscope.evaluation.tasks import TASKS, resolve_tasks
from tests.tiny import tiny_model

MODULE = """
import csv
from pathlib import Path

from layerscope.catalogue import Installed
from layerscope.evaluation.tasks import TaskEntry


def read(folder):
    with (folder / "pairs.csv").open(encoding="utf-8", newline="") as lines:
        rows = [{**row, "score": float(row["score"])} for row in csv.DictReader(lines)]
    return {"test": rows}


ENTRY = TaskEntry(
    name="OutsidePairs",
    task_type="STS",
    summary="Pairs of words",
    license="CC0-1.0",
    citation="Nobody (2026)",
    origin=Installed(lambda: Path(__file__).parent / "outside_data", "outside-task 1.0"),
    read=read,
)
"""
METADATA = "Metadata-Version: 2.1\nName: outside-task\nVersion: 1.0\n"
WORDS = ["cat", "dog", "a red house", "the sea", "rain", "on the road", "light", "seven"]


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with data that declares a task as an entry point; the catalogue looks
    again."""
    site = tmp_path / "site"
    (site / "outside_task-1.0.dist-info").mkdir(parents=True)
    (site / "outside_data").mkdir()
    lines = [
        f"{one},{other},{(3 * i + 5 * k) % 7}"
        for i, one in enumerate(WORDS)
        for k, other in enumerate(WORDS[:4])
    ]
    (site / "outside_data" / "pairs.csv").write_text(
        "\n".join(["sentence1,sentence2,score", *lines]), encoding="utf-8"
    )
    (site / "outside_task.py").write_text(MODULE, encoding="utf-8")
    (site / "outside_task-1.0.dist-info" / "METADATA").write_text(METADATA, encoding="utf-8")
    points = "[layerscope.tasks]\noutside = outside_task\n"
    (site / "outside_task-1.0.dist-info" / "entry_points.txt").write_text(points, encoding="utf-8")
    monkeypatch.syspath_prepend(site)
    for name, value in (("_things", {}), ("_broken", {}), ("_loaded", False)):
        monkeypatch.setattr(TASKS, name, value)
    yield
    sys.modules.pop("outside_task", None)


@pytest.mark.usefixtures("outside")
def test_a_task_from_outside_is_scored(tmp_path: Path) -> None:
    run = layerscope.evaluate(
        tiny_model(), "OutsidePairs", store=tmp_path / "store", scoring_workers=0
    )
    assert run.failed == []
    assert run.scores["layer"].tolist() == list(range(tiny_model().n_blocks + 1))
    assert run.scores["score"].between(-1, 1).all()
    facts = run.manifest["tasks"]["OutsidePairs"]
    assert (facts["items"], facts["source"], facts["citation"], facts["exact"]) == (
        32,
        "package",
        "Nobody (2026)",
        None,
    )
    assert run.items()["OutsidePairs", "test", "default"]
    assert layerscope.select(run).readout == "plain/mean/applied/keep/none"


@pytest.mark.usefixtures("outside")
def test_the_quick_tasks_stay_the_same() -> None:
    assert "OutsidePairs" in TASKS
    names = [spec.name for spec in resolve_tasks("small")]
    assert len(names) == 4
    assert "OutsidePairs" not in names


def test_without_the_package_the_name_is_unknown() -> None:
    with pytest.raises(layerscope.LayerscopeError, match="unknown task 'OutsidePairs'"):
        resolve_tasks("OutsidePairs")
