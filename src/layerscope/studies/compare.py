"""How do the layers of other models differ from those of a first one?

Profiles every model on the same texts and takes differences from the first, prompt by prompt, at the same depth: on the straight
line between two layers where the numbers of blocks differ.

Table: `value` rows (each model's profile), `difference` rows (model minus base) and `valley` rows (the deepest dip). Figure: the
curves above, the differences below them, then the curves of the other metrics. Verdict: each model against the base over all
layers, and where; then each one's valley.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from layerscope.core.statistics import Interval
from layerscope.metrics import metrics
from layerscope.profiling import Profile
from layerscope.progress import Progress
from layerscope.studies.base import Option, Result, Study
from layerscope.studies.shared.curves import (
    VALLEY,
    VALUES,
    Valleys,
    at_depths,
    band,
    by_layer,
    draw_panel,
    escape_math,
    in_short,
    invariance,
    layers,
    lists,
    mean_of,
    model_colors,
    new_figure,
    profile_rows,
    quiet,
    subtitle,
    wanted_panels,
)
from layerscope.studies.shared.models import CURVES, Request, canonical, profile_of, read_specs, token_fingerprint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# metric, normalization: what has a value per prompt
PAIRED = (("prompt_entropy", "raw"), ("prompt_entropy", "logN"), ("curvature", "raw"))
Key = tuple[str, str, str]  # metric, normalization, sink
_PANELS = [
    ("prompt_entropy", "keep", "Prompt entropy"),
    ("prompt_entropy", "drop", "… without the sink token"),
    ("curvature", "keep", "Curvature"),
]
_DOES = {1: "higher", -1: "lower", 0: "not clearly different"}
_THAN = {1: " than that of", -1: " than that of", 0: " from that of"}


class Compare(Study):
    """How the layers of other models differ from those of the first."""

    name: ClassVar[str] = "compare"
    title: ClassVar[str] = "Models against a base, layer by layer"
    paper: ClassVar[str] = "Fig. 2, 10, 13"
    models: ClassVar[tuple[int, int | None]] = (2, None)
    texts: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (
        Option("metrics", CURVES, "metrics of every layer, as for `layerscope profile --metrics`"),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Profile each model, then take differences from the first over the same prompts."""
        request = canonical(request)
        needed = ["prompt_entropy", "curvature"]
        measured = [*needed, *(m for m in request.options["metrics"] if m not in needed)]
        specs = read_specs(request.models)
        runs = [(spec.label, profile_of(request, spec, measured, bar)) for spec in specs]
        texts = len(request.texts or ())
        valleys = [Valleys.of(run, label, request.seed, texts) for label, run in runs]
        compared = [differences(runs[0], other, texts, request.seed) for other in runs[1:]]
        curves = [profile_rows(run, label, kind="value", against=None) for label, run in runs]
        depths = pd.DataFrame([row for v in valleys for row in v.rows(kind="valley", against=None)])
        table = pd.concat([*curves, *(each.table() for each in compared), depths], ignore_index=True)
        tokens = [token_fingerprint(request, spec) for spec in specs]
        others = [spec.label for spec, own in zip(specs, tokens, strict=True) if _differ(own, tokens[0])]
        warnings = [f"{label}: {line}" for label, run in runs for line in run.manifest["warnings"]]
        if others:
            warnings.insert(
                0,
                f"{', '.join(others)} cut{'s' * (len(others) == 1)} the texts into other tokens than {specs[0].label} does: "
                "dividing by the log of the length corrects for the number of tokens, but nothing corrects for the rest.",
            )
        conventions = {
            "models": {label: run.manifest["model"] for label, run in runs},
            "metrics": runs[0][1].manifest["conventions"]["metrics"],
            "base": specs[0].label,
            "same_tokens": {spec.label: not _differ(own, tokens[0]) for spec, own in zip(specs, tokens, strict=True)},
            "differences": "model minus base, of each prompt, then their mean; layers by depth, on the straight line between two "
            "layers where the numbers of blocks differ",
            "valley": VALLEY,
        }
        views = [line for label, run in runs[1:] for line in invariance(runs[0][1], run, (runs[0][0], label))]
        return Result(table, [*verdict(compared, valleys, bool(others)), *views], conventions, warnings)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Curves above, differences from the base below; then the curves of metrics that have no value per prompt."""
        from matplotlib.lines import Line2D

        values, differences = table[table["kind"] == "value"], table[table["kind"] == "difference"]
        labels = list(dict.fromkeys(values["model"]))
        base = manifest["conventions"]["base"]
        colors = model_colors(manifest, labels)
        others = [panel for panel in wanted_panels(values) if panel[0] not in {metric for metric, _, _ in _PANELS}]
        rows_below = -(-len(others) // len(_PANELS))
        figure = new_figure(10.8, 5.8 + 2.7 * rows_below)
        axes = figure.subplots(2 + rows_below, len(_PANELS), sharex=True)
        below = axes[2:].ravel()
        for axis, panel in zip(below, others, strict=False):
            draw_panel(axis, values, panel, "model", colors)
        for axis in below[len(others) :]:
            axis.set_visible(False)
        for j, panel in enumerate(_PANELS):
            metric, sink, _ = panel
            draw_panel(axes[0, j], values, panel, "model", colors)
            axes[0, j].set_xlabel("")
            axis = axes[1, j]
            axis.axhline(0, color="#888888", linewidth=0.8)
            for label in labels:
                rows = differences[(differences["model"] == label) & (differences["metric"] == metric)]
                rows = rows[(rows["sink"] == sink) & (rows["normalization"] == "raw")].dropna(subset=["value"])
                if len(rows):
                    band(axis, rows, colors[label], alpha=0.25)
            quiet(axis, "", "depth", f"difference ({metrics()[metric].info.unit})")
        for row in axes[:2, :2]:  # with and without the sink on one scale: that is what they are compared on
            low, high = min(a.get_ylim()[0] for a in row), max(a.get_ylim()[1] for a in row)
            for axis in row:
                axis.set_ylim(low, high)
        axes[1, 0].set_title(escape_math(f"minus {base}, paired over prompts"), fontsize=9, loc="left")
        handles = [
            Line2D([], [], color=colors[label], label=escape_math(label + (" (base)" if label == base else "")))
            for label in labels
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False, fontsize=8)
        figure.suptitle(subtitle(manifest), fontsize=9)
        return figure


def _differ(one: str | None, other: str | None) -> bool:
    """Whether two fingerprints of tokens are known and differ."""
    return one is not None and other is not None and one != other


@dataclass
class Differences:
    """One model minus the base: (prompts, layers of the base) by metric, normalization and sink."""

    base: str
    other: str
    layers: list[int]
    sites: list[str]
    depths: np.ndarray
    values: dict[Key, np.ndarray]
    seed: int

    def at(self, key: Key, layer: int) -> Interval:
        """The mean difference at a layer of the base."""
        return mean_of(self.values[key][:, layer], self.seed)

    def overall(self, key: Key) -> Interval:
        """The mean over layers, of each prompt first."""
        return mean_of(self.values[key].mean(axis=1), self.seed)

    def table(self) -> pd.DataFrame:
        """One row per layer of the base."""
        rows = []
        for key in self.values:
            for j, layer in enumerate(self.layers):
                mean = self.at(key, j)
                place = [self.other, self.sites[j], layer, float(self.depths[j]), *key]
                rows.append(["difference", self.base, *place, mean.value, mean.low, mean.high, mean.n])
        return pd.DataFrame(rows, columns=["kind", "against", *VALUES])


def differences(base: tuple[str, Profile], other: tuple[str, Profile], texts: int, seed: int) -> Differences:
    """Other minus base at the base's layers."""
    first, second = base[1], other[1]
    place = first.prompts.drop_duplicates("site")
    have = np.arange(int(second.manifest["model"]["n_blocks"]) + 1) / int(second.manifest["model"]["n_blocks"])
    want = place["layer"].to_numpy() / int(first.manifest["model"]["n_blocks"])
    values = {}
    for metric, normalization in PAIRED:
        for sink in ("keep", "drop"):
            one, two = (_values(run, metric, normalization, sink, texts) for run in (first, second))
            values[metric, normalization, sink] = at_depths(two, have, want) - one
    numbers, sites = place["layer"].astype(int).tolist(), place["site"].tolist()
    return Differences(base[0], other[0], numbers, sites, want, values, seed)


def _values(run: Profile, metric: str, normalization: str, sink: str, texts: int) -> np.ndarray:
    """(texts, layers); `logN` divides by the log of each prompt's number of tokens, where that is above 0."""
    values = by_layer(run.prompts, metric, sink, texts).to_numpy()
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
        kept, dropped = (pair.overall(("prompt_entropy", "raw", sink)) for sink in ("keep", "drop"))
        text = f"{pair.other} against {pair.base}: prompt entropy is {_DOES[kept.sign]} over all layers, {kept} nats"
        other = "" if kept.sign == dropped.sign else f" ({_DOES[dropped.sign]} without the sink token)"
        short.append(f"prompt entropy of {pair.other} is {_DOES[kept.sign]}{_THAN[kept.sign]} {pair.base}{other}")
        again = "the same" if kept.sign == dropped.sign else _DOES[dropped.sign]
        out.append(f"{text}; without the sink token {again}, {dropped}.")
        out.append("  " + _layers(pair, ("prompt_entropy", "raw", "keep")))
        out.append("  Without the sink token: " + _layers(pair, ("prompt_entropy", "raw", "drop")))
        if other_tokens:
            kept, dropped = (pair.overall(("prompt_entropy", "logN", sink)) for sink in ("keep", "drop"))
            out.append(f"  Divided by the log of the number of tokens: {kept}, without the sink token {dropped}.")
        bend, without = (pair.overall(("curvature", "raw", sink)) for sink in ("keep", "drop"))
        out.append(f"  Curvature differs by {bend} radians, without the sink token {without}.")
    return [in_short(lists(short)), *out, *(valley.sentence() for valley in valleys)]


def _layers(pair: Differences, key: Key) -> str:
    each = [pair.at(key, j) for j in range(len(pair.layers))]
    up = [pair.layers[j] for j, mean in enumerate(each) if mean.sign > 0]
    down = [pair.layers[j] for j, mean in enumerate(each) if mean.sign < 0]
    if not up and not down:
        return "At no layer of the base does the interval leave out zero."
    most = int(np.nanargmax([abs(mean.value) for mean in each]))
    where = [f"higher at {layers(up)}"] * bool(up) + [f"lower at {layers(down)}"] * bool(down)
    many = f"of {pair.layers[-1]} of the base" if len(up) + len(down) > 1 else "of the base"
    return f"{' and '.join(where).capitalize()} {many}; most at layer {pair.layers[most]}, {each[most]}."


STUDY = Compare()
