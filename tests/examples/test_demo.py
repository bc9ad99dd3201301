"""What the demo proves with: a probe on a few labels, and neighbors among texts of which some were
fitted on."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import demo
import numpy as np
import pandas as pd
import pytest
from demo import few_shot_accuracy, nearest, neighbor_accuracy, typical

from tests.selection.judges.support import planted


def test_the_probe_finds_groups_and_is_at_chance_without_them():
    labels = np.arange(480) % 12
    assert few_shot_accuracy(planted(0.3, count=480), labels, shots=8) > 95
    noise = np.random.default_rng(0).normal(size=(480, 16))
    assert few_shot_accuracy(noise, labels, shots=8) == pytest.approx(100 / 12, abs=5)


def test_neighbors_of_the_same_label_are_counted():
    vectors = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    assert neighbor_accuracy(vectors, np.array([0, 0, 1, 1]), 4) == 100
    assert neighbor_accuracy(vectors, np.array([0, 1, 1, 1]), 4) == 50


def test_the_first_texts_ask_and_all_answer():
    vectors = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.5, 0.5]])
    assert neighbor_accuracy(vectors, np.array([0, 1, 0, 1]), 2) == 100  # of each other alone: 0
    assert neighbor_accuracy(vectors, np.array([0, 1, 1, 1]), 1) == 0
    assert nearest(vectors, 2, 2).tolist() == [[2, 3], [3, 2]]


def test_typical_texts_are_the_middle_by_what_was_gained_among_all():
    rng = np.random.default_rng(0)
    labels, asked = np.arange(90) % 3, 60
    today, now = rng.normal(size=(90, 8)), np.eye(3)[labels] + 0.3 * rng.normal(size=(90, 3))
    found = typical(today, now, labels, asked)
    assert len(set(found)) == 5
    assert max(found) < asked

    def right(vectors):
        rows = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        near = [
            [j for j in np.argsort(-row) if j != i][:3]
            for i, row in enumerate(rows[:asked] @ rows.T)
        ]
        return np.array([sum(labels[j] == labels[i] for j in some) for i, some in enumerate(near)])

    gains = right(now) - right(today)
    assert set(gains[found]) <= {int(np.median(gains)), int(np.floor(np.median(gains)))}


def test_unseen_questions_ask_and_all_questions_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The way through the demo, with made-up vectors: better ones know the label, today's know
    nothing."""
    rows = [{"text": f"question {i:04} of {i % 6}", "label": i % 6} for i in range(3000)]
    rng, written = np.random.default_rng(0), []

    def encode(texts, signal):
        return signal * np.eye(6)[[int(text[-1]) for text in texts]] + rng.normal(
            size=(len(texts), 6)
        )

    def improve(model, data, **options):
        assert len(pd.read_csv(data)) == demo.GIVEN
        return SimpleNamespace(encode=lambda texts: encode(texts, 4.0), manifest={}, neighbors=None)

    monkeypatch.setattr(
        demo,
        "TASKS",
        SimpleNamespace(get=lambda name: SimpleNamespace(splits=lambda: {"train": rows})),
    )
    monkeypatch.setattr(demo, "improve", improve)
    monkeypatch.setattr(demo, "last_layer", lambda name: lambda texts: encode(texts, 0.0))
    monkeypatch.setattr(demo, "reload_difference", lambda better, texts: 0.0)
    monkeypatch.setattr(demo, "write_report", lambda parts, place: written.extend(parts) or place)
    for name in ("print_improved", "profile", "print_run", "plot_profiles", "save_figure"):
        monkeypatch.setattr(demo, name, lambda *given, **options: None)
    demo.demo(tmp_path)
    better, proof, _ = written
    said = proof.words[0]
    assert "Of 600 questions that nothing was fitted on" in said
    assert "among all 3,000 (1,500 of them were fitted on)" in said
    today, now = (float(share) for share in re.findall(r"([\d.]+) % (?:have|now; a probe)", said))
    assert today == pytest.approx(100 / 6, abs=5)
    assert now > 90
    unseen = {row["text"] for row in rows[:600]}
    assert set(better.neighbors["text"]) <= unseen
    assert not set(better.neighbors["neighbor"]) <= unseen
    assert not (better.neighbors["text"] == better.neighbors["neighbor"]).any()
