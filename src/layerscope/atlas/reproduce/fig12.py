"""Figure 12: metrics by model size, Pythia on wikitext."""

from __future__ import annotations

from layerscope.atlas.reproduce.base import NO_SCORES, Item, Panel, Row, judge
from layerscope.atlas.reproduce.curves import curve, metric_panel, trend, valley

SIZES = ["14m", "70m", "160m", "410m", "1b"]
LARGER = "6.9b"  # published, of the same generation of code, and not in the figure
MODELS = [f"Pythia-{size}" for size in SIZES]


def rows(convention: str) -> list[Row]:
    """Each size's valley, curvature and LiDAR, and their trend with size."""
    found = []
    dips = [valley(curve(model, "entropy_prompt"))[1] for model in MODELS]
    for i, (model, dip) in enumerate(zip(MODELS, dips, strict=True)):
        verdict = judge(i == 0 or dip > dips[i - 1])
        found.append(
            _row(
                model,
                "valley of entropy_prompt",
                dip,
                verdict,
                "nats below the lower shoulder; claim: deeper than the next smaller",
            )
        )
    larger = valley(curve(f"Pythia-{LARGER}", "entropy_prompt"))[1]
    note = f"beyond the figure: shallower than 1b's {dips[-1]:.2f}, so the trend does not continue"
    found.append(_row(f"Pythia-{LARGER}", "valley of entropy_prompt", larger, judge(larger > dips[-1]), note))
    rises = trend(dips)
    found.append(
        _row("14m to 1b", "valley: trend with size", rises, judge(rises >= 0.9), "Spearman; claim: larger models dip more")
    )
    for metric, sign, said in (("curvature", -1, "lower"), ("lidar", 1, "higher")):
        means = [float(curve(model, metric).mean()) for model in MODELS]
        slope = trend(means)
        shown = ", ".join(f"{size} {mean:.2f}" for size, mean in zip(SIZES, means, strict=True))
        note = f"Spearman; claim: {said} in larger models; means over layers: {shown}"
        found.append(_row("14m to 1b", f"{metric}: trend with size", slope, judge(sign * slope > 0), note))
    return found


def _row(model: str, column: str, ours: float, verdict: str, note: str) -> Row:
    return Row("fig12", model, column, None, ours, None, NO_SCORES, verdict, note)


def panels(convention: str) -> list[Panel]:
    """Three panels, a line per size."""
    return [
        metric_panel(metric, [*MODELS, f"Pythia-{LARGER}"], ordered=True) for metric in ("entropy_prompt", "curvature", "lidar")
    ]


ITEM = Item(
    "fig12",
    "Figure 12: metrics by size, Pythia on wikitext",
    "Larger models have a deeper entropy valley, lower curvature and higher LiDAR (section 4.2; the caption repeats figure 2's).",
    rows,
    panels,
    uses_scores=False,
)
