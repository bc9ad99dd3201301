"""Figure 13: what fine-tuning changes, Llama3-8B and its LLM2Vec versions on wikitext."""

from __future__ import annotations

from layerscope.atlas.reproduce.base import NO_SCORES, Item, Panel, Row, judge
from layerscope.atlas.reproduce.curves import curve, metric_panel

BASE = "Llama3-8B"
TUNED = {"LLM2Vec-mntp-unsup-simcse": "higher", "LLM2Vec-mntp-supervised": "lower"}


def rows(convention: str) -> list[Row]:
    """Each fine-tuned model's difference from the base, mean over layers."""
    found = []
    for model, said in TUNED.items():
        for metric, sign, claim in (
            ("lidar", 1, "better invariance: higher LiDAR"),
            ("infonce", -1, "better invariance: lower InfoNCE"),
            ("entropy_prompt", 1 if said == "higher" else -1, f"{said} prompt entropy"),
        ):
            # layer 0 is the same embedding table: left out
            difference = (curve(model, metric) - curve(BASE, metric))[1:]
            mean, share = float(difference.mean()), float((sign * difference > 0).mean())
            note = f"claim: {claim} than {BASE}; mean over layers, true at {share:.0%} of them"
            found.append(Row("fig13", model, f"{metric} − base", None, mean, None, NO_SCORES, judge(sign * mean > 0), note))
    return found


def panels(convention: str) -> list[Panel]:
    """Three panels."""
    return [metric_panel(metric, [BASE, *TUNED]) for metric in ("entropy_prompt", "lidar", "infonce")]


ITEM = Item(
    "fig13",
    "Figure 13: metrics before and after fine-tuning, Llama3-8B on wikitext",
    "Both fine-tuned models are more invariant to augmentation; prompt entropy is higher in the unsupervised one, else lower.",
    rows,
    panels,
    uses_scores=False,
)
