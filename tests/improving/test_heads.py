"""Heads among the candidates: who teaches them, on which texts they are judged, what is exported,
and when there are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import layerscope
from layerscope.core.heads import LEAST_TEXTS
from layerscope.core.readout import Readout
from layerscope.core.scores import Scores
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.improving import heads as module
from layerscope.improving.choose import front
from layerscope.improving.heads import READOUT, find_teacher, fit_heads
from layerscope.improving.sample import Reader
from tests.improving.test_improve import some_texts

TEXTS = some_texts(300)
pytestmark = pytest.mark.usefixtures("stored")
GRID = [
    Readout(),
    Readout("one-word", "last", "raw", "keep", "corpus"),
    Readout("one-word", "last", "raw"),
]


def improve(model, texts, **options):
    settings = {
        "judge": "none",
        "templates": ["one-word"],
        "max_length": 96,
        "progress": False,
        "sample": 200,
        **options,
    }
    return layerscope.improve(model, texts, **settings)


def judged(scores: list[list[float]], noise: float = 0.01) -> Scores:
    values = np.array(scores).ravel()
    rng = np.random.default_rng(0)
    return Scores(values, values[:, None] + noise * rng.normal(size=(len(values), 50)))


def test_the_best_centered_prompt_teaches() -> None:
    found = find_teacher(judged([[0.2, 0.2], [0.3, 0.5], [0.9, 0.9]]), GRID, [1, 2], "")
    assert found is not None
    assert (found.readout, found.layer) == (GRID[1], 2)
    assert found.describe() == "the one-word prompt at layer 2"
    assert [one.template for one in found.together] == ["one-word", "topic", "intent"]
    assert (
        found.describe(found.together)
        == "the one-word prompt, the topic prompt, the intent prompt at layer 2"
    )
    assert (
        len(module.Teacher(Readout("echo", centering="corpus"), 2).together) == 1
    )  # no last token that is to be a word


def test_a_prompt_no_better_than_today_does_not_teach() -> None:
    weak = judged([[0.2, 0.5], [0.3, 0.4], [0.3, 0.3]])
    assert find_teacher(weak, GRID, [1, 2], "an encoder") is None


def test_too_few_texts_and_constant_teachers_fit_no_head() -> None:
    rng = np.random.default_rng(0)
    teacher = find_teacher(judged([[0.2, 0.2], [0.3, 0.5], [0.1, 0.1]]), GRID, [1, 2], "")
    raw = rng.normal(size=(2, LEAST_TEXTS, 8)).astype(np.float32)
    assert fit_heads(teacher, raw, rng.normal(size=(LEAST_TEXTS, 5))) is not None
    assert fit_heads(teacher, raw[:, 1:], rng.normal(size=(LEAST_TEXTS - 1, 5))) is None
    assert fit_heads(teacher, raw, np.ones((LEAST_TEXTS, 5))) is None
    assert fit_heads(teacher, raw, np.full((LEAST_TEXTS, 5), np.nan)) is None
    assert fit_heads(None, raw, raw[0]) is None


def test_a_layer_with_one_vector_for_all_texts_has_no_score() -> None:
    rng = np.random.default_rng(0)
    teacher = find_teacher(judged([[0.2, 0.2], [0.3, 0.5], [0.1, 0.1]]), GRID, [1, 2], "")
    raw = np.stack([np.ones((LEAST_TEXTS, 8)), rng.normal(size=(LEAST_TEXTS, 8))]).astype(
        np.float32
    )
    heads = fit_heads(teacher, raw, rng.normal(size=(LEAST_TEXTS, 5)))
    assert heads is not None
    assert heads.similarities(0) is None
    assert heads.similarities(1) is not None


@pytest.mark.usefixtures("head_wins", "here")
def test_the_folder_is_the_head(llama, tmp_path: Path) -> None:
    out = tmp_path / "better"
    result = improve(llama, TEXTS, out=out, center_on="all")
    assert (result.choice.readout, result.choice.layer) == (READOUT.name, 2)
    listed = [each["type"].rsplit(".", 1)[-1] for each in _modules(out)]
    assert listed == ["Transformer", "Pooling", "Dense", "Normalize"]
    loaded = layerscope.load_run(out)
    np.testing.assert_allclose(loaded.encode(TEXTS[:5]), result.encode(TEXTS[:5]), atol=1e-4)
    evidence = loaded.manifest["evidence"]
    assert evidence["teacher"].startswith("the one-word prompt at layer")
    assert evidence["relative_cost"] == pytest.approx(2 / 3)
    assert loaded.manifest["texts"]["centered_on"]["texts"] == 300
    assert "linear map" in (out / "README.md").read_text(encoding="utf-8")
    assert "(plain text, head)" in str(loaded)
    with pytest.raises(LayerscopeError, match="goes through a head, which `improve` fits"):
        layerscope.export(llama, 2, readout=READOUT, out=tmp_path / "again")


def _modules(folder: Path) -> list[dict[str, str]]:
    import json

    return list(json.loads((folder / "modules.json").read_text()))


@pytest.mark.usefixtures("head_wins", "here")
def test_a_fit_that_was_stopped_reads_nothing_twice(
    llama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from layerscope.improving import fit

    monkeypatch.setenv("LAYERSCOPE_CACHE", str(tmp_path / "cache"))
    own = fit.Ridge

    def stopped(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(fit, "Ridge", stopped)
    out = tmp_path / "better"
    with pytest.raises(KeyboardInterrupt):
        improve(llama, TEXTS, out=out, center_on="all", store=tmp_path / "store")
    assert not out.exists()
    monkeypatch.setattr(fit, "Ridge", own)
    todo: dict[str, int] = {}

    class Counting:
        def begin(self, label: str, total: int, done: int = 0) -> None:
            todo[label] = total - done

        def advance(self, units: int) -> None:
            pass

    improve(llama, TEXTS, out=out, center_on="all", progress=Counting(), store=tmp_path / "store")
    assert todo["a head|texts"] == 0
    assert not any(count for label, count in todo.items() if label.startswith("its teacher"))


def test_a_budget_is_kept_or_refused_before_anything_is_read(
    llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = improve(llama, TEXTS, budget=0.4)
    row = result.table[result.table["chosen"]].iloc[0]
    assert row["cost"] <= 0.4
    monkeypatch.setattr(Reader, "read", lambda *given: pytest.fail("nothing is read"))
    with pytest.raises(InvalidValueError, match=r"no candidate costs at most 0.01"):
        improve(llama, TEXTS, budget=0.01)


def test_the_front_has_what_nothing_cheaper_beats(llama) -> None:
    table = improve(llama, TEXTS).table
    found = front(table)
    for row in found.itertuples():
        cheaper = table[table["cost"] <= row.cost]
        assert row.score >= cheaper["score"].max()
    assert found["cost"].is_monotonic_increasing


def test_minutes_are_positive(llama) -> None:
    with pytest.raises(InvalidValueError, match="time= is minutes"):
        improve(llama, TEXTS, time=0)


def test_a_head_cannot_be_evaluated_by_name() -> None:
    from layerscope.core.readout import parse_readouts

    with pytest.raises(LayerscopeError, match="a head is fitted by `improve`"):
        parse_readouts("plain/mean/applied/keep/head", has_cls=False, has_norm=True)
    assert module.READOUT.name == "plain/mean/applied/keep/head"


def test_labels_score_heads_as_heads(
    llama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe does not see centering, but it sees a head; a prompt teaches, whatever the labels
    say."""
    file = tmp_path / "labels.csv"
    file.write_text(
        "text,label\n" + "\n".join(f"{text},{'river' in text}" for text in TEXTS[:80]) + "\n"
    )
    first = GRID[1]
    monkeypatch.setattr(
        "layerscope.improving.scoring.find_teacher", lambda *given: module.Teacher(first, 3)
    )
    table = improve(llama, TEXTS, labels=file).table
    scores = {
        name: rows.sort_values("layer")["score"].to_numpy()
        for name, rows in table.groupby("readout")
    }
    assert not np.allclose(scores[READOUT.name], scores[Readout().name])


def test_a_pattern_that_begins_with_a_line_end(llama) -> None:
    result = improve(llama, TEXTS, templates=['\n{text} in one word: "'], judge="none")
    own = result.table[result.table["readout"].str.startswith('\n{text} in one word: "/')]
    assert own["score"].notna().any()
    assert result.table["chosen"].sum() == 1


def test_a_budget_may_be_more_than_today(llama) -> None:
    assert improve(llama, TEXTS, budget=1.5).table["cost"].max() > 1.5
    with pytest.raises(InvalidValueError, match="share of today's computation"):
        improve(llama, TEXTS, budget=0)


def test_a_light_model_without_a_head_says_why(llama) -> None:
    told = improve(llama, TEXTS, sample=60, budget=0.5).warnings
    assert "no head was fitted: 60 texts are too few, it takes 200." in told
    assert not any("no head" in note for note in improve(llama, TEXTS, sample=60).warnings)


def test_an_untrained_model_is_called_so(llama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(llama.identity, "untrained", True)
    assert any("before any training" in note for note in improve(llama, TEXTS, sample=60).warnings)


@pytest.mark.usefixtures("head_wins")
def test_labels_of_classes_shape_the_head_that_is_exported(llama, tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(
        "text,label\n" + "".join(f"{text},{i % 3}\n" for i, text in enumerate(TEXTS[:60])),
        encoding="utf-8",
    )
    plain, shaped = (
        improve(llama, TEXTS, budget=0.7),
        improve(llama, TEXTS, labels=file, budget=0.7),
    )
    assert plain.choice.readout == shaped.choice.readout == READOUT.name
    assert shaped.encode(TEXTS[:2]).shape[1] == plain.encode(TEXTS[:2]).shape[1] + 3
    assert any("60 labels of 3 classes shape the head" in note for note in shaped.warnings)
