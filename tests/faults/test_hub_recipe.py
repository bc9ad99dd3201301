"""`sweep paper` with tiny weights in place of the paper's: all but the download of the real ones.

Every model and dataset that the recipe names is served by a hub on this machine, under its own
name: a tiny model of its family (one per training step), a few texts, a few images. Every step of
the plan is run as the recipe has it, a new one too; `SMALLER` says what is cut. What it measures
then stands beside the atlas, cell by cell.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers as hf
from aim_published import as_published
from PIL import Image
from tiny_images import SIDE, build

from layerscope.evaluation.job import evaluate
from layerscope.evaluation.run import Evaluation
from layerscope.evaluation.tasks.mteb_tasks import text_tasks
from layerscope.profiling import Profile
from layerscope_paper.atlas.overlay import PROFILE_METRICS
from layerscope_paper.atlas.queries import metric_values, select_scores
from layerscope_paper.cli import main
from layerscope_paper.sweeps.plan import SweepPlan, read_plan
from layerscope_paper.sweeps.steps import Step
from tests.cli.support import Cli, run_main
from tests.evaluation.support import write_tasks
from tests.faults.conftest import parquet
from tests.faults.hub import Hub, Repository
from tests.tiny import build_tiny, tiny_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

FAMILIES = {  # the first that is in a repository's name
    "LLM2Vec": "", "pythia": "gpt_neox", "bert": "bert", "mamba": "mamba", "Llama": "llama", "Qwen": "qwen2",
    "vit-mae": "vit_mae", "beit": "beit", "dinov2": "dinov2", "clip": "clip", "aimv2": "aimv2", "aim-600M": "aim", "vit": "vit",
}  # fmt: skip
PYTHIA = "EleutherAI/pythia-410m"
TEXTS = [
    f"text {i} is about {('rain', 'bread', 'rock')[i % 3]} {' '.join('abcdefgh' * (4 + i % 2))}"
    for i in range(12)
]
SMALLER: dict[str, dict[str, Any]] = {
    "scores": {"tasks": ["STS12"], "task_texts": 20},
    "factorial": {"tasks": ["Pairs", "TwitterSemEval2015"], "items": 20, "fit": 200},
    "reasoning-traces": {"generate": 6},
    "vision": {"epochs": 2, "trial": 1},
}
"""What a step has less of than the recipe gives it; beside that the hub's datasets are small."""
UNDEFINED = {  # by step: values that no model has, since all the vectors there are alike
    "extreme": "condition == 'repetition' and level == 1 and layer == 0",
    "extreme-mamba": "condition == 'repetition' and level == 1 and layer == 0",
    "factorial": "reading == 'prompt' and layer == 0",
}
DEPTHS = {  # of the published models: the atlas's name, the family, its blocks
    PYTHIA: ("Pythia-410m", "gpt_neox", 24),
    "google-bert/bert-base-uncased": ("bert-base", "bert", 12),
    "state-spaces/mamba-370m-hf": ("mamba-370m", "mamba", 48),
}
STEPS = [step.name for step in read_plan("paper").steps]


def tiny_files(family: str, folder: Path, seed: int = 0, blocks: int = 3) -> dict[str, bytes]:
    """A tiny model of a family, as the hub would have its files; one of texts may have as many
    blocks as the real one."""
    if family == "aim":
        as_published(folder)
    elif family in ("gpt_neox", "bert", "mamba", "llama", "qwen2"):
        model: Any = build_tiny(family, seed)
        if blocks != model.config.num_hidden_layers:
            model.config.num_hidden_layers = blocks
            torch.manual_seed(seed)
            model = type(model)(model.config)
        model.config.tie_word_embeddings = family == "qwen2"  # as Qwen 2.5 of this size has it
        model.save_pretrained(folder)
        tiny_tokenizer(family == "bert").save_pretrained(folder)
    else:
        build(family).save_pretrained(folder)  # type: ignore[operator]
        hf.ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def tiny_images(folder: Path) -> dict[str, bytes]:
    """ImageNet-100's files, with few and small images."""
    import datasets

    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=["n01", "n02", "n03"])
    )
    out = {}
    for seed, (split, count) in enumerate({"train": 18, "validation": 9}.items()):
        drawn = np.random.default_rng(seed).integers(0, 255, (count, SIDE, SIDE, 3), dtype=np.uint8)
        rows = {
            "image": [Image.fromarray(one) for one in drawn],
            "label": [i % 3 for i in range(count)],
        }
        file = folder / f"{split}.parquet"
        datasets.Dataset.from_dict(rows, features).to_parquet(file)
        out[f"data/{split}-00000-of-00001.parquet"] = file.read_bytes()
    return out


def tiny_texts(config: str, split: str, **columns: list[str]) -> Repository:
    """A dataset of texts of one configuration and split."""
    listed = f"- config_name: {config}\n  data_files:\n  - split: {split}\n    path: {config}/{split}-*\n"
    card = f"---\nconfigs:\n{listed}---\n".encode()
    return Repository(
        {
            "main": {
                "README.md": card,
                f"{config}/{split}-00000-of-00001.parquet": parquet(**columns),
            }
        }
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """Files by family, by training step, and of the images."""
    folder = tmp_path_factory.mktemp("tiny")
    steps = next(step for step in read_plan("paper").steps if step.name == "training").options[
        "steps"
    ]
    trained = {
        name: tiny_files("gpt_neox", folder / name, seed) for seed, name in enumerate(steps, 1)
    }
    families = {
        family: tiny_files(family, folder / family) for family in FAMILIES.values() if family
    }
    return {**trained, **families, "images": tiny_images(folder)}


@pytest.fixture
def plan(
    hub: Hub,
    made: dict[str, dict[str, bytes]],
    adapter_files: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> SweepPlan:
    """The recipe; the hub has all of its models and datasets."""
    monkeypatch.setattr(
        "layerscope_paper.studies.shared.models.evaluate", partial(evaluate, scoring_workers=0)
    )
    monkeypatch.setattr("layerscope_paper.studies.factorial.LEAST_TEXTS", 10)
    found = read_plan("paper")
    for repo in {name for step in found.steps for name in repositories(step)}:
        family = next(family for part, family in FAMILIES.items() if part in repo)
        hub.models[repo] = Repository({"main": made[family] if family else adapter_files})
    hub.models[PYTHIA].revisions |= {
        name: files for name, files in made.items() if name.startswith("step")
    }
    solved = [f"{text} so it is 4" for text in TEXTS]
    hub.datasets["Salesforce/wikitext"] = tiny_texts("wikitext-103-raw-v1", "train", text=TEXTS)
    hub.datasets["openai/gsm8k"] = tiny_texts("main", "test", question=TEXTS, answer=solved)
    rows: dict[str, list[Any]] = {
        "sentence1": TEXTS,
        "sentence2": TEXTS[::-1],
        "score": [float(i % 6) for i in range(12)],
    }
    place = text_tasks()["STS12"].metadata.dataset
    hub.datasets[place["path"]] = Repository(
        {place["revision"]: {"data/test-00000-of-00001.parquet": parquet(**rows)}}
    )
    hub.datasets["clane9/imagenet-100"] = Repository({"main": made["images"]})
    return found


def repositories(step: Step) -> Iterator[str]:
    """The models and adapters that a step names."""
    for spec in step.models:
        yield from (str(spec.model), *spec.options.get("adapters", ()))


def run(plan: SweepPlan, name: str, tmp_path: Path, models: str = "") -> Any:
    """A step as the recipe has it, but for `SMALLER`; of all its models, or of those whose name has
    a part."""
    step = next(step for step in plan.steps if step.name == name)
    step = replace(step, models=tuple(spec for spec in step.models if models in spec.label))
    smaller = SMALLER.get("vision" if step.kind == "probe" else name, {})
    if step.study == "factorial":
        smaller = {**smaller, "data_dir": str(write_tasks(tmp_path / "tasks", pairs=60, texts=60))}
    where = "options" if step.kind == "study" else "settings"
    return replace(step, **{where: {**getattr(step, where), **smaller}}).run(tmp_path / name, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", STEPS)
def test_every_step_is_complete_and_says_what_it_read(
    plan: SweepPlan, hub: Hub, tmp_path: Path, name: str
) -> None:
    pytest.importorskip("nlpaug")
    step = next(step for step in plan.steps if step.name == name)
    found = run(plan, name, tmp_path)
    manifest = found.manifest
    assert manifest["status"] == "complete"
    assert not manifest.get("failed")
    assert step.is_complete(tmp_path / name)
    read = (
        manifest["conventions"]["models"]
        if step.kind == "study"
        else {step.model: manifest["model"]}
    )
    branches = step.options["steps"] if step.study == "checkpoints" else ["main"] * len(step.models)
    assert sorted(read) == sorted(
        branches if step.study == "checkpoints" else [spec.label for spec in step.models]
    )
    for label, model in read.items():
        branch = label if step.study == "checkpoints" else "main"
        assert model["revision"] == hub.models[model["name"]].commit(branch)
        assert model["dtype"] == "bfloat16"
    assert len({model["revision"] for model in read.values()}) >= len(
        set(branches)
    )  # training: a commit per step
    table: pd.DataFrame = found.scores if step.kind == "evaluate" else found.table
    undefined = table.query(UNDEFINED[name]).index if name in UNDEFINED else []
    assert np.isfinite(table.drop(index=undefined)["value"].astype(float)).all()
    blocks = {label: model["n_blocks"] for label, model in read.items()}
    whole = table[table["layer"].notna()]
    layers = (
        whole.groupby("model")["layer"].nunique()
        if "model" in table
        else {step.model: table["layer"].nunique()}
    )
    assert dict(layers) == {label: count + 1 for label, count in blocks.items()}
    if step.study == "compare":
        assert (
            table.query("metric == 'curvature'")["value"].max() > math.pi / 2
        )  # the formula's angle: most turns are obtuse


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.setattr("tests.cli.support.main", main)
    return lambda *words: run_main(monkeypatch, capsys, *words)


def laid_over(cli: Cli, model: str, folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """What `layerscope-paper published` says of a run beside a model, and its cells."""
    told = cli("published", model, "--run", folder, "--json")
    assert told.code == 0, told.err
    found = json.loads(told.out)["runs"][0]
    columns = ["model", "name", "layer", "published", "own", "difference"]
    return found, pd.DataFrame(found["cells"], columns=columns).set_index(
        ["name", "layer"]
    ).sort_index()


@pytest.mark.parametrize("repo", list(DEPTHS))
def test_every_published_metric_stands_beside_its_own(
    plan: SweepPlan, hub: Hub, tmp_path: Path, cli: Cli, repo: str
) -> None:
    pytest.importorskip("nlpaug")
    model, family, blocks = DEPTHS[repo]
    hub.models[repo] = Repository({"main": tiny_files(family, tmp_path / "deep", blocks=blocks)})
    step = next(
        s.name for s in plan.steps if s.name.startswith("published") and s.models[0].model == repo
    )
    own: Profile = run(plan, step, tmp_path)
    found, cells = laid_over(cli, model, tmp_path / step)
    assert found["left_out"] == {}
    assert (
        "12 prompts of wikitext" in found["notes"][0]
    )  # the one setting that is not the published one
    published = metric_values(model, "wikitext")
    published = (
        published[published["metric"].isin(PROFILE_METRICS)]
        .set_index(["metric", "layer"])["value"]
        .sort_index()
    )
    assert len(published) == 6 * (blocks + 1)
    assert cells.index.tolist() == published.index.tolist()
    assert set(cells["model"]) == {model}
    np.testing.assert_allclose(cells["published"], published)
    for theirs, ours in PROFILE_METRICS.items():
        mine = own.curve(ours).sort_values("layer")["value"].to_numpy()
        np.testing.assert_allclose(cells.loc[theirs, "own"], mine)
    np.testing.assert_allclose(cells["difference"], cells["own"] - cells["published"])
    assert (
        cells.loc["curvature", ["published", "own"]].stack().between(0, math.pi / 2).all()
    )  # both of the absolute cosine
    printed = cli("published", model, "--run", tmp_path / step).out
    assert f"curvature beside {model}: {blocks + 1} layers, mean difference" in " ".join(
        printed.split()
    )


def test_another_convention_or_depth_has_no_cells(
    plan: SweepPlan, tmp_path: Path, cli: Cli
) -> None:
    pytest.importorskip("nlpaug")
    run(plan, "architectures", tmp_path)
    signed = next((tmp_path / "architectures" / "parts").glob("google-bert*"))
    found, cells = laid_over(cli, "bert-base", signed)
    assert cells.empty
    assert found["left_out"]["curvature"] == [
        "curvature_absolute is False, the published code has True"
    ]
    assert set(found["left_out"]) == set(PROFILE_METRICS)
    run(plan, "published-google-bert-bert-base-uncased", tmp_path)
    found, cells = laid_over(cli, "bert-base", tmp_path / "published-google-bert-bert-base-uncased")
    assert cells.empty  # 3 blocks beside 12
    assert found["metrics"] == sorted(PROFILE_METRICS)


def test_every_published_score_stands_beside_its_own(
    plan: SweepPlan, hub: Hub, tmp_path: Path, cli: Cli
) -> None:
    pytest.importorskip("nlpaug")
    model, family, blocks = DEPTHS[PYTHIA]
    hub.models[PYTHIA] = Repository({"main": tiny_files(family, tmp_path / "deep", blocks=blocks)})
    run(plan, "scores", tmp_path, PYTHIA)
    folder = next((tmp_path / "scores" / "parts").glob("*-scores"))
    found, cells = laid_over(cli, model, folder)
    assert found["left_out"] == {}
    published = select_scores(model).query("task == 'STS12'").set_index("layer")["score"]
    assert cells.loc["STS12"].index.tolist() == published.index.tolist() == list(range(blocks + 1))
    np.testing.assert_allclose(cells["published"], published)
    np.testing.assert_allclose(
        cells["own"], Evaluation.load(folder).scores.sort_values("layer")["score"]
    )
