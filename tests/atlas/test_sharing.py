"""Results as a dataset: written with their conventions, checked when they are read, shown beside the published ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from layerscope import atlas
from layerscope.atlas.imports import imported_runs
from layerscope.atlas.sharing import CARD, COLUMNS, FILE, _write_table, data_card, read_results
from layerscope.atlas.summary import compare, panels, show
from layerscope.core.untrusted import sha256_of
from layerscope.data import Corpus
from layerscope.errors import DataError, LayerscopeError, UnknownNameError
from layerscope.evaluation.run import Evaluation
from layerscope.profiling import Profile, profile
from tests.atlas.test_overlay import evaluation, rows
from tests.tiny import tiny_model


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERSCOPE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def profiled(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Profile:
    folder = tmp_path_factory.mktemp("sharing") / "run"
    corpus = Corpus.of(texts[:6], name="/home/anna/secret/lee.txt")
    metrics = ["prompt_entropy", "curvature"]
    return profile(tiny_model("gpt_neox"), corpus, out=folder, preset="released", metrics=metrics, max_length=24)


def scored(tmp_path: Path) -> Evaluation:
    run = evaluation(tmp_path, [*rows("STS12"), *rows("Mine")])
    run.scores = run.scores.assign(metric="cosine_spearman", task_type="STS", site="embed")
    run.manifest["model"] = {"name": "tiny-gpt_neox", "n_blocks": 6, "path": "/home/anna"}
    run.manifest["tasks"]["Mine"] = {"exact": None, "path": "/home/anna/mine.csv"}
    return run


@pytest.fixture
def folder(profiled: Profile, tmp_path: Path) -> Path:
    return atlas.export_results([profiled, scored(tmp_path)], tmp_path / "anna", license="cc-by-4.0")


def rewritten(folder: Path, change: Any) -> Path:
    """The same folder with a changed table and the digest that belongs to it: what somebody who means harm would send."""
    table = pd.read_parquet(folder / FILE)
    changed = change(table)
    if isinstance(changed, pd.DataFrame):
        _write_table(changed, folder / FILE)
    else:
        pq.write_table(changed, folder / FILE)
    (folder / CARD).write_text(data_card(table, "x", "unknown", sha256_of(folder / FILE)), encoding="utf-8")
    return folder


def test_every_value_of_the_runs_is_in_the_file_with_its_conventions(folder: Path, profiled: Profile) -> None:
    table = pd.read_parquet(folder / FILE)
    assert list(table.columns) == list(COLUMNS)
    mine = table[table["kind"] == "profile"]
    assert mine["value"].tolist() == profiled.table["value"].tolist()
    assert set(mine["final_norm"]) == {"hf"}
    assert set(mine["max_length"]) == {24}
    assert json.loads(mine["facts"].iloc[0])["conventions"]["metrics"]["clamp_gram"] is True
    scores = table[table["kind"] == "evaluation"]
    assert scores[scores["data"] == "STS12"]["value"].tolist() == [row["score"] for row in rows("STS12")]
    assert set(scores["pooling"]) == {"mean"}
    assert len(set(table["run"])) == 2


def test_nothing_of_the_machine_is_in_it(folder: Path) -> None:
    table = pd.read_parquet(folder / FILE)
    written = (folder / CARD).read_text(encoding="utf-8") + table.to_csv()
    assert "anna/" not in written
    assert "/home" not in written
    assert set(table[table["kind"] == "profile"]["data"]) == {"lee.txt"}


def test_the_card_has_the_form_of_a_hub_dataset(folder: Path) -> None:
    card = (folder / CARD).read_text(encoding="utf-8")
    front = yaml.safe_load(card.split("---")[1])
    assert front["license"] == "cc-by-4.0"
    assert front["configs"] == [{"config_name": "default", "data_files": FILE}]
    assert front["results_sha256"] == sha256_of(folder / FILE)
    assert "| tiny-gpt_neox | profile | lee.txt | 0–3 |" in card
    assert all(f"| `{name}` |" in card for name in COLUMNS)


def test_imported_results_are_listed_and_compared(folder: Path) -> None:
    listed = atlas.import_results(folder)
    assert listed.to_dict(orient="records") == [
        {"model": "anna:tiny-gpt_neox", "source": "anna", "layers": 4, "tasks": 2, "metrics": 2, "probes": 0}
    ]
    assert len(atlas.imported()) == len(pd.read_parquet(folder / FILE))
    table = compare(["Pythia-410m", "anna:tiny-gpt_neox"])
    assert [row["model"] for row in table] == ["Pythia-410m", "anna:tiny-gpt_neox"]
    assert [row["tasks"] for row in table] == [1, 1]  # STS12; the other task is not published
    assert table[1]["valley"] is not None
    drawn = {
        panel.title.split(" (")[0]: [line.label for line in panel.series]
        for panel in panels(["Pythia-410m", "anna:tiny-gpt_neox"])
    }
    assert drawn["curvature"] == ["Pythia-410m", "anna:tiny-gpt_neox"]
    notes = [run.overlay().notes[0] for run in imported_runs("anna") if run.overlay()]  # type: ignore[union-attr]
    assert notes[0].startswith("its values are on 6 prompts of lee.txt")


def test_show_has_a_row_per_curve(folder: Path, profiled: Profile) -> None:
    atlas.import_results(folder)
    curves = show("anna:tiny-gpt_neox")["curves"]
    one = next(row for row in curves if row["metric"] == "curvature" and row["sink"] == "keep")
    assert one["values"] == profiled.curve("curvature")["value"].tolist()
    assert {row["data"] for row in curves} == {"lee.txt", "STS12", "Mine"}


def test_the_same_results_can_come_again_and_others_not_under_their_name(folder: Path, profiled: Profile, tmp_path: Path) -> None:
    atlas.import_results(folder)
    atlas.import_results(folder)
    other = atlas.export_results(profiled, tmp_path / "other")
    with pytest.raises(DataError, match="another name="):
        atlas.import_results(other, name="anna")
    assert len(atlas.import_results(other, name="anna", overwrite=True)) == 1
    atlas.remove_imported("anna")
    assert atlas.imported_models().empty
    with pytest.raises(LayerscopeError, match="nothing is imported"):
        atlas.remove_imported("anna")
    atlas.import_results(folder)
    with pytest.raises(UnknownNameError):
        atlas.remove_imported("../cache")


def test_names_are_kept_inside_the_cache_and_cleaned(profiled: Profile, tmp_path: Path) -> None:
    folder = atlas.export_results(profiled, tmp_path / "x")
    rewritten(folder, lambda table: table.assign(model="red \x1b[31m\nname"))
    listed = atlas.import_results(folder, name="../../up")
    assert listed["model"].tolist() == ["up:red �[31m name"]
    assert sorted(path.name for path in (tmp_path / "cache" / "atlas").iterdir()) == ["up"]


def test_a_changed_file_is_refused(folder: Path) -> None:
    content = bytearray((folder / FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / FILE).write_bytes(bytes(content))
    with pytest.raises(DataError, match="digest differs"):
        atlas.import_results(folder)


def test_a_card_without_a_digest_is_refused(folder: Path) -> None:
    (folder / CARD).write_text("---\nlicense: mit\n---\nresults_sha256: " + "0" * 64, encoding="utf-8")
    with pytest.raises(DataError, match="results_sha256"):
        atlas.import_results(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.assign(value=np.inf), "not finite"),
        (lambda t: t.assign(layer=10**9), "layers that its models do not have"),
        (lambda t: t.assign(layer=-1), "layers that its models do not have"),
        (lambda t: t.assign(depth=0.5), "depth is not"),
        (lambda t: t.assign(kind="else"), "no kind of run"),
        (lambda t: t.assign(metric="m" * 5000), "longer than"),
        (lambda t: t.assign(model=None), "empty in some rows"),
        (lambda t: t[:0], "no rows"),
        (lambda t: t.assign(facts="[" * 4000), "not readable JSON"),
        (lambda t: t.assign(facts="{}"), "no model and conventions"),
        (lambda t: t.assign(facts='{"model": {}, "conventions": {"metrics": 3}, "counts": {}}'), "damaged"),
        (lambda t: pa.table({"model": ["x"]}), "no column 'run'"),
        (lambda t: pa.Table.from_pandas(t.assign(value="1")), "is of type large_string, not string"),
    ],
)
def test_a_hostile_table_is_refused_although_its_digest_is_right(folder: Path, change: Any, reason: str) -> None:
    rewritten(folder, change)
    with pytest.raises(Exception, match=reason) as raised:
        atlas.import_results(folder)
    assert type(raised.value).__module__ == "layerscope.errors"
    assert atlas.imported_models().empty


def test_what_is_no_parquet_file_is_refused(folder: Path) -> None:
    (folder / FILE).write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    (folder / CARD).write_text(f"---\nresults_sha256: {sha256_of(folder / FILE)}\n---\n", encoding="utf-8")
    with pytest.raises(DataError, match="not a readable parquet"):
        read_results(folder)


def test_more_rows_than_are_read_are_refused_before_they_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerscope.atlas.sharing._MOST_ROWS", 3)
    with pytest.raises(DataError, match="declares"):
        read_results(folder)


def test_only_earlier_results_are_overwritten(profiled: Profile, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "notes.txt").write_text("mine", encoding="utf-8")
    for overwrite in (False, True):
        with pytest.raises(DataError, match="not empty"):
            atlas.export_results(profiled, place, overwrite=overwrite)
    out = atlas.export_results(profiled, tmp_path / "out")
    atlas.export_results(profiled, out, overwrite=True)
    with pytest.raises(DataError, match="no values per layer"):
        atlas.export_results(type("Odd", (), {"kind": "study", "manifest": {}})(), tmp_path / "new")
