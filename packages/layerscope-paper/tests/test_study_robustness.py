"""The study of perturbed texts: the perturbations, the probe, and the scores by layer."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from test_study_diversity import corpus, topic_of
from tests.tiny import tiny_model

from layerscope.choose.label_scores import stratified_folds
from layerscope.errors import DataError
from layerscope_paper.studies.robustness import PERTURBATIONS, gain_over_last
from layerscope_paper.studies.run import study
from layerscope_paper.studies.shared.vectors import probe_hits

TEXT = "one two three four five six seven eight nine ten eleven twelve"


@pytest.mark.parametrize("kind", list(PERTURBATIONS))
def test_a_perturbation_is_repeatable_and_grows_with_its_level(kind: str) -> None:
    perturb = PERTURBATIONS[kind]
    words = set(TEXT.split())

    def kept(level: float) -> int:
        return sum(len(words & set(perturb(TEXT, level, seed).split())) for seed in range(20))

    assert perturb(TEXT, 0.5, 1) == perturb(TEXT, 0.5, 1)
    assert perturb(TEXT, 0.5, 1) != TEXT
    if kind == "order":
        assert Counter(perturb(TEXT, 1.0, 0).split()) == Counter(TEXT.split())
    else:
        assert kept(0.8) < kept(0.2) < 20 * len(words)
    if kind == "capitals":
        assert perturb(TEXT, 1.0, 0) == TEXT.upper()
    if kind == "dropped":
        assert len(perturb(TEXT, 0.25, 0).split()) == 9


def test_the_probe_learns_from_unchanged_texts_of_other_folds_alone() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 30)
    apart = rng.standard_normal((1, 90, 5)) * 0.3
    apart[0, np.arange(90), labels] += 3
    noise = rng.standard_normal((1, 90, 5))
    vectors = np.concatenate([apart, noise]).astype(np.float32)
    folds = stratified_folds(labels, 5, 1, 0)[0]
    shifted = vectors[:, np.roll(np.arange(90), 30)]  # every text with a vector of another class
    clean, wrong = probe_hits(vectors, [shifted], labels, folds)
    assert clean[0].mean() > 0.97
    assert wrong[0].mean() < 0.03
    assert 0.15 < clean[1].mean() < 0.55  # noise: chance is a third


def test_a_layer_is_judged_on_texts_that_did_not_choose_it() -> None:
    rng = np.random.default_rng(0)
    noise = rng.random((12, 200)) < 0.5  # twelve layers that are all alike
    gain, _ = gain_over_last(100.0 * noise, 0)
    assert gain.sign == 0
    better = noise.astype(float)
    better[5] = rng.random(200) < 0.8
    gain, chosen = gain_over_last(100 * better, 0)
    assert chosen == [5]
    assert gain.value == pytest.approx(100 * (better[5] - better[-1]).mean())
    assert gain.sign == 1


def test_layers_that_are_all_alike_gain_five_times_in_a_hundred() -> None:
    rng = np.random.default_rng(1)
    signs = []
    for trial in range(150):
        smooth = rng.normal(size=(1, 60)) + 0.3 * np.cumsum(rng.normal(size=(12, 60)), 0)
        signs.append(gain_over_last(smooth, trial)[0].sign)
    assert np.mean(np.array(signs) != 0) <= 0.1  # 5 % ± 2, with 150 trials


def labeled_file(folder: Path) -> Path:
    file = folder / "subjects.csv"
    with file.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["text", "label"])
        rows.writerows([text, topic_of(text)] for text in corpus(20))
    return file


def test_the_study_scores_every_layer_on_every_level(tmp_path: Path) -> None:
    file = labeled_file(tmp_path)
    run = study(
        "robustness", tiny_model("llama"), data=corpus()[:20], labels=str(file), kinds=["dropped", "capitals"],
        levels=[0.2, 0.8], max_length=64,
    )  # fmt: skip
    values = run.table[run.table["kind"] == "value"]
    assert set(values["metric"]) == {"found_again", "accuracy:subjects"}
    assert len(values) == 2 * (1 + 4) * 4
    plain = values[(values["metric"] == "found_again") & (values["condition"] == "none")]
    assert (plain["value"] == 1).all()
    mean = values[values["metric"] == "found_again"].groupby(["condition", "level"])["value"].mean()
    assert mean["dropped", 0.8] < mean["dropped", 0.2] < 1
    drops = run.table[run.table["kind"] == "drop"]
    assert "none" not in set(drops["condition"])
    assert run.verdict[0].startswith("In short: ")
    assert len(run.plot().axes) >= 4


def test_labels_may_be_left_out_and_a_file_of_pairs_is_refused(tmp_path: Path) -> None:
    run = study(
        "robustness",
        tiny_model("llama"),
        data=corpus()[:12],
        labels="none",
        kinds=["typos"],
        levels=[0.5],
    )
    assert set(run.table["metric"]) == {"found_again"}
    file = tmp_path / "pairs.csv"
    lines = "\n".join(f"a{i},b{i},{i / 20}" for i in range(20))
    file.write_text(f"sentence1,sentence2,score\n{lines}\n", encoding="utf-8")
    with pytest.raises(DataError, match="text,label"):
        study("robustness", tiny_model("llama"), data=corpus()[:12], labels=str(file))
