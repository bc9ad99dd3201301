"""Figures 2 and 10, 4 and 11, 12, 13: metrics on wikitext by architecture, over training, by size
and after fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from layerscope.core.statistics import Array
from layerscope_paper.atlas.overlay import OURS
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
EVERY_METRIC = list(OURS)  # figures 10 and 11
_item = partial(Item, uses_scores=False)


MODELS_2 = ["Pythia-410m", "mamba-370m", "bert-base"]


def _rows_2(convention: str) -> Iterator[Row]:
    """How far each metric moves over the layers, and the entropy's valley and level."""
    for metric in THREE_METRICS:
        moves = {model: spread(curve(model, metric)) for model in MODELS_2}
        bert = moves["bert-base"]
        for model, move in moves.items():
            holds = move > bert
            note = f"claim: moves more than BERT ({bert:.2f})"
            if model == "bert-base":
                holds = move < min(moves["Pythia-410m"], moves["mamba-370m"])
                note = "claim: BERT moves less than both"
            yield Row(
                model,
                f"range of {named(metric)}",
                move,
                holds,
                note + "; highest − lowest before the last layer",
            )
    entropy = {model: curve(model, "entropy_prompt") for model in MODELS_2}
    level = {model: float(values.mean()) for model, values in entropy.items()}
    claims = {
        "Pythia-410m": "a strong dip",
        "mamba-370m": "pronounced changes in the middle (the caption; the text says flatter)",
        "bert-base": "none",
    }
    for model, values in entropy.items():
        _, depth, clear = valley(values)
        none = claims[model] == "none"
        note = f"claim: {claims[model]}; {valley_words(values)}"
        yield Row(model, f"{'no ' * none}valley of entropy_prompt", depth, clear != none, note)
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
    """How far each metric moves in the two models: over the whole depth, and in the middle third,
    which the caption is about."""
    counts = {}
    for where, reach in (
        ("", spread),
        (", middle third", lambda values: float(np.ptp(middle(values)))),
    ):
        holds = 0
        for metric in EVERY_METRIC:
            pythia, mamba = (reach(curve(model, metric)) for model in MODELS_10)
            holds += pythia > mamba
            note = f"Mamba's is {mamba:.3f}; claim: Pythia's is larger"
            yield Row(
                "Pythia-410m", f"range of {named(metric)}{where}", pythia, pythia > mamba, note
            )
        counts[where] = holds
    for where, holds in counts.items():
        note = (
            f"of {len(EVERY_METRIC)} metrics move more in Pythia; claim: all. It depends on the "
            "metric and on where one looks; Figure 2's caption says the opposite of Mamba"
        )
        yield Row(
            "Pythia-410m",
            f"metrics that move more{where}",
            float(holds),
            holds == len(EVERY_METRIC),
            note,
        )


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


def _where(metric: str) -> list[Row]:
    """Whether the middle changes most, and whether the first layers change little after step
    1000."""
    values = np.stack([curve(name, metric) for name in NAMES_4])
    change = np.abs(values[-1] - values[0])
    ratio = float(middle(change).mean() / _elsewhere(change).mean())
    note = "step 1 to the end; claim: the middle changes most"
    first = _row_4(f"{named(metric)}: change, middle / elsewhere", ratio, ratio > 1, note)
    later = np.abs(values[-1] - values[1])
    early = float(later[1:EARLY_4].mean() / middle(later).mean())
    note = (
        "step 1000 to the end, layers 1–4 against the middle third; claim: early layers hardly "
        "change; judged as below 0.25"
    )
    return [
        first,
        _row_4(f"{named(metric)}: late change, early / middle", early, early < 0.25, note),
    ]


def _rows_4(convention: str) -> Iterator[Row]:
    """Where training changes the metrics, and in which direction."""
    for metric in THREE_METRICS:
        yield from _where(metric)
    entropy, bend, lidar = (np.stack([curve(name, m) for name in NAMES_4]) for m in THREE_METRICS)
    falls = trend([float(middle(v).mean()) for v in entropy])
    first, second, last = (float(middle(entropy[i]).mean()) for i in (0, 1, -1))
    levels = f"{first:.2f} at step 1, {second:.2f} at 1000, {last:.2f} at the end; claim: it falls"
    yield _row_4(
        "entropy_prompt: trend in the middle",
        falls,
        falls <= -0.9,
        f"Spearman with the step; {levels}",
    )
    for name, angles in ((named(ABSOLUTE), bend), (SIGNED, np.pi - bend)):
        bends = trend([float(middle(v).mean()) for v in angles])
        levels = (
            f"{middle(angles[0]).mean():.2f} at step 1, {middle(angles[-1]).mean():.2f} at the end"
        )
        note = f"Spearman with the step; {levels}; claim: it becomes smoother (falls)" + _how(name)
        yield _row_4(f"{name}: trend in the middle", bends, bends < 0, note)
    lowest = int(np.argmin(lidar[-1])) / (lidar.shape[1] - 1)
    yield _row_4(
        "lidar: depth of the lowest",
        lowest,
        1 / 3 <= lowest <= 2 / 3,
        "claim: lowest in the middle layers",
    )


def _how(metric: str) -> str:
    return f"; the paper's formula, estimated: {ESTIMATED}" if metric == SIGNED else ""


def _elsewhere(values: Array) -> Array:
    n = len(values) - 1
    return np.concatenate([values[: int(np.ceil(n / 3))], values[int(np.floor(2 * n / 3)) + 1 :]])


def _rows_11(convention: str) -> Iterator[Row]:
    """The same two questions for all six metrics, and for how many of them the answer is yes."""
    rows = [row for metric in EVERY_METRIC for row in _where(metric)]
    yield from rows
    for part, said in (
        ("change, middle / elsewhere", "change most in the middle"),
        ("late change", "settle early at the bottom"),
    ):
        mine = [row for row in rows if part in row.column]
        holds = sum(row.holds for row in mine)
        note = (
            f"of {len(mine)} metrics {said}; claim: training acts mostly on the intermediate "
            "layers; it depends on the metric"
        )
        yield _row_4(f"metrics that {said}", float(holds), holds == len(mine), note)


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
    """Each size's valley, curvature and LiDAR, and their trend with size."""
    found = [valley(curve(model, "entropy_prompt")) for model in MODELS_12]
    dips = [depth for _, depth, _ in found]
    for i, (model, (_, dip, clear)) in enumerate(zip(MODELS_12, found, strict=True)):
        claim = "a valley" if i == 0 else "a valley deeper than the next smaller"
        holds = clear and (i == 0 or dip > dips[i - 1])
        yield Row(
            model,
            "valley of entropy_prompt",
            dip,
            holds,
            f"nats below the lower shoulder; claim: {claim}",
        )
    larger = valley(curve(LARGER_12, "entropy_prompt"))[1]
    note = f"beyond the figure: shallower than 1b's {dips[-1]:.2f}, so the trend does not continue"
    yield Row(LARGER_12, "valley of entropy_prompt", larger, larger > dips[-1], note)
    rises = trend(dips)
    yield Row(
        "14m to 1b",
        "valley: trend with size",
        rises,
        rises >= 0.9,
        "Spearman; claim: larger models dip more",
    )
    for metric, sign, said in (
        (ABSOLUTE, -1, "lower"),
        (SIGNED, -1, "lower"),
        ("lidar", 1, "higher"),
    ):
        means = [float(curve(model, metric).mean()) for model in MODELS_12]
        slope = trend(means)
        shown = ", ".join(f"{size} {mean:.2f}" for size, mean in zip(SIZES_12, means, strict=True))
        note = f"Spearman; claim: {said} in larger models; means over layers: {shown}" + _how(
            metric
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
    """Each fine-tuned model's difference from the base, mean over layers."""
    for model, said in TUNED_13.items():
        for metric, sign, claim in (
            ("lidar", 1, "better invariance: higher LiDAR"),
            ("infonce", -1, "better invariance: lower InfoNCE"),
            ("entropy_prompt", 1 if said == "higher" else -1, f"{said} prompt entropy"),
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
