"""How do the layers of other models differ from those of a first one?

Profiles every model on the same texts and takes differences from the first, prompt by prompt, at the same depth: on the straight
line between two layers where the numbers of blocks differ.

Table: `value` rows (each model's profile), `difference` rows (model minus base) and `valley` rows (the deepest dip). Figure: the
curves above, the differences below them, then the curves of the other metrics. Verdict: each model against the base over all
layers, and where; then each one's valley.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.statistics import Interval
from layerscope.metrics import metrics
from layerscope.profiling import Profile
from layerscope.progress import Progress
from layerscope.report.drawing import escape_math
from layerscope.studies.base import Option, Result, Study
from layerscope.studies.shared.curves import SINKS, VALUES, mean_of, mean_table, means_of, whole_layer
from layerscope.studies.shared.figures import (
    Figure,
    draw_panel,
    draw_panels,
    grid,
    head,
    legend_below,
    model_colors,
    same_scale,
    wanted_panels,
)
from layerscope.studies.shared.models import CURVES, Request, canonical, read_specs, token_fingerprint
from layerscope.studies.shared.profiles import Profiles, Valleys, at_depths, by_layer, invariance, profile_rows
from layerscope.studies.shared.words import DIFFERS, THAN, clear_layers, in_short, join_words

# metric, normalization: what has a value per prompt
PAIRED = (("prompt_entropy", "raw"), ("prompt_entropy", "logN"), ("curvature", "raw"))
Key = tuple[str, str, str]  # metric, normalization, sink
_PANELS = [
    ("prompt_entropy", "keep", "Prompt entropy"),
    ("prompt_entropy", "drop", "… without the sink token"),
    ("curvature", "keep", "Curvature"),
]


class Compare(Study):
    """How the layers of other models differ from those of the first."""

    name = "compare"
    title = "Models against a base, layer by layer"
    paper = "Fig. 2, 10, 13"
    models = (2, None)
    options = (Option("metrics", CURVES, "metrics of every layer, as for `layerscope profile --metrics`"),)

    def run(self, request: Request, bar: Progress) -> Result:
        """Profile each model, then take differences from the first over the same prompts."""
        request = canonical(request)
        specs = read_specs(request.models)
        runs, base = Profiles.of(request, specs, bar, "prompt_entropy", "curvature"), specs[0].label
        compared = [differences(runs, base, spec.label, request.seed) for spec in specs[1:]]
        curves = [profile_rows(run, label, kind="value", against=None) for label, run in runs.items()]
        depths = pd.DataFrame([row for valley in runs.valleys for row in valley.rows(kind="valley", against=None)])
        table = pd.concat([*curves, *(each.table() for each in compared), depths], ignore_index=True)
        tokens = [token_fingerprint(request, spec) for spec in specs]
        same = {spec.label: None in (own, tokens[0]) or own == tokens[0] for spec, own in zip(specs, tokens, strict=True)}
        others = [label for label, alike in same.items() if not alike]
        warnings = runs.warnings
        if others:
            warnings.insert(
                0,
                f"{', '.join(others)} cut{'s' * (len(others) == 1)} the texts into other tokens than {base} does: "
                "dividing by the log of the length corrects for the number of tokens, but nothing corrects for the rest.",
            )
        conventions = {
            **runs.conventions,
            "base": base,
            "same_tokens": same,
            "differences": "model minus base, of each prompt, then their mean; layers by depth, on the straight line between two "
            "layers where the numbers of blocks differ",
        }
        views = [line for spec in specs[1:] for line in invariance(runs[base], runs[spec.label], (base, spec.label))]
        return Result(table, [*verdict(compared, runs.valleys, bool(others)), *views], conventions, warnings)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Curves above, differences from the base below; then the curves of metrics that have no value per prompt."""
        values, differences = table[table["kind"] == "value"], table[table["kind"] == "difference"]
        base = manifest["conventions"]["base"]
        colors = model_colors(manifest, values)
        others = [panel for panel in wanted_panels(values) if panel[0] not in {metric for metric, _, _ in _PANELS}]
        rows_below = -(-len(others) // len(_PANELS))
        figure, axes = grid(2 + rows_below, len(_PANELS), 10.8, 5.8 + 2.7 * rows_below, sharex=True)
        draw_panels(axes[2:].ravel(), values, others, "model", colors)
        for above, axis, panel in zip(*axes[:2], _PANELS, strict=True):
            draw_panel(above, values, panel, "model", colors)
            above.set_xlabel("")
            axis.axhline(0, color="#888888", linewidth=0.8)
            draw_panel(axis, differences, (*panel[:2], ""), "model", colors, alpha=0.25)
            axis.set_ylabel(f"difference ({metrics()[panel[0]].info.unit})", fontsize=8)
        for row in axes[:2, :2]:
            same_scale(row)
        axes[1, 0].set_title(escape_math(f"minus {base}, paired over prompts"), fontsize=9, loc="left")
        legend_below(figure, {label + " (base)" * (label == base): color for label, color in colors.items()}, min(4, len(colors)))
        return head(figure, manifest)


@dataclass
class Differences:
    """One model minus the base: (prompts, layers of the base) by metric, normalization and sink."""

    base: str
    other: str
    places: list[dict[str, Any]]  # of the base's layers
    values: dict[Key, np.ndarray]
    seed: int

    def overall(self, key: Key) -> Interval:
        """The mean over layers, of each prompt first."""
        return mean_of(self.values[key].mean(axis=1), self.seed)

    def table(self) -> pd.DataFrame:
        """One row per layer of the base."""
        common = {"kind": "difference", "against": self.base, "model": self.other}
        keys = ("metric", "normalization", "sink")
        settings = [
            ({**common, **place, **dict(zip(keys, key, strict=True))}, values[:, j])
            for key, values in self.values.items()
            for j, place in enumerate(self.places)
        ]
        return mean_table(settings, self.seed, ["kind", "against", *VALUES])


def differences(runs: Profiles, base: str, other: str, seed: int) -> Differences:
    """Other minus base at the base's layers."""
    blocks, have = (int(runs[label].manifest["model"]["n_blocks"]) for label in (base, other))
    places = [whole_layer(layer, blocks) for layer in range(blocks + 1)]
    want = np.array([place["depth"] for place in places])
    values = {}
    for metric, normalization in PAIRED:
        for sink in SINKS:
            one, two = (_values(runs[label], metric, normalization, sink, runs.texts) for label in (base, other))
            values[metric, normalization, sink] = at_depths(two, np.arange(have + 1) / have, want) - one
    return Differences(base, other, places, values, seed)


def _values(run: Profile, metric: str, normalization: str, sink: str, texts: int) -> np.ndarray:
    """(texts, layers); `logN` divides by the log of each prompt's number of tokens, where that is above 0."""
    values = by_layer(run, metric, sink, texts)
    if normalization == "raw":
        return values
    tokens = run.prompts.drop_duplicates("prompt").set_index("prompt")["tokens"].reindex(range(texts)).to_numpy(dtype=float)
    tokens = tokens - (1 if sink == "drop" else 0)
    by = np.where(tokens > 1, np.log(np.where(tokens > 1, tokens, 2.0)), np.nan)
    return values / by[:, None]


def verdict(compared: list[Differences], valleys: list[Valleys], other_tokens: bool) -> list[str]:
    """Each model against the base, then each one's valley."""
    out: list[str] = []
    short: list[str] = []
    for pair in compared:
        if all(not np.nan_to_num(values).any() for values in pair.values.values()):
            out.append(f"{pair.other} gives the very numbers of {pair.base} at every layer and for every prompt.")
            short.append(f"{pair.other} equals {pair.base}")
            continue
        kept, dropped = (pair.overall(("prompt_entropy", "raw", sink)) for sink in SINKS)
        text = f"{pair.other} against {pair.base}: prompt entropy is {DIFFERS[kept.sign]} over all layers, {kept} nats"
        other = "" if kept.sign == dropped.sign else f" ({DIFFERS[dropped.sign]} without the sink token)"
        short.append(f"prompt entropy of {pair.other} is {DIFFERS[kept.sign]}{THAN[kept.sign]} {pair.base}{other}")
        again = "the same" if kept.sign == dropped.sign else DIFFERS[dropped.sign]
        out.append(f"{text}; without the sink token {again}, {dropped}.")
        out.append("  " + _layers(pair, ("prompt_entropy", "raw", "keep")))
        out.append("  Without the sink token: " + _layers(pair, ("prompt_entropy", "raw", "drop")))
        if other_tokens:
            kept, dropped = (pair.overall(("prompt_entropy", "logN", sink)) for sink in SINKS)
            out.append(f"  Divided by the log of the number of tokens: {kept}, without the sink token {dropped}.")
        bend, without = (pair.overall(("curvature", "raw", sink)) for sink in SINKS)
        out.append(f"  Curvature differs by {bend} radians, without the sink token {without}.")
    return [in_short(join_words(short)), *out, *(valley.sentence() for valley in valleys)]


def _layers(pair: Differences, key: Key) -> str:
    each = means_of(pair.values[key].T, pair.seed)
    where, count, most = clear_layers(each, "higher", "lower")
    if not where:
        return "At no layer of the base does the interval leave out zero."
    many = f"of {len(each) - 1} of the base" if count > 1 else "of the base"
    return f"{where.capitalize()} {many}; most at layer {most}, {each[most]}."


STUDY = Compare()
