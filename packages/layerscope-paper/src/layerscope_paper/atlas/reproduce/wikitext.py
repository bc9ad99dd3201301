"""Figures 2 and 10, 4 and 11, 12, 13: metrics on wikitext by architecture, over training, by size
and after fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from layerscope.core.statistics import Array
from layerscope_paper.atlas.overlay import PROFILE_METRICS
from layerscope_paper.atlas.reproduce.base import (
    ABSOLUTE,
    ESTIMATED,
    SIGNED,
    Item,
    Row,
    curve,
    metric_charts,
    middle,
    named,
    spread,
    trend,
    valley,
    valley_words,
)

THREE_METRICS = ["entropy_prompt", "curvature", "lidar"]  # figures 2, 4 and 12
EVERY_METRIC = list(PROFILE_METRICS)  # figures 10 and 11
_item = partial(Item, uses_scores=False)


MODELS_2 = ["Pythia-410m", "mamba-370m", "bert-base"]


def _rows_2(convention: str) -> Iterator[Row]:
    """Yield each metric's range over the layers, and the entropy's valley and level."""
    for metric in THREE_METRICS:
        ranges = {model: spread(curve(model, metric)) for model in MODELS_2}
        bert = ranges["bert-base"]
        for model, value in ranges.items():
            holds = value > bert
            claim = f"claim: moves more than BERT ({bert:.2f})"
            if model == "bert-base":
                holds = value < min(ranges["Pythia-410m"], ranges["mamba-370m"])
                claim = "claim: BERT moves less than both"
            note = f"{claim}; highest − lowest before the last layer"
            yield Row(model, f"range of {named(metric)}", value, holds, note)
    entropy = {model: curve(model, "entropy_prompt") for model in MODELS_2}
    level = {model: float(values.mean()) for model, values in entropy.items()}
    claims = {
        "Pythia-410m": "a strong dip",
        "mamba-370m": "pronounced changes in the middle (the caption; the text says flatter)",
        "bert-base": "none",
    }
    for model, values in entropy.items():
        _, depth, clear = valley(values)
        claims_none = claims[model] == "none"
        name = "no valley of entropy_prompt" if claims_none else "valley of entropy_prompt"
        note = f"claim: {claims[model]}; {valley_words(values)}"
        yield Row(model, name, depth, clear != claims_none, note)
    between = level["Pythia-410m"] < level["mamba-370m"] < level["bert-base"]
    note = (
        f"claim: between Pythia ({level['Pythia-410m']:.2f}) and BERT ({level['bert-base']:.2f}); "
        "it falls at the end"
    )
    yield Row("mamba-370m", "mean of entropy_prompt", level["mamba-370m"], between, note)


FIG2 = _item(
    "fig2",
    "Figure 2: three metrics on wikitext, by architecture",
    (
        "Pythia and Mamba change strongly in the middle, BERT stays stable; Pythia has an entropy "
        "valley, Mamba lies between."
    ),
    _rows_2,
    lambda convention: metric_charts(THREE_METRICS, MODELS_2),
)


MODELS_10 = ["Pythia-410m", "mamba-370m"]


def _rows_10(convention: str) -> Iterator[Row]:
    """Yield each metric's range in the two models: over the whole depth, and in the middle third,
    which the caption is about."""
    counts = {}
    range_by_depth = {
        "": spread,
        ", middle third": lambda values: float(np.ptp(middle(values))),
    }
    for suffix, range_of in range_by_depth.items():
        larger = 0
        for metric in EVERY_METRIC:
            pythia, mamba = (range_of(curve(model, metric)) for model in MODELS_10)
            larger += pythia > mamba
            name = f"range of {named(metric)}{suffix}"
            note = f"Mamba's is {mamba:.3f}; claim: Pythia's is larger"
            yield Row("Pythia-410m", name, pythia, pythia > mamba, note)
        counts[suffix] = larger
    note = (
        f"of {len(EVERY_METRIC)} metrics move more in Pythia; claim: all. It depends on the metric "
        "and on where one looks; Figure 2's caption says the opposite of Mamba"
    )
    for suffix, larger in counts.items():
        name = f"metrics that move more{suffix}"
        yield Row("Pythia-410m", name, float(larger), larger == len(EVERY_METRIC), note)


FIG10 = _item(
    "fig10",
    "Figure 10: every metric on wikitext, Pythia-410M and Mamba-370M",
    "Pythia's intermediate layers change strongly, Mamba's remain more stable.",
    _rows_10,
    lambda convention: metric_charts(EVERY_METRIC, MODELS_10),
)


STEPS_4 = [1, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000]
NAMES_4 = [f"Pythia-410m@step{step}" for step in STEPS_4] + ["Pythia-410m"]
DRAWN_4 = {f"step {step:,}": f"Pythia-410m@step{step}" for step in (1, 1000, 4000, 16000, 64000)}
DRAWN_4["final (143,000)"] = "Pythia-410m"
EARLY_4 = 5  # layers 1 to 4: the first sixth
_row_4 = partial(Row, "Pythia-410m")


def _change_rows(metric: str) -> Iterator[Row]:
    """Yield the change of the middle against that of the other layers, and that of the first layers
    after step 1000."""
    values = np.stack([curve(name, metric) for name in NAMES_4])
    change = np.abs(values[-1] - values[0])
    ratio = float(middle(change).mean() / _elsewhere(change).mean())
    note = "step 1 to the end; claim: the middle changes most"
    yield _row_4(f"{named(metric)}: change, middle / elsewhere", ratio, ratio > 1, note)
    late_change = np.abs(values[-1] - values[1])
    ratio = float(late_change[1:EARLY_4].mean() / middle(late_change).mean())
    note = (
        "step 1000 to the end, layers 1–4 against the middle third; claim: early layers hardly "
        "change; judged as below 0.25"
    )
    yield _row_4(f"{named(metric)}: late change, early / middle", ratio, ratio < 0.25, note)


def _rows_4(convention: str) -> Iterator[Row]:
    """Yield the layers where training changes the metrics, and the direction of the change."""
    for metric in THREE_METRICS:
        yield from _change_rows(metric)
    entropy, curvature, lidar = (
        np.stack([curve(name, metric) for name in NAMES_4]) for metric in THREE_METRICS
    )
    means = [float(middle(values).mean()) for values in entropy]
    slope = trend(means)
    note = (
        f"Spearman with the step; {means[0]:.2f} at step 1, {means[1]:.2f} at 1000, "
        f"{means[-1]:.2f} at the end; claim: it falls"
    )
    yield _row_4("entropy_prompt: trend in the middle", slope, slope <= -0.9, note)
    for name, angles in ((named(ABSOLUTE), curvature), (SIGNED, np.pi - curvature)):
        means = [float(middle(values).mean()) for values in angles]
        slope = trend(means)
        note = (
            f"Spearman with the step; {means[0]:.2f} at step 1, {means[-1]:.2f} at the end; claim: "
            f"it becomes smoother (falls){_estimate_note(name)}"
        )
        yield _row_4(f"{name}: trend in the middle", slope, slope < 0, note)
    lowest = int(np.argmin(lidar[-1])) / (lidar.shape[1] - 1)
    note = "claim: lowest in the middle layers"
    yield _row_4("lidar: depth of the lowest", lowest, 1 / 3 <= lowest <= 2 / 3, note)


def _estimate_note(metric: str) -> str:
    """Return a remark for values that are estimates of the paper's formula."""
    return f"; the paper's formula, estimated: {ESTIMATED}" if metric == SIGNED else ""


def _elsewhere(values: Array) -> Array:
    n = len(values) - 1
    return np.concatenate([values[: int(np.ceil(n / 3))], values[int(np.floor(2 * n / 3)) + 1 :]])


def _rows_11(convention: str) -> Iterator[Row]:
    """Yield both changes for all six metrics, and the number of metrics that agree with the
    paper."""
    rows = [row for metric in EVERY_METRIC for row in _change_rows(metric)]
    yield from rows
    for column, claim in (
        ("change, middle / elsewhere", "change most in the middle"),
        ("late change", "settle early at the bottom"),
    ):
        holds = [row.holds for row in rows if column in row.column]
        note = (
            f"of {len(holds)} metrics {claim}; claim: training acts mostly on the intermediate "
            "layers; it depends on the metric"
        )
        yield _row_4(f"metrics that {claim}", float(sum(holds)), all(holds), note)


FIG4 = _item(
    "fig4",
    "Figure 4: metrics over training, Pythia-410M on wikitext",
    (
        "Middle layers change most: entropy falls, curvature becomes smoother, LiDAR is lowest "
        "there; early layers settle quickly."
    ),
    _rows_4,
    lambda convention: metric_charts(THREE_METRICS, DRAWN_4, ordered=True),
)
FIG11 = _item(
    "fig11",
    "Figure 11: every metric over training, Pythia-410M on wikitext",
    "Training changes the intermediate layers most; early layers settle quickly.",
    _rows_11,
    lambda convention: metric_charts(EVERY_METRIC, DRAWN_4, ordered=True),
)


SIZES_12 = ["14m", "70m", "160m", "410m", "1b"]
MODELS_12 = [f"Pythia-{size}" for size in SIZES_12]
LARGER_12 = "Pythia-6.9b"  # published, of the same generation of code, and not in the figure


def _rows_12(convention: str) -> Iterator[Row]:
    """Yield each size's valley, curvature and LiDAR, and their trend with size."""
    depths: list[float] = []
    for model in MODELS_12:
        _, depth, clear = valley(curve(model, "entropy_prompt"))
        claim = "a valley deeper than the next smaller" if depths else "a valley"
        holds = clear and (not depths or depth > depths[-1])
        note = f"nats below the lower shoulder; claim: {claim}"
        yield Row(model, "valley of entropy_prompt", depth, holds, note)
        depths.append(depth)
    depth = valley(curve(LARGER_12, "entropy_prompt"))[1]
    note = (
        f"beyond the figure: shallower than 1b's {depths[-1]:.2f}, so the trend does not continue"
    )
    yield Row(LARGER_12, "valley of entropy_prompt", depth, depth > depths[-1], note)
    slope = trend(depths)
    note = "Spearman; claim: larger models dip more"
    yield Row("14m to 1b", "valley: trend with size", slope, slope >= 0.9, note)
    for metric, sign in ((ABSOLUTE, -1), (SIGNED, -1), ("lidar", 1)):
        means = [float(curve(model, metric).mean()) for model in MODELS_12]
        slope = trend(means)
        by_size = ", ".join(
            f"{size} {mean:.2f}" for size, mean in zip(SIZES_12, means, strict=True)
        )
        note = (
            f"Spearman; claim: {'higher' if sign > 0 else 'lower'} in larger models; means over "
            f"layers: {by_size}{_estimate_note(metric)}"
        )
        yield Row("14m to 1b", f"{named(metric)}: trend with size", slope, sign * slope > 0, note)


FIG12 = _item(
    "fig12",
    "Figure 12: metrics by size, Pythia on wikitext",
    (
        "Larger models have a deeper entropy valley, lower curvature and higher LiDAR (section "
        "4.2; the caption repeats figure 2's)."
    ),
    _rows_12,
    lambda convention: metric_charts(THREE_METRICS, [*MODELS_12, LARGER_12], ordered=True),
)


BASE_13 = "Llama3-8B"
TUNED_13 = {"LLM2Vec-mntp-unsup-simcse": "higher", "LLM2Vec-mntp-supervised": "lower"}


def _rows_13(convention: str) -> Iterator[Row]:
    """Yield each fine-tuned model's difference from the base, mean over layers."""
    for model, entropy in TUNED_13.items():
        for metric, sign, claim in (
            ("lidar", 1, "better invariance: higher LiDAR"),
            ("infonce", -1, "better invariance: lower InfoNCE"),
            ("entropy_prompt", 1 if entropy == "higher" else -1, f"{entropy} prompt entropy"),
        ):
            # layer 0 is the same embedding table: left out
            difference = (curve(model, metric) - curve(BASE_13, metric))[1:]
            mean = float(difference.mean())
            share = float((sign * difference > 0).mean())
            note = f"claim: {claim} than {BASE_13}; mean over layers, true at {share:.0%} of them"
            yield Row(model, f"{metric} − base", mean, sign * mean > 0, note)


FIG13 = _item(
    "fig13",
    "Figure 13: metrics before and after fine-tuning, Llama3-8B on wikitext",
    (
        "Both fine-tuned models are more invariant to augmentation; prompt entropy is higher in "
        "the unsupervised one, else lower."
    ),
    _rows_13,
    lambda convention: metric_charts(("entropy_prompt", "lidar", "infonce"), [BASE_13, *TUNED_13]),
)

ITEMS = (FIG2, FIG4, FIG10, FIG11, FIG12, FIG13)
