"""Heads among the candidates: their teacher, the texts they are judged on, and their export."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import layerscope
from layerscope.choose import Candidate, layers_of
from layerscope.core.heads import LEAST_TEXTS
from layerscope.core.readout import Readout, parse_readouts
from layerscope.core.scores import Scores
from layerscope.errors import InvalidValueError, UnknownNameError
from layerscope.improving import fit
from layerscope.improving.candidates import Heads, Reader, Teacher
from layerscope.improving.fit import find_teacher, fit_heads, teaching_prompts
from layerscope.improving.result import front
from tests.improving.test_improve import some_texts, write_labels

TEXTS = some_texts(300)
pytestmark = pytest.mark.usefixtures("stored")
GRID = [
    Readout(),
    Readout("one-word", "last", "raw", "keep", "corpus"),
    Readout("one-word", "last", "raw"),
]
HEAD = Candidate((0, 1), "head", Readout()).readout_name
CANDIDATES = [item for readout in GRID for item in layers_of(readout, [1, 2], [0.5, 1])]
OPTIONS = {"judge": "none", "templates": ["one-word"], "max_length": 96, "progress": False}


def improve(model, texts, **options):
    return layerscope.improve(model, texts, **{**OPTIONS, "sample": 200, **options})


def judged(scores: list[list[float]], noise: float = 0.01) -> Scores:
    values = np.array(scores).ravel()
    rng = np.random.default_rng(0)
    return Scores(values, values[:, None] + noise * rng.normal(size=(len(values), 50)))


def test_the_best_centered_prompt_teaches() -> None:
    teacher = find_teacher(judged([[0.2, 0.2], [0.3, 0.5], [0.9, 0.9]]), CANDIDATES, "")
    assert teacher is not None
    assert (teacher.candidate.readout, teacher.candidate.layer) == (GRID[1], 2)
    assert teacher.describe() == "the one-word prompt at layer 2"
    weak = judged([[0.2, 0.5], [0.3, 0.4], [0.3, 0.3]])  # no better than the baseline
    assert find_teacher(weak, CANDIDATES, "an encoder") is None


def test_two_more_prompts_teach_a_student_that_reads_the_last_token() -> None:
    request = SimpleNamespace(train={}, templates=("plain", "one-word", "step-by-step"))
    run = SimpleNamespace(request=request, labels=None)
    teacher = Teacher(CANDIDATES[3])
    prompts = teaching_prompts(run, teacher)
    assert [prompt.template for prompt in prompts] == ["one-word", "topic", "intent"]
    words = "the one-word prompt, the topic prompt, the intent prompt at layer 2"
    assert teacher.describe(prompts) == words
    echo = Candidate((0, 1), readout=Readout("echo", centering="corpus"))
    assert len(teaching_prompts(run, Teacher(echo))) == 1  # no last token that is to be a word
    request.train = None
    assert teaching_prompts(run, teacher) == [GRID[1]]


def test_too_few_texts_and_constant_vectors_fit_no_head() -> None:
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(2, LEAST_TEXTS, 8)).astype(np.float32)
    target = rng.normal(size=(LEAST_TEXTS, 5))
    teacher = Teacher(CANDIDATES[3])

    def fit_on(rows: np.ndarray, taught: np.ndarray) -> Heads | None:
        by_name = {GRID[1]: [taught, taught], GRID[0]: rows}
        stored = SimpleNamespace(taught=lambda item: by_name[item.readout][item.layer - 1])
        return fit_heads(teacher, stored, CANDIDATES[:2])

    assert fit_on(raw[:, 1:], target[1:]) is None
    assert fit_on(raw, np.ones((LEAST_TEXTS, 5))) is None
    assert fit_on(raw, np.full((LEAST_TEXTS, 5), np.nan)) is None
    raw[0] = 1
    heads = fit_on(raw, target)
    assert heads is not None
    assert heads.similarities(0) is None  # a layer with one vector for all texts
    assert heads.similarities(1) is not None


@pytest.mark.usefixtures("head_wins", "here")
def test_the_folder_is_the_head(llama, tmp_path: Path) -> None:
    out = tmp_path / "better"
    result = improve(llama, TEXTS, out=out, center_on="all")
    assert (result.choice.readout, result.choice.layer) == (HEAD, 2)
    modules = json.loads((out / "modules.json").read_text())
    names = [module["type"].rsplit(".", 1)[-1] for module in modules]
    assert names == ["Transformer", "Pooling", "Dense", "Normalize"]
    loaded = layerscope.load_run(out)
    np.testing.assert_allclose(loaded.encode(TEXTS[:5]), result.encode(TEXTS[:5]), atol=1e-4)
    evidence = loaded.evidence
    assert evidence.teacher.startswith("the one-word prompt at layer")
    assert evidence.relative_cost == pytest.approx(2 / 3)
    assert loaded.manifest["texts"]["fitted_on"] == "all 300 texts of texts"
    assert "linear map" in (out / "README.md").read_text(encoding="utf-8")
    assert "(plain text, head)" in str(loaded)
    with pytest.raises(UnknownNameError, match="unknown centering 'head'"):
        parse_readouts(HEAD, has_cls=False, has_norm=True)


@pytest.mark.usefixtures("head_wins", "here")
def test_a_fit_that_was_stopped_reads_nothing_twice(
    llama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counting:
        missing: dict[str, int] = {}  # noqa: RUF012 - one test

        def begin(self, label: str, total: int, done: int = 0) -> None:
            self.missing[label] = total - done

        def advance(self, units: int) -> None:
            pass

    def stop(*given):
        raise KeyboardInterrupt

    options = {"out": tmp_path / "better", "center_on": "all", "store": tmp_path / "store"}
    with monkeypatch.context() as patched:
        patched.setattr(fit, "Ridge", stop)
        with pytest.raises(KeyboardInterrupt):
            improve(llama, TEXTS, **options)
    assert not options["out"].exists()
    improve(llama, TEXTS, progress=Counting(), **options)
    assert Counting.missing["a head|texts"] == 0
    taught = [label for label in Counting.missing if label.startswith("its teacher")]
    assert not any(Counting.missing[label] for label in taught)


def test_a_budget_is_kept_or_refused_before_anything_is_read(
    llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = improve(llama, TEXTS, budget=0.4)
    assert result.table[result.table["chosen"]].iloc[0]["cost"] <= 0.4
    best = front(result.table)
    assert best["cost"].is_monotonic_increasing
    for row in best.itertuples():
        cheaper = result.table[result.table["cost"] <= row.cost]
        assert row.score >= cheaper["score"].max()
    assert improve(llama, TEXTS, budget=1.5).table["cost"].max() > 1.5
    with pytest.raises(InvalidValueError, match="share of the baseline's computation"):
        improve(llama, TEXTS, budget=0)
    with pytest.raises(InvalidValueError, match="time= is minutes"):
        improve(llama, TEXTS, time=0)
    monkeypatch.setattr(Reader, "read", lambda *given, **options: pytest.fail("nothing is read"))
    with pytest.raises(InvalidValueError, match=r"no candidate costs at most 0.01"):
        improve(llama, TEXTS, budget=0.01)


def test_labels_score_heads_as_heads(
    llama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe does not see centering, but it sees a head."""
    file = write_labels(tmp_path / "labels.csv", TEXTS[:80], "river")
    teacher = Teacher(Candidate((0, 1, 2), readout=GRID[1]))
    monkeypatch.setattr("layerscope.improving.flow.find_teacher", lambda *given: teacher)
    table = improve(llama, TEXTS, labels=file).table.sort_values("layer")
    scores = {name: rows["score"].to_numpy() for name, rows in table.groupby("readout")}
    assert not np.allclose(scores[HEAD], scores[Readout().name])


def test_a_pattern_that_begins_with_a_line_end(llama) -> None:
    pattern = '\n{text} in one word: "'
    table = improve(llama, TEXTS, templates=[pattern]).table
    assert table[table["readout"].str.startswith(f"{pattern}/")]["score"].notna().any()
    assert table["chosen"].sum() == 1


def test_an_untrained_model_is_called_so(llama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(llama.identity, "untrained", True)
    assert any("before any training" in note for note in improve(llama, TEXTS, sample=60).warnings)


@pytest.mark.usefixtures("head_wins")
def test_labels_of_classes_shape_the_head_that_is_exported(llama, tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    rows = [f"{text},{i % 3}\n" for i, text in enumerate(TEXTS[:60])]
    file.write_text("text,label\n" + "".join(rows), encoding="utf-8")
    plain = improve(llama, TEXTS, budget=0.7)
    shaped = improve(llama, TEXTS, labels=file, budget=0.7)
    assert plain.choice.readout == shaped.choice.readout == HEAD
    assert shaped.encode(TEXTS[:2]).shape[1] == plain.encode(TEXTS[:2]).shape[1] + 3
    assert any("60 labels of 3 classes shape the head" in note for note in shaped.warnings)
