"""General texts: which they are, how much they count in a head, and that they are read once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import layerscope
from layerscope.core.heads import LEAST_TEXTS, Ridge, make_target, unit
from layerscope.errors import DataError, InvalidValueError
from layerscope.improving import general
from layerscope.improving.general import SOURCES, general_texts, general_words
from layerscope.improving.heads import WEIGHTS, fit_heads, weigh
from layerscope.report.sections.improve import from_improvement
from tests.cli.support import assert_refused, run_main
from tests.improving.test_heads import GRID, find_teacher, judged
from tests.improving.test_improve import some_texts
from tests.tiny import tiny_model

FEW = some_texts(60, seed=5)
WIDTH = 40


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Texts in the place of the catalogue's: some of the user's own are among them."""
    texts = {name: some_texts(50, seed=i) for i, name in enumerate(SOURCES)}
    texts[SOURCES[0]][:2] = [FEW[0].upper(), "  ".join(FEW[1].split())]
    texts[SOURCES[1]][3] = texts[SOURCES[1]][2]

    class Entry:
        def __init__(self, name: str) -> None:
            self.name = name

        def splits(self, offline: bool = False) -> dict[str, list[dict[str, str]]]:
            return {"train": [{"text": text} for text in texts[self.name]], "test": [{"text": "scored"}]}

    class Tasks:
        get = Entry

    monkeypatch.setattr(general, "TASKS", Tasks)
    return texts


def interrupt(*given: object) -> None:
    raise KeyboardInterrupt


def map_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(WIDTH, 12))


def draw(count: int, by: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors, and what a noisy linear teacher says of them."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, WIDTH)) + rng.normal(size=WIDTH)
    return vectors, vectors @ by + 5 * rng.normal(size=(count, 12))


def right(ridge: Ridge, by: np.ndarray) -> float:
    """How well similarities of texts that nothing was fitted on are those of the map without noise."""
    fresh = np.random.default_rng(99).normal(size=(200, WIDTH)) + ridge.mean
    told, truth = (unit(rows) @ unit(rows).T for rows in (ridge.head()(fresh), (fresh - fresh.mean(0)) @ by))
    return float(np.corrcoef(told.ravel(), truth.ravel())[0, 1])


@pytest.mark.parametrize("texts", [40, LEAST_TEXTS + 10])
def test_general_texts_of_the_same_map_count_and_help(texts: int) -> None:
    by = map_of(0)
    (own, said), (more, taught) = draw(texts, by, 1), draw(1500, by, 2)
    ridge, found = weigh(own, [said], more, [taught])
    assert found.weight > 0
    assert found.after > found.before
    assert right(ridge, by) > right(Ridge(own, make_target(said)), by) + 0.02


def test_general_texts_of_another_map_count_nothing() -> None:
    (own, said), (more, taught) = draw(LEAST_TEXTS + 50, map_of(0), 1), draw(1500, map_of(7), 2)
    ridge, found = weigh(own, [said], more, [taught])
    assert found.weight == 0
    assert found.after == found.before
    np.testing.assert_array_equal(ridge.head().matrix, Ridge(own, make_target(said)).head().matrix)
    assert "count nothing" in general_words({"texts": 1500, "corpora": ["a"], **vars(found)})


def test_only_the_judged_texts_say_how_much_others_count() -> None:
    by = map_of(0)
    (own, said), (more, taught) = draw(300, by, 1), draw(1000, by, 2)
    whole, part = (weigh(own, [said], more, [taught], judged)[1] for judged in (None, 60))
    assert whole.before != part.before
    assert {whole.weight, part.weight} <= {0.0, *WEIGHTS}


def test_few_texts_have_a_head_by_general_ones_that_differ() -> None:
    by = map_of(0)
    teacher = find_teacher(judged([[0.2, 0.2], [0.3, 0.5], [0.1, 0.1]]), GRID, [1, 2], "")
    (own, said), (more, taught) = draw(40, by, 1), draw(500, by, 2)
    raw = np.stack([own, own]).astype(np.float32)
    assert fit_heads(teacher, raw, said) is None
    heads = fit_heads(teacher, raw, said, lambda place: more, taught)
    assert heads is not None
    assert heads.weight > 0
    similar = heads.similarities(0)
    assert similar is not None
    assert np.isfinite(similar[~np.eye(40, dtype=bool)]).all()
    for vectors, given in ((np.ones_like(more), taught), (more, np.ones_like(taught)), (more, np.full_like(taught, np.nan))):
        with pytest.raises(DataError, match="general texts teach nothing"):
            fit_heads(teacher, raw, said, lambda place, rows=vectors: rows, given)


def test_general_texts_are_of_all_kinds_and_not_the_users(catalogue) -> None:
    found = general_texts(FEW, 90)
    assert len(found) == len(set(found)) == 90
    assert not {"".join(text.split()).casefold() for text in found} & {"".join(text.split()).casefold() for text in FEW}
    assert all(sum(text in texts for text in found) >= 28 for texts in catalogue.values())
    assert "scored" not in general_texts(())


def test_a_training_takes_no_general_texts() -> None:
    with pytest.raises(InvalidValueError, match=r"general= is for heads"):
        layerscope.improve("no-model", FEW, general=True, train=True)


def test_without_network_one_line_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAYERSCOPE_CACHE", str(tmp_path / "cache"))
    data, out = tmp_path / "texts.txt", tmp_path / "better"
    data.write_text("\n".join(FEW))
    words = ("improve", "smollm2-135m", "--data", data, "--out", out, "--general", "--offline")
    assert_refused(run_main(monkeypatch, capsys, *words), "fetch SmsSpam TrecQuestions SentimentSnippets`", "leave out --general")
    assert not out.exists()


@pytest.mark.usefixtures("head_wins", "here", "catalogue")
def test_the_command_reads_general_texts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAYERSCOPE_CACHE", str(tmp_path / "cache"))
    model = tiny_model("llama")
    model.module.save_pretrained(tmp_path / "model")
    model.tokenizer.save_pretrained(tmp_path / "model")
    data, out = tmp_path / "texts.txt", tmp_path / "better"
    data.write_text("\n".join(FEW))
    words = ("--general", "--judge", "none", "--templates", "one-word", "--max-length", 96)
    words = ("improve", tmp_path / "model", "--data", data, "--out", out, *words)
    with monkeypatch.context() as stopped:
        stopped.setattr("layerscope.improving.fitting.weigh", interrupt)
        assert run_main(monkeypatch, capsys, *words).code == 130
    assert not out.exists()
    ended = run_main(monkeypatch, capsys, *words)
    assert ended.code == 0, ended.err
    (told,) = (line for line in ended.err.splitlines() if "reads general texts" in line)
    assert "are there already" in told  # what a stopped run has read
    assert "general texts" in ended.out
    run = layerscope.load_run(out)
    found = run.manifest["evidence"]["general"]
    assert found["corpora"] == list(SOURCES)
    assert found["weight"] in WEIGHTS
    assert 140 < found["texts"] < 150
    assert general_words(found) in run.manifest["conventions"]["head"]
    assert [each["type"].rsplit(".", 1)[-1] for each in json.loads((out / "modules.json").read_text())][-2:] == [
        "Dense",
        "Normalize",
    ]
    assert any(line.startswith("General texts: 1") for line in from_improvement(run).words)
    todo: dict[str, int] = {}

    class Counting:
        def begin(self, label: str, total: int, done: int = 0) -> None:
            todo[label] = todo.get(label, 0) + total - done

        def advance(self, units: int) -> None:
            pass

    others = [*FEW[:2], *some_texts(60, seed=9)]  # general texts that are theirs are left out again
    options = {"judge": "none", "templates": ["one-word"], "max_length": 96, "progress": Counting(), "general": True}
    layerscope.improve(tmp_path / "model", others, **options)
    (label,) = [label for label in todo if "general" in label]
    assert todo[label] == 0
    assert run.manifest["config"]["general"] is True
