"""Figures 2 and 10, 4 and 11, 12, 13: metrics on wikitext by architecture, over training, by size and after fine-tuning."""

from __future__ import annotations

import numpy as np

from layerscope.atlas.reproduce.base import (
    NO_SCORES,
    Item,
    Panel,
    Row,
    curve,
    judge,
    metric_panel,
    middle,
    spread,
    trend,
    valley,
    valley_words,
)
from layerscope.core.statistics import Array

EVERY_METRIC = ["entropy_prompt", "entropy_dataset", "curvature", "infonce", "lidar", "dime"]  # figures 10 and 11 show them all

MODELS_2 = ["Pythia-410m", "mamba-370m", "bert-base"]
METRICS_2 = ["entropy_prompt", "curvature", "lidar"]


def _rows_2(convention: str) -> list[Row]:
    """How far each metric moves over the layers, and the entropy's valley and level."""
    out = []
    for metric in METRICS_2:
        moves = {model: spread(curve(model, metric)) for model in MODELS_2}
        for model, move in moves.items():
            if model == "bert-base":
                verdict = judge(move < min(moves["Pythia-410m"], moves["mamba-370m"]))
                note = "claim: BERT moves less than both"
            else:
                verdict = judge(move > moves["bert-base"])
                note = f"claim: moves more than BERT ({moves['bert-base']:.2f})"
            out.append(_row_2(model, f"range of {metric}", move, verdict, note + "; highest − lowest before the last layer"))
    entropy = {model: curve(model, "entropy_prompt") for model in MODELS_2}
    level = {model: float(values.mean()) for model, values in entropy.items()}
    for model, values in entropy.items():
        _, depth, clear = valley(values)
        if model == "bert-base":
            out.append(
                _row_2(model, "no valley of entropy_prompt", depth, judge(not clear), f"claim: none; {valley_words(values)}")
            )
            continue
        said = (
            "a strong dip" if model == "Pythia-410m" else "pronounced changes in the middle (the caption; the text says flatter)"
        )
        out.append(_row_2(model, "valley of entropy_prompt", depth, judge(clear), f"claim: {said}; {valley_words(values)}"))
    between = level["Pythia-410m"] < level["mamba-370m"] < level["bert-base"]
    note = f"claim: between Pythia ({level['Pythia-410m']:.2f}) and BERT ({level['bert-base']:.2f}); it falls at the end"
    out.append(_row_2("mamba-370m", "mean of entropy_prompt", level["mamba-370m"], judge(between), note))
    return out


def _row_2(model: str, column: str, ours: float, verdict: str, note: str) -> Row:
    return Row("fig2", model, column, None, ours, None, NO_SCORES, verdict, note)


def _panels_2(convention: str) -> list[Panel]:
    """Three panels."""
    return [metric_panel(metric, MODELS_2) for metric in METRICS_2]


FIG2 = Item(
    "fig2",
    "Figure 2: three metrics on wikitext, by architecture",
    "Pythia and Mamba change strongly in the middle, BERT stays stable; Pythia has an entropy valley, Mamba lies between.",
    _rows_2,
    _panels_2,
    uses_scores=False,
)


MODELS_10 = ["Pythia-410m", "mamba-370m"]


def _rows_10(convention: str) -> list[Row]:
    """How far each metric moves in the two models: over the whole depth, and in the middle third, which the caption is about."""
    out = []
    counts = {}
    for where, reach in (("", spread), (", middle third", lambda values: float(np.ptp(middle(values))))):
        holds = 0
        for metric in EVERY_METRIC:
            pythia, mamba = (reach(curve(model, metric)) for model in MODELS_10)
            holds += pythia > mamba
            note = f"Mamba's is {mamba:.3f}; claim: Pythia's is larger"
            out.append(_row_10(f"range of {metric}{where}", pythia, judge(pythia > mamba), note))
        counts[where] = holds
    for where, holds in counts.items():
        note = (
            f"of {len(EVERY_METRIC)} metrics move more in Pythia; claim: all. It depends on the metric and on where one looks; "
            "Figure 2's caption says the opposite of Mamba"
        )
        out.append(_row_10(f"metrics that move more{where}", float(holds), judge(holds == len(EVERY_METRIC)), note))
    return out


def _row_10(column: str, ours: float, verdict: str, note: str) -> Row:
    return Row("fig10", "Pythia-410m", column, None, ours, None, NO_SCORES, verdict, note)


def _panels_10(convention: str) -> list[Panel]:
    """Six panels."""
    return [metric_panel(metric, MODELS_10) for metric in EVERY_METRIC]


FIG10 = Item(
    "fig10",
    "Figure 10: every metric on wikitext, Pythia-410M and Mamba-370M",
    "Pythia's intermediate layers change strongly, Mamba's remain more stable.",
    _rows_10,
    _panels_10,
    uses_scores=False,
)


STEPS_4 = [1, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000]
METRICS_4 = ["entropy_prompt", "curvature", "lidar"]
NAMES_4 = [f"Pythia-410m@step{step}" for step in STEPS_4] + ["Pythia-410m"]
EARLY_4 = 5  # layers 1 to 4: the first sixth


def _where(metric: str, item: str) -> list[Row]:
    """Whether the middle changes most, and whether the first layers change little after step 1000."""
    values = np.stack([curve(name, metric) for name in NAMES_4])
    change = np.abs(values[-1] - values[0])
    ratio = float(middle(change).mean() / _elsewhere(change).mean())
    note = "step 1 to the end; claim: the middle changes most"
    first = _row_4(f"{metric}: change, middle / elsewhere", ratio, judge(ratio > 1), note, item)
    later = np.abs(values[-1] - values[1])
    early = float(later[1:EARLY_4].mean() / middle(later).mean())
    note = "step 1000 to the end, layers 1–4 against the middle third; claim: early layers hardly change; judged as below 0.25"
    return [first, _row_4(f"{metric}: late change, early / middle", early, judge(early < 0.25), note, item)]


def _rows_4(convention: str) -> list[Row]:
    """Where training changes the metrics, and in which direction."""
    out = [row for metric in METRICS_4 for row in _where(metric, "fig4")]
    entropy, bend, lidar = (np.stack([curve(name, m) for name in NAMES_4]) for m in METRICS_4)
    falls = trend([float(middle(v).mean()) for v in entropy])
    first, second, last = (float(middle(entropy[i]).mean()) for i in (0, 1, -1))
    levels = f"{first:.2f} at step 1, {second:.2f} at 1000, {last:.2f} at the end; claim: it falls"
    out.append(_row_4("entropy_prompt: trend in the middle", falls, judge(falls <= -0.9), f"Spearman with the step; {levels}"))
    bends = trend([float(middle(v).mean()) for v in bend])
    levels = f"{middle(bend[0]).mean():.2f} at step 1, {middle(bend[-1]).mean():.2f} at the end"
    note = f"Spearman with the step; {levels}; claim: it becomes smoother (falls)"
    out.append(_row_4("curvature: trend in the middle", bends, judge(bends < 0), note))
    lowest = int(np.argmin(lidar[-1])) / (lidar.shape[1] - 1)
    out.append(
        _row_4("lidar: depth of the lowest", lowest, judge(1 / 3 <= lowest <= 2 / 3), "claim: lowest in the middle layers")
    )
    return out


def _elsewhere(values: Array) -> Array:
    n = len(values) - 1
    return np.concatenate([values[: int(np.ceil(n / 3))], values[int(np.floor(2 * n / 3)) + 1 :]])


def _row_4(column: str, ours: float, verdict: str, note: str, item: str = "fig4") -> Row:
    return Row(item, "Pythia-410m", column, None, ours, None, NO_SCORES, verdict, note)


def _rows_11(convention: str) -> list[Row]:
    """The same two questions for all six metrics, and for how many of them the answer is yes."""
    out = [row for metric in EVERY_METRIC for row in _where(metric, "fig11")]
    for part, said in (
        ("change, middle / elsewhere", "change most in the middle"),
        ("late change", "settle early at the bottom"),
    ):
        mine = [row for row in out if part in row.column]
        holds = sum(row.verdict == judge(True) for row in mine)
        note = f"of {len(mine)} metrics {said}; claim: training acts mostly on the intermediate layers; it depends on the metric"
        out.append(_row_4(f"metrics that {said}", float(holds), judge(holds == len(mine)), note, "fig11"))
    return out


def _panels_4(convention: str) -> list[Panel]:
    """Three panels, a line per checkpoint."""
    return _checkpoint_panels(METRICS_4)


def _panels_11(convention: str) -> list[Panel]:
    """Six panels, a line per checkpoint."""
    return _checkpoint_panels(EVERY_METRIC)


def _checkpoint_panels(metrics: list[str]) -> list[Panel]:
    shown = [0, 1, 3, 5, 7, 9]
    labels = [f"step {STEPS_4[i]:,}" if i < len(STEPS_4) else "final (143,000)" for i in shown]
    return [metric_panel(metric, [NAMES_4[i] for i in shown], labels=labels, ordered=True) for metric in metrics]


FIG4 = Item(
    "fig4",
    "Figure 4: metrics over training, Pythia-410M on wikitext",
    "Middle layers change most: entropy falls, curvature becomes smoother, LiDAR is lowest there; early layers settle quickly.",
    _rows_4,
    _panels_4,
    uses_scores=False,
)


FIG11 = Item(
    "fig11",
    "Figure 11: every metric over training, Pythia-410M on wikitext",
    "Training changes the intermediate layers most; early layers settle quickly.",
    _rows_11,
    _panels_11,
    uses_scores=False,
)


SIZES_12 = ["14m", "70m", "160m", "410m", "1b"]
LARGER_12 = "6.9b"  # published, of the same generation of code, and not in the figure
MODELS_12 = [f"Pythia-{size}" for size in SIZES_12]


def _rows_12(convention: str) -> list[Row]:
    """Each size's valley, curvature and LiDAR, and their trend with size."""
    out = []
    found = [valley(curve(model, "entropy_prompt")) for model in MODELS_12]
    dips = [depth for _, depth, _ in found]
    for i, (model, (_, dip, clear)) in enumerate(zip(MODELS_12, found, strict=True)):
        claim = "a valley" if i == 0 else "a valley deeper than the next smaller"
        verdict = judge(clear and (i == 0 or dip > dips[i - 1]))
        out.append(_row_12(model, "valley of entropy_prompt", dip, verdict, f"nats below the lower shoulder; claim: {claim}"))
    larger = valley(curve(f"Pythia-{LARGER_12}", "entropy_prompt"))[1]
    note = f"beyond the figure: shallower than 1b's {dips[-1]:.2f}, so the trend does not continue"
    out.append(_row_12(f"Pythia-{LARGER_12}", "valley of entropy_prompt", larger, judge(larger > dips[-1]), note))
    rises = trend(dips)
    out.append(
        _row_12("14m to 1b", "valley: trend with size", rises, judge(rises >= 0.9), "Spearman; claim: larger models dip more")
    )
    for metric, sign, said in (("curvature", -1, "lower"), ("lidar", 1, "higher")):
        means = [float(curve(model, metric).mean()) for model in MODELS_12]
        slope = trend(means)
        shown = ", ".join(f"{size} {mean:.2f}" for size, mean in zip(SIZES_12, means, strict=True))
        note = f"Spearman; claim: {said} in larger models; means over layers: {shown}"
        out.append(_row_12("14m to 1b", f"{metric}: trend with size", slope, judge(sign * slope > 0), note))
    return out


def _row_12(model: str, column: str, ours: float, verdict: str, note: str) -> Row:
    return Row("fig12", model, column, None, ours, None, NO_SCORES, verdict, note)


def _panels_12(convention: str) -> list[Panel]:
    """Three panels, a line per size."""
    return [
        metric_panel(metric, [*MODELS_12, f"Pythia-{LARGER_12}"], ordered=True)
        for metric in ("entropy_prompt", "curvature", "lidar")
    ]


FIG12 = Item(
    "fig12",
    "Figure 12: metrics by size, Pythia on wikitext",
    "Larger models have a deeper entropy valley, lower curvature and higher LiDAR (section 4.2; the caption repeats figure 2's).",
    _rows_12,
    _panels_12,
    uses_scores=False,
)


BASE_13 = "Llama3-8B"
TUNED_13 = {"LLM2Vec-mntp-unsup-simcse": "higher", "LLM2Vec-mntp-supervised": "lower"}


def _rows_13(convention: str) -> list[Row]:
    """Each fine-tuned model's difference from the base, mean over layers."""
    out = []
    for model, said in TUNED_13.items():
        for metric, sign, claim in (
            ("lidar", 1, "better invariance: higher LiDAR"),
            ("infonce", -1, "better invariance: lower InfoNCE"),
            ("entropy_prompt", 1 if said == "higher" else -1, f"{said} prompt entropy"),
        ):
            # layer 0 is the same embedding table: left out
            difference = (curve(model, metric) - curve(BASE_13, metric))[1:]
            mean, share = float(difference.mean()), float((sign * difference > 0).mean())
            note = f"claim: {claim} than {BASE_13}; mean over layers, true at {share:.0%} of them"
            out.append(Row("fig13", model, f"{metric} − base", None, mean, None, NO_SCORES, judge(sign * mean > 0), note))
    return out


def _panels_13(convention: str) -> list[Panel]:
    """Three panels."""
    return [metric_panel(metric, [BASE_13, *TUNED_13]) for metric in ("entropy_prompt", "lidar", "infonce")]


FIG13 = Item(
    "fig13",
    "Figure 13: metrics before and after fine-tuning, Llama3-8B on wikitext",
    "Both fine-tuned models are more invariant to augmentation; prompt entropy is higher in the unsupervised one, else lower.",
    _rows_13,
    _panels_13,
    uses_scores=False,
)

ITEMS = (FIG2, FIG4, FIG10, FIG11, FIG12, FIG13)
