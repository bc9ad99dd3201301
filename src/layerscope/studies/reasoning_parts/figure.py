"""The figure of entropy along the sequence."""

from __future__ import annotations

from typing import Any

import pandas as pd

from layerscope.studies.reasoning_parts.tables import group_names, layer_groups
from layerscope.studies.shared.drawing import band, model_colours, new_figure, quiet, subtitle, tame


def draw(table: pd.DataFrame, manifest: dict[str, Any]) -> Any:
    """A column per group of layers; a colour per model; dotted where the sink token is dropped."""
    count = manifest["options"]["groups"]
    labels = list(dict.fromkeys(table["model"]))
    colours = model_colours(manifest, labels)
    figure = new_figure(3.4 * count + 0.4, 3.6)
    axes = figure.subplots(1, count, squeeze=False, sharey=True)[0]
    table = table.assign(group=layer_groups(table["depth"].to_numpy(), count))
    looks: dict[str, dict[str, Any]] = {"keep": {}, "drop": {"linestyle": (0, (1, 1.5)), "linewidth": 1.2, "alpha": 0.0}}
    for g, (axis, name) in enumerate(zip(axes, group_names(count), strict=True)):
        for label in labels:
            for sink, look in looks.items():
                rows = table[(table["group"] == g) & (table["model"] == label) & (table["sink"] == sink)]
                # bands of single layers, averaged: layers of one prompt move together, so nothing is gained by averaging them
                curve = rows.groupby("position", as_index=False)[["value", "ci_low", "ci_high"]].mean()
                line = {k: v for k, v in look.items() if k != "alpha"}
                band(axis, curve, colours[label], x="position", alpha=look.get("alpha", 0.16), **line)
        axis.set_title(name.removeprefix("the "), fontsize=9, loc="left")
        axis.set_xlabel("tokens read", fontsize=8)
        quiet(axis)
    axes[0].set_ylabel("prompt entropy of the prefix (nats)", fontsize=8)
    _legend(axes[-1], colours)
    figure.suptitle(tame(subtitle(manifest)), fontsize=8)
    return figure


def _legend(axis: Any, colours: dict[str, str]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, label=tame(label)) for label, colour in colours.items()]
    handles.append(Line2D([], [], color="grey", linestyle=(0, (1, 1.5)), label="sink token dropped"))
    axis.legend(handles=handles, fontsize=7, frameon=False, loc="lower right")
