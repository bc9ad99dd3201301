"""Figure 4: metrics over training, Pythia-410M on wikitext."""

from __future__ import annotations

import numpy as np

from layerscope.atlas.reproduce.base import NO_SCORES, Item, Panel, Row, judge
from layerscope.atlas.reproduce.curves import curve, metric_panel, middle, trend
from layerscope.core.statistics import Array

STEPS = [1, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000]
METRICS = ["entropy_prompt", "curvature", "lidar"]
NAMES = [f"Pythia-410m@step{step}" for step in STEPS] + ["Pythia-410m"]
EARLY = 5  # layers 1 to 4: the first sixth


def rows(convention: str) -> list[Row]:
    """Where training changes the metrics, and in which direction."""
    found = []
    for metric in METRICS:
        values = np.stack([curve(name, metric) for name in NAMES])
        change = np.abs(values[-1] - values[0])
        ratio = float(middle(change).mean() / _elsewhere(change).mean())
        found.append(
            _row(
                f"{metric}: change, middle / elsewhere",
                ratio,
                judge(ratio > 1),
                "step 1 to the end; claim: the middle changes most",
            )
        )
        later = np.abs(values[-1] - values[1])
        early = float(later[1:EARLY].mean() / middle(later).mean())
        note = (
            "step 1000 to the end, layers 1–4 against the middle third; claim: early layers hardly change; judged as below 0.25"
        )
        found.append(_row(f"{metric}: late change, early / middle", early, judge(early < 0.25), note))
    entropy, bend, lidar = (np.stack([curve(name, m) for name in NAMES]) for m in METRICS)
    falls = trend([float(middle(v).mean()) for v in entropy])
    first, second, last = (float(middle(entropy[i]).mean()) for i in (0, 1, -1))
    levels = f"{first:.2f} at step 1, {second:.2f} at 1000, {last:.2f} at the end; claim: it falls"
    found.append(_row("entropy_prompt: trend in the middle", falls, judge(falls <= -0.9), f"Spearman with the step; {levels}"))
    bends = trend([float(middle(v).mean()) for v in bend])
    levels = f"{middle(bend[0]).mean():.2f} at step 1, {middle(bend[-1]).mean():.2f} at the end"
    note = f"Spearman with the step; {levels}; claim: it becomes smoother (falls)"
    found.append(_row("curvature: trend in the middle", bends, judge(bends < 0), note))
    lowest = int(np.argmin(lidar[-1])) / (lidar.shape[1] - 1)
    found.append(
        _row("lidar: depth of the lowest", lowest, judge(1 / 3 <= lowest <= 2 / 3), "claim: lowest in the middle layers")
    )
    return found


def _elsewhere(values: Array) -> Array:
    n = len(values) - 1
    return np.concatenate([values[: int(np.ceil(n / 3))], values[int(np.floor(2 * n / 3)) + 1 :]])


def _row(column: str, ours: float, verdict: str, note: str) -> Row:
    return Row("fig4", "Pythia-410m", column, None, ours, None, NO_SCORES, verdict, note)


def panels(convention: str) -> list[Panel]:
    """Three panels, a line per checkpoint."""
    shown = [0, 1, 3, 5, 7, 9]
    labels = [f"step {STEPS[i]:,}" if i < len(STEPS) else "final (143,000)" for i in shown]
    return [metric_panel(metric, [NAMES[i] for i in shown], labels=labels, ordered=True) for metric in METRICS]


ITEM = Item(
    "fig4",
    "Figure 4: metrics over training, Pythia-410M on wikitext",
    "Middle layers change most: entropy falls, curvature becomes smoother, LiDAR is lowest there; early layers settle quickly.",
    rows,
    panels,
    uses_scores=False,
)
