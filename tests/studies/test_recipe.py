"""Recipes: reading, the estimate, and running them to the end whatever happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.studies.base import studies
from layerscope.studies.recipes.estimate import Machine, estimate, facts_of
from layerscope.studies.recipes.read import parse_recipe, read_recipe
from layerscope.studies.recipes.run import run_recipe
from layerscope.studies.recipes.terminal import duration
from layerscope.studies.shared.models import read_specs
from tests.studies.figures import no_figure  # noqa: F401 - a fixture
from tests.tiny import build_tiny, tiny_tokenizer


@pytest.fixture
def small(model_folder: Path, texts: list[str], tmp_path: Path) -> dict[str, Any]:
    """Three steps on tiny local models, the second of which cannot work."""
    (tmp_path / "texts.txt").write_text("\n".join(texts[:4]), encoding="utf-8")
    other = tmp_path / "tiny-bert"
    build_tiny("bert").save_pretrained(other)
    tiny_tokenizer(encoder=True).save_pretrained(other)
    return {
        "name": "small",
        "about": "tiny models",
        "defaults": {"data": str(tmp_path / "texts.txt"), "max_length": 64},
        "steps": [
            {"study": "extreme", "models": [str(model_folder)], "options": {"levels": [0, 1], "conditions": "repetition"}},
            {"name": "gone", "study": "compare", "models": [str(model_folder), str(tmp_path / "nowhere")]},
            {"name": "both", "study": "compare", "models": [str(model_folder), str(other)], "limit": 3},
        ],
    }


@pytest.mark.usefixtures("no_figure")
def test_a_failing_step_does_not_stop_the_rest(small: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(small), encoding="utf-8")
    recipe = read_recipe(file)
    told: list[str] = []
    outcomes = run_recipe(recipe, tmp_path / "out", progress=False, tell=lambda outcome: told.append(outcome.status))
    assert [o.status for o in outcomes] == told == ["complete", "failed", "complete"]
    assert "no such file or folder" in str(outcomes[1].error)
    held = json.loads((tmp_path / "out" / "recipe.json").read_text())
    assert [step["step"] for step in held["steps"]] == ["extreme", "gone", "both"]
    assert held["steps"][0]["verdict"] == outcomes[0].verdict
    manifest = json.loads((tmp_path / "out" / "both" / "manifest.json").read_text())
    assert (manifest["texts"], manifest["conventions"]["max_length"]) == (3, 64)
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("*/manifest.json")}
    again = run_recipe(recipe, tmp_path / "out", progress=False, only=["extreme", "both"])
    assert [o.verdict for o in again] == [outcomes[0].verdict, outcomes[2].verdict]
    assert all(p.stat().st_mtime_ns == stamp for p, stamp in stamps.items() if p.parent.name != "gone")
    with pytest.raises(UnknownNameError, match=r"step of the recipe small 'bot'. Did you mean 'both'"):
        run_recipe(recipe, tmp_path / "out", only=["bot"])


def test_the_estimate_is_arithmetic(small: dict[str, Any], model_folder: Path) -> None:
    small["models"] = {"org/a": {"parameters": 1_000_000, "blocks": 4, "width": 64}}
    small["steps"] = [
        {"name": "one", "study": "compare", "models": ["org/a", "org/a?dtype=bfloat16", "org/unknown"], "limit": 100},
        {"name": "two", "study": "checkpoints", "models": ["org/a"], "options": {"steps": ["step1", "step2"]}, "limit": 100},
    ]
    machine = Machine("cpu", {"float32": 1e9, "bfloat16": 2e9}, {64: 1e-3})
    one, two = estimate(parse_recipe(small, "small"), machine)
    work = 100 * 64 * (2 * 1_000_000 + 4 * 4 * 64 * 64)
    eigen = 2 * 100 * 5 * 1e-3
    assert one.unknown == ["org/unknown"]
    assert one.seconds == pytest.approx(work / 0.5e9 + work / 1e9 + 2 * (eigen + 15) + 2e6 / 50e6)
    assert one.download == 2_000_000  # the same files twice
    assert two.seconds == pytest.approx(2 * work / 0.5e9 + 2 * (eigen + 15) + 4e6 / 50e6)
    assert two.download == 4_000_000  # revisions are files of their own
    assert one.memory > 4_000_000
    facts = facts_of(read_specs([str(model_folder)])[0], {})
    module = build_tiny("llama")
    assert facts is not None
    assert (facts["blocks"], facts["width"]) == (3, 32)
    assert facts["parameters"] == pytest.approx(sum(p.numel() for p in module.parameters()), rel=0.1)
    assert facts_of(read_specs(["smollm2-135m"])[0], {}) == {"parameters": 134_515_008, "blocks": 30, "width": 576}


def test_the_papers_recipe_is_whole_and_can_be_estimated_offline() -> None:
    recipe = read_recipe("paper")
    assert {step.study for step in recipe.steps} >= {"extreme", "sublayers", "checkpoints", "scale", "compare"}
    machine = Machine("cuda", {"bfloat16": 4e14, "float32": 5e13}, {256: 1e-5, 512: 6e-5, 1024: 4e-4})
    costs = estimate(recipe, machine)
    assert not [name for cost in costs for name in cost.unknown]
    by_name = {cost.step: cost for cost in costs}
    assert by_name["llm2vec"].memory > 2 * 8_030_261_248
    assert by_name["training"].download == 10 * 2 * 405_334_016
    assert 600 < sum(cost.seconds for cost in costs) < 86400
    names = {step.study for step in recipe.steps}
    assert names == set(studies()), "a study that the recipe leaves out"


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"steps": []}, "has a list of `steps`"),
        ({"stages": []}, "unknown key 'stages'. Did you mean 'steps'"),
        ({"defaults": {"lenght": 3}}, "unknown key 'lenght'"),
        ({"steps": [{"models": []}]}, "names no `study`"),
        ({"steps": [{"study": "extreme", "models": []}]}, "takes 1 model"),
        ({"steps": [{"study": "extreme", "models": ["a"], "options": {"level": 1}}]}, "Did you mean 'levels'"),
        ({"steps": [{"study": "extreme", "models": ["a"]}] * 2}, "'extreme' is taken"),
        ({"models": {"a": {"layers": 3}}}, "unknown key 'layers'"),
    ],
)
def test_mistakes_are_found_before_anything_runs(change: dict[str, Any], phrase: str) -> None:
    good = {"steps": [{"study": "extreme", "models": ["a"]}]}
    with pytest.raises(LayerscopeError, match=phrase):
        parse_recipe({**good, **change}, "r.yaml")


def test_files_that_are_not_there_or_not_yaml(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown recipe 'papr'. Did you mean 'paper'"):
        read_recipe("papr")
    with pytest.raises(LayerscopeError, match="there is no file"):
        read_recipe("papr.yaml")
    (tmp_path / "x.yaml").write_text("a: [")
    with pytest.raises(LayerscopeError, match="not readable YAML"):
        read_recipe(tmp_path / "x.yaml")


@pytest.mark.parametrize(("seconds", "shown"), [(7, "7 s"), (90, "1.5 min"), (3600, "1.0 h"), (200_000, "2.3 days")])
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
