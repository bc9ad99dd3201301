"""Figure 2: prompt entropy, curvature and LiDAR on wikitext for three architectures."""

from __future__ import annotations

from layerscope.atlas.reproduce.base import NO_SCORES, Item, Panel, Row, judge
from layerscope.atlas.reproduce.curves import curve, metric_panel, spread, valley

MODELS = ["Pythia-410m", "mamba-370m", "bert-base"]
METRICS = ["entropy_prompt", "curvature", "lidar"]


def rows(convention: str) -> list[Row]:
    """How far each metric moves over the layers, and the entropy's valley and level."""
    found = []
    for metric in METRICS:
        moves = {model: spread(curve(model, metric)) for model in MODELS}
        for model, move in moves.items():
            if model == "bert-base":
                verdict = judge(move < min(moves["Pythia-410m"], moves["mamba-370m"]))
                note = "claim: BERT moves less than both"
            else:
                verdict = judge(move > moves["bert-base"])
                note = f"claim: moves more than BERT ({moves['bert-base']:.2f})"
            found.append(_row(model, f"range of {metric}", move, verdict, note + "; highest − lowest before the last layer"))
    entropy = {model: curve(model, "entropy_prompt") for model in MODELS}
    level = {model: float(values.mean()) for model, values in entropy.items()}
    for model, values in entropy.items():
        at, depth = valley(values)
        claim = {"Pythia-410m": depth > 0.5, "mamba-370m": depth < valley(entropy["Pythia-410m"])[1], "bert-base": depth < 0.1}[
            model
        ]
        said = {"Pythia-410m": "a strong dip", "mamba-370m": "a milder one than Pythia's", "bert-base": "none"}[model]
        where = f"deepest at layer {at} of {len(values) - 1}"
        found.append(
            _row(model, "valley of entropy_prompt", depth, judge(claim), f"claim: {said}; nats below the lower shoulder, {where}")
        )
    between = level["Pythia-410m"] < level["mamba-370m"] < level["bert-base"]
    note = f"claim: between Pythia ({level['Pythia-410m']:.2f}) and BERT ({level['bert-base']:.2f}); it falls at the end"
    found.append(_row("mamba-370m", "mean of entropy_prompt", level["mamba-370m"], judge(between), note))
    return found


def _row(model: str, column: str, ours: float, verdict: str, note: str) -> Row:
    return Row("fig2", model, column, None, ours, None, NO_SCORES, verdict, note)


def panels(convention: str) -> list[Panel]:
    """Three panels."""
    return [metric_panel(metric, MODELS) for metric in METRICS]


ITEM = Item(
    "fig2",
    "Figure 2: three metrics on wikitext, by architecture",
    "Pythia and Mamba change strongly in the middle, BERT stays stable; Pythia has an entropy valley, Mamba lies between.",
    rows,
    panels,
    uses_scores=False,
)
