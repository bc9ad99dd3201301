from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from layerscope.choose.labels import LEAST, MOST, build, read_labels
from layerscope.errors import DataError
from tests.choose.label_support import write_csv

TEXTS = [f"the text {i}" for i in range(40)]
CLASSED = [(text, "ab"[i % 2]) for i, text in enumerate(TEXTS)]


def test_classes_from_csv_in_an_order_of_their_own(tmp_path: Path) -> None:
    rows = [(text, label, "x") for text, label in CLASSED]
    labeled = read_labels(write_csv(tmp_path / "1.csv", ("Text", "Label", "note"), rows))
    assert (labeled.kind, len(labeled), labeled.classes) == ("classification", 40, ("a", "b"))
    label_of = dict(CLASSED)
    for text, target in zip(labeled.sides[0], labeled.targets, strict=True):
        assert labeled.classes[target] == label_of[text]
    assert not labeled.warnings
    again = read_labels(write_csv(tmp_path / "2.csv", ("text", "label"), CLASSED[::-1]))
    assert again.sides == labeled.sides
    np.testing.assert_array_equal(again.targets, labeled.targets)
    assert again.fingerprint == labeled.fingerprint


def test_pairs_from_tsv_and_scores_from_packed_jsonl(tmp_path: Path) -> None:
    rows = [(text, text + "?", "yes" if i % 2 else "No") for i, text in enumerate(TEXTS)]
    header = ("sentence1", "sentence2", "label")
    pairs = read_labels(write_csv(tmp_path / "l.tsv", header, rows, "\t"))
    assert pairs.kind == "pairs"
    assert int(pairs.targets.sum()) == 20
    assert len(pairs.texts) == 80
    lines = [
        json.dumps({"sentence1": text, "sentence2": text + "!", "score": i / 8})
        for i, text in enumerate(TEXTS)
    ]
    file = tmp_path / "l.jsonl.gz"
    file.write_bytes(gzip.compress("\n".join([*lines, ""]).encode()))
    scores = read_labels(file)
    assert scores.kind == "scores"
    assert sorted(scores.targets) == [i / 8 for i in range(40)]


def test_rows_that_are_left_out_are_counted(tmp_path: Path) -> None:
    rows = [*CLASSED, ("  ", "a"), (TEXTS[0], "a"), ("unsure", "a"), ("unsure", "b"), ("none", " ")]
    labeled = read_labels(write_csv(tmp_path / "l.csv", ("text", "label"), rows))
    assert len(labeled) == 40
    assert [(int(w.split()[0]), w.split(": ")[1]) for w in labeled.warnings] == [
        (2, "contradicting label."),
        (1, "duplicate."),
        (1, "empty text."),
        (1, "no label."),
    ]


def test_equal_pairs_have_their_mean_score() -> None:
    examples = [((text, text + "!"), float(i)) for i, text in enumerate(TEXTS)]
    labeled = build("scores", [*examples, ((TEXTS[3], TEXTS[3] + "!"), 5.0)])
    assert labeled.targets[labeled.sides[0].index(TEXTS[3])] == 4.0


def test_many_examples_are_sampled_and_few_warn() -> None:
    many = build("classification", [((f"t{i}",), "ab"[i % 2]) for i in range(MOST + 50)])
    assert len(many) == MOST
    assert "drawn at random" in many.warnings[0]
    few = build("classification", [((text,), label) for text, label in CLASSED[:20]])
    assert "20 examples are few" in few.warnings[0]


PAIR = ("sentence1", "sentence2")


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        (("text", "grade"), ("a", "b"), "'grade', which is not a known layout"),
        ((*PAIR, "label", "score"), ("a", "b", "1", "2"), "not a known layout"),
        ((*PAIR, "label"), ("a", "b", "3"), "0 or 1"),
        ((*PAIR, "score"), ("a", "b", "high"), "a score is a finite number, not 'high'"),
        ((*PAIR, "score"), ("a", "b", "nan"), "finite"),
    ],
)
def test_errors_of_layout(
    tmp_path: Path, header: tuple[str, ...], row: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_labels(write_csv(tmp_path / "l.csv", header, [row]))


def test_missing_labels_are_no_class(tmp_path: Path) -> None:
    file = tmp_path / "l.jsonl"
    labels = ["a", "b", float("nan"), None]
    rows = [json.dumps({"text": text, "label": labels[i % 4]}) for i, text in enumerate(TEXTS)]
    file.write_text("\n".join(rows))
    labeled = read_labels(file)
    assert (labeled.classes, len(labeled)) == (("a", "b"), 20)
    file.write_text('{"text": "a", "label": ["x"]}\n')
    with pytest.raises(DataError, match="row 1: a label is a text or a number"):
        read_labels(file)


@pytest.mark.parametrize(
    ("kind", "targets", "message"),
    [
        ("classification", ["a"] * 40, "1 different labels"),
        ("classification", ["a", "b"] * 5, f"holds 10 usable examples; at least {LEAST}"),
        ("classification", [str(i) for i in range(40)], "40 of them on one example only"),
        ("scores", [1.0] * 40, "all scores"),
        ("pairs", [int(i == 0) for i in range(40)], "1 of them on one example only"),
    ],
)
def test_errors_of_content(kind: str, targets: list[object], message: str) -> None:
    texts = [(text,) if kind == "classification" else (text, text) for text in TEXTS]
    with pytest.raises(DataError, match=message):
        build(kind, list(zip(texts, targets, strict=False)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("l.xlsx", b"", r"Valid: \.csv"),
        ("l.csv", b"text,label\n", "holds no examples"),
        ("l.jsonl", b'{"text": 1}\n[1]\n', "line 2 is list"),
    ],
)
def test_errors_of_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_labels(tmp_path / name)


def test_a_byte_order_mark_and_quoted_line_ends_are_read(tmp_path: Path) -> None:
    lines = "".join(f'"first {i}\nsecond, {i}",{i % 2}\n' for i in range(16))
    (tmp_path / "l.csv").write_bytes(b"\xef\xbb\xbftext,label\n" + lines.encode())
    assert "first 0\nsecond, 0" in read_labels(tmp_path / "l.csv").texts
