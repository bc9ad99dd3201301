"""Figures 2, 4, 12 and 13: the published metrics on wikitext, by architecture, over training, by size and after fine-tuning."""

from __future__ import annotations

import numpy as np

from layerscope.atlas.reproduce.base import NO_SCORES, Item, Panel, Row, curve, judge, metric_panel, middle, spread, trend, valley
from layerscope.core.statistics import Array

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
        at, depth = valley(values)
        claim = {"Pythia-410m": depth > 0.5, "mamba-370m": depth < valley(entropy["Pythia-410m"])[1], "bert-base": depth < 0.1}[
            model
        ]
        said = {"Pythia-410m": "a strong dip", "mamba-370m": "a milder one than Pythia's", "bert-base": "none"}[model]
        where = f"deepest at layer {at} of {len(values) - 1}"
        out.append(
            _row_2(
                model, "valley of entropy_prompt", depth, judge(claim), f"claim: {said}; nats below the lower shoulder, {where}"
            )
        )
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


STEPS_4 = [1, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000]
METRICS_4 = ["entropy_prompt", "curvature", "lidar"]
NAMES_4 = [f"Pythia-410m@step{step}" for step in STEPS_4] + ["Pythia-410m"]
EARLY_4 = 5  # layers 1 to 4: the first sixth


def _rows_4(convention: str) -> list[Row]:
    """Where training changes the metrics, and in which direction."""
    out = []
    for metric in METRICS_4:
        values = np.stack([curve(name, metric) for name in NAMES_4])
        change = np.abs(values[-1] - values[0])
        ratio = float(middle(change).mean() / _elsewhere(change).mean())
        out.append(
            _row_4(
                f"{metric}: change, middle / elsewhere",
                ratio,
                judge(ratio > 1),
                "step 1 to the end; claim: the middle changes most",
            )
        )
        later = np.abs(values[-1] - values[1])
        early = float(later[1:EARLY_4].mean() / middle(later).mean())
        note = (
            "step 1000 to the end, layers 1–4 against the middle third; claim: early layers hardly change; judged as below 0.25"
        )
        out.append(_row_4(f"{metric}: late change, early / middle", early, judge(early < 0.25), note))
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


def _row_4(column: str, ours: float, verdict: str, note: str) -> Row:
    return Row("fig4", "Pythia-410m", column, None, ours, None, NO_SCORES, verdict, note)


def _panels_4(convention: str) -> list[Panel]:
    """Three panels, a line per checkpoint."""
    shown = [0, 1, 3, 5, 7, 9]
    labels = [f"step {STEPS_4[i]:,}" if i < len(STEPS_4) else "final (143,000)" for i in shown]
    return [metric_panel(metric, [NAMES_4[i] for i in shown], labels=labels, ordered=True) for metric in METRICS_4]


FIG4 = Item(
    "fig4",
    "Figure 4: metrics over training, Pythia-410M on wikitext",
    "Middle layers change most: entropy falls, curvature becomes smoother, LiDAR is lowest there; early layers settle quickly.",
    _rows_4,
    _panels_4,
    uses_scores=False,
)


SIZES_12 = ["14m", "70m", "160m", "410m", "1b"]
LARGER_12 = "6.9b"  # published, of the same generation of code, and not in the figure
MODELS_12 = [f"Pythia-{size}" for size in SIZES_12]


def _rows_12(convention: str) -> list[Row]:
    """Each size's valley, curvature and LiDAR, and their trend with size."""
    out = []
    dips = [valley(curve(model, "entropy_prompt"))[1] for model in MODELS_12]
    for i, (model, dip) in enumerate(zip(MODELS_12, dips, strict=True)):
        verdict = judge(i == 0 or dip > dips[i - 1])
        out.append(
            _row_12(
                model,
                "valley of entropy_prompt",
                dip,
                verdict,
                "nats below the lower shoulder; claim: deeper than the next smaller",
            )
        )
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

ITEMS = (FIG2, FIG4, FIG12, FIG13)
