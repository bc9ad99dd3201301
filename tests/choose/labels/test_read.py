from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from layerscope.choose.labels.read import LEAST, MOST, build, read_labels
from layerscope.errors import DataError
from tests.choose.labels.support import write_csv

TEXTS = [f"the text {i}" for i in range(40)]


def test_classes_from_csv(tmp_path: Path) -> None:
    rows = [(text, "ab"[i % 2], "x") for i, text in enumerate(TEXTS)]
    found = read_labels(write_csv(tmp_path / "l.csv", ("Text", "Label", "note"), rows))
    assert (found.kind, len(found), found.classes) == ("classification", 40, ("a", "b"))
    wanted = {text: label for text, label, _ in rows}
    assert all(
        found.classes[target] == wanted[text]
        for text, target in zip(found.sides[0], found.targets, strict=True)
    )
    assert found.facts()["classes"] == {"a": 20, "b": 20}
    assert not found.warnings


def test_pairs_from_tsv_and_scores_from_packed_jsonl(tmp_path: Path) -> None:
    rows = [(text, text + "?", "yes" if i % 2 else "No") for i, text in enumerate(TEXTS)]
    pairs = read_labels(
        write_csv(tmp_path / "l.tsv", ("sentence1", "sentence2", "label"), rows, "\t")
    )
    assert pairs.kind == "pairs"
    assert int(pairs.targets.sum()) == 20
    assert len(pairs.texts) == 80
    file = tmp_path / "l.jsonl.gz"
    lines = [
        json.dumps({"sentence1": t, "sentence2": t + "!", "score": i / 8})
        for i, t in enumerate(TEXTS)
    ]
    file.write_bytes(gzip.compress("\n".join([*lines, ""]).encode()))
    scores = read_labels(file)
    assert scores.kind == "scores"
    assert sorted(scores.targets) == [i / 8 for i in range(40)]


def test_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    rows = [(text, "ab"[i % 2]) for i, text in enumerate(TEXTS)]
    one = read_labels(write_csv(tmp_path / "1.csv", ("text", "label"), rows))
    two = read_labels(write_csv(tmp_path / "2.csv", ("text", "label"), rows[::-1]))
    assert one.sides == two.sides
    np.testing.assert_array_equal(one.targets, two.targets)


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    rows = [(text, "ab"[i % 2]) for i, text in enumerate(TEXTS)]
    rows += [("  ", "a"), (TEXTS[0], "a"), ("unsure", "a"), ("unsure", "b"), ("none", " ")]
    found = read_labels(write_csv(tmp_path / "l.csv", ("text", "label"), rows))
    assert found.dropped == {
        "empty text": 1,
        "duplicate": 1,
        "contradicting label": 2,
        "no label": 1,
    }
    assert len(found) == 40
    assert len(found.warnings) == 4


def test_equal_pairs_have_their_mean_score() -> None:
    examples = [((t, t + "!"), float(i)) for i, t in enumerate(TEXTS)]
    found = build("scores", [*examples, ((TEXTS[3], TEXTS[3] + "!"), 5.0)])
    assert found.targets[found.sides[0].index(TEXTS[3])] == 4.0
    assert found.dropped == {"duplicate": 1}


def test_many_examples_are_sampled() -> None:
    found = build("classification", [((f"t{i}",), "ab"[i % 2]) for i in range(MOST + 50)])
    assert len(found) == MOST
    assert "drawn at random" in found.warnings[0]


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        (("text", "grade"), ("a", "b"), "'grade', which is not a known layout"),
        (("sentence1", "sentence2", "label", "score"), ("a", "b", "1", "2"), "has both"),
        (("sentence1", "sentence2", "label"), ("a", "b", "3"), "0 or 1"),
        (
            ("sentence1", "sentence2", "score"),
            ("a", "b", "high"),
            "a score is a finite number, not 'high'",
        ),
        (("sentence1", "sentence2", "score"), ("a", "b", "nan"), "finite"),
    ],
)
def test_errors_of_layout(
    tmp_path: Path, header: tuple[str, ...], row: tuple[str, ...], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        read_labels(write_csv(tmp_path / "l.csv", header, [row]))


def test_labels_that_are_not_there_are_no_class(tmp_path: Path) -> None:
    file = tmp_path / "l.jsonl"
    given = ["a", "b", float("nan"), None]
    file.write_text(
        "".join(
            json.dumps({"text": text, "label": given[i % 4]}) + "\n"
            for i, text in enumerate(TEXTS[:40])
        )
    )
    found = read_labels(file)
    assert found.classes == ("a", "b")
    assert found.dropped == {"no label": 20}
    file.write_text('{"text": "a", "label": ["x"]}\n')
    with pytest.raises(DataError, match="row 1: a label is a text or a number"):
        read_labels(file)


def test_errors_of_content(tmp_path: Path) -> None:
    def labeled(labels: list[str], count: int = 40) -> Path:
        return write_csv(
            tmp_path / "l.csv", ("text", "label"), zip(TEXTS[:count], labels, strict=False)
        )

    with pytest.raises(DataError, match="the same label 'a'"):
        read_labels(labeled(["a"] * 40))
    with pytest.raises(DataError, match=f"holds 10 usable examples; at least {LEAST}"):
        read_labels(labeled(["a", "b"] * 5, 10))
    with pytest.raises(DataError, match="40 have one example only"):
        read_labels(labeled([str(i) for i in range(40)]))
    with pytest.raises(DataError, match="all scores"):
        build("scores", [((t, t), 1.0) for t in TEXTS])
    with pytest.raises(DataError, match="one example only of a label"):
        build("pairs", [((t, t), int(i == 0)) for i, t in enumerate(TEXTS)])


def test_errors_of_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file"):
        read_labels(tmp_path / "absent.csv")
    (tmp_path / "l.xlsx").touch()
    with pytest.raises(DataError, match=r"Valid: \.csv"):
        read_labels(tmp_path / "l.xlsx")
    (tmp_path / "l.csv").write_text("text,label\n")
    with pytest.raises(DataError, match="holds no examples"):
        read_labels(tmp_path / "l.csv")
    (tmp_path / "l.csv").write_text("text,label\na,b,c\n")
    with pytest.raises(DataError, match="line 2 has 3 fields"):
        read_labels(tmp_path / "l.csv")
    (tmp_path / "l.jsonl").write_text('{"text": 1}\n[1]\n')
    with pytest.raises(DataError, match="line 2 is list"):
        read_labels(tmp_path / "l.jsonl")
    (tmp_path / "l.csv").write_bytes(b"text,label\n\xff,a\n")
    with pytest.raises(DataError, match="not UTF-8"):
        read_labels(tmp_path / "l.csv")


def test_few_examples_warn() -> None:
    found = build("classification", [((t,), "ab"[i % 2]) for i, t in enumerate(TEXTS[:20])])
    assert "20 examples are few" in found.warnings[0]


def test_a_byte_order_mark_and_quoted_line_ends_are_read(tmp_path: Path) -> None:
    lines = "".join(f'"first {i}\nsecond, {i}",{i % 2}\n' for i in range(16))
    (tmp_path / "l.csv").write_bytes(b"\xef\xbb\xbftext,label\n" + lines.encode())
    assert "first 0\nsecond, 0" in read_labels(tmp_path / "l.csv").texts
