"""Labeled items from files and tasks, and their parts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.errors import DataError, InvalidValueError, LayerscopeError
from layerscope.probing.examples import (
    make_split,
    read_task,
    read_texts,
    text_examples,
)
from tests.evaluation.support import write_tasks


def test_no_text_is_in_two_parts() -> None:
    rows = {
        "train": [("a", 1), ("b", 0), ("c", 0), ("c", 1)],
        "test": [("a", 1), ("d", 10), ("e", 2)],
    }
    found = text_examples(rows, "texts")
    parts = {part: [found.items.texts[i] for i in where] for part, where in found.parts.items()}
    assert parts == {"train": ["b"], "test": ["a", "d", "e"]}
    assert found.facts["contradicting_texts"] == 1
    assert found.facts["repeated_texts"] == 2
    assert found.classes == ("0", "1", "2", "10"), "numbers in their own order"
    other = text_examples({**rows, "test": [("a", 0), ("d", 10), ("e", 2)]}, "texts")
    assert other.fingerprint != found.fingerprint


def test_a_file_with_splits(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text(
        "text,label,split\nred,warm,train\nblue,cold,train\ngreen,cold,dev\nyellow,warm,test\n,warm,test\n"
    )
    found = read_texts(file)
    assert {part: len(where) for part, where in found.parts.items()} == {
        "train": 2,
        "validation": 1,
        "test": 1,
    }
    (tmp_path / "test.csv").write_text("text,label\nred,warm\npink,warm\n")
    apart = read_texts(file, tmp_path / "test.csv")
    assert {part: len(where) for part, where in apart.parts.items()} == {"train": 3, "test": 2}, (
        "red is judged on, not trained on"
    )


def test_rows_without_a_label_are_counted_and_never_a_class(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    labels = [0, 1, None, float("nan"), " ", 1.5]
    file.write_text(
        "".join(
            json.dumps({"text": f"t{i}", "label": label}) + "\n" for i, label in enumerate(labels)
        )
    )
    found = read_texts(file)
    assert found.classes == ("0", "1", "1.5")
    assert found.facts["dropped"] == {"no label": 3}  # which the run tells
    (tmp_path / "x.csv").write_text("text,label\na,1\nb,2\nc,\n,2\n")
    assert read_texts(tmp_path / "x.csv").facts["dropped"] == {"no label": 1, "no text": 1}
    for odd in (None, float("nan"), np.float64("nan"), [1], {"a": 1}):
        with pytest.raises(DataError, match="texts, example 2: a label is a text or a number, not"):
            text_examples({"": [("a", 1), ("b", odd)]}, "texts")
    file.write_text('{"text": "a", "label": [1]}\n')
    with pytest.raises(
        DataError, match=r"x\.jsonl, row 1: a label is a text or a number, not \[1\]"
    ):
        read_texts(file)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,b\n1,2\n", "needs `text` and `label`"),
        ("text,label,split\nx,1,nowhere\n", "nowhere"),
        ("text,label\n ,1\n", "no labeled"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(DataError, match=told):
        read_texts(tmp_path / "x.csv")


def test_a_task_of_ones_own(tmp_path: Path) -> None:
    folder = write_tasks(tmp_path)
    (folder / "Letters").mkdir()
    for part, count in (("train", 8), ("test", 4)):
        rows = [
            json.dumps({"text": f"{part} {i} {'xy'[i % 2]}", "label": i % 2}) for i in range(count)
        ]
        (folder / "Letters" / f"{part}.jsonl").write_text("\n".join(rows))
    found = read_task("Letters", folder)
    assert {part: len(where) for part, where in found.parts.items()} == {"train": 8, "test": 4}
    assert found.classes == ("0", "1")
    with pytest.raises(LayerscopeError, match="Classification"):
        read_task("Pairs", folder)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(30, 300),
    st.integers(2, 6),
    st.integers(0, 5),
    st.one_of(st.none(), st.integers(10, 200)),
)
def test_parts_are_disjoint_and_balanced(
    count: int, classes: int, seed: int, limit: int | None
) -> None:
    labels = np.arange(count) % classes
    split = make_split(labels, seed=seed, sample=limit)
    every = np.concatenate([split.train, split.validation, split.test])
    assert len(np.unique(every)) == len(every) <= count
    if limit is None:
        assert len(every) == count
        assert len(split.test) == round(0.2 * count)
    else:
        assert len(split.test) <= limit
        assert len(split.train) + len(split.validation) <= limit
    for part in (split.train, split.test):
        shares = np.bincount(labels[part], minlength=classes)
        assert shares.max() - shares.min() <= 3, "each of the three draws may be one off"
    again = make_split(labels, seed=seed, sample=limit)
    assert all(
        np.array_equal(getattr(split, p), getattr(again, p))
        for p in ("train", "validation", "test")
    )


def test_the_datas_own_parts_are_kept() -> None:
    labels = np.arange(100) % 2
    parts = {"train": np.arange(70), "validation": np.arange(70, 80), "test": np.arange(80, 100)}
    split = make_split(labels, parts)
    assert split.sizes() == {"train": 70, "validation": 10, "test": 20}
    drawn = make_split(labels, {"train": np.arange(80), "test": np.arange(80, 100)})
    assert drawn.sizes() == {"train": 72, "validation": 8, "test": 20}
    assert (drawn.validation < 80).all()


def test_one_class_cannot_be_probed() -> None:
    with pytest.raises(DataError, match="two classes"):
        make_split(np.zeros(50, dtype=int))
    with pytest.raises(InvalidValueError, match="at least 2"):
        make_split(np.arange(50) % 2, sample=1)
