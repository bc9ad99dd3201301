"""Plans of steps: studies, profiles and probes run to the end whatever happens, resume, and come
out in one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image
from tests.tiny import build_tiny, tiny_tokenizer
from tiny_images import build as build_image_model
from tiny_images import pictures

from layerscope.errors import UnknownNameError
from layerscope_paper.sweeps.run import sweep


@pytest.fixture
def small(model_folder: Path, texts: list[str], tmp_path: Path) -> dict[str, Any]:
    """Five steps on tiny local models, the second of which cannot work."""
    (tmp_path / "texts.txt").write_text("\n".join(texts[:4]), encoding="utf-8")
    rows = [{"text": f"{text} {i}", "label": "ab"[i % 2]} for i, text in enumerate(texts[:10] * 4)]
    pd.DataFrame(rows).to_csv(tmp_path / "labeled.csv", index=False)
    other = tmp_path / "tiny-bert"
    build_tiny("bert").save_pretrained(other)
    tiny_tokenizer(encoder=True).save_pretrained(other)
    return {
        "name": "small",
        "about": "tiny models",
        "defaults": {"data": "texts.txt", "max_length": 64},
        "steps": [
            {
                "study": "extreme",
                "models": [str(model_folder)],
                "options": {"levels": [0, 1], "conditions": "repetition"},
            },
            {
                "name": "gone",
                "study": "compare",
                "models": [str(model_folder), str(tmp_path / "nowhere")],
            },
            {
                "name": "both",
                "study": "compare",
                "models": [str(model_folder), "tiny-bert"],
                "limit": 3,
            },
            {
                "name": "plain",
                "profile": {"metrics": ["prompt_entropy"]},
                "models": ["tiny-bert?label=bert"],
            },
            {
                "name": "classes",
                "probe": {"data": str(tmp_path / "labeled.csv"), "heads": "knn"},
                "models": [str(model_folder)],
            },
        ],
    }


@pytest.mark.usefixtures("no_figure")
def test_a_failing_step_does_not_stop_the_rest(small: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(small), encoding="utf-8")
    done = sweep(file, out=tmp_path / "out", progress=False)
    ended = ["complete", "failed", "complete", "complete", "complete"]
    assert done.jobs["status"].tolist() == ended
    assert "no such file or folder" in done.failed[0]["reason"]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [job["job"] for job in manifest["jobs"]] == [
        "extreme",
        "gone",
        "both",
        "plain",
        "classes",
    ]
    assert manifest["jobs"][0]["verdict"] == done.jobs["verdict"][0]
    assert done.jobs["verdict"][0][0].startswith("In short: ")
    both = json.loads((tmp_path / "out" / "both" / "manifest.json").read_text())
    assert (both["texts"], both["conventions"]["max_length"]) == (3, 64)
    assert set(both["conventions"]["models"]) == {"tiny-llama", "tiny-bert"}
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("*/manifest.json")}
    assert len(stamps) >= 4
    again = sweep(file, out=tmp_path / "out", progress=False, only=["extreme", "both"])
    assert again.jobs["verdict"].tolist() == [done.jobs["verdict"][0], done.jobs["verdict"][2]]
    assert all(
        p.stat().st_mtime_ns == stamp for p, stamp in stamps.items() if p.parent.name != "gone"
    )
    with pytest.raises(UnknownNameError, match=r"step of small 'bot'. Did you mean 'both'"):
        sweep(file, out=tmp_path / "out", only=["bot"])


@pytest.mark.usefixtures("no_figure")
def test_one_table_holds_every_kind_of_step(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small["steps"] = [step for step in small["steps"] if step.get("name") not in ("gone", "both")]
    done = sweep(small, out=tmp_path / "out", progress=False)
    assert done.failed == []
    rows = dict(iter(done.table.groupby("job")))
    assert set(rows) == {"extreme", "plain", "classes"}
    study = pd.read_parquet(tmp_path / "out" / "extreme" / "study.parquet")
    assert rows["extreme"]["value"].tolist() == pytest.approx(study["value"].tolist(), nan_ok=True)
    assert set(rows["extreme"]["setting"]) == {
        "condition=repetition level=0.0",
        "condition=repetition level=1.0",
    }
    assert set(rows["plain"]["model"]) == {"bert"}
    assert rows["plain"]["setting"].isna().all()
    assert set(rows["classes"]["setting"]) == {"knn"}
    assert set(rows["classes"]["metric"]) == {"top1"}
    written = pd.read_parquet(tmp_path / "out" / "sweep.parquet")
    assert written.astype(object).fillna("").equals(done.table.astype(object).fillna(""))


def test_a_step_profiles_images(tmp_path: Path) -> None:
    for i, picture in enumerate(pictures(6)):
        (tmp_path / "photos" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(picture)).save(tmp_path / "photos" / "ab"[i % 2] / f"{i}.png")
    build_image_model("vit").save_pretrained(tmp_path / "tiny-vit")
    settings = {"data": str(tmp_path / "photos"), "metrics": ["prompt_entropy", "dataset_entropy"]}
    step = {
        "name": "entropies",
        "profile": settings,
        "models": [str(tmp_path / "tiny-vit")],
        "limit": 5,
    }
    done = sweep({"steps": [step]}, out=tmp_path / "out", progress=False)
    assert done.failed == []
    assert set(done.table.loc[done.table["metric"] == "prompt_entropy", "n"]) == {5}
    assert set(done.table["metric"]) == {"prompt_entropy", "dataset_entropy"}
    assert set(done.table["layer"]) == {0, 1, 2, 3}


def test_a_step_profiles_texts_of_its_own_that_lie_beside_the_plan(
    tmp_path: Path, model_folder: Path
) -> None:
    (tmp_path / "mine.txt").write_text("one text of mine\nanother text of mine\na third one\n")
    step = {
        "profile": {"data": "mine.txt", "max_length": 8, "metrics": ["prompt_entropy"]},
        "models": [str(model_folder)],
    }
    (tmp_path / "plan.json").write_text(json.dumps({"steps": [step]}))
    done = sweep(tmp_path / "plan.json", out=tmp_path / "out", progress=False)
    assert done.failed == []
    assert set(done.table["n"]) == {3}
