"""The demo: which questions it improves on, and which labels check the results."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import demo
import numpy as np
import pandas as pd
import pytest
from demo import neighbor_accuracy


def test_neighbors_of_the_same_label_are_counted():
    vectors = np.array([[1.0, 0.0], [2.0, 0.2], [0.0, 1.0], [0.1, 1.0]])
    assert neighbor_accuracy(vectors, np.array([0, 0, 1, 1])) == 100
    assert neighbor_accuracy(vectors, np.array([0, 1, 1, 1])) == 50


def test_labels_are_of_questions_that_nothing_was_fitted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The way through the demo with made-up vectors: the better ones know the label."""
    rows = [{"text": f"question {i:04} of {i % 6}", "label": i % 6} for i in range(3000)]
    noise, calls, shown = np.random.default_rng(0), [], []

    def encode(texts, signal):
        classes = [int(text[-1]) for text in texts]
        return signal * np.eye(6)[classes] + noise.normal(size=(len(texts), 6))

    def improve(model, data, **options):
        calls.append((model, data, options.get("labels")))
        return SimpleNamespace(encode=lambda texts: encode(texts, 4.0))

    tasks = SimpleNamespace(get=lambda name: SimpleNamespace(splits=lambda: {"train": rows}))
    monkeypatch.setattr(demo, "TASKS", tasks)
    fakes = {
        "load": lambda name: name,
        "improve": improve,
        "encode": lambda model, texts, max_length: encode(texts, 0.0),
        "profile": lambda *given, **options: SimpleNamespace(name="a profile"),
        "write_report": lambda parts, place: shown.extend(parts) or place,
    }
    monkeypatch.setattr(demo, "layerscope", SimpleNamespace(**fakes))
    monkeypatch.setattr(demo, "print_faster", lambda result, console: None)
    monkeypatch.setattr(demo, "print_improved", lambda result, console: None)
    assert demo.demo(tmp_path)[-1] == tmp_path / "report.html"

    given = pd.read_csv(tmp_path / "questions.csv")
    labels = pd.read_csv(tmp_path / "labels.csv")
    assert (len(given), len(labels)) == (demo.GIVEN, demo.UNSEEN)
    assert not set(given["text"]) & set(labels["text"])
    assert [call[0] for call in calls] == [demo.ENCODER, demo.MODEL]
    assert [call[2] for call in calls] == [tmp_path / "labels.csv", None]
    words = shown[2].words[0].replace(",", "").split()
    after, before = (float(words[i - 1]) for i, word in enumerate(words) if word.startswith("%"))
    assert before == pytest.approx(100 / 6, abs=6)
    assert after > 90
