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
    """Return the validation accuracy of the attention probe at single layers, label 1 to 24."""
    return probe_accuracies(f"{model}-large")["top1"].to_numpy(float)


def width(model: str) -> float:
    """Return the width of the states, by whose logarithm the published normalization divides."""
    raw, divided = (
        metric_values(model, "imagenet", "entropy_prompt", normalization)["value"].to_numpy(float)
        for normalization in ("raw", "logD")
    )
    return float(np.exp(np.median(raw / divided)))


def rows(convention: str) -> Iterator[Row]:
    """Yield accuracy peaks, entropies, and the claim that all models share one shape."""
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
        value = width(model)
        note = "claim: all are 24-layer ViT-L, whose width is 1024"
        yield Row(model, "width", value, round(value) == VIT_L_WIDTH, note)


def charts(convention: str) -> list[Chart]:
    """Return charts of accuracy, prompt entropy and dataset entropy."""
    lines = []
    for model in PROBED:
        values = accuracies(model)
        best = int(values.argmax()) + 1
        lines.append(Line(model, range(1, 25), list(values), note=(best, "")))
    # the same names as above, so that a model keeps its color; aimv2 has no metrics
    models = {"aim": AIM, **{m: f"{m}-large" for m in PROBED[2:]}}
    accuracy = Chart("ImageNet-100 accuracy, attention probe (%)", lines, x="label of the probe")
    return [accuracy, *metric_charts(("entropy_prompt", "entropy_dataset"), models, "imagenet")]


FIG14 = Item(
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

ITEMS = (FIG14,)
