"""Figure 14: image models, attention probe and entropies by layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from layerscope.core.charts import Chart, Line
from layerscope.core.statistics import Array
from layerscope_paper.atlas.queries import metric_values, probe_accuracies
from layerscope_paper.atlas.reproduce.base import Item, Row, curve, metric_charts, trend, valley

PROBED = ["aim", "aimv2", "beit", "clip", "dinov2", "mae", "vit"]
BIDIRECTIONAL = ["vit", "clip", "mae", "dinov2", "beit"]
AIM = "aim-huge"  # by its width the 600M model, the one that was probed as aim / large
VIT_L_WIDTH = 1024


def accuracies(model: str) -> Array:
    """Validation accuracy of the attention probe at single layers, label 1 to 24."""
    return probe_accuracies(f"{model}-large")["top1"].to_numpy(float)


def width(model: str) -> float:
    """The width of the states, from how the published normalization divides by its logarithm."""
    raw = metric_values(model, "imagenet", "entropy_prompt")["value"].to_numpy(float)
    per_log = metric_values(model, "imagenet", "entropy_prompt", normalization="logD")[
        "value"
    ].to_numpy(float)
    return float(np.exp(np.median(raw / per_log)))


def rows(convention: str) -> Iterator[Row]:
    """Accuracy peaks, entropies, and the claim that all models share one shape."""
    for model in PROBED:
        values = accuracies(model)
        peak = int(values.argmax()) + 1
        behind = float(values.max() - values[-1])
        if model == "aim":
            note = (
                f"best {values.max():.1f} at label {peak} of 24, last {values[-1]:.1f}; claim: a "
                "peak at inner layers"
            )
            yield Row("aim", "best − last accuracy", behind, peak < 24 and behind > 1, note)
            continue
        falls = int((np.diff(values) <= 0).sum())
        note = (
            f"steps (of 23) that do not rise; claim: strictly increasing; best at label {peak}, "
            f"{behind:.1f} above the last"
        )
        if model != "aimv2":
            note += "; by the code label 24 is block 23: the last block was never probed"
        yield Row(model, "falls in accuracy", float(falls), falls == 0, note)
    at, depth, _ = valley(curve(AIM, "entropy_prompt", "imagenet"))
    beside = (
        "early and shallow beside Pythia-410m's "
        f"({valley(curve('Pythia-410m', 'entropy_prompt'))[1]:.2f}, wikitext)"
    )
    note = f"nats below the lower shoulder, at block {at + 1} of 24: {beside}"
    yield Row("aim", "valley of entropy_prompt", depth, depth > 0.1, note)
    for model in BIDIRECTIONAL:
        values = curve(f"{model}-large", "entropy_dataset", "imagenet")
        if model == "beit":
            at, depth, _ = valley(values)
            note = f"at layer {at}; claim: the exception, with a substantial dip"
            yield Row(model, "valley of entropy_dataset", depth, depth > 0.5, note)
        else:
            slope = trend(values.tolist())
            note = "Spearman with the layer; claim: steadily increasing; judged as at least 0.9"
            yield Row(model, "entropy_dataset: trend", slope, slope >= 0.9, note)
    yield Row(
        "aimv2", "valley of entropy_prompt", None, False, "no metrics of aimv2 were published"
    )
    for model in (AIM, "vit-large"):
        wide = width(model)
        yield Row(
            model,
            "width",
            wide,
            round(wide) == VIT_L_WIDTH,
            "claim: all are 24-layer ViT-L, whose width is 1024",
        )


def charts(convention: str) -> list[Chart]:
    """Accuracy, prompt entropy, dataset entropy."""
    found = {model: accuracies(model) for model in PROBED}
    lines = [
        Line(model, range(1, 25), list(values), note=(int(values.argmax()) + 1, ""))
        for model, values in found.items()
    ]
    # the same names as above, so that a model keeps its color; aimv2 has no metrics
    models = {"aim": AIM, **{m: f"{m}-large" for m in PROBED[2:]}}
    accuracy = Chart("ImageNet-100 accuracy, attention probe (%)", lines, x="label of the probe")
    return [accuracy, *metric_charts(("entropy_prompt", "entropy_dataset"), models, "imagenet")]


ITEM = Item(
    "fig14",
    "Figure 14: image models by pretext task",
    (
        "AIM, the autoregressive one, has an entropy valley and an accuracy peak inside; all "
        "others rise strictly in accuracy."
    ),
    rows,
    charts,
    uses_scores=False,
)
