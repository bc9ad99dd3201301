"""`sweep paper` with tiny weights in place of the paper's: all but the download of the real ones.

Every model that the recipe names is served by a hub on this machine, under its own name, as a tiny model of its family. One
profile and one evaluation of each family of texts, under both curvatures, and one profile of each family of images.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import transformers as hf

from layerscope.data import load_corpus
from layerscope.evaluation.job import evaluate
from layerscope.profiling import Profile
from layerscope.studies.run import StudyRun
from layerscope.sweeps.plan import SweepPlan, read_plan
from tests.evaluation.support import write_tasks
from tests.faults.hub import Hub, Repository
from tests.models.test_aim import as_published
from tests.tiny import build_tiny, tiny_tokenizer
from tests.tiny_images import SIDE, build, pictures

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

FAMILIES = {  # the first that is in a repository's name
    "LLM2Vec": "", "pythia": "gpt_neox", "bert": "bert", "mamba": "mamba", "Llama": "llama", "Qwen": "qwen2",
    "vit-mae": "vit_mae", "beit": "beit", "dinov2": "dinov2", "clip": "clip", "aimv2": "aimv2", "aim-600M": "aim", "vit": "vit",
}  # fmt: skip


def tiny_files(family: str, folder: Path) -> dict[str, bytes]:
    """A tiny model of a family, as the hub would have its files."""
    if family == "aim":
        as_published(folder)
    elif family in ("gpt_neox", "bert", "mamba", "llama", "qwen2"):
        build_tiny(family).save_pretrained(folder)  # type: ignore[operator]
        tiny_tokenizer(family == "bert").save_pretrained(folder)
    else:
        build(family).save_pretrained(folder)  # type: ignore[operator]
        hf.ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def plan(hub: Hub, adapter_files: dict[str, bytes], tmp_path: Path) -> SweepPlan:
    """The recipe; the hub has all of its models."""
    found = read_plan("paper")
    made: dict[str, dict[str, bytes]] = {"": adapter_files}
    specs = [spec for step in found.steps for spec in step.models]
    for repo in {str(name) for spec in specs for name in (spec.model, *spec.options.get("adapters", ()))}:
        family = next(family for part, family in FAMILIES.items() if part in repo)
        if family not in made:
            made[family] = tiny_files(family, tmp_path / f"tiny-{family}")
        hub.models[repo] = Repository({"main": made[family]})
    return found


def run(plan: SweepPlan, name: str, tmp_path: Path, **options: Any) -> Any:
    """A step of texts as the recipe has it, on twelve texts of this machine."""
    step = next(step for step in plan.steps if step.name == name)
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(f"text {i} is about {['rain', 'bread', 'rock'][i % 3]} and words" for i in range(12)))
    corpora = {step.corpus: load_corpus(str(texts))} if step.corpus else {}
    return replace(step, options={**step.options, **options}).run(tmp_path / name, corpora)  # type: ignore[arg-type]


def test_texts_under_both_curvatures(plan: SweepPlan, hub: Hub, tmp_path: Path) -> None:
    pytest.importorskip("nlpaug")
    signed: StudyRun = run(plan, "architectures", tmp_path)
    rows = signed.table[signed.table["metric"] == "curvature"]
    assert rows["model"].nunique() == 3
    assert rows["value"].max() > math.pi / 2  # the formula's angle: most turns are obtuse
    for name in ("EleutherAI-pythia-410m", "google-bert-bert-base-uncased", "state-spaces-mamba-370m-hf"):
        step = next(s for s in plan.steps if s.kind == "profile" and name.partition("-")[2] in s.name)
        published: Profile = run(plan, step.name, tmp_path)
        values = published.table.query("metric == 'curvature' and normalization == 'raw'")["value"]
        assert values.between(0, math.pi / 2).all()  # the released code's: absolute cosine
        model = published.manifest["model"]
        assert model["revision"] == hub.models[model["name"]].commit("main")  # what `main` was is recorded
    adapted: StudyRun = run(plan, "llm2vec", tmp_path)
    assert set(adapted.table["model"]) == {"Llama-3-8B", "LLM2Vec-unsup-simcse", "LLM2Vec-supervised"}


def test_scores_of_every_family(plan: SweepPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerscope.studies.shared.models.evaluate", partial(evaluate, scoring_workers=0))
    data = write_tasks(tmp_path / "tasks")
    found: StudyRun = run(plan, "scores", tmp_path, tasks=["Pairs"], data_dir=str(data), task_texts=20)
    scores = found.table[found.table["kind"] == "score"]
    assert scores.groupby("model")["layer"].nunique().tolist() == [4, 4, 4, 4]
    assert scores["value"].between(-100, 100).all()


def test_every_family_of_images(plan: SweepPlan, hub: Hub, tmp_path: Path) -> None:
    steps = [s for s in plan.steps if s.kind == "profile" and s.settings.get("data") == "clane9/imagenet-100"]
    assert len(steps) == 7
    for step in steps:
        settings = {key: value for key, value in step.settings.items() if key != "limit"}
        found = replace(step, settings={**settings, "data": pictures(8)}).run(tmp_path / step.name, {})
        assert found.table["value"].notna().all()
        model = found.manifest["model"]
        assert model["revision"] == hub.models[model["name"]].commit("main")
