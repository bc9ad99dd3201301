"""General texts: which they are, how much they count in a head, and that they are read once."""

from __future__ import annotations

import hashlib
import json
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import layerscope
from layerscope.core.candidates import ScoredCandidates
from layerscope.core.heads import LEAST_TEXTS, Head, Ridge, make_target, unit
from layerscope.core.readout import Readout
from layerscope.errors import DataError, InvalidValueError
from layerscope.improving import general
from layerscope.improving import heads as heads_module
from layerscope.improving.general import SOURCES, WEIGHTS, general_key, general_texts, general_words
from layerscope.improving.grid import StoredCandidates
from layerscope.improving.heads import choose_weight, fit_heads
from layerscope.improving.judging import Panel
from layerscope.improving.sample import Reader
from layerscope.report.sections.improve import from_improvement
from tests.cli.support import assert_refused, run_main
from tests.improving.test_heads import GRID, find_teacher, judged
from tests.improving.test_improve import some_texts
from tests.tiny import tiny_model

FEW = some_texts(60, seed=5)
WIDTH = 40
TEACHER = "layerscope.improving.job.find_teacher"
TAUGHT = [[0.2, 0.2], [0.3, 0.5], [0.1, 0.1]]


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Texts in the place of the catalogue's: some of the user's own are among them."""
    texts = {name: some_texts(50, seed=i) for i, name in enumerate(SOURCES)}
    texts[SOURCES[0]][:2] = [FEW[0].upper(), "  ".join(FEW[1].split())]
    texts[SOURCES[1]][3] = texts[SOURCES[1]][2]

    class Entry:
        def __init__(self, name: str) -> None:
            self.name = name
            sha256 = hashlib.sha256("".join(texts[name]).encode()).hexdigest()
            self.origin = SimpleNamespace(files=[SimpleNamespace(sha256=sha256)])

        def splits(self, offline: bool = False) -> dict[str, list[dict[str, str]]]:
            return {
                "train": [{"text": text} for text in texts[self.name]],
                "test": [{"text": "scored"}],
            }

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


def right(head: Head, by: np.ndarray) -> float:
    """How well similarities of texts that nothing was fitted on are those of the map without
    noise."""
    fresh = np.random.default_rng(99).normal(size=(200, WIDTH)) + head.mean
    told, truth = (
        unit(rows) @ unit(rows).T for rows in (head(fresh), (fresh - fresh.mean(0)) @ by)
    )
    return float(np.corrcoef(told.ravel(), truth.ravel())[0, 1])


@pytest.mark.parametrize("texts", [40, LEAST_TEXTS + 10])
def test_general_texts_of_the_same_map_count_and_help(texts: int) -> None:
    by = map_of(0)
    (own, said), (more, taught) = draw(texts, by, 1), draw(1500, by, 2)
    head, found = choose_weight(own, [said], more, [taught])
    assert found.weight > 0
    assert found.after > found.before
    assert right(head, by) > right(Ridge(own, make_target(said)).head(), by) + 0.02


def test_general_texts_of_another_map_count_nothing() -> None:
    (own, said), (more, taught) = draw(LEAST_TEXTS + 50, map_of(0), 1), draw(1500, map_of(7), 2)
    head, found = choose_weight(own, [said], more, [taught])
    assert found.weight == 0
    assert found.after == found.before
    np.testing.assert_array_equal(head.matrix, Ridge(own, make_target(said)).head().matrix)
    told = general_words({"texts": 1500, "corpora": ["a"], "judged": 0.1, **vars(found)})
    assert told.endswith("count nothing: they do not help these; 0.1 in the heads that were judged")


def test_few_judged_texts_take_general_ones_as_the_judged_heads_did() -> None:
    (own, said), (more, taught) = draw(LEAST_TEXTS + 50, map_of(0), 1), draw(1500, map_of(7), 2)
    assert choose_weight(own, [said], more, [taught], LEAST_TEXTS)[1].weight == 0
    assert choose_weight(own, [said], more, [taught], 60)[1].weight > 0


def test_one_regression_is_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[Ridge]] = []

    class Counted(Ridge):
        def __init__(self, *given: object) -> None:
            assert not any(one() is not None for one in held)
            held.append(weakref.ref(self))
            super().__init__(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(heads_module, "Ridge", Counted)
    (own, said), (more, taught) = draw(40, map_of(0), 1), draw(300, map_of(0), 2)
    choose_weight(own, [said], more, [taught])
    assert len(held) == 1 + len(WEIGHTS)


def test_only_the_judged_texts_say_how_much_others_count() -> None:
    by = map_of(0)
    (own, said), (more, taught) = draw(300, by, 1), draw(1000, by, 2)
    whole, part = (choose_weight(own, [said], more, [taught], judged)[1] for judged in (None, 60))
    assert whole.before != part.before
    assert {whole.weight, part.weight} <= {0.0, *WEIGHTS}


def test_few_texts_have_a_head_by_general_ones_that_differ() -> None:
    by = map_of(0)
    teacher = find_teacher(judged(TAUGHT), GRID, [1, 2], "")
    (own, said), (more, taught) = draw(40, by, 1), draw(500, by, 2)
    raw = np.stack([own, own]).astype(np.float32)
    assert fit_heads(teacher, raw, said) is None
    heads = fit_heads(teacher, raw, said, lambda place: more, taught)
    assert heads is not None
    assert heads.weight > 0
    similar = heads.similarities(0)
    assert similar is not None
    assert np.isfinite(similar[~np.eye(40, dtype=bool)]).all()
    for vectors, given in (
        (np.ones_like(more), taught),
        (more, np.ones_like(taught)),
        (more, np.full_like(taught, np.nan)),
    ):
        with pytest.raises(DataError, match="general texts teach nothing"):
            fit_heads(teacher, raw, said, lambda place, rows=vectors: rows, given)


def test_general_texts_are_of_all_kinds_and_not_the_users(catalogue) -> None:
    found = general_texts(FEW, 90)
    assert len(found) == len(set(found)) == 90
    assert not {"".join(text.split()).casefold() for text in found} & {
        "".join(text.split()).casefold() for text in FEW
    }
    assert all(sum(text in texts for text in found) >= 28 for texts in catalogue.values())
    assert "scored" not in general_texts(())


def test_the_sources_are_told_by_their_content() -> None:
    assert all(len(sha256) == 64 for files in general_key()["sources"].values() for sha256 in files)
    assert list(general_key()["sources"]) == list(SOURCES)


def test_a_training_takes_no_general_texts() -> None:
    with pytest.raises(InvalidValueError, match=r"general= is for heads"):
        layerscope.improve("no-model", FEW, general=True, train=True)


def quick(model: object, texts: list[str], **options: object) -> layerscope.Improved:
    settings = {
        "judge": "none",
        "templates": ["one-word"],
        "max_length": 96,
        "progress": False,
        "general": True,
        **options,
    }
    return layerscope.improve(model, texts, **settings)  # type: ignore[arg-type]


def saved(folder: Path) -> Path:
    model = tiny_model("llama")
    model.module.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """The words of `improve --general` on a few texts, into the folder `better`, with a cache of
    its own."""
    monkeypatch.setenv("LAYERSCOPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "texts.txt").write_text("\n".join(FEW))
    given = (
        "--data",
        tmp_path / "texts.txt",
        "--out",
        tmp_path / "better",
        "--judge",
        "none",
        "--general",
    )
    return ("improve", saved(tmp_path / "model"), *given)


def test_without_network_one_line_and_nothing_written(
    tmp_path: Path,
    command: tuple[object, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (*command, "--offline")
    assert_refused(
        run_main(monkeypatch, capsys, *words),
        "fetch SmsSpam TrecQuestions SentimentSnippets`",
        "leave out --general",
    )
    assert not (tmp_path / "better").exists()


@pytest.mark.usefixtures("stored")
def test_where_general_texts_do_nothing_one_line_says_so(
    llama, catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(**options: object) -> list[str]:
        return [
            note
            for note in quick(llama, FEW, **options).warnings
            if "head" in note or "general" in note
        ]

    asked = Panel.judge_heads

    def dislike(self: Panel, *given: object) -> ScoredCandidates:
        found = asked(self, *given)  # type: ignore[arg-type]
        found.score[-1] -= 5
        found.draws[-1] -= 5
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Panel, "judge_heads", dislike)
        patch.setattr(TEACHER, lambda *_: find_teacher(judged(TAUGHT), GRID, [1, 2], ""))
        assert told() == ["general= did nothing; no head was chosen."]
        patch.setattr(TEACHER, lambda *_: None)
        for budget in (None, 1):
            assert told(budget=budget) == [
                "general= did nothing; no head was fitted: no prompt that could teach beats today's."
            ]
    monkeypatch.setattr(
        "layerscope.improving.job.general_texts", interrupt
    )  # nothing is fetched for a model that is left alone
    monkeypatch.setitem(llama.identity, "sentence_encoder", True)
    assert told() == ["general= did nothing; the model stays as it is."]


@pytest.mark.usefixtures("stored")
def test_texts_with_labels_are_no_general_ones(
    llama, catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels, read = tmp_path / "labels.csv", []
    labels.write_text(
        "text,label\n"
        + "".join(f"{text.upper()},{i % 2}\n" for i, text in enumerate(catalogue[SOURCES[2]]))
    )
    own = Reader.read

    def note(self: Reader, wanted: object, texts: list[str], bar: object, label: str) -> int:
        read.extend(texts if "general" in label else [])
        return own(self, wanted, texts, bar, label)  # type: ignore[arg-type]

    monkeypatch.setattr(Reader, "read", note)
    monkeypatch.setattr(TEACHER, lambda *_: find_teacher(judged(TAUGHT), GRID, [1, 2], ""))
    quick(llama, FEW, labels=labels)
    assert read
    assert not {text.upper() for text in read} & {text.upper() for text in catalogue[SOURCES[2]]}


def test_the_time_is_that_of_general_texts_of_their_length(
    llama, catalogue, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(Reader, "seconds_per_token", lambda *_: 1.0)

    def estimated(store: str, **options: object) -> float:
        return float(
            quick(llama, FEW, store=tmp_path / store, max_length=256, **options).manifest[
                "seconds"
            ]["estimated"]
        )

    own, short = estimated("own", general=False), estimated("short")
    for texts in catalogue.values():
        texts[:] = [f"{text} {text} {text}" for text in texts]
    assert estimated("long") - own > 1.5 * (short - own) > 0


@pytest.mark.usefixtures("head_wins", "here", "catalogue")
def test_the_command_reads_general_texts_once(
    tmp_path: Path,
    command: tuple[object, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words, out = (*command, "--templates", "one-word", "--max-length", 96), tmp_path / "better"
    own, stacked = StoredCandidates._raw, set()

    def note(self: StoredCandidates, readout: Readout, view: str) -> np.ndarray:
        stacked.add(len(self._keys[view]))
        return own(self, readout, view)

    monkeypatch.setattr(StoredCandidates, "_raw", note)
    with monkeypatch.context() as stopped:
        stopped.setattr("layerscope.improving.fitting.choose_weight", interrupt)
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
    assert found["judged"] in WEIGHTS
    assert max(stacked) == len(
        FEW
    )  # the states of all layers at once are of the user's texts alone
    used = (
        f"{found['texts']} general texts ({', '.join(SOURCES)}) that count {found['weight']:g} each"
    )
    assert json.loads((out / "layerscope.json").read_text())["general_texts"] == used
    assert f"fitted on the same texts and {used}, is applied" in (out / "README.md").read_text()
    assert general_words(found) in run.manifest["conventions"]["head"]
    assert [
        each["type"].rsplit(".", 1)[-1] for each in json.loads((out / "modules.json").read_text())
    ][-2:] == [
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
    quick(tmp_path / "model", others, progress=Counting())
    (label,) = [label for label in todo if "general" in label]
    assert todo[label] == 0
    assert set(run.manifest["config"]["general"]["sources"]) == set(SOURCES)
    told = run_main(monkeypatch, capsys, *words)
    assert (told.code, told.out) == (0, ended.out)  # the finished run, read back
    monkeypatch.setattr(general, "WEIGHTS", (0.5,))
    assert_refused(run_main(monkeypatch, capsys, *words), "--overwrite")
