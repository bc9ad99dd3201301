"""`evaluate` from data to tables: mteb's scores of a plain encoder, tables and files, undefined
readouts, failures."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mteb
import numpy as np
import pandas as pd
import pytest
from threadpoolctl import threadpool_limits

from layerscope import Evaluation, evaluate, select
from layerscope.errors import LayerscopeError, RunFolderError
from layerscope.evaluation import scoring
from layerscope.evaluation.results import read_items, read_result
from layerscope.evaluation.tasks import resolve_tasks
from layerscope.models.prefix import common_tokens
from tests.evaluation.support import (
    TASKS,
    Listener,
    PlainEncoder,
    fill_by_hand,
    mteb_score,
    watch,
    write_tasks,
)
from tests.evaluation.tasks.support import write_rows
from tests.tiny import tiny_model

pytestmark = [
    pytest.mark.usefixtures("few_experiments"),
    pytest.mark.filterwarnings("ignore"),
]  # scikit-learn on tiny classifiers

READOUTS = [
    "plain/mean/applied/keep/none",
    "echo/wmean/raw/drop/corpus",
    "one-word/last/applied/keep/none",
]
KEYS = ["template", "pooling", "final_norm", "sink", "centering"]
COLUMNS = [
    "task",
    "task_type",
    "split",
    "subset",
    "metric",
    "template",
    "layer",
    "site",
    "depth",
    "final_norm",
    "pooling",
    "sink",
    "centering",
    "score",
]


class Whole(NamedTuple):
    run: Evaluation
    data: Path
    store: Path
    seen: list[tuple[int, ...]]
    texts: dict[str, set[str]]


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    """Settings of a run on small tasks."""
    data = write_tasks(tmp_path / "data")
    return {"data_dir": data, "store": tmp_path / "store", "scoring_workers": 0}


@pytest.fixture(autouse=True)
def one_fit_thread() -> Iterator[None]:
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Three layers and three readouts of a tiny Llama on a task of each type."""
    folder = tmp_path_factory.mktemp("evaluate")
    data = write_tasks(folder / "data")
    texts = {}
    for spec in resolve_tasks(TASKS, data_dir=data):
        listener = Listener()
        mteb_score(spec.load().task, listener)
        texts[spec.name] = listener.texts
    with pytest.MonkeyPatch.context() as patched:
        seen = watch(patched)
        run = evaluate(
            tiny_model(), TASKS, out=folder / "run", data_dir=data, store=folder / "store", layers=[0, 2, -1],
            readouts=READOUTS, scoring_workers=0, batch_size=7,
        )  # fmt: skip
    return Whole(run, data, folder / "store", seen.rows, texts)


def test_each_text_is_encoded_once_for_all_tasks_layers_and_readouts(whole: Whole) -> None:
    tokenizer = tiny_model().tokenizer
    every = set().union(*whole.texts.values())
    rows = {
        template: [tuple(fill_by_hand(tokenizer, template, text, False)[0]) for text in every]
        for template in ("plain", "echo", "one-word")
    }
    shared = common_tokens(rows["one-word"], limit=100)  # read once for all texts
    assert shared > 3
    rows["one-word"] = [row[shared:] for row in rows["one-word"]]
    wanted = Counter(row for some in rows.values() for row in some)
    assert Counter(whole.seen) == wanted
    assert whole.run.manifest["counts"]["texts"] == len(every)
    assert whole.run.manifest["counts"]["encoded"] == 3 * len(every)
    assert sum(len(texts) for texts in whole.texts.values()) > 2 * len(
        every
    )  # the tasks do share texts


@pytest.fixture(scope="module")
def plain() -> PlainEncoder:
    return PlainEncoder(tiny_model(), "llama", 0, READOUTS[0])


@pytest.mark.parametrize("name", TASKS)
def test_scores_are_those_of_a_plain_encoder_per_layer(
    whole: Whole, plain: PlainEncoder, name: str
) -> None:
    rows = whole.run.scores[whole.run.scores["task"] == name]
    assert len(rows) == 9
    task = resolve_tasks(name, data_dir=whole.data)[0].load().task
    spread = set()
    for row in rows.to_dict(orient="records"):
        if math.isnan(row["score"]):
            continue
        encoder = plain.at(row["layer"], "/".join(row[key] for key in KEYS))
        encoder.center_on(whole.texts[name])
        assert row["score"] == pytest.approx(mteb_score(task, encoder), abs=1e-4), row
        spread.add(round(row["score"], 3))
    assert len(spread) > 3 or name == "Topics"


def test_the_tables(whole: Whole) -> None:
    scores, folder = whole.run.scores, whole.run.path
    assert list(scores.columns) == COLUMNS
    assert len(scores) == 5 * 3 * 3
    assert not scores.duplicated(subset=[c for c in COLUMNS if c != "score"]).any()
    assert dict(zip(scores["layer"], scores["site"], strict=True)) == {
        0: "embed",
        2: "block.1",
        3: "block.2",
    }
    assert np.allclose(scores["depth"], scores["layer"] / 3)
    types = dict(
        zip(scores["task"], zip(scores["task_type"], scores["metric"], strict=True), strict=True)
    )
    assert types == {
        "Pairs": ("STS", "cosine_spearman"),
        "Topics": ("Classification", "accuracy"),
        "Sets": ("Clustering", "v_measure"),
        "TwitterSemEval2015": ("PairClassification", "max_ap"),
        "Ranking": ("Reranking", "map_at_1000"),
    }
    for name in ("scores", "gains"):
        table = pd.read_parquet(folder / f"{name}.parquet")
        pd.testing.assert_frame_equal(table, getattr(whole.run, name))
        pd.testing.assert_frame_equal(
            table, pd.read_csv(folder / f"{name}.csv", keep_default_na=False, na_values=[""])
        )
    again = Evaluation.load(folder)
    assert again.manifest == json.loads((folder / "manifest.json").read_text())
    assert again.summary() == whole.run.summary()


def test_gains_are_against_the_last_layer_on_the_same_items(whole: Whole) -> None:
    gains = whole.run.gains
    for _, group in gains.groupby(["task", *KEYS]):
        last = group[group["layer"] == 3].iloc[0]
        assert (last["gain"], last["ci_low"], last["ci_high"]) == (0, 0, 0)
        np.testing.assert_allclose(group["gain"], group["score"] - last["score"], atol=1e-12)
        assert group.loc[group["score"].idxmax(), "tied_best"]
        assert group[["ci_low", "ci_high"]].notna().all().all()
    assert not gains["tied_best"].all()
    for _, group in gains.groupby("task"):
        default = group[
            (group["template"] == "plain")
            & (group["final_norm"] == "applied")
            & (group["layer"] == 3)
        ].iloc[0]
        assert (
            default["gain_over_default"],
            default["default_ci_low"],
            default["default_ci_high"],
        ) == (0, 0, 0)
        np.testing.assert_allclose(
            group["gain_over_default"], group["score"] - default["score"], atol=1e-12
        )
        same = group[(group[KEYS] == default[KEYS]).all(axis=1)]
        np.testing.assert_allclose(same["default_ci_low"], same["ci_low"])
        assert (group["default_ci_low"] <= group["default_ci_high"]).all()
    best = whole.run.best()
    assert not [name for name in best if "ci_" in name]
    assert best["task"].tolist() == sorted(TASKS)
    for row in best.to_dict(orient="records"):
        of_task = gains[gains["task"] == row["task"]]
        assert row["best"] == of_task["score"].max()
        assert row["layer"] in row["tied"]
        assert row["gain"] == pytest.approx(row["best"] - row["last"])


def test_stored_items_give_the_scores_back(whole: Whole) -> None:
    compared = 0
    for file in (whole.run.path / "results").rglob("*.safetensors"):
        result = read_result(file)
        items = read_items(file, "test", "default")
        if result.status == "undefined":
            assert items is None
            continue
        assert items is not None
        assert items.score() == pytest.approx(result.scores[0].score, abs=1e-4), result
        compared += 1
    assert compared == 40


def test_mteb_reads_its_own_results(whole: Whole) -> None:
    cache = mteb.ResultCache(whole.run.path / "mteb")
    loaded = cache.load_results(
        models=["layerscope/tiny-llama"],
        tasks=TASKS,
        include_remote=False,
        load_experiments="match_name",
        require_model_meta=True,
    )
    found: dict[tuple[Any, ...], float] = {}
    for file in (whole.run.path / "mteb").rglob("model_meta.json"):
        kwargs = json.loads(file.read_text())["experiment_kwargs"]
        for task in file.parent.glob("*.json"):
            if task.name != "model_meta.json":
                result = mteb.TaskResult.from_disk(task)
                key = (result.task_name, kwargs["layer"], *(kwargs[k] for k in KEYS))
                found[key] = result.scores["test"][0]["main_score"]
    scores = whole.run.scores.dropna(subset=["score"])
    wanted = {
        (row["task"], row["layer"], *(row[k] for k in KEYS)): row["score"]
        for row in scores.to_dict(orient="records")
    }
    assert found == pytest.approx(wanted, abs=1e-6)  # mteb writes six digits
    by_mteb = [
        (r.task_name, s["test"][0]["main_score"])
        for m in loaded.model_results
        for r in m.task_results
        for s in [r.scores]
    ]
    assert len(by_mteb) == len(wanted)
    assert Counter((task, round(score, 5)) for task, score in by_mteb) == Counter(
        (key[0], round(score, 5)) for key, score in wanted.items()
    )


def test_undefined_readouts_are_marked_and_not_averaged(whole: Whole) -> None:
    missing = whole.run.scores[whole.run.scores["score"].isna()]
    assert set(missing["task"]) == set(TASKS)
    assert set(zip(missing["template"], missing["layer"], strict=True)) == {("one-word", 0)}
    assert missing[["task_type", "metric", "split", "subset"]].notna().all().all()
    assert len(whole.run.manifest["undefined"]) == 5
    for line in whole.run.manifest["undefined"]:
        assert (
            line.split(": ")[1]
            == "one-word/last/applied/keep/none at embed gives every text the same vector"
        )
    gains = whole.run.gains
    assert not ((gains["template"] == "one-word") & (gains["layer"] == 0)).any()
    assert gains["score"].notna().all()


def test_manifest(whole: Whole) -> None:
    manifest = whole.run.manifest
    assert manifest["status"] == "complete"
    assert manifest["failed"] == []
    assert manifest["counts"]["truncated"] == {"plain": 0, "echo": 0, "one-word": 0}
    assert (
        manifest["conventions"]["max_length"] == 128
    )  # what the model takes, not the 256 asked for
    assert manifest["conventions"]["readouts"] == READOUTS
    assert {facts["source"] for facts in manifest["tasks"].values()} == {"mteb files"}
    assert all(len(facts["fingerprint"]) == 64 for facts in manifest["tasks"].values())
    assert any(
        "TwitterSemEval2015 is not MTEB's own split" in line for line in manifest["warnings"]
    )


def test_the_same_again_returns_at_once(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(monkeypatch)
    monkeypatch.setattr(mteb, "evaluate", lambda *_, **__: pytest.fail("a task was read again"))
    again = evaluate(
        tiny_model(),
        TASKS,
        out=whole.run.path,
        data_dir=whole.data,
        store=whole.store,
        layers=[3, 0, 2],
        readouts=READOUTS,
        scoring_workers=0,
    )
    pd.testing.assert_frame_equal(again.scores, whole.run.scores)
    assert len(seen) == 0


def test_another_configuration_is_refused(whole: Whole, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "data_dir": whole.data,
        "store": tmp_path,
        "layers": [0, 2, -1],
        "readouts": READOUTS,
        "scoring_workers": 0,
    }
    for change in (
        {"readouts": READOUTS[:2]}, {"layers": [0]}, {"max_length": 100}, {"sample": 20}, {"seed": 1},
    ):  # fmt: skip
        with pytest.raises(RunFolderError, match="holds another run"):
            evaluate(tiny_model(), TASKS, out=whole.run.path, **{**given, **change})
    with pytest.raises(RunFolderError, match="holds another run"):
        evaluate(tiny_model(seed=1), TASKS, out=whole.run.path, **given)
    with pytest.raises(RunFolderError, match="holds another run"):
        evaluate(tiny_model(), TASKS[:4], out=whole.run.path, **given)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").touch()
    with pytest.raises(RunFolderError, match="is not empty"):
        evaluate(tiny_model(), TASKS, out=tmp_path / "out", **given)


def test_a_later_run_reuses_the_store(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watch(monkeypatch)
    given: dict[str, Any] = {
        "data_dir": whole.data,
        "store": whole.store,
        "layers": [2],
        "scoring_workers": 0,
    }
    run = evaluate(
        tiny_model(),
        ["Ranking", "Pairs"],
        out=tmp_path / "a",
        readouts=["one-word", "plain/mean/applied"],
        **given,
    )
    assert len(seen) == 0
    assert run.manifest["counts"]["encoded"] == 0
    old = whole.run.scores.set_index(["task", *KEYS, "layer"])["score"]
    new = run.scores.set_index(["task", *KEYS, "layer"])["score"]
    pd.testing.assert_series_equal(new, old.loc[new.index])
    evaluate(
        tiny_model(),
        ["Pairs"],
        out=tmp_path / "b",
        readouts=["plain", "one-word/last/raw"],
        **given,
    )
    assert len(seen) == len(
        whole.texts["Pairs"]
    )  # the raw state under one template is new, nothing else


def test_an_encoder_with_cls(tmp_path: Path) -> None:
    data = write_tasks(tmp_path / "data")
    readouts = ["plain/cls/raw/keep/none", "plain/max/raw/drop/none"]
    run = evaluate(
        tiny_model("bert"), ["Pairs"], out=tmp_path / "run", data_dir=data, store=tmp_path / "store", layers=[0, -1],
        readouts=readouts, scoring_workers=0,
    )  # fmt: skip
    scores = run.scores.set_index(["pooling", "layer"])["score"]
    assert math.isnan(scores["cls", 0])
    assert len(run.manifest["undefined"]) == 1
    task = resolve_tasks("Pairs", data_dir=data)[0].load().task
    plain = PlainEncoder(tiny_model("bert"), "bert", 0, readouts[0])
    for pooling, readout, layers in (("cls", readouts[0], [3]), ("max", readouts[1], [0, 3])):
        for layer in layers:
            assert scores[pooling, layer] == pytest.approx(
                mteb_score(task, plain.at(layer, readout)), abs=1e-4
            )


def test_nothing_but_undefined(tmp_path: Path) -> None:
    run = evaluate(
        tiny_model(), ["Pairs"], out=tmp_path / "run", data_dir=write_tasks(tmp_path / "data"), store=tmp_path / "store",
        layers=[0], readouts="one-word", scoring_workers=0,
    )  # fmt: skip
    row = run.scores.iloc[0]
    assert (row["task_type"], row["metric"], row["split"], row["subset"]) == (
        "STS",
        "cosine_spearman",
        "test",
        "default",
    )
    assert math.isnan(row["score"])
    assert len(run.gains) == len(run.best()) == 0
    assert run.summary()["tasks"] == []
    pd.testing.assert_frame_equal(Evaluation.load(run.path).scores, run.scores)


def test_a_custom_template_of_any_characters(tmp_path: Path) -> None:
    pattern = "A/B \\ <x> 'é' " + "very " * 3 + "\n{text}: "
    run = evaluate(
        tiny_model(), ["Pairs"], out=tmp_path / "run", data_dir=write_tasks(tmp_path / "data"), store=tmp_path / "store",
        layers=[1], readouts=[f"{pattern}/last/raw"], scoring_workers=0,
    )  # fmt: skip
    assert run.failed == []
    assert run.scores.loc[0, "template"] == pattern
    assert math.isfinite(run.scores.loc[0, "score"])


def test_a_task_that_cannot_be_read_does_not_stop_the_others(
    given: dict[str, Any], tmp_path: Path
) -> None:
    data = given["data_dir"]
    (data / "Topics" / "test.jsonl").write_text('{"text": "a", "label": 1}\n{oops')
    given |= {"layers": [-1]}
    run = evaluate(tiny_model(), ["Topics", "Pairs"], out=tmp_path / "run", **given)
    assert [failure["task"] for failure in run.failed] == ["Topics"]
    assert "line 2 is not valid JSON" in run.failed[0]["reason"]
    assert run.scores["task"].tolist() == ["Pairs"]
    with pytest.raises(LayerscopeError, match=r"no task could be read:\n  Topics: "):
        evaluate(tiny_model(), ["Topics"], out=tmp_path / "other", **given)
    write_tasks(tmp_path / "data")  # mended: the same command now does the rest
    run = evaluate(tiny_model(), ["Topics", "Pairs"], out=tmp_path / "run", **given)
    assert run.failed == []
    assert run.scores["task"].tolist() == ["Pairs", "Topics"]


def test_a_layer_that_fails_is_told_and_tried_again(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given |= {"out": tmp_path / "run", "layers": [1, 2]}
    vectors = scoring.OpenTask.vectors

    def broken(task: Any, job: Any) -> Any:
        if job.layer == 2 and job.task.name == "Pairs":
            raise MemoryError("no room")
        return vectors(task, job)

    with monkeypatch.context() as patched:
        patched.setattr(scoring.OpenTask, "vectors", broken)
        run = evaluate(tiny_model(), ["Pairs", "Ranking"], **given)
    assert run.failed == [{"task": "Pairs", "reason": "MemoryError: no room"}]
    assert run.scores[["task", "layer"]].to_numpy().tolist() == [
        ["Pairs", 1],
        ["Ranking", 1],
        ["Ranking", 2],
    ]
    run = evaluate(tiny_model(), ["Pairs", "Ranking"], **given)
    assert run.failed == []
    assert len(run.scores) == 4


def test_overwriting_keeps_nothing_of_the_other_run(given: dict[str, Any], tmp_path: Path) -> None:
    data = given["data_dir"]
    given |= {"layers": [-1]}
    alone = evaluate(tiny_model(seed=1), ["Pairs"], out=tmp_path / "alone", **given)
    first = evaluate(tiny_model(), ["Pairs"], out=tmp_path / "run", **given)
    second = evaluate(tiny_model(seed=1), ["Pairs"], out=tmp_path / "run", overwrite=True, **given)
    assert first.scores.loc[0, "score"] != second.scores.loc[0, "score"]
    pd.testing.assert_frame_equal(second.scores, alone.scores)
    assert len(list((tmp_path / "run" / "results").rglob("*.safetensors"))) == 1
    # other data of the same name, in the same process
    rows = (data / "Pairs" / "test.jsonl").read_text().splitlines()
    (data / "Pairs" / "test.jsonl").write_text("\n".join(rows[:15]))
    third = evaluate(tiny_model(seed=1), ["Pairs"], out=tmp_path / "run", overwrite=True, **given)
    assert third.manifest["tasks"]["Pairs"]["items"] == 15
    assert third.scores.loc[0, "score"] != second.scores.loc[0, "score"]


def test_wrong_layers_and_cut_texts(given: dict[str, Any], tmp_path: Path) -> None:
    for layer in (4, -5):
        with pytest.raises(LayerscopeError, match=r"does not exist: tiny-llama has layers 0 to 3"):
            evaluate(tiny_model(), ["Pairs"], out=tmp_path / "no", layers=[0, layer], **given)
    assert not (tmp_path / "no").exists()
    run = evaluate(
        tiny_model(), ["Pairs"], out=tmp_path / "run", layers=[-1], max_length=28, **given
    )
    cut = run.manifest["counts"]["truncated"]["plain"]
    assert 0 < cut < run.manifest["counts"]["texts"]
    assert any(
        line.startswith(f"{cut} of ") and "cut to 28 tokens" in line
        for line in run.manifest["warnings"]
    )


def test_changed_data_are_scored_again_and_the_rest_is_kept(
    given: dict[str, Any], tmp_path: Path
) -> None:
    data = given["data_dir"]
    given |= {"layers": [-1], "out": tmp_path / "run"}
    before = evaluate(tiny_model(), ["Ranking", "Pairs"], **given)
    kept = {
        file: file.stat().st_mtime_ns
        for file in (tmp_path / "run" / "results" / "Ranking").iterdir()
    }
    file = data / "Pairs" / "test.jsonl"
    rows = file.read_text().splitlines()
    file.write_text("\n".join(rows[: len(rows) // 2]) + "\n")
    after = evaluate(tiny_model(), ["Ranking", "Pairs"], **given)
    assert (
        after.manifest["tasks"]["Pairs"]["fingerprint"]
        != before.manifest["tasks"]["Pairs"]["fingerprint"]
    )
    assert len(list((tmp_path / "run" / "results" / "Pairs").iterdir())) == 2
    assert {
        file: file.stat().st_mtime_ns
        for file in (tmp_path / "run" / "results" / "Ranking").iterdir()
    } == kept


def test_without_a_folder_the_run_is_in_memory(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    kept = evaluate(tiny_model(), ["Pairs"], out=tmp_path / "run", **given)
    run = evaluate(tiny_model(), ["Pairs"], **given)
    assert run.path is None
    assert run.summary()["run"] is None
    assert list((tmp_path / "temporary").iterdir()) == []
    pd.testing.assert_frame_equal(run.scores, kept.scores)
    pd.testing.assert_frame_equal(run.gains, kept.gains)
    assert run.items().keys() == kept.items().keys() == {("Pairs", "test", "default")}
    choice, same = select(run), select(kept)
    assert (choice.layer, choice.readout, choice.expected_gain) == (
        same.layer,
        same.readout,
        same.expected_gain,
    )
    assert not any("not stored" in warning for warning in choice.warnings)


def test_a_file_of_the_user_is_not_removed(given: dict[str, Any], tmp_path: Path) -> None:
    mine = tmp_path / "run" / "results" / "thesis.tex"
    mine.parent.mkdir(parents=True)
    mine.write_text("important")
    evaluate(tiny_model(), ["Pairs"], out=tmp_path / "run", overwrite=True, **given)
    assert mine.read_text() == "important"


@pytest.mark.slow
def test_workers_import_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_tasks(tmp_path / "data")
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for name in ("socket", "pickle", "random", "json", "tempfile"):
        (hostile / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\nraise SystemExit('hostile')\n"
        )
    monkeypatch.chdir(hostile)
    run = evaluate(
        tiny_model(), ["Pairs"], data_dir=data, out=tmp_path / "run", store=tmp_path / "store", readouts=READOUTS[:1],
        scoring_workers=2,
    )  # fmt: skip
    assert run.failed == []
    assert not (tmp_path / "ran").exists()
    assert "PYTHONSAFEPATH" not in os.environ


@pytest.mark.parametrize("how", ["flip", "empty"])
def test_damaged_results_are_named(given: dict[str, Any], tmp_path: Path, how: str) -> None:
    given |= {"tasks": ["Pairs"], "out": tmp_path / "run", "readouts": READOUTS[:1]}
    first = evaluate(tiny_model(), **given)
    file = min((tmp_path / "run" / "results").rglob("*.safetensors"))
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw if how == "flip" else b"")
    with pytest.raises(RunFolderError, match=f"{file.name} is damaged"):
        Evaluation.load(tmp_path / "run").items()
    again = evaluate(tiny_model(), overwrite=True, **given)
    assert Evaluation.load(tmp_path / "run").items()
    pd.testing.assert_frame_equal(again.scores, first.scores)
    pd.testing.assert_frame_equal(again.gains, first.gains)


def test_gold_values_that_are_all_the_same_have_no_score(given: dict[str, Any]) -> None:
    rows = [{"sentence1": f"text {i}", "sentence2": f"other {i}", "score": 3.0} for i in range(8)]
    write_rows(given["data_dir"] / "Same" / "test.jsonl", rows)
    run = evaluate(tiny_model(), ["Pairs", "Same"], layers=[-1], readouts=READOUTS[:1], **given)
    assert run.failed == []
    assert "cosine_spearman is not a number" in run.manifest["undefined"][0]
    assert set(run.gains["task"]) == {"Pairs"}
