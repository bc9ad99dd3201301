"""Image models in the atlas: probes by the layer that was read, and a run of one's own beside the
published metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_images import pictures, tiny_image_model

from layerscope.errors import LayerscopeError
from layerscope.profiling import profile
from layerscope_paper.atlas import probe_accuracies
from layerscope_paper.atlas.overlay import load_overlay
from layerscope_paper.atlas.reproduce.fig14 import accuracies
from layerscope_paper.atlas.summary import charts, show
from layerscope_paper.presets import PRESETS

METRICS = ["prompt_entropy", "dataset_entropy", "infonce"]


@pytest.mark.parametrize(
    ("model", "first", "last"), [("vit", 0, 23), ("mae", 0, 23), ("aim", 1, 24), ("aimv2", 1, 24)]
)
def test_probes_by_the_layer_that_was_read(model: str, first: int, last: int) -> None:
    """Label j of the paper is layer j − 1, but for the two AIMs."""
    found = probe_accuracies(f"{model}-large")
    assert (found["layer"].min(), found["layer"].max()) == (first, last)
    assert found["label"].tolist() == list(range(1, 25))
    assert found["top1"].tolist() == accuracies(model).tolist()
    assert (found["top5"] >= found["top1"]).all()
    assert found["depth"].tolist() == pytest.approx([k / 24 for k in found["layer"]])


def test_only_models_that_were_probed() -> None:
    with pytest.raises(LayerscopeError, match="no attention probe of Pythia-410m"):
        probe_accuracies("Pythia-410m")


def test_shown_beside_the_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    from layerscope_paper.terminal import print_model

    found = show("clip-large")
    assert found["probe"]["last"]["layer"] == 23
    assert found["metrics"]["dataset"] == "imagenet"
    print_model(found)
    assert "attention probe, ImageNet-100" in capsys.readouterr().out
    assert "probe" not in show("Pythia-410m")
    assert any("attention probe" in chart.title for chart in charts(["clip-large", "mae-large"]))


def test_a_run_as_the_published_ones_were_made_shares_their_axes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    profile(
        tiny_image_model("vit"),
        pictures(6),
        out=folder,
        **{**PRESETS["released"], "augmenter": None, "views": 2},
        tokens="all",
        metrics=METRICS,
    )
    overlay = load_overlay(folder)
    assert set(overlay.metrics["metric"]) == {"entropy_prompt", "entropy_dataset"}
    assert "SimCLR" in overlay.differs["infonce"][0]
    assert "images of pictures" in overlay.notes[0]
    assert "wikitext" not in overlay.notes[0]
    drawn = charts(["vit-large"], overlays=[overlay])
    assert {line.name for chart in drawn for line in chart.lines} >= {"vit-large", "your run: vit"}


def test_differing_settings_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    profile(tiny_image_model("vit"), pictures(6), out=folder, metrics=METRICS[:2])
    overlay = load_overlay(folder)
    assert overlay.is_empty
    assert (
        "final_norm is applied, the published metrics are hf" in overlay.differs["entropy_prompt"]
    )
    assert any(
        "class and register tokens are left out" in reason
        for reason in overlay.differs["entropy_prompt"]
    )
