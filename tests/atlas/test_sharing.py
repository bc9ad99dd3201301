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
from layerscope.atlas.sharing import CARD, COLUMNS, FILE, _packed, _write_table, data_card, load_overlays, read_results
from layerscope.atlas.summary import charts, compare
from layerscope.core.untrusted import sha256_of
from layerscope.data import Corpus
from layerscope.errors import DataError
from layerscope.evaluation.run import Evaluation
from layerscope.profiling import Profile, profile
from tests.atlas.test_overlay import evaluation, rows
from tests.tiny import tiny_model


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
        _write_table(_packed(changed), folder / FILE)
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


def test_shared_results_are_compared_with_the_published_ones(folder: Path) -> None:
    overlays = load_overlays(folder)
    table = compare(["Pythia-410m"], overlays=overlays)
    assert [row["model"] for row in table] == ["Pythia-410m", "anna:tiny-gpt_neox"]
    assert [row["tasks"] for row in table] == [1, 1]  # STS12; the other task is not published
    assert table[1]["valley"] is not None
    drawn = {
        chart.title.split(" (")[0]: [line.name for line in chart.lines] for chart in charts(["Pythia-410m"], overlays=overlays)
    }
    assert drawn["curvature"] == ["Pythia-410m", "anna:tiny-gpt_neox"]
    assert overlays[0].notes[0].startswith("its values are on 6 prompts of lee.txt")


def test_names_are_cleaned(profiled: Profile, tmp_path: Path) -> None:
    folder = atlas.export_results(profiled, tmp_path / "x")
    rewritten(folder, lambda table: table.assign(model="red \x1b[31m\nname"))
    assert [overlay.label for overlay in load_overlays(folder)] == ["x:red �[31m name"]


def test_a_changed_file_is_refused(folder: Path) -> None:
    content = bytearray((folder / FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / FILE).write_bytes(bytes(content))
    with pytest.raises(DataError, match="digest differs"):
        load_overlays(folder)


def test_a_card_without_a_digest_is_refused(folder: Path) -> None:
    (folder / CARD).write_text("---\nlicense: mit\n---\n", encoding="utf-8")
    with pytest.raises(DataError, match="results_sha256"):
        load_overlays(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: pa.Table.from_pandas(t.assign(layer="deep")), "not a file that"),
        (lambda t: t.assign(facts="[" * 4000), "not readable JSON"),
        (lambda t: t.assign(facts="{}"), "damaged"),
        (lambda t: t.assign(facts='{"model": {}, "conventions": {"metrics": 3}, "counts": {}}'), "damaged"),
        (lambda t: pa.table({"model": ["x"]}), "not a file that"),
    ],
)
def test_a_hostile_table_is_refused_although_its_digest_is_right(folder: Path, change: Any, reason: str) -> None:
    rewritten(folder, change)
    with pytest.raises(Exception, match=reason) as raised:
        load_overlays(folder)
    assert type(raised.value).__module__ == "layerscope.errors"


def test_rows_that_no_run_writes_are_left_out(folder: Path) -> None:
    rewritten(folder, lambda table: table.assign(value=float("inf")))
    assert all(overlay.is_empty for overlay in load_overlays(folder))
    rewritten(folder, lambda table: table.assign(depth=float("inf")))
    assert load_overlays(folder) == []


def test_what_is_no_parquet_file_is_refused(folder: Path) -> None:
    (folder / FILE).write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    (folder / CARD).write_text(f"---\nresults_sha256: {sha256_of(folder / FILE)}\n---\n", encoding="utf-8")
    with pytest.raises(DataError, match="not a file that"):
        read_results(folder)


def test_more_rows_than_are_read_are_refused_before_they_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerscope.atlas.sharing._MOST_ROWS", 3)
    with pytest.raises(DataError, match="declares"):
        read_results(folder)


def test_a_long_text_that_all_rows_share_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerscope.atlas.sharing._MOST_UNPACKED", 2**24)
    rewritten(folder, lambda table: table.iloc[np.zeros(100, dtype=int)].assign(facts="x" * 2**18))
    with pytest.raises(DataError, match="declares texts of more than"):
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
